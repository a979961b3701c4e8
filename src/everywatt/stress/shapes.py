"""Shapes: how a load goes over time, as text, and programs made of them.

A shape gives levels in percent, each for the same share of the time.

constant:50                 one level (a bare number is the same)
steps:0,25,100              these levels, each for the same time
ramp:0..100 ramp:0..100:20  from end to end in equal steps of at most 20, both ends reached
sine:20..80,30s             a sine between two levels, with its period (one period over all the time if left out)
random:0..100               levels drawn between two, from the seed
walk:0..100,10              a random walk that is reflected at its ends, by at most 10 at each step
latin:0..100                each part of the range once, in random order; over several resources a Latin hypercube
replay:RUN                  the utilisation of a run, stretched over the time
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from everywatt.core.errors import UsageError
from everywatt.core.units import parse_duration_s
from everywatt.stress.program import RESOURCES, Cpu, Gpu, Program, Step

STEPS = 11
"""Default number of steps of a shape: a ramp from 0 to 100 goes by tens."""

_CURE = "ramp:0..100, constant:50, steps:0,50,100, sine:20..80,30s, random:0..100, walk:0..100,10, latin:0..100"
_RANGE = re.compile(r"([\d.]+)\.\.([\d.]+)")


@dataclass(frozen=True, slots=True)
class Shape:
    """How a load goes over time.

    kind    constant, steps, ramp, sine, random, walk, latin, replay
    levels  of `steps`; the ends of the range for all others
    size    the height of a ramp's step, the most that a walk moves; None: as many steps as there are
    """

    kind: str
    levels: tuple[float, ...] = (0.0, 100.0)
    size: float | None = None
    period_s: float | None = None
    run: str = ""

    def sampled(self, time_s: float, *, steps: int | None = None, seed: object = 0) -> list[float]:
        """Levels in percent, each for the same share of `time_s`. The same seed gives the same levels.

        `steps` is how many, for shapes that leave it open. A replay has to be resolved first (`files.resolved`).
        """
        return _LEVELS[self.kind](self, time_s, steps, random.Random(f"{seed}"))

    @property
    def low(self) -> float:
        return min(self.levels)

    @property
    def high(self) -> float:
        return max(self.levels)


def parse_shape(text: str) -> Shape:
    """The shape that a text names; UsageError says what is wrong with it."""
    text = text.strip()
    kind, colon, rest = text.partition(":")
    if not colon and re.fullmatch(r"[\d.]+", text):
        kind, rest = "constant", text
    if kind == "replay":
        if not rest:
            raise UsageError(f"The shape '{text}' names no run.", cure="replay:last")
        return Shape("replay", run=rest)
    if kind == "constant":
        return Shape("constant", (_level(rest, text),))
    if kind == "steps":
        return Shape("steps", tuple(_level(word, text) for word in rest.split(",")))
    if kind not in _LEVELS:
        raise UsageError(f"There is no shape '{text}'.", cure=f"one of: {_CURE}, replay:RUN")
    ends, more = _split(rest if colon else "0..100", text, ":" if kind == "ramp" else ",")
    if kind == "sine":
        return Shape(kind, ends, period_s=_period(more, text) if more else None)
    if kind in ("random", "latin") and more:
        raise UsageError(f"'{more}' is not valid in the shape '{text}'.", cure=f"{kind}:{rest.partition(',')[0]}")
    return Shape(kind, ends, size=_size(more, text) if more else None)


def _split(rest: str, text: str, sign: str) -> tuple[tuple[float, float], str]:
    head, _, more = rest.partition(sign)
    match = _RANGE.fullmatch(head.replace(" ", ""))
    if match is None:
        raise UsageError(f"'{head}' in the shape '{text}' is not a range.", cure=_CURE)
    ends = (_level(match.group(1), text), _level(match.group(2), text))
    return ends, more.strip()


def _level(word: str, text: str) -> float:
    try:
        level = float(word)
    except ValueError:
        raise UsageError(f"'{word}' in the shape '{text}' is not a percentage.", cure=_CURE) from None
    if not 0 <= level <= 100:
        raise UsageError(f"{word} % in the shape '{text}' is outside 0 … 100.")
    return level


def _size(word: str, text: str) -> float:
    size = _level(word, text)
    if size == 0:
        raise UsageError(f"A step size of 0 in the shape '{text}' is not valid.")
    return size


def _period(word: str, text: str) -> float:
    period_s = parse_duration_s(word)
    if period_s <= 0:
        raise UsageError(f"A period of {word} in the shape '{text}' is not valid.")
    return period_s


def _ramp(shape: Shape, _time_s: float, steps: int | None, _chance: random.Random) -> list[float]:
    first, last = shape.levels
    size = shape.size
    count = steps or STEPS if size is None else max(1, math.ceil(abs(last - first) / size - 1e-9)) + 1
    if count == 1:
        raise UsageError("A ramp of one step cannot reach both ends.", cure="two steps or more")
    return [first + (last - first) * number / (count - 1) for number in range(count)]


def _sine(shape: Shape, time_s: float, steps: int | None, _chance: random.Random) -> list[float]:
    periods = time_s / shape.period_s if shape.period_s else 1.0
    count = steps or max(STEPS, math.ceil(periods * 12))
    middle, swing = (shape.low + shape.high) / 2, (shape.high - shape.low) / 2
    return [middle + swing * math.sin(2 * math.pi * periods * (number + 0.5) / count) for number in range(count)]


def _random(shape: Shape, _time_s: float, steps: int | None, chance: random.Random) -> list[float]:
    return [chance.uniform(shape.low, shape.high) for _ in range(steps or STEPS)]


def _walk(shape: Shape, _time_s: float, steps: int | None, chance: random.Random) -> list[float]:
    span = shape.high - shape.low
    size = shape.size if shape.size is not None else span / 5
    levels = [chance.uniform(shape.low, shape.high)]
    while len(levels) < (steps or STEPS):
        levels.append(_reflected(levels[-1] + chance.uniform(-size, size), shape.low, shape.high))
    return levels


def _reflected(level: float, low: float, high: float) -> float:
    while not low <= level <= high:
        if low == high:
            return low
        level = 2 * low - level if level < low else 2 * high - level
    return level


def _latin(shape: Shape, _time_s: float, steps: int | None, chance: random.Random) -> list[float]:
    """One level in each of equal parts of the range, in random order."""
    count = steps or STEPS
    shares = [(number + chance.random()) / count for number in range(count)]
    chance.shuffle(shares)
    return [shape.low + (shape.high - shape.low) * share for share in shares]


def _listed(shape: Shape, _time_s: float, _steps: int | None, _chance: random.Random) -> list[float]:
    return list(shape.levels)


def _unresolved(shape: Shape, _time_s: float, _steps: int | None, _chance: random.Random) -> list[float]:
    raise UsageError(f"The run '{shape.run}' has not been read yet.")


_LEVELS: dict[str, Callable[[Shape, float, int | None, random.Random], list[float]]] = {
    "constant": _listed,
    "steps": _listed,
    "ramp": _ramp,
    "sine": _sine,
    "random": _random,
    "walk": _walk,
    "latin": _latin,
    "replay": _unresolved,
}


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
        amounts = (self.cpu_cores, self.ram_bytes, self.disk_bytes_per_s, self.network_bytes_per_s, self.gpu_devices)
        return tuple(name for name, amount in zip(RESOURCES, amounts, strict=True) if amount)

    def only(self, resource: str) -> Load:
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
