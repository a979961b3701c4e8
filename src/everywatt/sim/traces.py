"""Recordings of power as curves: CSV of `unix_s` or `seconds` and `watts`, or of nvidia-smi; plain or gzip."""

from __future__ import annotations

import csv
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core import foreign
from everywatt.core.errors import SimError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMES = ("seconds", "unix_s", "t_s", "time_s", "time", "timestamp")
_WATTS = ("watts", "power_w", "power", "power.draw.instant [w]", "power.draw [w]", "power.draw")


def read_trace(name: str) -> tuple[list[float], list[float]]:
    """Seconds since the first row, and watts. Rows without a number are left out; times have to grow."""
    path = Path(name).expanduser()
    try:
        text = list(foreign.lines(path, errors="strict"))
    except UsageError as error:
        raise SimError(f"The recording {error.message}", cure="a CSV file with seconds,watts") from None
    rows = csv.reader(text, skipinitialspace=True)
    header = [cell.strip().lower() for cell in next(rows, [])]
    at, of = _column(header, _TIMES, name), _column(header, _WATTS, name)
    times: list[float] = []
    watts: list[float] = []
    for row in rows:
        try:
            t, w = _seconds(row[at]), float(row[of].removesuffix(" W"))
        except (ValueError, IndexError):
            continue
        if w >= 0 and (not times or t > times[-1]):
            times.append(t)
            watts.append(w)
    if len(times) < 2:
        raise SimError(f"The recording {name} has fewer than two readings.", cure="a CSV file with seconds,watts")
    return [t - times[0] for t in times], watts


def _column(header: Sequence[str], names: Sequence[str], path: str) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise SimError(f"The recording {path} has no column {' or '.join(names[:3])}.", cure="a header like seconds,watts")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        stamp = datetime.strptime(text.strip(), "%Y/%m/%d %H:%M:%S.%f")
        return stamp.replace(tzinfo=timezone.utc).timestamp()  # noqa: UP017 - differences only
