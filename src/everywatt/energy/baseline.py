"""Idle: what the machine draws with nobody there, measured on purpose or found in the quietest stretch of a tape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from everywatt.core.budget import Budget, Term
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy, total
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import mean_half_width
from everywatt.energy.loading import load_ticks
from everywatt.energy.sources import Source, addable, scope_of
from everywatt.energy.window import source_energy

QUIET_S = 2.0
RESTLESS = 0.2
# Less of a stretch than this was observed: it says nothing of idle.
OBSERVED = 0.99
BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Baseline:
    """A window that stands for idle, and where it comes from (`measured` or `quietest`).

    `busy` is the share of CPU time that was used in it, None where the tape does not say.
    """

    start_ns: int
    end_ns: int
    method: str
    busy: float | None = None

    @property
    def where(self) -> str:
        """For people: where it was found, and what speaks against it."""
        if self.method == "measured":
            return "measured before"
        if self.busy is None or not self.restless:
            return "the quietest stretch"
        return f"the quietest stretch, CPUs {self.busy * 100:.0f} % busy"

    @property
    def restless(self) -> bool:
        """Whether somebody was at work in what has to stand for idle."""
        return self.method != "measured" and self.busy is not None and self.busy > RESTLESS

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return (self.end_ns - self.start_ns) / NS


def quietest(candidates: Sequence[Source], start_ns: int, end_ns: int) -> Baseline | None:
    """The stretch of 2 s (or a tenth of a long tape) with the least power, None on a tape too short to have one.

    One that was not observed as a whole has the least joules, and says nothing of idle: it is left out.
    """
    length_s = max(QUIET_S, min(10.0, (end_ns - start_ns) / NS / 10))
    starts = np.arange(start_ns, end_ns - int(length_s * NS), int(length_s * NS / 4), dtype=np.int64)
    if len(starts) < 4:
        return None
    joules = np.zeros(len(starts))
    for source in addable(candidates):
        ticks = load_ticks(source.tape, source.group, source.channel, start_ns, end_ns)
        if ticks is None:
            return None
        drawn, seen = ticks.many(starts, starts + int(length_s * NS))
        # A stretch that nobody read is not a quiet one.
        joules += np.where(seen >= OBSERVED, drawn / np.maximum(seen, OBSERVED), np.nan)
    if not np.isfinite(joules).any():
        return None
    best = int(starts[int(np.nanargmin(joules))])
    return Baseline(best, best + int(length_s * NS), "quietest")


def idle_energy(candidates: Sequence[Source], baseline: Baseline, duration_s: float, gross: Energy) -> Energy:
    """What the devices would have used in `duration_s` at the baseline's power, its spread carried along.

    Of a device that was observed for a part of that time it is the idle energy of that part: `gross` says how much.
    Gain and offset keep the keys of the sensor, so that in a net figure the offset cancels and the gain does not.
    """
    parts = addable(candidates)
    observed = {label: part.coverage for label, part in gross.parts}
    scaled = {}
    for source in parts:
        energy = source_energy(source, baseline.start_ns, baseline.end_ns)
        if energy.joules is not None:
            spread_j = _spread_w(source, baseline) * baseline.duration_s
            spread = Term("baseline", f"baseline:{source.label}:{baseline.start_ns}", spread_j)
            budget = energy.budget + Budget((spread,))
            seen = observed.get(source.label, gross.coverage) / (energy.coverage or 1.0)
            energy = replace(energy, budget=budget) * (seen * duration_s / baseline.duration_s)
        scaled[source.label] = energy
    return total(scaled, scope=scope_of(parts))


def _spread_w(source: Source, baseline: Baseline) -> float:
    """95 % half-width of the mean idle power, from the scatter of its blocks."""
    edges = np.linspace(baseline.start_ns, baseline.end_ns, BLOCKS + 1).astype(np.int64)
    ticks = load_ticks(source.tape, source.group, source.channel, baseline.start_ns, baseline.end_ns)
    if ticks is None:
        return 0.0
    watts = ticks.many(edges[:-1], edges[1:])[0] / (np.diff(edges) / NS)
    watts = watts[np.isfinite(watts)]
    if len(watts) < 3:
        return 0.0
    return mean_half_width(watts.tolist())
