"""Energy of a window: each part with its error budget, then the total over disjoint parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.channels import Channel, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy, sum_energies, total
from everywatt.core.format import format_joules
from everywatt.energy.loading import Asked, load_joules, load_readings, load_ticks, rough_energy
from everywatt.energy.model_interval import Told, told_widths
from everywatt.energy.sources import Source, addable, scope_of
from everywatt.energy.ticks import Floats, Ints, Reading, Ticks
from everywatt.tape.reader import Gap, StoredGroup

CROSS_CHECK_LIMIT = 0.10
CROSS_CHECK_MIN_S = 2.0


FEW_WINDOWS = 16


def windows_energy(
    candidates: Sequence[Source], windows: Sequence[tuple[int, int]], *, notes: Sequence[str] = ()
) -> Energy:
    """Joules of several disjoint windows together; ten thousand of them cost about as much as one."""
    if len(windows) <= FEW_WINDOWS:
        return together([window_energy(candidates, start, end, notes=notes) for start, end in windows], windows)
    parts = addable(candidates)
    if not parts:
        return Energy.refuse("no sensor on this tape measures power or energy", notes=notes)
    return total({source.label: _many(source, windows) for source in parts}, scope=scope_of(parts), notes=notes)


def windows_joules(candidates: Sequence[Source], starts_ns: Ints, ends_ns: Ints) -> Floats:
    """Joules of each of many windows over all of these sources, without intervals; NaN where one gave nothing."""
    asked = [Asked(source.tape, source.group, source.channel) for source in candidates]
    if len(starts_ns) > FEW_WINDOWS:
        return np.asarray(np.sum([joules for joules, _ in load_joules(asked, starts_ns, ends_ns)], axis=0))
    windows = zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)
    read = [load_readings(asked, start, end) for start, end in windows]
    values = [[np.nan if one is None or one.joules is None else one.joules for one in row] for row in read]
    return np.asarray(np.array(values, dtype=np.float64).reshape(len(starts_ns), len(asked)).sum(axis=1))


def together(figures: Sequence[Energy], windows: Sequence[tuple[int, int]]) -> Energy:
    """The sum of the figures of disjoint windows. One that was refused is missing from it, and a note says so."""
    found = [figure for figure in figures if figure.joules is not None]
    if not found:
        return figures[0]
    whole = sum_energies(found)
    if len(found) == len(figures):
        return whole
    lengths = [(end - start) / NS for start, end in windows]
    seen_s = sum(length for figure, length in zip(figures, lengths, strict=True) if figure.joules is not None)
    missing = next(figure.refused for figure in figures if figure.joules is None)
    note = f"{len(figures) - len(found)} of {len(figures)} windows have no energy: {missing}"
    coverage = whole.coverage * seen_s / sum(lengths) if sum(lengths) else 0.0
    return replace(whole, coverage=coverage, notes=(*whole.notes, note))


def _many(source: Source, windows: Sequence[tuple[int, int]]) -> Energy:
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*windows, strict=True))
    first, last = int(starts.min()), int(ends.max())
    ticks = load_ticks(source.tape, source.group, source.channel, first, last, whole=True)
    reading = None if ticks is None else ticks.together(starts, ends)
    return _figure(source, reading, first, last, float((ends - starts).sum()) / NS)


def window_energy(candidates: Sequence[Source], start_ns: int, end_ns: int, *, notes: Sequence[str] = ()) -> Energy:
    """Joules between two instants over all devices that can be added up."""
    parts = addable(candidates)
    if not parts:
        return Energy.refuse("no sensor on this tape measures power or energy", notes=notes)
    if end_ns < start_ns:
        return Energy.refuse("the window ends before it starts", scope=scope_of(parts))
    readings = load_readings([_asked(source, start_ns, end_ns) for source in parts], start_ns, end_ns)
    return total(
        {
            source.label: _window(source, reading, start_ns, end_ns)
            for source, reading in zip(parts, readings, strict=True)
        },
        scope=scope_of(parts),
        notes=notes,
    )


def source_energy(source: Source, start_ns: int, end_ns: int, ticks: Ticks | None = None) -> Energy:
    """Joules of one device between two instants, with its budget, coverage and notes."""
    if ticks is not None:
        reading: Reading | None = ticks.between(start_ns, end_ns)
    else:
        reading = load_readings([_asked(source, start_ns, end_ns)], start_ns, end_ns)[0]
    return _window(source, reading, start_ns, end_ns)


def window_figures(source: Source, ticks: Ticks, starts_ns: Ints, ends_ns: Ints) -> list[Energy]:
    """Joules of one device in each of many windows, with their budgets, by ticks that reach from first to last."""
    readings = ticks.readings(starts_ns, ends_ns)
    windows = zip(readings, starts_ns.tolist(), ends_ns.tolist(), strict=True)
    return [_figure(source, reading, start, end, (end - start) / NS) for reading, start, end in windows]


def _asked(source: Source, start_ns: int, end_ns: int) -> Asked:
    also = [channel.name for group, channel in _checked_by(source, start_ns, end_ns) if group.id == source.group.id]
    return Asked(source.tape, source.group, source.channel, also)


def _window(source: Source, reading: Reading | None, start_ns: int, end_ns: int) -> Energy:
    """The figure of one window, checked against other paths to the same joules."""
    figure = _figure(source, reading, start_ns, end_ns, (end_ns - start_ns) / NS)
    if figure.joules is None:
        return figure
    return replace(figure, notes=(*figure.notes, *cross_check(source, figure.joules, start_ns, end_ns)))


def _figure(source: Source, reading: Reading | None, start_ns: int, end_ns: int, asked_s: float) -> Energy:
    """A reading of `asked_s` seconds between two instants, with its budget, coverage and notes."""
    if reading is None:
        return Energy.refuse(f"{source.channel.name} delivered no reading", scope=source.family)
    if reading.joules is None:
        return Energy.refuse(reading.refused, scope=source.family, coverage=reading.coverage)
    told = told_widths(source, start_ns, end_ns)
    budget = _budget(source, reading, start_ns, end_ns, asked_s * reading.coverage, told)
    bounds, notes = _gaps(source, reading, start_ns, end_ns, asked_s)
    if told is not None and told.outside > 0:
        notes.append(
            f"{source.channel.device}: utilisation was outside the training range of the model for "
            f"{told.outside:.0%} of the time"
        )
    return Energy(
        reading.joules,
        Budget(budget.terms, (*budget.bounds, *bounds)),
        source.family,
        pedigree_of(source.channel).value,
        reading.coverage,
        notes=(*notes, *_unknown(source.channel)),
        sampling_only=bool(_unknown(source.channel)),
    )


def _unknown(channel: Channel) -> list[str]:
    if channel.facts.gain_pct is not None or channel.facts.offset_w is not None:
        return []
    return [f"{channel.device}: the gain and offset of this sensor are unknown; the interval covers sampling only"]


def pedigree_of(channel: Channel) -> Pedigree:
    """Modelled stays modelled; a counter's joules were counted; a gauge's were integrated."""
    if channel.pedigree is Pedigree.MODELLED:
        return Pedigree.MODELLED
    return Pedigree.COUNTER if channel.kind is Kind.COUNTER else Pedigree.INTEGRATED


def _budget(source: Source, reading: Reading, start_ns: int, end_ns: int, seconds: float, told: Told | None) -> Budget:
    """Gain and offset are shared by all windows of a sensor, edges only by adjacent windows.

    A model that told an interval of its rows has that one where it is wider; what reaches further up is a bound.
    """
    facts, joules = source.channel.facts, reading.joules or 0.0
    device = f"{source.tape.meta.get('host', {}).get('name', '')}:{source.channel.device}"
    family = device if facts.calibrated or facts.cards is None else facts.cards
    modelled = source.channel.pedigree is Pedigree.MODELLED
    terms = []
    bounds = []
    gain = max((facts.gain_pct or 0.0) / 100, told.below if told else 0.0)
    if gain or facts.offset_w:
        sources = ("model", "model") if modelled else ("gain", "offset")
        terms += _systematic(facts, device, family, joules * gain, (facts.offset_w or 0.0) * seconds, sources)
    if told is not None and told.above > gain:
        bounds.append(Bound("model", f"outside:{family}", 0.0, joules * (told.above - gain)))
    # A window's start counts with the opposite sign of the same instant as another window's end.
    for at_ns, width_j, sign in ((start_ns, reading.start_width_j, -1.0), (end_ns, reading.end_width_j, 1.0)):
        if width_j:
            terms.append(Term("edges", f"edge:{device}:{source.channel.name}:{at_ns}", sign * width_j))
    if reading.aliasing_j:
        # Cards of one model look at the same part of each period, and often work in step: they miss the same.
        terms.append(Term("aliasing", f"aliasing:{facts.cards or device}", reading.aliasing_j))
    if reading.below_j or reading.above_j:
        hidden = f"hidden:{device}:{source.channel.name}:{start_ns}:{end_ns}"
        bounds.append(Bound("aliasing", hidden, reading.below_j, reading.above_j))
    if reading.quantum_j:
        terms.append(Term("quantum", f"quantum:{device}:{source.channel.name}:{start_ns}:{end_ns}", reading.quantum_j))
    return Budget(tuple(terms), tuple(bounds))


def _systematic(
    facts: Facts, device: str, family: str, gain_j: float, offset_j: float, sources: tuple[str, str]
) -> list[Term]:
    """Gain and offset as independent factors: what cards of one model share, what is the card's own, and the part of
    the offset that goes with the gain."""
    freedom = math.inf if facts.freedom is None else facts.freedom
    alone = math.sqrt(1 - facts.correlation**2)
    parts = (
        (sources[0], "gain", gain_j, facts.gain_alike),
        (sources[1], "gain", offset_j * facts.correlation, facts.gain_alike),
        (sources[1], "offset", offset_j * alone, facts.offset_alike),
    )
    terms = []
    for source, name, width_j, alike in parts:
        shared = 1.0 if family == device else alike
        for owner, share in ((family, shared), (device, 1 - shared)):
            if width_j and share > 0:
                terms.append(Term(source, f"{name}:{owner}", width_j * math.sqrt(share), freedom))
    return terms


def _gaps(
    source: Source, reading: Reading, start_ns: int, end_ns: int, whole_s: float
) -> tuple[list[Bound], list[str]]:
    """What gaps, resets and several wraps between two instants can hide of `whole_s` seconds that were asked for."""
    name, most_w = source.channel.name, source.channel.facts.max_w
    bounds: list[Bound] = []
    notes: list[str] = []
    for gap in source.tape.gaps(source.group.id):
        if gap.end_ns <= start_ns or gap.start_ns >= end_ns or gap.channel not in (None, name):
            continue
        bound, note = _gap(source, gap, start_ns, end_ns, most_w or reading.most_w)
        bounds += bound
        notes += note
    unseen_s = (1 - reading.coverage) * whole_s
    above = (most_w or reading.most_w or 0.0) * unseen_s
    if unseen_s > 0:
        bounds.append(Bound("gap", f"gap:{name}:{start_ns}", 0.0, above))
    if unseen_s > 0.001 and reading.coverage < 0.9995:
        notes.append(
            f"{source.channel.device}: {unseen_s:.2f} s of {whole_s:.2f} s were not observed; the figure covers the "
            f"observed part, the rest is at most {format_joules(above)}"
        )
    return bounds, notes


def _gap(source: Source, gap: Gap, start_ns: int, end_ns: int, most_w: float | None) -> tuple[list[Bound], list[str]]:
    device, key = source.channel.device, f"gap:{source.channel.name}:{gap.start_ns}"
    seconds = (min(gap.end_ns, end_ns) - max(gap.start_ns, start_ns)) / NS
    if gap.kind == "many-wraps":
        above = (most_w or 0.0) * seconds
        return [Bound("wraps", key, 0.0, above)], [
            f"{device}: the counter may have wrapped more than once in {seconds:.1f} s without a reading; the figure "
            f"is a lower bound, the true value at most {format_joules(above)} higher"
        ]
    if gap.kind == "reset":
        return [], [f"{device}: the counter was reset; the energy of {seconds:.2f} s is lost"]
    if gap.kind == "jump":
        return [], [f"{device}: the counter jumped by more than the device can draw; {seconds:.2f} s were left out"]
    return [], []


def _checked_by(source: Source, start_ns: int, end_ns: int) -> Sequence[tuple[StoredGroup, Channel]]:
    """Other paths to the same joules; none for a window so short that its edges decide."""
    return source.mirrors if (end_ns - start_ns) / NS >= CROSS_CHECK_MIN_S else ()


def cross_check(source: Source, joules: float, start_ns: int, end_ns: int) -> list[str]:
    """Notes where another path to the same joules disagrees by more than 10 %."""
    notes = []
    for group, channel in _checked_by(source, start_ns, end_ns):
        other_j, coverage = rough_energy(source.tape, group, channel, start_ns, end_ns)
        if other_j is None or coverage < 0.9:
            continue
        largest = max(abs(joules), abs(other_j))
        if largest > 1.0 and abs(joules - other_j) > CROSS_CHECK_LIMIT * largest:
            notes.append(
                f"{source.channel.device}: {source.channel.name} reports {format_joules(joules)} and {channel.name} "
                f"reports {format_joules(other_j)} for the same window: they disagree by "
                f"{abs(joules - other_j) / largest:.0%}"
            )
    return notes
