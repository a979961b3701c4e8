"""Power of a run on UTC: what chips drew, what a meter saw, as lines of joules that had gathered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everywatt.api.run import Run
from everywatt.core.channels import Domain
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.energy.sources import WHOLE, Source, addable, sources
from everywatt.meters.block import Block, Floats
from everywatt.meters.clock_offset import Line
from everywatt.meters.integrate import held
from everywatt.tape.reader import Tape

GRID_S = 0.02
MOST_POINTS = 1_000_000


def single(run: Run) -> Tape:
    """The run's one tape. UsageError where it has several."""
    if len(run.tapes) != 1:
        raise UsageError(
            f"{run.name} has {len(run.tapes)} segments; pass one of its files.", cure=str(run.tapes[0].path)
        )
    return run.tapes[0]


def chip_sources(tape: Tape) -> list[Source]:
    """What chips report, provably disjoint; nothing that is measured at the wall or modelled."""
    return [source for source in addable(sources(tape)) if source.domain not in WHOLE]


def meter_sources(tape: Tape, device: str | None = None) -> list[Source]:
    """What a meter of the whole says (all its plugs), or one device by name; of a run without either, all it has."""
    found = sources(tape)
    if device is not None:
        chosen = [source for source in found if device in (source.label, source.channel.device)]
        if not chosen:
            listed = ", ".join(sorted(source.label for source in found)) or "none"
            raise UsageError(f"This run has no device '{device}' that measures energy; it has: {listed}.")
        return chosen
    for domain in (Domain.WALL, Domain.PSU, Domain.NODE):
        chosen = [source for source in found if source.domain is domain]
        if chosen:
            return chosen
    return addable(found)


def joules_of(run: Run, chosen: Sequence[Source], edges_utc_s: Floats) -> Floats:
    """Joules between neighbouring edges (UTC seconds), summed over sources; NaN outside of the recording."""
    tape = single(run)
    origin_s = tape.to_utc_ns(tape.extent_ns()[0]) / NS
    at = edges_utc_s - origin_s
    total = np.zeros(len(at) - 1)
    for source in chosen:
        total = total + run.energies(at[:-1], at[1:], device=source.label)
    return total


def line_of(run: Run, chosen: Sequence[Source]) -> Line:
    """A run's joules over its whole time, on UTC seconds. MeasurementRefused where it has none."""
    tape = single(run)
    if not chosen:
        raise MeasurementRefused(f"{run.name} has no such power source.")
    start_s, end_s = (tape.to_utc_ns(at) / NS for at in tape.extent_ns())
    step_s = max(GRID_S, (end_s - start_s) / MOST_POINTS)
    edges = np.append(np.arange(start_s, end_s, step_s), end_s)
    edges = edges[np.concatenate(([True], np.diff(edges) > 1e-9))]
    joules = np.nan_to_num(joules_of(run, chosen, edges), nan=0.0)
    return Line(edges, np.concatenate(([0.0], np.cumsum(joules))))


def line_of_blocks(blocks: Sequence[Block]) -> Line:
    """Joules of all plugs of a meter's blocks together, on UTC seconds."""
    times, joules = [np.zeros(0)], [np.zeros(0)]
    total = 0.0
    for _, covered in held(blocks):
        if not len(covered.end_ns):
            continue
        steps = (covered.end_ns - covered.start_ns) / NS * covered.watts.sum(axis=1)
        times.append(covered.end_ns / NS)
        joules.append(total + np.cumsum(steps))
        total = float(joules[-1][-1])
    return Line(np.concatenate(times), np.concatenate(joules))
