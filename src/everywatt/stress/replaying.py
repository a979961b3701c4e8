"""The shape `replay:RUN`: how busy a machine was when it was recorded, as levels that can be played again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from everywatt.core.errors import UsageError
from everywatt.stress.building import DEFAULT
from everywatt.stress.shapes import Shape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from everywatt.tape.reader import Tape

    Columns = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

MOST_STEPS = 600
_GPU = re.compile(r"gpu\.\d+\.utilisation")


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

    busy, idle = (_column(tape, name) for name in ("host.cpu_time", "host.idle_time"))
    if busy is None or idle is None or len(busy[0]) < 2:
        return None
    grid = _grid(busy[0], steps)
    spent, free = (np.diff(np.interp(grid, *column)) for column in (busy, idle))
    total = spent + free
    return np.divide(100 * spent, total, out=np.zeros_like(total), where=total > 0)


def _gpu_levels(tape: Tape, steps: int | None) -> npt.NDArray[np.float64] | None:
    """The mean of all GPUs: each reading holds for the time before it, until the one before."""
    import numpy as np

    names = {channel.name for group in tape.groups for channel in group.info.channels}
    columns = [_column(tape, name) for name in sorted(names) if _GPU.fullmatch(name)]
    found = [column for column in columns if column is not None and len(column[0]) >= 2]
    if not found:
        return None
    grid = _grid(found[0][0], steps)
    means = []
    for times, values in found:
        area = np.concatenate([[0.0], np.cumsum(values[1:] * np.diff(times))])
        means.append(np.diff(np.interp(grid, times, area)) / np.diff(grid))
    return np.asarray(np.mean(means, axis=0), dtype=np.float64)


def _grid(times: npt.NDArray[np.float64], steps: int | None) -> npt.NDArray[np.float64]:
    import numpy as np

    count = steps or min(MOST_STEPS, max(1, round(float(times[-1] - times[0]))))
    return np.linspace(times[0], times[-1], count + 1)


def _column(tape: Tape, name: str) -> Columns | None:
    """Seconds and values of a channel, without rows in which it gave nothing; None where the tape has none."""
    import numpy as np

    for group in tape.groups:
        for index, channel in enumerate(group.info.channels):
            if channel.name != name:
                continue
            frames = tape.frames(group.id)
            if not frames:
                return None
            times = np.concatenate([np.asarray(frame.times()[2], dtype=np.float64) for frame in frames]) / 1e9
            values = np.concatenate([np.asarray(frame.column(index), dtype=np.float64) for frame in frames])
            there = ~np.isnan(values)
            return times[there], values[there] * channel.scale
    return None
