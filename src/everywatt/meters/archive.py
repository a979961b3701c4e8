"""An archive of a meter: raw rows, and true copies by second and by minute, one Parquet file a day of each.

    DIR/raw/NAME-20261115T060000.000Z.parquet      every row
    DIR/second/NAME-20261115T060000.000Z.parquet   joules, mean, least and most of every second
    DIR/minute/NAME-20261115T060000.000Z.parquet   and of every minute

A copy has mean, least, most and joules of every second or minute, not every n-th line. Joules are what the rows cover,
cut at the borders of the cells, so the cells of a copy add up to the recording.

The name has the instant of the first row, so a period is found without opening files outside of it.

`python -m everywatt.meters.archive ARCHIVE METER JOURNAL [HH:MM]` packs a finished journal: a process of its own, so
that a capture never waits for it. Killed in its midst, it is simply done again. With an hour, zips as Lab-IA has them
are written too, of days that turn at that hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError, RunExists, UsageError
from everywatt.core.files import replacing
from everywatt.core.plugins import ARCHIVE_COPIES, arrow, load_plugin
from everywatt.meters.block import Block, Bools, Floats, Ints, Oddities, Stretches, forwards, gathered, held
from everywatt.meters.journal import journal_blocks
from everywatt.meters.parquet import read_parquet, to_column, writing
from everywatt.tape.places import sync_file

COPIES: Final = {"second": 1.0, "minute": 60.0}
ROWS_AT_ONCE: Final = 4_000  # what the copies are cut from: more would only take memory
CELLS_TOGETHER: Final = 10_800  # three hours of seconds in a row group
_NAME = re.compile(r"(?P<meter>.+)-(?P<at>\d{8}T\d{6})\.(?P<ms>\d{3})Z\.parquet")


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of equal length: where each starts (UTC), rows in it, seconds covered, and by plug joules, least, most."""

    length_ns: int
    start_ns: Ints
    rows: Ints
    observed_s: Floats
    joules: Floats
    low_w: Floats
    high_w: Floats

    def mean_w(self) -> Floats:
        """Mean power of every plug where anything was observed, else NaN."""
        covered = self.observed_s[:, None]
        return np.asarray(np.divide(self.joules, covered, out=np.full_like(self.joules, np.nan), where=covered > 0))

    def __len__(self) -> int:
        return len(self.start_ns)


def downsample(blocks: Iterable[Block], length_s: float) -> Iterator[Cells]:
    """The cells of a recording, in pieces; a cell that two blocks share comes once, whole."""
    length_ns = round(length_s * NS)
    return _finished(_cells(block.plugs, covered, length_ns) for block, covered in held(blocks))


def coarser(pieces: Iterable[Cells], length_s: float) -> Iterator[Cells]:
    """Longer cells from shorter ones, of which each lies within one of them: their joules are the same."""
    return _finished(_together(cells, round(length_s * NS)) for cells in pieces if len(cells))


def join_cells(pieces: Sequence[Cells]) -> Cells:
    both = ([getattr(cells, name) for cells in pieces] for name in _COLUMNS)
    return Cells(pieces[0].length_ns, *map(np.concatenate, both))


def _finished(pieces: Iterable[Cells]) -> Iterator[Cells]:
    """Cells with one that two pieces share put together."""
    left: Cells | None = None
    for cells in pieces:
        if left is not None and len(cells):
            cells = _together(join_cells([left, cells]), left.length_ns)
        if len(cells):
            left = _part(cells, slice(-1, None))
            if len(cells) > 1:
                yield _part(cells, slice(None, -1))
    if left is not None:
        yield left


def _together(cells: Cells, length_ns: int) -> Cells:
    starts_ns = cells.start_ns // length_ns * length_ns
    first = np.flatnonzero(np.concatenate(([True], np.diff(starts_ns) > 0)))
    return Cells(
        length_ns,
        starts_ns[first],
        np.add.reduceat(cells.rows, first),
        np.add.reduceat(cells.observed_s, first),
        np.add.reduceat(cells.joules, first, axis=0),
        np.minimum.reduceat(cells.low_w, first, axis=0),
        np.maximum.reduceat(cells.high_w, first, axis=0),
    )


def _cells(plugs: int, covered: Stretches, length_ns: int) -> Cells:
    rows_ns, watts = covered.end_ns, covered.watts
    if not len(rows_ns):
        none = np.zeros((0, plugs))
        return Cells(length_ns, rows_ns, rows_ns, np.zeros(0), none, none, none)
    first = min(int(covered.start_ns[0]), int(rows_ns[0])) // length_ns
    last = int(rows_ns[-1]) // length_ns
    count = last - first + 1
    edges = (first + np.arange(count + 1)) * length_ns
    steps_s = (covered.end_ns - covered.start_ns) / NS
    # Joules and seconds up to every edge: of the stretches that ended before it, and of the one that it cuts.
    cut = np.searchsorted(rows_ns, edges)
    inside = np.minimum(cut, len(rows_ns) - 1)
    part_s = np.where(cut < len(rows_ns), np.maximum(edges - covered.start_ns[inside], 0) / NS, 0.0)
    seconds = np.diff(_up_to(cut, np.cumsum(steps_s)) + part_s)
    joules = np.diff(_up_to(cut, np.cumsum(steps_s[:, None] * watts, axis=0)) + part_s[:, None] * watts[inside], axis=0)
    place = rows_ns // length_ns - first
    low, high = np.full((count, plugs), np.inf), np.full((count, plugs), -np.inf)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(place) > 0)))
    low[place[starts]] = np.minimum.reduceat(watts, starts, axis=0)
    high[place[starts]] = np.maximum.reduceat(watts, starts, axis=0)
    rows = np.bincount(place, minlength=count).astype(np.int64)
    cells = Cells(length_ns, edges[:-1], rows, seconds, joules, low, high)
    used = (rows > 0) | (seconds > 0)
    return cells if used.all() else _part(cells, used)


def _up_to(count: Ints, gathered: Floats) -> Floats:
    """What the first `count` stretches gathered, 0 for none."""
    found = gathered[np.maximum(count - 1, 0)]
    found[count == 0] = 0.0
    return np.asarray(found)


_COLUMNS = ("start_ns", "rows", "observed_s", "joules", "low_w", "high_w")


def _part(cells: Cells, chosen: slice | Bools) -> Cells:
    return Cells(cells.length_ns, *(getattr(cells, name)[chosen] for name in _COLUMNS))


def file_name(meter: str, utc_ns: int) -> str:
    seconds, ns = divmod(utc_ns, NS)
    return f"{meter}-{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{ns // 1_000_000:03d}Z.parquet"


def safe_name(meter: str) -> str:
    """A meter's name as a file name. UsageError where nothing is left of it."""
    name = re.sub(r"[^\w.-]+", "_", meter).strip("._-")
    if not name:
        raise UsageError(f"'{meter}' is not a valid name for a meter.", cure="use letters and digits")
    return name


def store(archive: Path, meter: str, blocks: Iterable[Block]) -> list[Path]:
    """Put a recording into an archive, raw and as copies; gives the files (raw first). RunExists where it is there.

    The raw file gets its name last: what has a name is whole.
    """
    raw = archive / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    part = raw / f".{safe_name(meter)}.new"
    began: list[int] = []
    try:
        seconds = list(downsample(_noting(writing(part, blocks), began), 1.0))
        if not began:
            return []
        name = file_name(safe_name(meter), began[0])
        if (raw / name).exists():
            raise RunExists(f"{raw / name} exists already, and recordings are never overwritten.")
        files = [raw / name]
        for copy, length_s in COPIES.items():
            (archive / copy).mkdir(exist_ok=True)
            files.append(archive / copy / name)
            write_cells(files[-1], coarser(seconds, length_s))
        part.replace(raw / name)
    finally:
        part.unlink(missing_ok=True)
    return files


def _noting(blocks: Iterable[Block], began: list[int]) -> Iterator[Block]:
    """The same rows, few at a time; the time of the first is noted on the way."""
    for block in blocks:
        if not began:
            began.append(int(block.utc_ns[0]))
        for start in range(0, len(block), ROWS_AT_ONCE):
            yield block.take(slice(start, start + ROWS_AT_ONCE))


def write_cells(path: Path, pieces: Iterable[Cells]) -> None:
    """A copy as Parquet: `utc_ns` (start), `rows`, `observed_s`, and by plug `j`, `mean`, `min`, `max`."""
    pa, pq = arrow("meters")
    writer: Any = None
    with ExitStack() as stack:
        for cells in gathered(pieces, CELLS_TOGETHER, join_cells):
            columns = _columns(cells)
            arrays = [to_column(column) for column in columns.values()]
            table = pa.Table.from_arrays(arrays, names=list(columns)).replace_schema_metadata(
                {b"length_ns": str(cells.length_ns).encode()}
            )
            if writer is None:
                part = stack.enter_context(replacing(path))
                writer = pq.ParquetWriter(part, table.schema, compression="zstd", write_statistics=["utc_ns"])
                stack.enter_context(writer)
            writer.write_table(table)


def _columns(cells: Cells) -> dict[str, Any]:
    columns: dict[str, Any] = {"utc_ns": cells.start_ns, "rows": cells.rows, "observed_s": cells.observed_s}
    mean = cells.mean_w()
    for plug in range(cells.joules.shape[1]):
        columns[f"j{plug + 1}"] = cells.joules[:, plug]
        columns[f"mean{plug + 1}"] = mean[:, plug].astype(np.float32)
        columns[f"min{plug + 1}"] = cells.low_w[:, plug].astype(np.float32)
        columns[f"max{plug + 1}"] = cells.high_w[:, plug].astype(np.float32)
    return columns


def meters_in(archive: Path) -> dict[str, list[tuple[int, Path]]]:
    """The raw files by meter, oldest first, each with its start (UTC ns)."""
    found: dict[str, list[tuple[int, Path]]] = {}
    folder = archive / "raw"
    if not folder.is_dir():
        raise UsageError(f"{archive} is not an archive of a meter.", cure="everywatt meter import --archive DIR")
    for path in folder.glob("*.parquet"):
        match = _NAME.fullmatch(path.name)
        if match:
            start = datetime.strptime(match["at"], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            found.setdefault(match["meter"], []).append(
                (int(start.timestamp()) * NS + int(match["ms"]) * 1_000_000, path)
            )
    return {meter: sorted(files) for meter, files in sorted(found.items())}


def read_archive(
    archive: Path,
    meter: str | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    plugs: Sequence[int] | None = None,
) -> Iterator[Block]:
    """Rows of one meter of an archive in a period, whatever files they are in. UsageError where that is not one."""
    found = meters_in(archive)
    if meter is None and len(found) == 1:
        meter = next(iter(found))
    if meter is None or meter not in found:
        listed = ", ".join(found) or "none"
        raise UsageError(
            f"{archive} has no meter '{meter}'." if meter else f"{archive} has several meters.", cure=listed
        )
    files = found[meter]
    ends_ns = [next_ns + NS for next_ns, _ in files[1:]] + [math.inf]
    chosen = [
        path
        for (begin_ns, path), last_ns in zip(files, ends_ns, strict=True)
        if (end_ns is None or begin_ns < end_ns) and (start_ns is None or last_ns > start_ns)
    ]
    blocks = (block for path in chosen for block in read_parquet(path, start_ns, end_ns, plugs))
    yield from forwards((part for block in blocks if len(part := block.between(start_ns, end_ns))), Oddities())


def pack(archive: Path, meter: str, journal: Path, zip_turn: tuple[int, int] | None = None) -> list[Path]:
    """Store a journal's rows and take the journal away; gives the new files. Nothing if another process has it.

    zip_turn  the hour and minute at which a day turns, where zips in Lab-IA's layout are wanted too
    """
    with journal.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        try:
            files = store(archive, meter, journal_blocks(journal, Oddities()))
        except RunExists:
            if not _there(archive, meter, journal):
                raise
            files = []
        if zip_turn is not None:
            write_zips = load_plugin(ARCHIVE_COPIES, "labia-zip")
            files += write_zips(archive, meter, zip_turn, lambda: journal_blocks(journal, Oddities()))
        for path in files:
            sync_file(path)
            sync_file(path.parent)
        journal.unlink()
    return files


def _there(archive: Path, meter: str, journal: Path) -> bool:
    """True where all rows of a journal are in the archive: its packing was killed after the last step but one."""
    mine = sum(len(block) for block in journal_blocks(journal, Oddities()))
    edges = [block.utc_ns for block in journal_blocks(journal, Oddities())]
    if not edges:
        return True
    stored = read_archive(archive, meter, int(edges[0][0]), int(edges[-1][-1]) + 1)
    return sum(len(block) for block in stored) == mine


def main(argv: list[str]) -> int:
    """Pack one journal; 0 where that is done."""
    archive, meter, journal = Path(argv[0]), argv[1], Path(argv[2])
    hour, _, minute = argv[3].partition(":") if len(argv) > 3 else ("", "", "")
    zip_turn = (int(hour), int(minute)) if hour else None
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        for path in pack(archive, meter, journal, zip_turn):
            print(path, flush=True)
    except (EverywattError, OSError) as error:
        print(f"{journal} was kept: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
