"""The lines of a run's charts: power of every device, and use, temperature, clocks, memory, logged values beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from everywatt.api.power import PowerLine, held_line, power_line
from everywatt.api.run import Run
from everywatt.core.channels import Channel, Kind
from everywatt.core.clocks import NS
from everywatt.energy.sources import Source, addable, sources
from everywatt.ledger.text import shown_name
from everywatt.report.html.pyramid import Floats, Ints, Series
from everywatt.tape.columns import load_columns, ticks_by_frame
from everywatt.tape.reader import StoredGroup, Tape

US = 1000
GIB = 2.0**30
BUSY, IDLE = "host.cpu_time", "host.idle_time"
CHARTS = {
    "power": ("Power", "W"),
    "utilisation": ("Utilisation", "%"),
    "temperature": ("Temperature", "°C"),
    "clocks": ("Clocks", "MHz"),
    "memory": ("Memory", "GiB"),
    "logged": ("Logged values", ""),
}
_BY_UNIT = {"%": "utilisation", "°C": "temperature", "C": "temperature", "MHz": "clocks", "B": "memory"}
_FIRST = (".utilisation", ".temperature", ".clock_sm", ".memory")
Tell = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one chart: `shown` unless a reader has to ask for it, `in_total` where it is a part of the sum.
    What the program logged has no `device`.

    `watts` are the values of a line of power inside of the run's windows, which last `seconds`.
    """

    chart: str
    label: str
    channel: str
    series: Series
    shown: bool = True
    in_total: bool = False
    watts: Floats = field(default_factory=lambda: np.empty(0))
    seconds: float = 0.0
    device: str = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A channel to be drawn, and how its columns become values."""

    chart: str
    label: str
    channel: Channel
    shown: bool
    in_total: bool = False
    source: Source | None = None


def lines_of(run: Run, tell: Tell = lambda share, text: None) -> list[Line]:
    """Every line of a run, power first. Ticks of several segments follow one another, with a hole between."""
    found: dict[tuple[str, str], Line] = {}
    windows = dict(zip(run.tapes, run.windows(), strict=True))
    several = len({tape.host for tape in run.tapes}) > 1
    work = [(tape, group) for tape in run.tapes for group in tape.groups if not group.info.table]
    for place, (tape, group) in enumerate(work):
        tell(place / max(len(work), 1), f"reading {group.info.name}")
        for line in _lines(tape, group, windows[tape], offset_ns_of(run, tape)):
            host = f"{tape.host} " if several else ""
            one = replace(line, label=host + line.label, device=host + line.device)
            key = (one.chart, one.label)
            found[key] = _joined(found[key], one) if key in found else one
    for line in _logged(run):
        found[(line.chart, line.label)] = line
    return sorted(found.values(), key=lambda line: (list(CHARTS).index(line.chart), not line.in_total))


def offset_ns_of(run: Run, tape: Tape) -> int:
    """What to take from a tape's clock to get time after the run's start. Segments are placed by UTC."""
    first = run.tapes[0]
    start_ns = tape.extent_ns()[0]
    if tape is first:
        return start_ns
    return start_ns - (tape.to_utc_ns(start_ns) - first.to_utc_ns(first.extent_ns()[0]))


def extent_s(run: Run) -> list[float]:
    """First and last instant of the charts, in seconds after the start."""
    first = run.tapes[0]
    origin = first.to_utc_ns(first.extent_ns()[0])
    if len(run.tapes) == 1:
        low, high = first.extent_ns()
        return [0.0, max((high - low) / NS, 1e-3)]
    return [0.0, max((max(tape.to_utc_ns(tape.extent_ns()[1]) for tape in run.tapes) - origin) / NS, 1e-3)]


def run_s(run: Run) -> list[float]:
    """Start and end of the run's own windows on the same axis: the recording may be longer, such as by an idle time."""
    edges = [
        (at_ns - offset_ns_of(run, tape)) / NS
        for tape, windows in zip(run.tapes, run.windows(), strict=True)
        for window in windows
        for at_ns in window
    ]
    low, high = extent_s(run)
    found = [max(low, min(edges, default=low)), min(high, max(edges, default=high))]
    return found if found[1] > found[0] else [low, high]


def _lines(tape: Tape, group: StoredGroup, windows: Sequence[tuple[int, int]], offset_ns: int) -> Iterator[Line]:
    wanted = list(_wanted(tape, group))
    seconds = sum(end_ns - start_ns for start_ns, end_ns in windows) / NS
    rest = [one.channel.name for one in wanted if one.source is None]
    known = {channel.name for channel in group.info.channels}
    ticks = _ticks(tape, group, [*rest, *([IDLE] if BUSY in rest and IDLE in known else [])]) if rest else None
    for one in wanted:
        channel = one.channel
        if one.source is not None:
            found = power_line(one.source)
            series = None if found is None else _drawn(found, offset_ns)
            watts = np.empty(0) if found is None else found.inside(windows)
        else:
            assert ticks is not None
            series, watts = _series(one, group, *ticks, offset_ns, tape), np.empty(0)
        if series is not None and np.isfinite(series.values).any():
            yield Line(
                one.chart, one.label, channel.name, series, one.shown, one.in_total, watts, seconds, channel.device
            )


def _drawn(line: PowerLine, offset_ns: int) -> Series:
    """The line as a chart has it: each value at the end of its stretch, and a start before the first."""
    return Series(*_times(line.at_ns, offset_ns, np.concatenate((line.watts[:1], line.watts))))


def _ticks(tape: Tape, group: StoredGroup, names: Sequence[str]) -> tuple[Ints, dict[str, Floats]]:
    found = ticks_by_frame(tape, group, names)
    if found is not None:
        return found[0], found[2]
    columns = load_columns(tape, group.id, names)
    return columns.published, columns.values


def _wanted(tape: Tape, group: StoredGroup) -> Iterator[_Wanted]:
    speaking = {source.channel.name: source for source in sources(tape)}
    summed = {source.channel.name for source in addable(speaking.values())}
    for channel in group.info.channels:
        source: Source | None = speaking.get(channel.name)
        if source is not None:
            inside = channel.name in summed
            yield _Wanted("power", source.label, channel, inside or len(summed) == 0, inside, source)
        elif channel.name == BUSY:
            yield _Wanted("utilisation", "CPUs", channel, True)
        elif channel.kind is Kind.GAUGE and not channel.carries_energy and channel.unit in _BY_UNIT:
            yield _Wanted(_BY_UNIT[channel.unit], _label(channel), channel, channel.name.endswith(_FIRST))
        elif channel.unit == "W" and channel.domain is None:
            yield _Wanted("power", _label(channel), channel, False)


def _label(channel: Channel) -> str:
    """`gpu.0` for the quantity that a chart is named after, `gpu.0 clock memory` for others."""
    what = channel.name.removeprefix(channel.device).strip(".").removeprefix("clock_").replace("_", " ")
    ending = next((ending for ending in _FIRST if channel.name.endswith(ending)), None)
    if ending is not None:
        return channel.name.removesuffix(ending)  # `jetson.cpu0` for one CPU of a board
    return f"{channel.device} {what}" if what else channel.device


def _series(
    one: _Wanted, group: StoredGroup, at_ns: Ints, columns: dict[str, Floats], offset_ns: int, tape: Tape
) -> Series | None:
    """Readings of something that carries no energy, with holes where it was not read."""
    values = columns[one.channel.name]
    if len(at_ns) < 2:
        return None
    if one.channel.name == BUSY:
        busy = _busy(at_ns, columns, tape)
        return None if busy is None else Series(*_times(at_ns, offset_ns, np.concatenate((busy[:1], busy))))
    scale = one.channel.scale / GIB if one.chart == "memory" else one.channel.scale
    return _drawn(held_line(at_ns, values * scale, group.expected_period_s), offset_ns)


def _times(at_ns: Ints, offset_ns: int, values: Floats) -> tuple[Ints, Floats]:
    """Whole microseconds, strictly rising: of ticks within one microsecond the last is kept."""
    at = (at_ns - offset_ns + US // 2) // US
    keep = np.append(at[1:] > at[:-1], True)
    return (at, values) if keep.all() else (at[keep], values[keep])


def _busy(at_ns: Ints, columns: dict[str, Floats], tape: Tape) -> Floats | None:
    """The share of all CPUs that was busy, in percent, between reads."""
    busy = np.diff(columns[BUSY])
    if IDLE in columns:
        whole = busy + np.diff(columns[IDLE])
    else:
        host = tape.meta.get("host")
        cpus = host.get("cpus") if isinstance(host, dict) else None
        if not cpus:
            return None
        whole = np.diff(at_ns) / NS * float(cpus)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, np.clip(100.0 * busy / whole, 0.0, 100.0), np.nan)


def _joined(one: Line, other: Line) -> Line:
    """A line that goes on in a further segment, after a hole."""
    before, after = (
        (one.series, other.series) if one.series.t_us[0] <= other.series.t_us[0] else (other.series, one.series)
    )
    start = max(int(after.t_us[0]), int(before.t_us[-1]) + 2)
    keep = after.t_us >= start
    t_us = np.concatenate((before.t_us, [start - 1], after.t_us[keep]))
    values = np.concatenate((before.values, [np.nan], after.values[keep]))
    watts = np.concatenate((one.watts, other.watts))
    series = replace(before, t_us=t_us, values=values)
    return replace(one, series=series, watts=watts, seconds=one.seconds + other.seconds)


def total_line(lines: Sequence[Line]) -> Line | None:
    """The sum of the parts, as means over the steps of the one with the fewest ticks; None where there is one part."""
    parts = [line.series for line in lines if line.in_total]
    if len(parts) < 2:
        return None
    low, high = max(int(part.t_us[0]) for part in parts), min(int(part.t_us[-1]) for part in parts)
    grid = min(parts, key=len).t_us
    grid = grid[(grid >= low) & (grid <= high)]
    if len(grid) < 2:
        return None
    watts = np.sum([PowerLine(part.t_us, part.values[1:]).means(grid) for part in parts], axis=0)
    series = Series(grid, np.concatenate((watts[:1], watts)))
    return Line("power", "total", "sum of the devices in the total", series, shown=False, device="total")


def _logged(run: Run) -> Iterator[Line]:
    """Numbers that the program logged, one line a name."""
    by_name: dict[str, list[tuple[int, float]]] = {}
    for tape in run.tapes:
        offset_ns = offset_ns_of(run, tape)
        for point in tape.points():
            if isinstance(point.value, int | float) and not isinstance(point.value, bool):
                by_name.setdefault(point.name, []).append((point.at_ns - offset_ns, float(point.value)))
    for name, points in by_name.items():
        points.sort()
        at = np.array([t for t, _ in points], dtype=np.int64)
        series = Series(*_times(at, 0, np.array([value for _, value in points])), held=False)
        if len(series) > 1 and np.isfinite(series.values).any():
            yield Line("logged", shown_name(name), name, series)
