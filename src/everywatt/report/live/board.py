"""The whole screen as lines, from a snapshot, a view and a size: tables with the columns that fit, charts and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everywatt.core.format import format_quantity
from everywatt.core.tables import display_width
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.text import method_words
from everywatt.report.live import format as show
from everywatt.report.live.format import UNITS
from everywatt.report.live.snapshot import DeviceNow, ModelNow, OwnerNow, Snapshot, WorkNow

Piece = tuple[str, str]
"""Text and the name of its style: "", head, dim, good, warm, hot, bar, title, key."""
Line = list[Piece]
WARM, HOT = 0.8, 0.97


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `rank` says which go first where there is little room (0 always stays)."""

    key: str
    head: str
    width: int
    cell: Callable[[Any, str], str]
    rank: int = 0
    left: bool = False
    style: Callable[[Any], str] = lambda row: ""


def chosen(columns: Sequence[Column], room: int) -> list[Column]:
    """The columns that fit into `room`, in their order."""
    kept: list[Column] = []
    for column in sorted(columns, key=lambda column: column.rank):
        if column.rank == 0 or sum(c.width + 1 for c in kept) + column.width <= room:
            kept.append(column)
    return [column for column in columns if column in kept]


SORTED = "▾v"  # the mark of the column that rows are sorted by, and its ASCII form


def head_line(columns: Sequence[Column], sort: str = "", *, ascii_only: bool = False) -> Line:
    """The heads; the one that rows are sorted by is marked."""
    line: Line = []
    for column in columns:
        mark = SORTED[ascii_only] if column.key == sort else ""
        line.append((_fit(mark + column.head, column, ascii_only), "key" if mark else "head"))
        line.append((" ", ""))
    return line


def row_line(columns: Sequence[Column], row: Any, unit: str, *, ascii_only: bool = False, style: str = "") -> Line:
    line: Line = []
    for column in columns:
        line.append((_fit(column.cell(row, unit), column, ascii_only), column.style(row) or style))
        line.append((" ", ""))
    return line


def _fit(text: str, column: Column, ascii_only: bool) -> str:
    text = show.cut(text, column.width, ascii_only=ascii_only)
    space = " " * (column.width - display_width(text))
    return text + space if column.left else space + text


def device_style(device: DeviceNow) -> str:
    """Hot if the card is throttled or at its limit, warm where it is near; else plain."""
    if device.throttled:
        return "hot"
    if device.power_w is None or not device.power_limit_w:
        return ""
    share = device.power_w / device.power_limit_w
    return "hot" if share >= HOT else "warm" if share >= WARM else ""


def _use_style(device: DeviceNow) -> str:
    return "good" if (device.utilisation_pct or 0) >= 50 else ""


def _state(device: DeviceNow) -> str:
    if device.settling:
        return "settling"
    if device.age_s is not None and device.power_w is None:
        return f"{device.age_s:.0f} s old"
    return "throttled" if device.throttled else "ok" if device.throttled is False else show.NOTHING


DEVICE_COLUMNS: tuple[Column, ...] = (
    Column("device", "DEVICE", 10, lambda d, u: d.name, left=True),
    Column("label", "NAME", 26, lambda d, u: d.label, 12, left=True, style=lambda d: "dim"),
    Column("power", "POWER", 8, lambda d, u: show.watts(d.power_w, show.spread(d.energy)), style=device_style),
    Column("avg1", "1 S", 8, lambda d, u: show.watts(d.averages_w[0], show.spread(d.energy)), 10),
    Column("avg5", "5 S", 8, lambda d, u: show.watts(d.averages_w[1], show.spread(d.energy)), 8),
    Column("avg15", "15 S", 8, lambda d, u: show.watts(d.averages_w[2], show.spread(d.energy)), 6),
    Column("energy", "ENERGY", 10, lambda d, u: show.energy(d.energy.joules, u, show.spread(d.energy))),
    Column("sure", "95 %", 8, lambda d, u: show.half_width(d.energy), 5, style=lambda d: "dim"),
    Column("use", "UTIL", 5, lambda d, u: show.percent(d.utilisation_pct), 1, style=_use_style),
    Column("memory", "MEMORY", 10, lambda d, u: show.gib(d.memory_bytes, d.memory_total_bytes), 2),
    Column("temperature", "TEMP", 6, lambda d, u: show.number(d.temperature_c, "°C"), 3),
    Column("clock", "CLOCK", 8, lambda d, u: show.number(d.clock_mhz, "MHz"), 7),
    Column("limit", "LIMIT", 7, lambda d, u: show.number(d.power_limit_w, "W"), 9),
    Column("state", "STATE", 9, lambda d, u: _state(d), 11, style=lambda d: "hot" if d.throttled else "dim"),
)  # fmt: skip

OWNER_COLUMNS: tuple[Column, ...] = (
    Column("kind", "KIND", 12, lambda o, u: o.kind, 6, left=True, style=lambda o: "dim"),
    Column("power", "POWER", 8, lambda o, u: show.watts(o.power_w, show.spread(o))),
    Column("energy", "ENERGY", 10, lambda o, u: show.energy(o.joules, u, show.spread(o))),
    Column("sure", "95 %", 8, lambda o, u: show.half_width(o), 5, style=lambda o: "dim"),
    Column("cpu", "CPU", 6, lambda o, u: show.percent(o.cpu_pct), 1),
    Column("gpu", "GPU", 6, lambda o, u: show.percent(o.gpu_pct), 2),
    Column("memory", "MEMORY", 8, lambda o, u: show.gib(o.memory_bytes), 3),
    Column("method", "BY", 16, lambda o, u: method_words(o.method), 7, left=True, style=lambda o: "dim"),
)


def owner_name(width: int, age_s: float = 0.0, *, live: bool = True, ascii_only: bool = False) -> Column:
    """The owner's name takes what the other columns leave; processes of one name differ by their pid."""

    def cell(owner: OwnerNow, unit: str) -> str:
        pid = owner.id.partition(":")[0] if owner.kind == OwnerKind.PROCESS.value else ""
        end = f" [{pid}]" if pid.isdecimal() and pid != "0" else ""  # 0: processes that were never seen
        return show.cut(owner.label, width - len(end), ascii_only=ascii_only) + end

    stale = f" (until {age_s:.0f} s ago)" if age_s >= LEAST_AGE_S else ""
    return Column("owner", f"OWNER{stale if live else ' (means of the run)'}", width, cell, left=True)


def owner_style(owner: OwnerNow) -> str:
    """Owners that are no processes are dim."""
    return "dim" if owner.kind in SPECIAL else ""


def _spread(worker: WorkNow) -> str:
    spread = worker.utilisation_pct
    return show.NOTHING if spread is None else "/".join(f"{value:.0f}" for value in spread)


WORK_COLUMNS: tuple[Column, ...] = (
    Column("worker", "WORKER", 10, lambda w, u: w.worker, left=True),
    Column("events", "EVENTS", 7, lambda w, u: str(w.events)),
    Column("success", "DONE", 6, lambda w, u: str(w.success)),
    Column("failure", "FAILED", 6, lambda w, u: str(w.failure), style=lambda w: "hot" if w.failure else ""),
    Column("retries", "RETRIES", 7, lambda w, u: str(w.retries), 1),
    Column("runtime", "MEAN", 8, lambda w, u: show.NOTHING if w.runtime_s is None else f"{w.runtime_s:.1f} s", 2),
    Column("use", "UTIL %", 10, lambda w, u: _spread(w), 4),
    Column("use_trend", "UTIL", 8, lambda w, u: show.sparkline(w.use_trend, 8, top=100.0), 9),
    Column("memory", "MEMORY", 8, lambda w, u: show.gib(w.memory_max_bytes), 3),
    Column("memory_trend", "VRAM", 8, lambda w, u: show.sparkline(w.memory_trend, 8), 10),
    Column("retry_trend", "RETRY", 8, lambda w, u: show.sparkline(w.retry_trend, 8, top=1.0), 11),
    Column("power", "POWER", 8, lambda w, u: show.watts(w.power_w), 8),
    Column("joules", "ENERGY", 9, lambda w, u: show.energy(w.joules, u), 8),
    Column("status", "LAST", 8, lambda w, u: w.status, 5, left=True),
    Column("updated", "AT", 8, lambda w, u: w.updated[11:19], 7),
    Column("item", "ITEM", 24, lambda w, u: w.item, 6, left=True),
)


def per_token(model: ModelNow) -> str:
    """`1.26 J/token ± 0.2`, or why it is missing."""
    value, low, high = model.joules_per_token, model.low, model.high
    if model.refused is not None:
        return f"none: {model.refused}"
    if value is None:
        return show.NOTHING
    ends = (0.0, 0.0) if low is None or high is None else (value - low, high - value)
    return format_quantity(value, "J/token", *ends)


MODEL_COLUMNS: tuple[Column, ...] = (
    Column("server", "SERVER", 20, lambda m, u: m.server, 2, left=True),
    Column("model", "MODEL", 28, lambda m, u: m.model, left=True),
    Column("phase", "PHASE", 8, lambda m, u: m.phase if m.refused is None else "", 1, left=True),
    Column("per_token", "ENERGY", 40, lambda m, u: per_token(m), left=True),
)


NARROW_SPARK = 12
LABEL = 9  # columns of the axis of the large chart
LEAST_CHART, MOST_CHART = 5, 12  # its lines; a third of a tall screen
ROOM_BELOW = 14  # lines that owners or workers keep
WIDE = 100  # columns from which the large chart is drawn
LEAST_OWNERS = 4
LEAST_AGE_S = 1.5  # owners that are older than the total by less are of the same moment for a person
LEAST_NAME = 36
KEYS = "s sort  d devices  r reverse  / filter  space freeze  u unit  ? help  q quit"

HELP = (
    "s        sort the owners by the next column      d   sort the devices",
    "r        reverse the order                       u   energy in J, Wh, kWh",
    "/        show only rows with these words         esc  clear the filter",
    "space f  freeze or resume the screen             ?   this page",
    "up down  scroll the owners (page up, page down)  q   quit",
    "left right home end   move in time, in a finished run",
    "",
    "POWER    mean since the last refresh; 1 S, 5 S, 15 S are rolling averages.",
    "ENERGY   since the recording began; 95 % is half the width of its interval.",
    "UTIL     share of time in which the device was busy.",
    "Red: throttled by power cap or heat, or at the limit. Yellow: near the limit.",
    "Owners share what each device drew; idle, meter (everywatt itself) and what",
    "could not be attributed have rows of their own, so all rows add up. They are",
    "updated every few seconds, which keeps the cost of this view low; the heading",
    "shows how old they are.",
)


def board(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    """`height` lines of at most `width` columns."""
    lines = _head(snapshot, view, width)
    if view.help:
        body = [[(f"  {text}", "")] for text in HELP]
        return _filled([*lines, [], *body], view, width, height)
    devices = _devices(snapshot, view, width)
    room = height - len(lines) - 2
    wanted = 0 if snapshot.owners is None and not snapshot.work else LEAST_OWNERS + 2
    if len(devices) > max(3, room - wanted):
        kept = max(2, room - wanted - 1)
        devices = [*devices[:kept], [(f"  … {len(devices) - kept} more devices: enlarge, or filter with /", "dim")]]
    lines += devices
    rest = height - len(lines) - 1
    tall = min(max(MOST_CHART, height // 3), rest - ROOM_BELOW)
    if tall >= LEAST_CHART and width >= WIDE and len(snapshot.history_w) > 1:
        lines += _chart(snapshot, view, width, tall)
        rest = height - len(lines) - 1
    if snapshot.models and rest > LEAST_OWNERS:
        columns = chosen(MODEL_COLUMNS, width - 1)
        lines += [
            [],
            *([(" ", ""), *row_line(columns, model, view.unit, ascii_only=view.ascii)] for model in snapshot.models),
        ]
        rest = height - len(lines) - 1
    if snapshot.work:
        lines += _work(snapshot, view, width, rest)
    elif snapshot.owners is not None:
        lines += _owners(snapshot, view, width, rest)
    return _filled(lines, view, width, height)


def _head(snapshot: Snapshot, view: View, width: int) -> list[Line]:
    host = snapshot.host
    what = f"{snapshot.source} · {host.name}" if host.name else snapshot.source
    state = " FROZEN" if view.frozen else "" if snapshot.live else " ENDED"
    since = f" since {snapshot.since}" if snapshot.since else ""
    clock = f"{'' if since else show.clock(snapshot.elapsed_s) + '  '}{snapshot.when.astimezone():%H:%M:%S}"
    left = show.cut(f" everywatt · {what} ", max(10, width - len(clock) - len(state) - 3))
    gap = " " * max(0, width - len(left) - len(state) - len(clock) - 1)
    title: Line = [(left, "title"), (state, "hot"), (f"{gap}{clock} ", "title")]
    total = snapshot.total
    share = show.spread(total)
    energy = show.energy(total.joules, view.unit, share)
    sure = show.half_width(total)
    named = zip(("1s", "5s", "15s"), snapshot.averages_w, strict=True)
    averages = "  ".join(f"{name} {show.watts(value, share)}" for name, value in named)
    pieces: Line = [
        (f" {show.watts(snapshot.total_w, share):>8} ", "power"),
        (f"  {averages}  ", "dim"),
        (f" {energy}", "power"),
        (
            f" {sure if sure != show.NOTHING else ''}  {snapshot.scope}{f' {total.pedigree}' if width >= 90 else ''}",
            "dim",
        ),
    ]
    pieces += [(since, "dim")] if sum(len(text) for text, _ in pieces) + len(since) < width else []
    lines = [title, _spark_after(pieces, snapshot.history_w, view, width)]
    if host.cpu_pct is not None or host.memory_bytes is not None:
        memory = show.gib(host.memory_bytes, host.memory_total_bytes)
        pieces = [(f" cpu {show.percent(host.cpu_pct):>6}   memory {memory:<12} ", "")]
        lines.append(_spark_after(pieces, host.cpu_history_pct, view, width, top=100.0))
    if snapshot.notes:
        more = f" (+{len(snapshot.notes) - 1})" if len(snapshot.notes) > 1 else ""
        lines.append([(show.cut(f" ! {snapshot.notes[0]}{more}", width), "warm")])
    return lines


def _spark_after(pieces: Line, values: tuple[float, ...], view: View, width: int, *, top: float | None = None) -> Line:
    room = width - sum(len(text) for text, _ in pieces) - 3
    if room >= NARROW_SPARK:
        pieces = [*pieces, ("  ", ""), (show.sparkline(values, room, ascii_only=view.ascii, top=top), "bar")]
    return pieces


def _devices(snapshot: Snapshot, view: View, width: int) -> list[Line]:
    rows = view.devices(snapshot)
    if not rows:
        return [[], [(" no device here measures power", "dim")]]
    useful = [c for c in DEVICE_COLUMNS if c.rank == 0 or any(c.cell(d, view.unit) not in ("-", "") for d in rows)]
    columns = chosen(useful, width - NARROW_SPARK - 1)
    spark = width - sum(column.width + 1 for column in columns) - 1
    lines = [[], [(" ", ""), *head_line(columns, view.device_sort, ascii_only=view.ascii)]]
    for device in rows:
        style = "" if device.in_total else "dim"
        line = [(" ", ""), *row_line(columns, device, view.unit, ascii_only=view.ascii, style=style)]
        if spark >= NARROW_SPARK // 2:
            line.append((show.sparkline(device.history_w, spark, ascii_only=view.ascii), "bar"))
        lines.append(line)
    return lines


def _chart(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    """The power of the whole over time, on a screen that has room for it."""
    shown = snapshot.history_w[-(width - LABEL - 2) :]
    labels = [show.watts(max(shown), show.spread(snapshot.total)), *[""] * (height - 2), show.watts(0.0)]
    drawn = show.chart(shown, width - LABEL - 2, height, ascii_only=view.ascii)
    return [[], *([(f"{label:>{LABEL}} ", "dim"), (line, "bar")] for label, line in zip(labels, drawn, strict=True))]


def _progress(snapshot: Snapshot, view: View, width: int) -> list[Line]:
    """` 31/40 done  2 failed  ████░░  about 40 s left  12.3 J/item`"""
    batch = snapshot.batch
    if batch is None:
        return []
    counts = f" {batch.done}/{batch.items} done"
    failed = f"  {batch.failed} failed" if batch.failed else ""
    rest = f"  about {show.clock(batch.eta_s)} left" if batch.eta_s is not None and snapshot.live else ""
    joules = show.energy(batch.joules_per_item, view.unit, show.spread(snapshot.total))
    each = f"  {joules}/item" if batch.joules_per_item is not None else ""
    room = min(40, width - len(counts) - len(failed) - len(rest) - len(each) - 4)
    share = (batch.done + batch.failed) / batch.items
    drawn = f"  {show.bar(share, room, ascii_only=view.ascii)}" if room >= NARROW_SPARK else ""
    return [[], [(counts, "power"), (failed, "hot"), (drawn, "bar"), (f"{rest}{each}", "")]]


def _owners(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    owners = snapshot.owners
    if owners is None or height < 3:
        return []
    if owners.refused is not None:
        return [[], [(show.cut(f" owners: {owners.refused}", width), "dim")]]
    rows = view.owners(snapshot)
    useful = [c for c in OWNER_COLUMNS if c.rank == 0 or any(c.cell(o, view.unit) not in ("-", "") for o in rows)]
    columns = chosen(useful, width - LEAST_NAME - 2)
    room = width - 2 - sum(column.width + 1 for column in columns)
    if columns and columns[-1].key == "method":  # why a share is unattributed is a sentence
        spare = max(0, room - max([LEAST_NAME, *(len(owner.label) for owner in rows)]))
        longest = max((len(method_words(owner.method)) for owner in rows), default=0)
        more = min(spare, max(0, longest - columns[-1].width))
        columns[-1], room = replace(columns[-1], width=columns[-1].width + more), room - more
    name = owner_name(max(8, room), owners.age_s, live=snapshot.live, ascii_only=view.ascii)
    shown = rows[view.scroll : view.scroll + height - 2]  # two lines are for the heads
    all_columns = [name, *columns]
    lines = [[], [(" ", ""), *head_line(all_columns, view.sort, ascii_only=view.ascii)]]
    lines += [
        [(" ", ""), *row_line(all_columns, owner, view.unit, ascii_only=view.ascii, style=owner_style(owner))]
        for owner in shown
    ]
    return lines


def _work(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    columns = chosen(WORK_COLUMNS, width - 2)
    rows = [worker for worker in snapshot.work if view.matches(worker.worker, worker.item, worker.status)]
    lines: list[Line] = _progress(snapshot, view, width)
    lines += [[], [(" ", ""), *head_line(columns, ascii_only=view.ascii)]]
    lines += [[(" ", ""), *row_line(columns, worker, view.unit, ascii_only=view.ascii)] for worker in rows]
    room = height - len(lines) - 1
    if room > 0 and snapshot.tail:
        lines.append([])
        lines += [[(show.cut(f" {text}", width), "dim")] for text in snapshot.tail[-room:]]
    return lines[: max(0, height)]


def _filled(lines: list[Line], view: View, width: int, height: int) -> list[Line]:
    """Exactly `height` lines, the last of them the keys or the filter that is being typed."""
    if view.typing:
        foot: Line = [(show.cut(f" filter: {view.filter}_", width), "key")]
    elif view.filter:
        foot = [(show.cut(f" filter: {view.filter}   (esc: clear)  {KEYS}", width), "key")]
    else:
        foot = [(show.cut(f" {KEYS}", width), "dim")]
    body = lines[: height - 1]
    body += [[]] * (height - 1 - len(body))
    ready = [_clipped(_merged(line), width) for line in (*body, foot)]
    return [_ascii(line) for line in ready] if view.ascii else ready


def _merged(line: Line) -> Line:
    """Neighbours of one style as one piece: a terminal costs by pieces."""
    merged: Line = []
    for text, style in line:
        if merged and (merged[-1][1] == style or not text.strip()):
            merged[-1] = (merged[-1][0] + text, merged[-1][1])
        else:
            merged.append((text, style))
    return merged


def _clipped(line: Line, width: int) -> Line:
    """The pieces that fit into the width."""
    left, kept = width, []
    for text, style in line:
        if left > 0:
            kept.append((show.fitting(text, left), style))
        left -= display_width(text)
    return kept


def _ascii(line: Line) -> Line:
    return [(show.cut(text, len(text), ascii_only=True), style) for text, style in line]


def plain(lines: list[Line]) -> str:
    """The lines as text, without styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


OWNER_SORTS: tuple[str, ...] = ("power", "energy", "cpu", "gpu", "memory", "owner")
DEVICE_SORTS: tuple[str, ...] = ("device", "power", "energy", "use", "memory")
SPECIAL = ("other", "idle", "meter", "unattributed")

_OWNER_KEYS: dict[str, Callable[[OwnerNow], Any]] = {
    "power": lambda owner: owner.power_w,
    "energy": lambda owner: owner.joules,
    "cpu": lambda owner: _or_least(owner.cpu_pct),
    "gpu": lambda owner: _or_least(owner.gpu_pct),
    "memory": lambda owner: _or_least(owner.memory_bytes),
    "owner": lambda owner: owner.label.lower(),
}
_DEVICE_KEYS: dict[str, Callable[[DeviceNow], Any]] = {
    "power": lambda device: _or_least(device.power_w),
    "energy": lambda device: _or_least(device.energy.joules),
    "use": lambda device: _or_least(device.utilisation_pct),
    "memory": lambda device: _or_least(device.memory_bytes),
}


def _or_least(value: float | None) -> float:
    return -1.0 if value is None else value


@dataclass(frozen=True, slots=True)
class View:
    """`typing` is True while a filter is typed; `scroll` is how many owners are above the screen."""

    sort: str = "power"
    device_sort: str = "device"
    reverse: bool = False
    filter: str = ""
    unit: str = "J"
    scroll: int = 0
    frozen: bool = False
    typing: bool = False
    help: bool = False
    ascii: bool = False

    def next_sort(self) -> View:
        return replace(self, sort=_after(self.sort, OWNER_SORTS), scroll=0)

    def next_device_sort(self) -> View:
        return replace(self, device_sort=_after(self.device_sort, DEVICE_SORTS))

    def next_unit(self) -> View:
        return replace(self, unit=_after(self.unit, UNITS))

    def sorted_by(self, heads: str, head: str) -> View:
        """Sorted by a heading of a line of them; owners by the one that they are sorted by already, reversed."""
        first = heads.split()[0].lstrip(SORTED) if heads.strip() else ""
        columns = {column.head: column.key for column in (DEVICE_COLUMNS if first == "DEVICE" else OWNER_COLUMNS)}
        key = {**columns, "OWNER": "owner"}.get(head.lstrip(SORTED), "")
        if first == "DEVICE" and key in DEVICE_SORTS:
            return replace(self, device_sort=key)
        if first != "OWNER" or key not in OWNER_SORTS:
            return self
        return replace(self, reverse=not self.reverse) if key == self.sort else replace(self, sort=key, scroll=0)

    def scrolled(self, rows: int, most: int) -> View:
        """Moved by so many rows, within the list."""
        return replace(self, scroll=max(0, min(self.scroll + rows, most)))

    def owners(self, snapshot: Snapshot) -> list[OwnerNow]:
        """The owners that the filter lets through, in order; the first letters or numbers come first by name."""
        if snapshot.owners is None:
            return []
        found = [o for o in snapshot.owners.entries if self.matches(o.label, o.kind, o.id)]
        return sorted(found, key=_OWNER_KEYS[self.sort], reverse=(self.sort != "owner") != self.reverse)

    def devices(self, snapshot: Snapshot) -> list[DeviceNow]:
        """The devices that the filter lets through, in order. A filter that fits no device hides none."""
        found = [d for d in snapshot.devices if self.matches(d.name, d.label)]
        found = found or list(snapshot.devices)
        if self.device_sort == "device":
            return found
        return sorted(found, key=_DEVICE_KEYS[self.device_sort], reverse=True)

    def matches(self, *texts: str) -> bool:
        """Whether every word of the filter is in one of the texts."""
        words = self.filter.lower().split()
        return all(any(word in text.lower() for text in texts) for word in words)


def _after(value: str, values: tuple[str, ...]) -> str:
    return values[(values.index(value) + 1) % len(values)]
