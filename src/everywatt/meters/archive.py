"""An archive of a meter: raw rows, and true copies by second and by minute, one Parquet file a day of each.

    DIR/raw/NAME-20261115T060000.000Z.parquet      every row
    DIR/second/NAME-20261115T060000.000Z.parquet   joules, mean, least and most of every second
    DIR/minute/NAME-20261115T060000.000Z.parquet   and of every minute

The name has the instant of the first row, so a period is found without opening files outside of it.

`python -m everywatt.meters.archive ARCHIVE METER JOURNAL [HH:MM]` packs a finished journal: a process of its own, so
that a capture never waits for it. Killed in its midst, it is simply done again. With an hour, zips as Lab-IA has them
are written too, of days that turn at that hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError, RunExists, UsageError
from everywatt.core.files import replacing
from everywatt.core.plugins import ARCHIVE_COPIES, arrow, load_plugin
from everywatt.meters.block import Block, Oddities
from everywatt.meters.downsample import Cells, coarser, downsample, gathered_cells
from everywatt.meters.journal import journal_blocks
from everywatt.meters.parquet import read_parquet, to_column, writing
from everywatt.tape.places import sync_file

COPIES: Final = {"second": 1.0, "minute": 60.0}
ROWS_AT_ONCE: Final = 4_000  # what the copies are cut from: more would only take memory
CELLS_TOGETHER: Final = 10_800  # three hours of seconds in a row group
_NAME = re.compile(r"(?P<meter>.+)-(?P<at>\d{8}T\d{6})\.(?P<ms>\d{3})Z\.parquet")


def file_name(meter: str, utc_ns: int) -> str:
    """What a file of the archive is called."""
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
        for cells in gathered_cells(pieces, CELLS_TOGETHER):
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
    last = np.iinfo(np.int64).min
    for place, (begin_ns, path) in enumerate(files):
        next_ns = files[place + 1][0] if place + 1 < len(files) else None
        if (end_ns is not None and begin_ns >= end_ns) or (
            start_ns is not None and next_ns is not None and next_ns + NS <= start_ns
        ):
            continue
        for block in read_parquet(path, start_ns, end_ns, plugs):
            part = block.between(None if start_ns is None and last < 0 else max(start_ns or last + 1, last + 1), end_ns)
            if len(part):
                last = int(part.utc_ns[-1])
                yield part


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
