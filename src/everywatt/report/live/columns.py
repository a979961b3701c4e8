"""The tables of the screen: which columns fit a width, and a row as pieces of styled text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.report.live import format as show
from everywatt.report.live.snapshot import DeviceNow, OwnerNow, WorkNow
from everywatt.report.live.view import SPECIAL

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


def head_line(columns: Sequence[Column], sort: str = "", *, ascii_only: bool = False) -> Line:
    """The heads; the one that rows are sorted by is marked."""
    line: Line = []
    for column in columns:
        mark = ("v" if ascii_only else "▾") if column.key == sort else ""
        line.append((_fit(mark + column.head, column, ascii_only), "key" if mark else "head"))
        line.append((" ", ""))
    return line


def row_line(columns: Sequence[Column], row: Any, unit: str, *, ascii_only: bool = False, style: str = "") -> Line:
    """One row."""
    line: Line = []
    for column in columns:
        line.append((_fit(column.cell(row, unit), column, ascii_only), column.style(row) or style))
        line.append((" ", ""))
    return line


def _fit(text: str, column: Column, ascii_only: bool) -> str:
    text = show.cut(text, column.width, ascii_only=ascii_only)
    return text.ljust(column.width) if column.left else text.rjust(column.width)


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
    Column("power", "POWER", 8, lambda d, u: show.watts(d.power_w), style=device_style),
    Column("avg1", "1 S", 8, lambda d, u: show.watts(d.averages_w[0]), 10),
    Column("avg5", "5 S", 8, lambda d, u: show.watts(d.averages_w[1]), 8),
    Column("avg15", "15 S", 8, lambda d, u: show.watts(d.averages_w[2]), 6),
    Column("energy", "ENERGY", 10, lambda d, u: show.energy(d.energy.joules, u)),
    Column(
        "sure", "95 %", 8, lambda d, u: show.half_width(d.energy.low, d.energy.high, d.energy.joules), 5,
        style=lambda d: "dim",
    ),
    Column("use", "UTIL", 5, lambda d, u: show.percent(d.utilisation_pct), 1, style=_use_style),
    Column("memory", "MEMORY", 10, lambda d, u: show.gib(d.memory_bytes, d.memory_total_bytes), 2),
    Column("temperature", "TEMP", 6, lambda d, u: show.number(d.temperature_c, "°C"), 3),
    Column("clock", "CLOCK", 8, lambda d, u: show.number(d.clock_mhz, "MHz"), 7),
    Column("limit", "LIMIT", 7, lambda d, u: show.number(d.power_limit_w, "W"), 9),
    Column("state", "STATE", 9, lambda d, u: _state(d), 11, style=lambda d: "hot" if d.throttled else "dim"),
)  # fmt: skip

OWNER_COLUMNS: tuple[Column, ...] = (
    Column("kind", "KIND", 12, lambda o, u: o.kind, 6, left=True, style=lambda o: "dim"),
    Column("power", "POWER", 8, lambda o, u: show.watts(o.power_w)),
    Column("energy", "ENERGY", 10, lambda o, u: show.energy(o.joules, u)),
    Column("cpu", "CPU", 6, lambda o, u: show.percent(o.cpu_pct), 1),
    Column("gpu", "GPU", 6, lambda o, u: show.percent(o.gpu_pct), 2),
    Column("memory", "MEMORY", 8, lambda o, u: show.gib(o.memory_bytes), 3),
    Column("method", "BY", 16, lambda o, u: o.method, 7, left=True, style=lambda o: "dim"),
)


def owner_name(width: int) -> Column:
    """The owner's name takes what the other columns leave."""
    return Column("owner", "OWNER", width, lambda o, u: o.label, left=True)


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
    Column("use_trend", "", 8, lambda w, u: show.sparkline(w.use_trend, 8, top=100.0), 9),
    Column("memory", "MEMORY", 8, lambda w, u: show.gib(w.memory_max_bytes), 3),
    Column("memory_trend", "", 8, lambda w, u: show.sparkline(w.memory_trend, 8), 10),
    Column("power", "POWER", 8, lambda w, u: show.watts(w.power_w), 8),
    Column("joules", "ENERGY", 9, lambda w, u: show.energy(w.joules, u), 8),
    Column("status", "LAST", 8, lambda w, u: w.status, 5, left=True),
    Column("updated", "AT", 8, lambda w, u: w.updated[11:19], 7),
    Column("item", "ITEM", 24, lambda w, u: w.item, 6, left=True),
)
