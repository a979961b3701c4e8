"""Load programs as TOML, in the words of the options of `everywatt stress`, and levels that a run replays."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.units import parse_bytes, parse_duration_s
from everywatt.stress.program import KINDS, RESOURCES, Program
from everywatt.stress.shapes import DEFAULT, Load, Shape, parse_shape, shaped

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from everywatt.ledger.use.usage import Series
    from everywatt.tape.reader import Tape

MOST_STEPS = 600
_GPU = re.compile(r"gpu\.\d+\.utilisation")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a program in the words of options and files; `program` makes it one.

    cpu is a number of cores, ram, disk and network are what 100 % is, gpu is the devices.
    """

    time: float | str = 60.0
    cpu: int = 0
    kind: str = "integer"
    ram: int | str = 0
    disk: float | str = 0
    network: float | str = 0
    gpu: str | int | tuple[int, ...] = ()
    shape: str | Mapping[str, str] = field(default_factory=dict)
    steps: int | None = None
    seed: int = 0
    one_by_one: bool = False

    def program(self, name: str = "stress") -> Program:
        """The program that it describes. UsageError says what is wrong with it."""
        time_s = parse_duration_s(self.time) if isinstance(self.time, str) else float(self.time)
        load = Load(
            cpu_cores=self.cpu,
            cpu_kinds=parse_kinds(self.kind),
            ram_bytes=round(_bytes(self.ram)),
            disk_bytes_per_s=_bytes(self.disk),
            network_bytes_per_s=_bytes(self.network),
            gpu_devices=parse_devices(self.gpu),
        )
        shapes = resolved(_shapes(self.shape), load.resources, steps=self.steps)
        return shaped(
            load, shapes, time_s=time_s, steps=self.steps, seed=self.seed, one_by_one=self.one_by_one, name=name
        )


def load_program(path: str | Path) -> Program:
    """The program in a TOML file. Words outside of `[[part]]` hold for every part; without a part they are the one."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from None
    try:
        return parse_program(data, default_name=path.stem)
    except EverywattError as error:
        raise UsageError(f"{path}: {error.message}", cure=error.cure) from error


def parse_program(data: Mapping[str, Any], default_name: str = "stress") -> Program:
    common = dict(data)
    name = common.pop("name", default_name)
    parts = common.pop("part", [{}])
    if not isinstance(name, str) or not isinstance(parts, list) or not all(isinstance(one, dict) for one in parts):
        raise UsageError("name must be a string, and each part a table of its own.", cure="[[part]]")
    programs = [part_of({**common, **one}).program(name) for one in parts]
    return Program(tuple(step for program in programs for step in program.steps), name)


def part_of(words: Mapping[str, Any]) -> Part:
    """A part from its words; UsageError names a word that means nothing or has the wrong type."""
    words = {key.replace("-", "_"): value for key, value in words.items()}
    for key, value in words.items():
        if key not in _WORDS:
            raise UsageError(f"Unknown key '{key}' in a load program.", cure=f"one of: {', '.join(sorted(_WORDS))}")
        types, example = _WORDS[key]
        if not isinstance(value, types) or (isinstance(value, bool) and key != "one_by_one"):
            raise UsageError(f"{key} = {value!r} is not valid.", cure=f"{key} = {example}")
    gpu = words.get("gpu")
    return Part(**{**words, "gpu": tuple(gpu)}) if isinstance(gpu, list) else Part(**words)


def _bytes(value: float | str) -> float:
    return parse_bytes(value) if isinstance(value, str) else float(value)


def parse_kinds(text: str) -> tuple[str, ...]:
    """Kinds of CPU work, separated by commas; `all` is all of them."""
    words = KINDS if text.strip() == "all" else tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in KINDS:
            raise UsageError(f"There is no kind of work '{word}'.", cure=f"one of: {', '.join(KINDS)}, all")
    return tuple(dict.fromkeys(words))


def parse_devices(value: str | int | tuple[int, ...]) -> tuple[int, ...]:
    """GPUs in `0` or `0,2`."""
    if isinstance(value, int):
        return (value,)
    words = value.split(",") if isinstance(value, str) else value
    try:
        return tuple(int(word) for word in words)
    except ValueError:
        raise UsageError(f"'{value}' is not a list of GPUs.", cure="0 or 0,1") from None


def _shapes(value: str | Mapping[str, str]) -> dict[str, Shape]:
    words = {DEFAULT: value} if isinstance(value, str) else dict(value)
    for resource, text in words.items():
        if resource not in (DEFAULT, *RESOURCES):
            raise UsageError(f"There is no resource '{resource}'.", cure=f"one of: {', '.join(RESOURCES)}")
        if not isinstance(text, str):
            raise UsageError(f"The shape {text!r} of {resource} is not a string.", cure='shape = "ramp:0..100"')
    return {resource: parse_shape(text) for resource, text in words.items()}


_WORDS: dict[str, tuple[tuple[type, ...], str]] = {  # of a part: types, and an example
    "time": ((int, float, str), '"20s"'),
    "cpu": ((int,), "2"),
    "kind": ((str,), '"vector"'),
    "ram": ((int, str), '"1GiB"'),
    "disk": ((int, float, str), '"50MB/s"'),
    "network": ((int, float, str), '"100MB/s"'),
    "gpu": ((int, str, list, tuple), '"0,1"'),
    "shape": ((str, dict), '"ramp:0..100"'),
    "steps": ((int,), "10"),
    "seed": ((int,), "7"),
    "one_by_one": ((bool,), "true"),
}


def resolved(shapes: Mapping[str, Shape], resources: Sequence[str], *, steps: int | None = None) -> dict[str, Shape]:
    """The shapes with every replay read from its run: the GPUs' utilisation for `gpu`, the CPUs' for all others.

    One level for each second of the run (at most 600), or `steps` of them.
    """
    found = dict(shapes)
    for resource in resources:
        shape = shapes.get(resource) or shapes.get(DEFAULT)
        if shape is not None and shape.kind == "replay":
            found[resource] = replace(shape, kind="steps", levels=_levels(shape.run, resource, steps))
    if DEFAULT in found and found[DEFAULT].kind == "replay":
        del found[DEFAULT]  # each resource has its own by now
    return found


def _levels(name: str, resource: str, steps: int | None) -> tuple[float, ...]:
    from everywatt.api.run import load

    tape = load(name).tapes[0]
    levels = _gpu_levels(tape, steps) if resource == "gpu" else _cpu_levels(tape, steps)
    if levels is None:
        raise UsageError(f"The run '{name}' has no utilisation of the {resource} to replay.")
    return tuple(min(100.0, max(0.0, float(level))) for level in levels)


def _cpu_levels(tape: Tape, steps: int | None) -> npt.NDArray[np.float64] | None:
    """Busy time over all time of all CPUs, from the two counters."""
    import numpy as np

    busy, idle = (_series(tape, name) for name in ("host.cpu_time", "host.idle_time"))
    if busy is None or idle is None:
        return None
    edges_ns = _edges_ns(busy, steps)
    spent, free = (counter.used(edges_ns[:-1], edges_ns[1:]) for counter in (busy, idle))
    total = spent + free
    return np.divide(100 * spent, total, out=np.zeros_like(total), where=total > 0)


def _gpu_levels(tape: Tape, steps: int | None) -> npt.NDArray[np.float64] | None:
    import numpy as np

    names = {channel.name for group in tape.groups for channel in group.info.channels}
    found = [one for name in sorted(names) if _GPU.fullmatch(name) and (one := _series(tape, name)) is not None]
    return np.mean([one.mean(_edges_ns(found[0], steps)) for one in found], axis=0) if found else None


def _series(tape: Tape, name: str) -> Series | None:
    """The readings of a channel; None where the tape has fewer than two."""
    from everywatt.ledger.use.usage import find_series

    series = find_series(tape, name)
    if series is not None:
        series.update(tape)
    return series if series is not None and len(series.at_ns) > 1 else None


def _edges_ns(series: Series, steps: int | None) -> npt.NDArray[np.int64]:
    import numpy as np

    first_ns, last_ns = int(series.at_ns[0]), int(series.at_ns[-1])
    count = steps or min(MOST_STEPS, max(1, round((last_ns - first_ns) / NS)))
    return np.linspace(first_ns, last_ns, count + 1).astype(np.int64)
