"""A table of usage and power over time: rows at instants, columns by name. Joined by time, never by row position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from everywatt.core.errors import UsageError

Floats = NDArray[np.float64]
Strings = NDArray[np.str_]
GAP_PERIODS = 3.0
MOST_NAMED = 30  # columns in an error: a store of several nodes has thousands


@dataclass(frozen=True)
class Table:
    """Rows in order of time.

    times_s   seconds since 1970 (or since any instant), rising
    columns   values by name, NaN where missing
    units     units by name, where they are known
    loads     the name of the load at each row; None if unknown
    aliases   other names of columns, such as those of stored series
    """

    times_s: Floats
    columns: Mapping[str, Floats]
    units: Mapping[str, str] = field(default_factory=dict)
    loads: Strings | None = None
    host: str = ""
    notes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def period_s(self) -> float:
        """The usual time between two rows."""
        steps = np.diff(self.times_s)
        steps = steps[steps > 0]
        return float(np.median(steps)) if len(steps) else 1.0

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Table:
        """Some of the rows."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        loads = None if self.loads is None else self.loads[rows]
        return replace(self, times_s=self.times_s[rows], columns=columns, loads=loads)

    def column(self, name: str) -> Floats:
        """One column; UsageError names those that there are."""
        if name not in self.columns:
            known = ", ".join(list(self.columns)[:MOST_NAMED]) or "none"
            more = f" and {len(self.columns) - MOST_NAMED} more" if len(self.columns) > MOST_NAMED else ""
            notes = "".join(f"; {note}" for note in self.notes)
            raise UsageError(f"The table has no column '{name}'; it has: {known}{more}{notes}.")
        return self.columns[name]

    def with_columns(self, columns: Mapping[str, Floats], *notes: str) -> Table:
        """The same rows with other columns, and sentences on what was done."""
        return replace(self, columns=dict(columns), notes=(*self.notes, *notes))


def ordered(table: Table) -> Table:
    """Rows by time, an instant once (its first row), and a sentence where something had to be moved."""
    if not len(table):
        raise UsageError("The table has no rows.")
    order = np.argsort(table.times_s, kind="stable")
    times = table.times_s[order]
    keep = np.concatenate([[True], np.diff(times) > 0])
    notes = []
    if (np.diff(order) < 0).any():
        notes.append("rows were not in order of time and were sorted")
    if not keep.all():
        notes.append(f"{int((~keep).sum())} rows repeat a time and were dropped")
    found = table.take(order[keep])
    return replace(found, notes=(*table.notes, *notes))


def rates(table: Table, names: Iterable[str]) -> Table:
    """Counters as change a second. A counter that goes back has no rate there; the first row has none."""
    elapsed = np.diff(table.times_s, prepend=np.nan)
    columns = dict(table.columns)
    units = dict(table.units)
    for name in names:
        steps = np.diff(columns[name], prepend=np.nan)
        steps[steps < 0] = np.nan
        columns[name] = steps / elapsed
        units[name] = {"J": "W", "s": "s/s"}.get(units.get(name, ""), f"{units.get(name, '')}/s")
    return replace(table, columns=columns, units=units)


def join(tables: Sequence[Table], tolerance_s: float | None = None) -> Table:
    """Tables side by side on the instants of the first: of the others the nearest row within the tolerance, else NaN.

    Without one, the tolerance is half of the slower table's usual period.
    """
    first = tables[0]
    columns = dict(first.columns)
    units = dict(first.units)
    notes = list(first.notes)
    for other in tables[1:]:
        within = tolerance_s if tolerance_s is not None else max(first.period_s, other.period_s) / 2
        place, near = nearest(first.times_s, other.times_s, within)
        for name, values in other.columns.items():
            called = name
            while called in columns:
                called = f"{called}'"
            columns[called] = np.where(near, values[place], np.nan)
            units[called] = other.units.get(name, "")
        notes += other.notes
        if not near.all():
            notes.append(f"{int((~near).sum())} of {len(near)} rows have no partner within {within:g} s")
    return replace(first, columns=columns, units=units, notes=tuple(notes))


def nearest(times_s: Floats, others_s: Floats, tolerance_s: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each instant the place of the nearest other one, and whether it is within the tolerance."""
    after = np.clip(np.searchsorted(others_s, times_s), 0, len(others_s) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.abs(others_s[before] - times_s) <= np.abs(others_s[after] - times_s)
    place = np.where(closer, before, after)
    return place.astype(np.int64), np.abs(others_s[place] - times_s) <= tolerance_s + 1e-9


def concatenate(tables: Sequence[Table]) -> Table:
    """Tables one after another (several runs): columns that not all of them have are left out."""
    names = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    lost = sorted({name for table in tables for name in table.columns} - set(names))
    columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in names}
    loads = None
    if all(table.loads is not None for table in tables):
        loads = np.concatenate([table.loads for table in tables if table.loads is not None])
    notes = [note for table in tables for note in table.notes]
    if lost:
        notes.append(f"not in every table, so dropped: {', '.join(lost)}")
    times = np.concatenate([table.times_s for table in tables])
    return ordered(Table(times, columns, tables[0].units, loads, tables[0].host, tuple(notes)))


def windows(table: Table, seconds: float) -> Table:
    """Means over windows of that length; a window counts where at least half of its usual rows are there.

    Windows restart after a gap, so that none spans one. Its time is its end.
    """
    gaps = np.diff(table.times_s, prepend=table.times_s[:1]) > GAP_PERIODS * table.period_s
    stretch = np.cumsum(gaps)
    starts = table.times_s[np.searchsorted(stretch, stretch)]
    number = np.floor((table.times_s - starts) / seconds + 1e-9)
    change = np.concatenate([[True], (np.diff(number) != 0) | (np.diff(stretch) != 0)])
    part = np.cumsum(change) - 1
    count = np.bincount(part)
    full = count >= max(1.0, 0.5 * seconds / table.period_s)
    columns = {}
    for name, values in table.columns.items():
        known = np.isfinite(values)
        total = np.bincount(part, np.where(known, values, 0.0))
        there = np.bincount(part, known.astype(np.float64))
        mean = np.divide(total, there, out=np.full(len(count), np.nan), where=there > 0)
        columns[name] = np.where(there >= 0.5 * count, mean, np.nan)[full]
    first = np.flatnonzero(change)
    times = (starts[first] + (number[first] + 1) * seconds)[full]
    loads = None if table.loads is None else table.loads[first][full]
    if not len(times):
        raise UsageError(f"No window of {seconds:g} s has enough rows.", cure="--window of a shorter time")
    return replace(table, times_s=times, columns=columns, loads=loads)
