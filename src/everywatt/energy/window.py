"""Energy of a window: each part with its error budget, then the total over disjoint parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.channels import Channel, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy, over_time, sum_energies, total
from everywatt.core.format import format_joules, format_percent
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import TO_95
from everywatt.energy.loading import MOSTLY, checked_by, line_joules, lines_are_right, load_joules, load_readings
from everywatt.energy.loading import cell_joules as cell_joules
from everywatt.energy.loading import source_ticks as source_ticks
from everywatt.energy.loading import stretch_joules as stretch_joules
from everywatt.energy.sources import Source, addable, edge_key, scope_of, systematic_terms
from everywatt.energy.ticks import Reading, Ticks, sees_a_part
from everywatt.tape.columns import Floats, Ints, load_columns
from everywatt.tape.reader import Gap

CROSS_CHECK_LIMIT = 0.10
# How much of a model's variance is the machine's, and cancels between two loads of it. Of 499 servers (SPECpower) the
# error in log watts (sd 0.27) at one level of load is correlated with that at another by 0.9 on average. At the same
# CPU time a server's power differs from program to program by 0.15 (sd of log watts; a two-socket Xeon E5-2667 v3, and
# the share of its packages in the whole). 0.9 · 0.27² / (0.27² + 0.15²) = 0.69. What is the load's own does not grow
# where less is known of the machine: 1.96 · √(0.1 · 0.27² + 0.15²) of the watts.
MODEL_ALIKE = 0.7
MODEL_OWN = 0.34
FEW_WINDOWS = 16
# More than these, asked for joules alone, are read off straight lines where the tape is long.
MANY_WINDOWS = 10_000
MODEL_CHANNELS = ("low", "high", "outside")  # beside a model's watts
NAMED = 3  # columns outside that a note names


@dataclass(frozen=True, slots=True)
class ModelInterval:
    """95 % half-widths as shares of the watts, below and above, and the share of rows with inputs never learnt.

    `farthest` are the inputs that were farthest outside in a row, the most frequent first.
    """

    below: float
    above: float
    outside: float
    farthest: tuple[str, ...]


def windows_energy(
    candidates: Sequence[Source], windows: Sequence[tuple[int, int]], *, notes: Sequence[str] = ()
) -> Energy:
    """Joules of several disjoint windows together; ten thousand of them cost about as much as one."""
    parts = addable(candidates)
    if not parts:
        return Energy.refuse("no sensor on this tape measures power or energy", notes=notes)
    scope = scope_of(parts)
    if len(windows) > FEW_WINDOWS:
        return total({source.label: _many(source, windows) for source in parts}, scope=scope, notes=notes)
    figures = []
    for start_ns, end_ns in windows:
        if end_ns < start_ns:
            figures.append(Energy.refuse("the window ends before it starts", scope=scope))
            continue
        readings = zip(parts, load_readings(parts, start_ns, end_ns), strict=True)
        found = {one.label: _window(one, reading, start_ns, end_ns, _extent(windows)) for one, reading in readings}
        figures.append(total(found, scope=scope, notes=notes))
    return together(figures, windows)


def windows_joules(candidates: Sequence[Source], starts_ns: Ints, ends_ns: Ints) -> Floats:
    """Joules of each of many windows over all of these sources, without intervals; NaN where one gave nothing."""
    if len(starts_ns) > MANY_WINDOWS:
        return load_joules(candidates, starts_ns, ends_ns)
    joules = np.zeros(len(starts_ns))
    if len(starts_ns) > FEW_WINDOWS:
        for source in candidates:
            ticks = source_ticks(source, int(starts_ns.min()), int(ends_ns.max()))
            joules += np.nan if ticks is None else ticks.many(starts_ns, ends_ns)[0]
    else:
        for number, window in enumerate(zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)):
            for reading in load_readings(candidates, *window):
                joules[number] += np.nan if reading is None or reading.joules is None else reading.joules
    return joules


def together(figures: Sequence[Energy], windows: Sequence[tuple[int, int]]) -> Energy:
    """The sum of the figures of disjoint windows. One that was refused is missing from it, and a note says so."""
    found = [figure for figure in figures if figure.joules is not None]
    if not found:
        return figures[0]
    whole = over_time(sum_energies(found), figures, [(end - start) / NS for start, end in windows])
    if len(found) == len(figures):
        return whole
    missing = next(figure.refused for figure in figures if figure.joules is None)
    note = f"{len(figures) - len(found)} of {len(figures)} windows have no energy: {missing}"
    return replace(whole, notes=(*whole.notes, note))


def _many(source: Source, windows: Sequence[tuple[int, int]]) -> Energy:
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*windows, strict=True))
    first, last = int(starts.min()), int(ends.max())
    ticks = source_ticks(source, first, last)
    reading = None if ticks is None else ticks.together(starts, ends)
    return _figure(source, reading, first, last, float((ends - starts).sum()) / NS)


def _extent(windows: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The extent of all windows of one load, for which a model's error is the same."""
    return min(start for start, _ in windows), max(end for _, end in windows)


def source_energies(source: Source, windows: Sequence[tuple[int, int]]) -> Energy:
    """Joules of one device in several disjoint windows together, with its budget, coverage and notes."""
    if len(windows) > FEW_WINDOWS:
        return _many(source, windows)
    read = [(load_readings([source], *window)[0], *window) for window in windows]
    return together([_window(source, *one, load_ns=_extent(windows)) for one in read], windows)


def window_figures(source: Source, ticks: Ticks, starts_ns: Ints, ends_ns: Ints) -> list[Energy]:
    """Joules of one device in each of many windows, with their budgets, by ticks that reach from first to last."""
    readings = ticks.readings(starts_ns, ends_ns)
    windows = zip(readings, starts_ns.tolist(), ends_ns.tolist(), strict=True)
    return [_figure(source, reading, start, end, (end - start) / NS) for reading, start, end in windows]


def _window(source: Source, reading: Reading | None, start_ns: int, end_ns: int, load_ns: tuple[int, int]) -> Energy:
    """The figure of one window, checked against other paths to the same joules."""
    figure = _figure(source, reading, start_ns, end_ns, (end_ns - start_ns) / NS, load_ns)
    if figure.joules is None:
        return figure
    return replace(figure, notes=(*figure.notes, *cross_check(source, figure.joules, start_ns, end_ns)))


def _figure(
    source: Source,
    reading: Reading | None,
    start_ns: int,
    end_ns: int,
    asked_s: float,
    load_ns: tuple[int, int] | None = None,
) -> Energy:
    """A reading of `asked_s` seconds between two instants, with its budget, coverage and notes."""
    if reading is None:
        return Energy.refuse(f"{source.channel.name} delivered no reading", scope=source.family)
    if reading.joules is None:
        return Energy.refuse(reading.refused, scope=source.family, coverage=reading.coverage)
    model = _model_interval(source, start_ns, end_ns)
    budget = _budget(source, reading, (start_ns, end_ns), asked_s * reading.coverage, model, load_ns)
    bounds, notes = _gaps(source, reading, start_ns, end_ns, asked_s)
    if model is not None and model.outside > 0:
        notes.append(
            f"{source.channel.device}: utilisation was outside the training range of the model for "
            f"{format_percent(model.outside)} of the time{_farthest(model.farthest)}"
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


def _farthest(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f", farthest in {', '.join(names[:NAMED])}{more}" if names else ""


def _unknown(channel: Channel) -> list[str]:
    if channel.facts.gain_pct is not None or channel.facts.offset_w is not None:
        return []
    return [f"{channel.device}: the gain and offset of this sensor are unknown; the interval covers sampling only"]


def pedigree_of(channel: Channel) -> Pedigree:
    """Modelled stays modelled; a counter's joules were counted, unless an agent integrated them; a gauge's were
    integrated."""
    if channel.pedigree is Pedigree.COUNTER and channel.kind is not Kind.COUNTER:
        return Pedigree.INTEGRATED
    return channel.pedigree


def _budget(
    source: Source,
    reading: Reading,
    window_ns: tuple[int, int],
    seconds: float,
    model: ModelInterval | None,
    load_ns: tuple[int, int] | None,
) -> Budget:
    """Gain and offset are shared by all windows of a sensor, edges only by adjacent windows, a model's error in part.

    A model's interval of its rows is used where it is wider than the sensor's gain; what reaches further up is a bound.
    """
    facts, joules = source.channel.facts, reading.joules or 0.0
    device = f"{source.tape.host}:{source.channel.device}"
    channel, owner = source.channel, device
    start_ns, end_ns = window_ns
    window, load = (f"{device}:{source.channel.name}:{a}:{b}" for a, b in (window_ns, load_ns or window_ns))
    bounds = []
    gain = max((facts.gain_pct or 0.0) / 100, model.below if model else 0.0)
    if channel.pedigree is Pedigree.MODELLED:
        # What the model says of this machine and what it says of this load are two errors.
        own = min(math.sqrt(1 - MODEL_ALIKE) * gain, MODEL_OWN)
        alike = 1 - (own / gain) ** 2 if gain else MODEL_ALIKE
        shared = replace(facts, cards=device, calibrated=False, gain_alike=alike, offset_alike=alike)
        channel, owner = replace(channel, facts=shared), load
        above = max(model.above - gain, 0.0) if model else 0.0
        own_above = min((1 - MODEL_ALIKE) * above, MODEL_OWN - own)
        for key, share in ((device, above - own_above), (load, own_above)):
            if share:
                bounds.append(Bound("model", f"outside:{key}", 0.0, joules * share))
    terms = systematic_terms(channel, owner, joules * gain, (facts.offset_w or 0.0) * seconds)
    # A window's start counts with the opposite sign of the same instant as another window's end.
    for at_ns, width_j, sign in ((start_ns, reading.start_width_j, -1.0), (end_ns, reading.end_width_j, 1.0)):
        if width_j:
            terms.append(Term("edges", edge_key(source, at_ns), sign * width_j))
    if reading.aliasing_j or sees_a_part(facts):  # 0 where readings are alike: `why` says what that may hide
        # Cards of one model look at the same part of each period, and often work in step: they miss the same, as may a
        # sensor in two windows of one load.
        terms.append(Term("aliasing", f"aliasing:{facts.cards or device}|{window}", reading.aliasing_j))
    if reading.below_j or reading.above_j:
        bounds.append(Bound("aliasing", f"hidden:{window}", reading.below_j, reading.above_j))
    if reading.quantum_j:
        terms.append(Term("quantum", f"quantum:{window}", reading.quantum_j))
    return Budget(tuple(terms), tuple(bounds))


def _model_interval(source: Source, start_ns: int, end_ns: int) -> ModelInterval | None:
    """What the model said of its rows between two instants; None if it gave no interval.

    Errors of one model are taken as one error: rows do not make each other surer.
    """
    info = source.group.info
    names = [f"{info.sensor}.{side}" for side in MODEL_CHANNELS]
    known = {channel.name for channel in info.channels}
    if source.channel.pedigree is not Pedigree.MODELLED or not known.issuperset(names):
        return None
    number = f"{info.sensor}.farthest"  # tapes of earlier versions have none
    wanted = [source.channel.name, *names, *({number} & known)]
    rows = load_columns(source.tape, source.group.id, wanted, start_ns, end_ns)
    # A row is about the time up to it, so the first one after the end counts too.
    before = np.concatenate([rows.published[:1], rows.published[:-1]])
    inside = (rows.published > start_ns) & (before < end_ns)
    watts, low, high, outside = (rows.values[name][inside] for name in (source.channel.name, *names))
    fine = np.isfinite(watts + low + high + outside) & (watts > 0)
    if not fine.any():
        return None
    whole = float(watts[fine].sum())
    times = {
        name: int((rows.values[number][inside] == place).sum())
        for place, name in enumerate(info.names if number in known else (), 1)
    }
    farthest = sorted((name for name in times if times[name]), key=lambda name: -times[name])
    below, above = float((watts - low)[fine].sum()) / whole, float((high - watts)[fine].sum()) / whole
    return ModelInterval(min(TO_95 * below, 1.0), TO_95 * above, float(outside[fine].mean()), tuple(farthest))


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


def cross_check(source: Source, joules: float, start_ns: int, end_ns: int) -> list[str]:
    """Notes where another path to the same joules disagrees by more than 10 %, and more than its sampling explains."""
    notes = []
    for group, channel in checked_by(source, start_ns, end_ns):
        other = replace(source, group=group, channel=channel, mirrors=())
        other_j = line_joules(other, start_ns, end_ns)
        if other_j is None or (_apart(joules, other_j) and not lines_are_right(other)):
            reading = load_readings([other], start_ns, end_ns)[0]
            other_j = None if reading is None else _comparable_j(reading, joules)
        if other_j is not None and _apart(joules, other_j):
            name = f"{channel.name}{' (modelled)' if channel.pedigree is Pedigree.MODELLED else ''}"
            notes.append(
                f"{source.channel.device}: {source.channel.name} reports {format_joules(joules)} and {name} "
                f"reports {format_joules(other_j)} for the same window: they disagree by "
                f"{format_percent(abs(joules - other_j) / max(abs(joules), abs(other_j)))}"
            )
    return notes


def drift_ratio(source: Source, windows: Sequence[tuple[int, int]]) -> float | None:
    """Measured over modelled watts where a model beside a sensor had drifted in these windows (in order); else None."""
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*windows, strict=True))
    for group, _ in source.mirrors:
        names = [f"{group.info.sensor}.{word}" for word in ("ratio", "drift")]
        if not {channel.name for channel in group.info.channels}.issuperset(names):
            continue
        rows = load_columns(source.tape, group.id, names, int(starts[0]), int(ends[-1]))
        place = np.searchsorted(starts, rows.published) - 1
        inside = (place >= 0) & (rows.published <= ends[place])
        ratios, drifted = (rows.values[name] for name in names)
        if len(said := ratios[inside & (drifted == 1)]):
            return float(said[-1])
    return None


def _apart(one_j: float, other_j: float) -> bool:
    largest = max(abs(one_j), abs(other_j))
    return largest > 1.0 and abs(one_j - other_j) > CROSS_CHECK_LIMIT * largest


def _comparable_j(reading: Reading, joules: float) -> float | None:
    """Joules of a reading that can be held against another path's; None where it missed much or may be as large."""
    if reading.joules is None or reading.coverage * reading.read_share < MOSTLY:
        return None
    open_j = math.hypot(reading.start_width_j, reading.end_width_j, reading.aliasing_j)
    open_j += reading.below_j if joules < reading.joules else reading.above_j
    return reading.joules if abs(joules - reading.joules) > open_j else None
