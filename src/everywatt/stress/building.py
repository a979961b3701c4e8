"""From a load (what is full) and shapes (how it goes over time) to a program."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from everywatt.core.errors import UsageError
from everywatt.stress.program import RESOURCES, Cpu, Gpu, Program, Step
from everywatt.stress.shapes import Shape

DEFAULT = ""
"""Key of the shape for all resources without one of their own."""


@dataclass(frozen=True, slots=True)
class Load:
    """What 100 % of a shape is, for each resource. What is 0 or empty takes no part.

    cpu_kinds  kinds of work: one after another, or mixed where the CPU's shape is `latin`
    """

    cpu_cores: int = 0
    cpu_kinds: tuple[str, ...] = ("integer",)
    ram_bytes: int = 0
    disk_bytes_per_s: float = 0.0
    network_bytes_per_s: float = 0.0
    gpu_devices: tuple[int, ...] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that take part."""
        amounts = (self.cpu_cores, self.ram_bytes, self.disk_bytes_per_s, self.network_bytes_per_s, self.gpu_devices)
        return tuple(name for name, amount in zip(RESOURCES, amounts, strict=True) if amount)

    def only(self, resource: str) -> Load:
        """This load without all other resources."""
        fields = {
            "cpu": {"cpu_cores": self.cpu_cores, "cpu_kinds": self.cpu_kinds},
            "ram": {"ram_bytes": self.ram_bytes},
            "disk": {"disk_bytes_per_s": self.disk_bytes_per_s},
            "network": {"network_bytes_per_s": self.network_bytes_per_s},
            "gpu": {"gpu_devices": self.gpu_devices},
        }
        return Load(**fields[resource])  # type: ignore[arg-type]


def shaped(
    load: Load,
    shapes: Mapping[str, Shape],
    *,
    time_s: float,
    steps: int | None = None,
    seed: int = 0,
    one_by_one: bool = False,
    name: str = "stress",
) -> Program:
    """The program of a load whose resources follow shapes, for exactly `time_s` seconds.

    shapes      by resource; under "" the one for all that have none of their own (100 % where that is missing too)
    steps       how many, for shapes that leave it open
    one_by_one  each resource alone, one after another, in equal parts of the time
    """
    if not load.resources:
        raise UsageError("No resource was given.", cure="everywatt stress --cpu 2 --shape ramp:0..100 --time 20")
    if not time_s > 0:
        raise UsageError(f"A duration of {time_s:g} s is not valid.", cure="a time above zero")
    if steps is not None and steps < 1:
        raise UsageError(f"{steps} is not a valid number of steps.", cure="one or more")
    for word in shapes:
        if word != DEFAULT and word not in load.resources:
            raise UsageError(f"There is a shape for {word}, but no {word} load.", cure=f"--{word}")
    parts = _parts(load, shapes, one_by_one)
    played: list[Step] = []
    for part in parts:
        played += _steps(part, shapes, time_s / len(parts), steps, seed)
    return Program(tuple(played), name)


def latin_hypercube(load: Load, *, time_s: float, steps: int = 20, seed: int = 0, name: str = "stress") -> Program:
    """A program that covers the space of all resources of `load`: each takes every part of its range exactly once.

    >>> program = latin_hypercube(Load(cpu_cores=2, cpu_kinds=("integer", "vector")), time_s=60, steps=30)
    >>> len(program.steps), program.duration_s
    (30, 60.0)
    """
    return shaped(load, {DEFAULT: Shape("latin")}, time_s=time_s, steps=steps, seed=seed, name=name)


def _parts(load: Load, shapes: Mapping[str, Shape], one_by_one: bool) -> list[Load]:
    loads = [load.only(resource) for resource in load.resources] if one_by_one else [load]
    mixed = _shape_of("cpu", shapes).kind == "latin"
    return [
        replace(one, cpu_kinds=kinds)
        for one in loads
        for kinds in ([one.cpu_kinds] if mixed or not one.cpu_cores else [(kind,) for kind in one.cpu_kinds])
    ]


def _shape_of(resource: str, shapes: Mapping[str, Shape]) -> Shape:
    return shapes.get(resource) or shapes.get(DEFAULT) or Shape("constant", (100.0,))


def _steps(load: Load, shapes: Mapping[str, Shape], time_s: float, steps: int | None, seed: int) -> list[Step]:
    """One step wherever the level of any resource changes."""
    levels = {
        resource: _shape_of(resource, shapes).sampled(time_s, steps=steps, seed=f"{seed}/{resource}")
        for resource in load.resources
    }
    edges = sorted({Fraction(number, len(row)) for row in levels.values() for number in range(len(row) + 1)})
    kinds = _kinds(load, len(levels.get("cpu", ())), seed)
    return [
        _step(load, time_s * float(end - start), {name: _at(row, start) for name, row in levels.items()}, kinds, start)
        for start, end in pairwise(edges)
    ]


def _kinds(load: Load, count: int, seed: int) -> list[str]:
    """The kind of each CPU level: each kind as often as the others, in random order where there are several."""
    kinds = [load.cpu_kinds[number % len(load.cpu_kinds)] for number in range(count)]
    if len(load.cpu_kinds) > 1:
        random.Random(f"{seed}/kinds").shuffle(kinds)
    return kinds


def _at(row: Sequence[float], start: Fraction) -> float:
    return row[int(start * len(row))]


def _step(load: Load, duration_s: float, levels: Mapping[str, float], kinds: list[str], start: Fraction) -> Step:
    share = {name: level / 100 for name, level in levels.items()}
    return Step(
        duration_s,
        cpu=Cpu(load.cpu_cores, levels["cpu"], kinds[int(start * len(kinds))]) if "cpu" in levels else None,
        memory_bytes=round(load.ram_bytes * share.get("ram", 0.0)),
        disk_bytes_per_s=load.disk_bytes_per_s * share.get("disk", 0.0),
        network_bytes_per_s=load.network_bytes_per_s * share.get("network", 0.0),
        gpu=Gpu(levels["gpu"], load.gpu_devices) if "gpu" in levels else None,
    )
