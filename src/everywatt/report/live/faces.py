"""Snapshots for programs and for paper: JSON lines, CSV rows, a table of now."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from everywatt.core.errors import UsageError
from everywatt.core.files import usable
from everywatt.core.format import format_duration, format_joules
from everywatt.core.jsonio import declared, dumps
from everywatt.core.tables import Column as TableColumn
from everywatt.core.tables import Table
from everywatt.report.live import format as show
from everywatt.report.live.board import (
    DEVICE_COLUMNS,
    MODEL_COLUMNS,
    OWNER_COLUMNS,
    SPECIAL,
    WORK_COLUMNS,
    Column,
    owner_name,
)
from everywatt.report.live.snapshot import OwnerNow, Snapshot

CSV_ROW = (
    "device=name label power_w energy_j=energy.joules energy_low_j=energy.low energy_high_j=energy.high "
    "utilisation_pct memory_bytes memory_total_bytes temperature_c clock_mhz throttled power_limit_w "
    "pedigree=energy.pedigree"
)
CSV_HEAD = ("time", "elapsed_s", *(word.partition("=")[0] for word in CSV_ROW.split()))


def json_line(snapshot: Snapshot) -> str:
    return dumps(snapshot.to_dict())


class CsvFile:
    """Appends one row for each device and interval, each interval flushed. An empty cell is not available.

    UsageError where the file has other columns already, or cannot be written.
    """

    def __init__(self, path: str, stdout: TextIO) -> None:
        self._own = path != "-"
        with usable(path, "written"):
            self._file = _append(Path(path)) if self._own else stdout
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not self._own or _empty(Path(path)):
            self._writer.writerow(CSV_HEAD)
            self._file.flush()

    def write(self, snapshot: Snapshot) -> None:
        stamp = snapshot.when.isoformat(timespec="milliseconds")
        for device in snapshot.devices:
            row = declared(device, CSV_ROW)
            self._writer.writerow([stamp, f"{snapshot.elapsed_s:.3f}", *map(_cell, row.values())])
        self._file.flush()

    def close(self) -> None:
        """Close the file; stdout stays open."""
        if self._own:
            self._file.close()


def _append(path: Path) -> TextIO:
    if path.is_file() and not _empty(path):
        with path.open(encoding="utf-8", newline="") as file:
            head = file.readline().rstrip("\r\n")
        if head != ",".join(CSV_HEAD):
            raise UsageError(f"{path} has another format: its first line is '{head[:60]}'.", cure="choose another file")
    return path.open("a", encoding="utf-8", newline="")


def _empty(path: Path) -> bool:
    try:
        return os.stat(path).st_size == 0  # noqa: PTH116 - a device or a pipe has size 0, too
    except FileNotFoundError:
        return True


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value}"


MOST_OWNERS = 25
LONGEST_LABEL = 48
RANKS = 100  # a column of a high rank is the first to go where there is little room
OF_THE_SCREEN = ("label", "sure", "updated")
"""Columns of the screen that a table of now has no room for; its energies have their interval beside them."""


def tables(snapshot: Snapshot) -> list[Table]:
    """Devices, then what a batch says of its workers or the owners, in the columns of the screen."""
    found = [_table(DEVICE_COLUMNS, snapshot.devices, energy=lambda device: energy_text(device.energy))]
    if snapshot.owners is not None and snapshot.owners.refused is None:
        columns = (owner_name(LONGEST_LABEL, live=snapshot.live), *OWNER_COLUMNS)
        found.append(_table(columns, owners_of(snapshot), energy=energy_text))
    found.append(_table(MODEL_COLUMNS, snapshot.models))
    if snapshot.work:
        found.append(_table(WORK_COLUMNS, snapshot.work))
    return [table for table in found if table.rows]


def _table(columns: Sequence[Column], rows: Iterable[Any], **other: Callable[[Any], str]) -> Table:
    kept = [column for column in columns if column.key not in OF_THE_SCREEN]
    cells = [[other[c.key](row) if c.key in other else c.cell(row, "J") for c in kept] for row in rows]
    shown = [
        TableColumn(c.head, align="left" if c.left else "right", spare=RANKS - c.rank if c.rank else 0) for c in kept
    ]
    return Table.of(*shown, rows=cells)


def owners_of(snapshot: Snapshot, most: int = MOST_OWNERS) -> list[OwnerNow]:
    """The owners, their labels cut; those beyond `most` are one, so that the table still adds up."""
    entries = snapshot.owners.entries if snapshot.owners else ()
    if len(entries) > most:
        small = [entry for entry in entries if entry.kind not in SPECIAL][most - len(SPECIAL) :]
        power_w, joules = sum(o.power_w for o in small), sum(o.joules for o in small)
        # They share errors of device and idle level, so their intervals add up.
        ends = [(o.low, o.high) for o in small if o.low is not None and o.high is not None]
        low, high = map(sum, zip(*ends, strict=True)) if ends and len(ends) == len(small) else (None, None)
        rest = OwnerNow("", "", f"{len(small)} more owners", power_w, joules, low=low, high=high)
        entries = (*(entry for entry in entries if entry not in small), rest)
    return [replace(entry, label=show.cut(entry.label, LONGEST_LABEL)) for entry in entries]


def energy_text(amount: show.Figure) -> str:
    """`412.3 J ± 6.1`, without the interval until the first is worked out; `-` where there is no energy."""
    if amount.joules is None:
        return show.NOTHING
    if amount.low is None or amount.high is None:
        return format_joules(amount.joules)
    return format_joules(amount.joules, amount.joules - amount.low, amount.high - amount.joules)


def heading(snapshot: Snapshot) -> str:
    """What was seen, in one line."""
    host = f" on {snapshot.host.name}" if snapshot.host.name else ""
    if snapshot.total_w is None and snapshot.total.refused:
        return f"{snapshot.source}{host}, {snapshot.when.astimezone():%H:%M:%S}: {snapshot.total.refused}"
    power, total = show.watts(snapshot.total_w, show.spread(snapshot.total)), energy_text(snapshot.total)
    scope = " · ".join(filter(None, (snapshot.scope, snapshot.total.pedigree)))
    when = f"since {snapshot.since}" if snapshot.since else f"in {format_duration(snapshot.elapsed_s)}"
    return (
        f"{snapshot.source}{host}, {snapshot.when.astimezone():%H:%M:%S}: {power}, "
        f"{total} {when}{f' · {scope}' if scope else ''}"
    )
