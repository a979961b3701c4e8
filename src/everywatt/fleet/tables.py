"""Series joined by time into one table: on a grid, the newest sample of each that is not too old; counters as rates."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from everywatt.core.errors import TapeError, UsageError
from everywatt.core.files import replacing
from everywatt.core.plugins import arrow, library
from everywatt.fleet.exporting import REPEAT_MS
from everywatt.fleet.metrics import labels_text
from everywatt.fleet.query import Series
from everywatt.tape.exporting import iso

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
COUNTERS: Final = ("_total", "_sum", "_count", "_bucket")
OLD_PERIODS: Final = 1.5  # in periods: an older sample does not hold for the present
SUFFIXES: Final = (".csv", ".parquet")
MOST_CELLS: Final = 200_000_000


@dataclass(frozen=True, slots=True)
class Joined:
    """A table: UTC milliseconds, column names, and values (rows, columns); NaN where nothing was sampled."""

    at_ms: Ints
    columns: tuple[str, ...]
    values: Floats


def is_counter(name: str) -> bool:
    """Whether a metric only grows, by its name."""
    return name.endswith(COUNTERS) or name == "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


def join(series: Sequence[Series], *, step_s: float | None = None, rates: bool = True) -> Joined:
    """All series on one grid: of `step_s`, else of the shortest period among them."""
    if not series:
        return Joined(np.zeros(0, np.int64), (), np.zeros((0, 0)))
    times = [np.frombuffer(one.at_ms, np.int64) for one in series]
    periods = [_period_ms(at) for at in times]
    step_ms = round(step_s * 1000) if step_s else max(1, min((p for p in periods if p), default=1000))
    first, last = min(int(at[0]) for at in times), max(int(at[-1]) for at in times)
    if step_s is None:
        first = -(-first // step_ms) * step_ms  # a round time, so that two imports have the same rows
    count = max(0, (last - first + step_ms - 1) // step_ms) + 1
    if count * len(series) > MOST_CELLS:
        raise UsageError(f"{count} rows of {len(series)} columns are too many.", cure="--step 10s, or a shorter period")
    grid = first + step_ms * np.arange(count, dtype=np.int64)
    cells = np.full((len(grid), len(series)), np.nan)
    own = [one.name.startswith("everywatt_") for one in series]
    sent = np.unique(np.concatenate([at for at, ours in zip(times, own, strict=True) if ours] or [times[0][:0]]))
    for place, (one, at, period_ms) in enumerate(zip(series, times, periods, strict=True)):
        values = np.frombuffer(one.values, np.float64)
        if own[place]:
            at, values = _with_unchanged(at, values, min((p for p in periods if p), default=step_ms), sent)
        if rates and is_counter(one.name):
            at, values = rate(at, values)
        cells[:, place] = newest(grid, at, values, max(OLD_PERIODS * (period_ms or step_ms), step_ms))
    return Joined(grid, _columns(series, rates), cells)


def _with_unchanged(at_ms: Ints, values: Floats, period_ms: int, sent_ms: Ints) -> tuple[Ints, Floats]:
    """With the samples that an agent left out since nothing had changed, where something else was sent meanwhile."""
    gaps = np.diff(at_ms)
    idle = (gaps > OLD_PERIODS * period_ms) & (gaps <= REPEAT_MS + 2 * period_ms)
    counts = np.append(np.where(idle, np.round(gaps / period_ms).astype(np.int64), 1), 1)
    before = np.repeat(np.arange(len(at_ms)), counts)
    made = at_ms[before] + period_ms * (np.arange(len(before)) - (np.cumsum(counts) - counts)[before])
    heard = np.searchsorted(sent_ms, made, side="right") > np.searchsorted(sent_ms, made - period_ms, side="right")
    return made[heard], values[before][heard]


def _period_ms(at_ms: Ints) -> int:
    return int(np.median(np.diff(at_ms))) if len(at_ms) > 1 else 0


def rate(at_ms: Ints, values: Floats) -> tuple[Ints, Floats]:
    """What a counter grew by in a second, up to each sample after the first. A counter that went back: not known."""
    grown = np.diff(values)
    grown[grown < 0] = np.nan
    return at_ms[1:], grown / (np.diff(at_ms) / 1000)


def newest(grid_ms: Ints, at_ms: Ints, values: Floats, old_ms: float) -> Floats:
    """For each time of a grid, the newest value up to then; NaN where it is older than `old_ms` or missing."""
    if not len(at_ms):
        return np.full(len(grid_ms), np.nan)
    place = np.searchsorted(at_ms, grid_ms, side="right") - 1
    kept = np.clip(place, 0, None)
    fits = (place >= 0) & (grid_ms - at_ms[kept] <= old_ms)
    return np.where(fits, values[kept], np.nan)


def _columns(series: Sequence[Series], rates: bool) -> tuple[str, ...]:
    """The metric's name; where it has several series, also the labels in which those differ."""
    counts = Counter(one.name for one in series)
    found = []
    for one in series:
        name = one.name
        if counts[name] > 1:
            peers = [other.labels for other in series if other.name == name]
            pairs = sorted(one.labels.items())
            name += labels_text(tuple(p for p in pairs if any(peer.get(p[0]) != p[1] for peer in peers)))
        found.append(f"rate({name})" if rates and is_counter(one.name) else name)
    return tuple(found)


def frame(table: Joined) -> pd.DataFrame:
    """The table for pandas, indexed by `time`."""
    pd = library("pandas", "analysis")
    index = pd.DatetimeIndex(table.at_ms.astype("datetime64[ms]"), tz="UTC", name="time")
    return pd.DataFrame(table.values, index=index, columns=list(table.columns))


def write(table: Joined, path: Path) -> Path:
    """The table as CSV or Parquet, by the ending of the path; the file is replaced whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            (_parquet if path.suffix == ".parquet" else _csv)(table, part)
    except OSError as error:
        raise TapeError(f"{path} cannot be written: {error.strerror or error}.") from None
    return path


def _csv(table: Joined, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time", *table.columns))
        for at_ms, row in zip(table.at_ms.tolist(), table.values.tolist(), strict=True):
            time = iso(at_ms * 1_000_000)[:-7] + "Z"
            writer.writerow((time, *("" if value != value else repr(value) for value in row)))


def _parquet(table: Joined, path: Path) -> None:
    pa, pq = arrow()
    columns: list[Any] = [pa.array(table.at_ms, pa.timestamp("ms", tz="UTC"))]
    columns += [pa.array(np.ascontiguousarray(table.values[:, place])) for place in range(len(table.columns))]
    pq.write_table(pa.Table.from_arrays(columns, names=["time", *table.columns]), path, compression="zstd")
