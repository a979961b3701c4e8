"""What each item cost and what its device did meanwhile, from the tape: during the item, not before and after it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from everywatt.api.run import Run
from everywatt.batch import array
from everywatt.batch.figures import AttemptFigures, BatchFigures, DeviceFigures, During, ItemFigures, known_sum
from everywatt.batch.journal import DONE, FAILED, INTERRUPTED, RUNNING, Attempt, History, in_progress
from everywatt.core.clocks import NS, length_s, union
from everywatt.core.device import is_gpu
from everywatt.core.energy import Energy, sum_energies
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_ratio
from everywatt.core.jsonio import ToDict
from everywatt.core.spans import Span
from everywatt.core.stats import deviation, mean
from everywatt.energy.sources import sources
from everywatt.energy.ticks import Ticks
from everywatt.energy.window import source_ticks
from everywatt.ledger.owners import Entry, Ledger, OwnerKind
from everywatt.ledger.use.usage import Series, find_series
from everywatt.tape.reader import Tape

GAUGES = ("utilisation", "memory", "temperature")
CURVE_POINTS = 200
NOT_MEASURED = "no sensor measures the device it ran on"


def figures(run: Run, history: History) -> BatchFigures:
    """Every item, every device and the whole, from a finished or live run and its journal."""
    ledger = run.ledger("span")
    entries = {entry.owner.id: entry for entry in ledger.entries if entry.owner.kind is OwnerKind.SPAN}
    spans = _on_tapes(run)
    items = []
    states = list(history.states.values())
    if any(state.status == RUNNING for state in states) and not array.parts(run.path) and not in_progress(run.path):
        states = [replace(state, status=INTERRUPTED) if state.status == RUNNING else state for state in states]
    for state in states:
        tries = tuple(_attempt(one, entries, spans, ledger) for one in state.attempts)
        known = [one.energy for one in tries if one.energy.joules is not None]
        energy = (
            added(known) if known else Energy.refuse("it never ran" if not tries else tries[-1].energy.refused or "")
        )
        items.append(ItemFigures(state, tries, energy))
    devices = tuple(_devices(items, entries, ledger, run, history))
    ours = {one.span for state in history.states.values() for one in state.attempts}
    rest = [entry for entry in ledger.entries if entry.owner.id not in ours]
    known = [entry.energy for entry in rest if entry.energy.joules is not None]
    outside = added(known) if known else None
    on_tapes = [note.text for tape in run.tapes for note in tape.notes() if note.kind in ("gap", "warning")]
    notes = dict.fromkeys((*history.trouble, *run.trouble, *ledger.notes, *on_tapes))
    return BatchFigures(
        run.name,
        run.duration_s,
        tuple(items),
        devices,
        ledger.total,
        ledger.microjoules,
        sum(entry.microjoules for entry in rest),
        tuple(notes),
        outside,
    )


def _on_tapes(run: Run) -> dict[str, tuple[Span, Watch]]:
    """Every span with the tape that it is on: clocks of different hosts cannot identify it."""
    found: dict[str, tuple[Span, Watch]] = {}
    for tape in run.tapes:
        watch = Watch(tape)
        for span in tape.spans():
            if span.id not in found or found[span.id][0].end_ns is None:
                found[span.id] = span, watch
    return found


def _attempt(
    one: Attempt, entries: Mapping[str, Entry], spans: Mapping[str, tuple[Span, Watch]], ledger: Ledger
) -> AttemptFigures:
    found = spans.get(one.span or "")
    if found is None:
        return AttemptFigures(one, Energy.refuse(ledger.total.refused or "it was not recorded"))
    span, watch = found
    end_ns = watch.extent_ns[1] if span.end_ns is None else span.end_ns
    window_ns = watch.utc_ns(span.start_ns), watch.utc_ns(end_ns)
    entry = entries.get(span.id)
    if entry is None:
        refused = Energy.refuse(ledger.total.refused or "it was not recorded")
        return AttemptFigures(one, refused, window_ns=window_ns)
    use = watch.during(one.device, span.start_ns, end_ns) if is_gpu(one.device) else {}
    curve = watch.memory_curve(one.device, span.start_ns, end_ns) if is_gpu(one.device) and one.oom else None
    # A share of nothing that measures is no figure, and not zero.
    energy = entry.energy if entry.energy.parts else Energy.refuse(ledger.total.refused or NOT_MEASURED)
    return AttemptFigures(one, energy, use, curve, window_ns)


class Watch:
    """The gauges of one tape's GPUs, each read once for all items."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.extent_ns = tape.extent_ns()
        self.utc_ns = tape.to_utc_ns
        self._series: dict[str, Series | None] = {}
        self._ticks: dict[str, Ticks | None] = {}
        self._sources = {source.label: source for source in sources(tape)}

    def during(self, device: str, start_ns: int, end_ns: int) -> dict[str, During | None]:
        """Utilisation (%), memory (bytes), temperature (°C) and power (W) between two instants."""
        use = {name: self._gauge(f"{device}.{name}", start_ns, end_ns) for name in GAUGES}
        use["power"] = self._power(device, start_ns, end_ns)
        return use

    def memory_curve(self, device: str, start_ns: int, end_ns: int) -> tuple[tuple[float, float], ...]:
        """Seconds after the start and bytes in use: what led to the end."""
        series = self._channel(f"{device}.memory")
        if series is None:
            return ()
        first, after = np.searchsorted(series.at_ns, (start_ns, end_ns), side="right")
        index = np.unique(np.linspace(max(first - 1, 0), max(after - 1, 0), CURVE_POINTS).astype(np.int64))
        return tuple(((int(series.at_ns[i]) - start_ns) / NS, float(series.values[i])) for i in index)

    def _channel(self, name: str) -> Series | None:
        if name not in self._series:
            series = find_series(self._tape, name)
            if series is not None:
                series.update(self._tape)
            self._series[name] = series
        return self._series[name]

    def _gauge(self, name: str, start_ns: int, end_ns: int) -> During | None:
        series = self._channel(name)
        if series is None:
            return None
        first, after = np.searchsorted(series.at_ns, (start_ns, end_ns), side="right")
        values = series.values[first:after]
        if not len(values):
            return None
        return During(float(values.min()), float(values.mean()), float(values.max()), len(values))

    def _power(self, device: str, start_ns: int, end_ns: int) -> During | None:
        """Power at each publication, and the mean of the observed time from the joules themselves."""
        source = self._sources.get(device)
        if source is None or end_ns <= start_ns:
            return None
        if device not in self._ticks:
            self._ticks[device] = source_ticks(source, *self.extent_ns)
        ticks = self._ticks[device]
        if ticks is None:
            return None
        first, after = np.searchsorted(ticks.at_ns, (start_ns, end_ns), side="right")
        watts, lasts_ns = ticks.watts[first:after], np.diff(ticks.at_ns, prepend=ticks.at_ns[0])[first:after]
        # Two publications close together divide a quantum by almost nothing.
        watts = watts[np.isfinite(watts) & (lasts_ns >= 0.5e9 * ticks.period_s)]
        joules, coverage = (float(found[0]) for found in ticks.many([start_ns], [end_ns]))
        if not len(watts) or not np.isfinite(joules) or not coverage:
            return None
        mean = joules / (coverage * (end_ns - start_ns) / NS)
        return During(min(float(watts.min()), mean), mean, max(float(watts.max()), mean), len(watts))


def _devices(
    items: Sequence[ItemFigures], entries: Mapping[str, Entry], ledger: Ledger, run: Run, history: History
) -> list[DeviceFigures]:
    several = len({str(tape.meta.get("host", {}).get("name", "")) for tape in run.tapes}) > 1

    def called(device: str, host: str) -> str:
        return f"{host}/{device}" if several and host else device

    titles = {called(one.name, one.host): one.title for one in history.devices}
    where = [called(one.attempt.device, one.attempt.host) for item in items for one in item.attempts]
    outside = [entry for entry in ledger.entries if entry.owner.kind is OwnerKind.OTHER]
    parts = dict(ledger.total.parts)
    if several:  # the parts of a total are hosts then, and devices are parts of these
        parts = {f"{host}/{name}": part for host, whole in parts.items() for name, part in whole.parts}
    found = []
    for name in dict.fromkeys([*titles, *where]):
        mine = [one for item in items for one in item.attempts if called(one.attempt.device, one.attempt.host) == name]
        ended = [(item, item.last.attempt) for item in items if item.last is not None]
        last = [item for item, one in ended if called(one.device, one.host) == name]
        known = [one.energy for one in mine if one.energy.joules is not None]
        idle = [part for entry in outside for label, part in entry.energy.parts if label == name]
        found.append(
            DeviceFigures(
                name,
                titles.get(name, ""),
                sum(item.state.status == DONE for item in last),
                sum(item.state.status == FAILED for item in last),
                len(mine),
                sum(one.attempt.number > 1 for one in mine),
                length_s(union([one.window_ns for one in mine if one.window_ns])),
                added(known) if known else Energy.refuse(ledger.total.refused or "nothing ran there"),
                sum(entry.microjoules for one in mine if (entry := entries.get(one.attempt.span or "")) is not None),
                parts.get(name),
                idle[0] if idle else None,
                _together([one.use for one in mine], [one.attempt.runtime_s or 0.0 for one in mine]),
                known_sum([one.cpu_s for one in mine]),
            )
        )
    return found


def _together(uses: Sequence[Mapping[str, During | None]], seconds: Sequence[float]) -> dict[str, During | None]:
    """All attempts of a device in one: the lowest of the lowest, the mean weighted by time, the highest."""
    found: dict[str, During | None] = {}
    for name in (*GAUGES, "power"):
        known = [(d, s) for use, s in zip(uses, seconds, strict=True) if (d := use.get(name)) is not None]
        weight = sum(s for _, s in known)
        if not known:
            found[name] = None
            continue
        mean = sum(d.mean * s for d, s in known) / weight if weight else known[0][0].mean
        found[name] = During(
            min(d.low for d, _ in known), mean, max(d.high for d, _ in known), sum(d.samples for d, _ in known)
        )
    return found


def added(energies: Iterable[Energy]) -> Energy:
    """The sum of energies of one tape or several, in whole microjoules."""
    whole = sum_energies(energies, join_scopes=True)
    parts = tuple((name, _whole(part)) for name, part in whole.parts if part.joules is not None)
    return replace(_whole(whole), parts=parts)


def _whole(energy: Energy) -> Energy:
    return replace(energy, joules=round(energy.value, 6))


TOLERANCE = 0.10
TIMES_ERROR = 2.0  # standard errors that count as certain
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Drift(ToDict):
    """One figure of a batch over the baseline's: 1 is no change. `drifted`: surely beyond the tolerance."""

    name: str
    ratio: float
    low: float
    high: float
    drifted: bool

    def __str__(self) -> str:
        word = "DRIFT" if self.drifted else "steady"
        return f"{self.name}: {format_ratio(self.ratio, self.low, self.high)} of the baseline: {word}"


def drifts(found: BatchFigures, baseline: BatchFigures, tolerance: float = TOLERANCE) -> tuple[list[Drift], list[str]]:
    """CPU time an item where energy is modelled, energy an item and time an item; and sentences on what cannot be
    compared."""
    found_drifts: list[Drift] = []
    notes: list[str] = []
    counts = found.count(DONE), baseline.count(DONE)
    if not all(counts):
        return [], ["no item is finished in one of the two batches"]
    if found.cpu_s_per_item is not None and baseline.cpu_s_per_item is not None:
        ours, theirs = ([one.cpu_s for one in batch.finished() if one.cpu_s] for batch in (found, baseline))
        if min(len(ours), len(theirs)) >= FEWEST:
            found_drifts.append(time_drift(ours, theirs, tolerance, "CPU time per item"))
    try:
        ratio = (found.total / counts[0]).ratio(baseline.total / counts[1])
        found_drifts.append(_drift("energy per item", ratio.value, ratio.low, ratio.high, tolerance))
    except EverywattError as error:
        notes.append(f"energy cannot be compared: {error}")
    ours, theirs = (
        [one.attempt.runtime_s for one in batch.finished() if one.attempt.runtime_s] for batch in (found, baseline)
    )
    if min(len(ours), len(theirs)) >= FEWEST:
        found_drifts.append(time_drift(ours, theirs, tolerance))
    else:
        notes.append(f"fewer than {FEWEST} items: times are not compared")
    return found_drifts, notes


def time_drift(ours: Sequence[float], theirs: Sequence[float], tolerance: float, name: str = "time per item") -> Drift:
    """Time per item over the baseline's, from those of finished items."""
    ratio = mean(ours) / mean(theirs)
    errors = [deviation(values) / math.sqrt(len(values)) / mean(values) for values in (ours, theirs)]
    spread = TIMES_ERROR * ratio * math.hypot(*errors)
    return _drift(name, ratio, max(0.0, ratio - spread), ratio + spread, tolerance)


def _drift(name: str, ratio: float, low: float, high: float, tolerance: float) -> Drift:
    return Drift(name, ratio, low, high, low > 1 + tolerance or high < 1 - tolerance)
