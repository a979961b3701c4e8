"""An archive of a meter: raw rows, and true copies by second and by minute, one Parquet file a day of each.

    DIR/raw/NAME-20261115T060000.000Z.parquet      every row
    DIR/second/NAME-20261115T060000.000Z.parquet   joules, mean, least and most of every second
    DIR/minute/NAME-20261115T060000.000Z.parquet   and of every minute

The name has the instant of the first row, so a period is found without opening files outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.errors import RunExists, UsageError
from everywatt.meters.block import Block
from everywatt.meters.downsample import Cells, coarser, downsample, gathered_cells
from everywatt.meters.parquet import arrow, read_parquet, to_column, writing

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
    pa, pq = arrow()
    temporary = path.with_name(f".{path.name}.part")
    writer: Any = None
    try:
        for cells in gathered_cells(pieces, CELLS_TOGETHER):
            columns = _columns(cells)
            arrays = [to_column(column) for column in columns.values()]
            table = pa.Table.from_arrays(arrays, names=list(columns)).replace_schema_metadata(
                {b"length_ns": str(cells.length_ns).encode()}
            )
            if writer is None:
                writer = pq.ParquetWriter(temporary, table.schema, compression="zstd", write_statistics=["utc_ns"])
            writer.write_table(table)
        if writer is not None:
            writer.close()
            temporary.replace(path)
    finally:
        if writer is not None:
            writer.close()
        temporary.unlink(missing_ok=True)


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
