"""The whole screen as lines, from a snapshot, a view and a size. Pure, so that tests need no terminal."""

from __future__ import annotations

from everywatt.report.live import format as show
from everywatt.report.live.columns import (
    DEVICE_COLUMNS,
    OWNER_COLUMNS,
    WORK_COLUMNS,
    Line,
    chosen,
    head_line,
    owner_name,
    owner_style,
    row_line,
)
from everywatt.report.live.snapshot import Snapshot
from everywatt.report.live.view import View

NARROW_SPARK = 12
LABEL = 9  # columns of the axis of the large chart
LEAST_CHART, MOST_CHART = 5, 12  # its lines
ROOM_BELOW = 14  # lines that owners or workers keep
WIDE = 100  # columns from which the large chart is drawn
LEAST_OWNERS = 4
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
    "Red: throttled by power cap or heat, or at the power limit. Yellow: near the limit.",
    "Owners share what each device drew; idle, meter (everywatt itself) and what",
    "could not be attributed have rows of their own, so all rows add up.",
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
    tall = min(MOST_CHART, rest - ROOM_BELOW)
    if tall >= LEAST_CHART and width >= WIDE and len(snapshot.history_w) > 1:
        lines += _chart(snapshot, view, width, tall)
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
    clock = f"{show.clock(snapshot.elapsed_s)}  {snapshot.when.astimezone():%H:%M:%S}"
    left = show.cut(f" everywatt · {what} ", max(10, width - len(clock) - len(state) - 3))
    gap = " " * max(0, width - len(left) - len(state) - len(clock) - 1)
    title: Line = [(left, "title"), (state, "hot"), (f"{gap}{clock} ", "title")]
    total = snapshot.total
    energy = show.energy(total.joules, view.unit)
    sure = show.half_width(total.low, total.high, total.joules)
    named = zip(("1s", "5s", "15s"), snapshot.averages_w, strict=True)
    averages = "  ".join(f"{name} {show.watts(value)}" for name, value in named)
    pieces: Line = [
        (f" {show.watts(snapshot.total_w):>8} ", "power"),
        (f"  {averages}  ", "dim"),
        (f" {energy}", "power"),
        (
            f" {sure if sure != show.NOTHING else ''}  {snapshot.scope}{f' {total.pedigree}' if width >= 90 else ''}",
            "dim",
        ),
    ]
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
    room = width - sum(len(text) for text, _ in pieces) - 1
    if room >= NARROW_SPARK:
        pieces = [*pieces, (show.sparkline(values, room, ascii_only=view.ascii, top=top), "bar")]
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
            top = max(device.history_w, default=0.0)
            line.append((show.sparkline(device.history_w, spark, ascii_only=view.ascii, top=top), "bar"))
        lines.append(line)
    return lines


def _chart(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    """The power of the whole over time, on a screen that has room for it."""
    labels = [show.watts(max(snapshot.history_w)), *[""] * (height - 2), show.watts(0.0)]
    drawn = show.chart(snapshot.history_w, width - LABEL - 2, height, ascii_only=view.ascii)
    return [[], *([(f"{label:>{LABEL}} ", "dim"), (line, "bar")] for label, line in zip(labels, drawn, strict=True))]


def _progress(snapshot: Snapshot, view: View, width: int) -> list[Line]:
    """` 31/40 done  2 failed  ████░░  about 40 s left  12.3 J/item`"""
    batch = snapshot.batch
    if batch is None:
        return []
    counts = f" {batch.done}/{batch.items} done"
    failed = f"  {batch.failed} failed" if batch.failed else ""
    rest = f"  about {show.clock(batch.eta_s)} left" if batch.eta_s is not None and snapshot.live else ""
    each = f"  {show.energy(batch.joules_per_item, view.unit)}/item" if batch.joules_per_item is not None else ""
    room = min(40, width - len(counts) - len(failed) - len(rest) - len(each) - 4)
    share = (batch.done + batch.failed) / batch.items
    drawn = f"  {show.bar(share, room, ascii_only=view.ascii)}" if room >= NARROW_SPARK else ""
    return [[], [(counts, "power"), (failed, "hot"), (drawn, "bar"), (f"{rest}{each}", "")]]


def owner_rows(height: int) -> int:
    """How many owners fit into so many lines: two are for the heads."""
    return max(0, height - 2)


def _owners(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    owners = snapshot.owners
    if owners is None or height < 3:
        return []
    if owners.refused is not None:
        return [[], [(show.cut(f" owners: {owners.refused}", width), "dim")]]
    columns = chosen(OWNER_COLUMNS, width - LEAST_NAME - 2)
    name = owner_name(max(8, width - 2 - sum(column.width + 1 for column in columns)))
    rows = view.owners(snapshot)
    shown = rows[view.scroll : view.scroll + owner_rows(height)]
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
            kept.append((text[:left], style))
        left -= len(text)
    return kept


def _ascii(line: Line) -> Line:
    return [(show.cut(text, len(text), ascii_only=True), style) for text, style in line]


def plain(lines: list[Line]) -> str:
    """The lines as text, without styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
