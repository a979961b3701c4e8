"""Blocks as Parquet: whole tenths and nanoseconds as integers that Parquet packs well, and back without a loss.

A file holds rows of one meter: `utc_ns`, `ok`, `u1`…`u3`, `i1`…, `p1`…. Values that are whole tenths (what the box
prints) are stored as int32 tenths; others (what its serial line says) as float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from everywatt.core.errors import UsageError
from everywatt.core.files import replacing
from everywatt.core.plugins import arrow
from everywatt.meters.block import PHASES, Block, Bools, Floats, TenthsBlock, gathered, join, names_of


def to_column(values: Any, missing: Bools | None = None) -> Any:
    """An Arrow array of a numpy array's numbers or truth values, null where `missing` says so."""
    import pyarrow as pa

    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
    if values.dtype == np.bool_:
        data = pa.py_buffer(np.packbits(values, bitorder="little").tobytes())
        return pa.Array.from_buffers(pa.bool_(), len(values), [valid, data])
    kind = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(), "float32": pa.float32()}
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind[values.dtype.name], len(values), [valid, data])


def to_numpy(column: Any) -> Any:
    """The numbers of a column; the value at a null is arbitrary.

    By its buffers, as `to_column`: pyarrow's own functions import pandas, where it is installed.
    """
    parts = [_chunk(chunk) for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros(0, dtype=str(column.type))


def _chunk(chunk: Any) -> Any:
    name, data = str(chunk.type), chunk.buffers()[1]
    low, high = chunk.offset, chunk.offset + len(chunk)
    if name == "bool":
        bits = np.frombuffer(data, dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[low:high].astype(np.bool_)
    return np.frombuffer(data, dtype={"float": "float32", "double": "float64"}.get(name, name))[low:high]


FORMAT: Final = b"everywatt-meter-1"
GROUP_ROWS: Final = 24_000  # four minutes at 100 Hz: what an hour of a long archive costs to find
_TENTH: Final = b"tenths"


class BlockWriter:
    """A Parquet file that grows by blocks; `close` makes it whole. Whether values are tenths the first block says."""

    def __init__(self, path: Path, plugs: int, *, tenths: bool) -> None:
        self.plugs, self.tenths = plugs, tenths
        pa, pq = arrow("meters")
        self._pa: ModuleType = pa
        kind = pa.int32() if tenths else pa.float32()
        fields = [("utc_ns", pa.int64()), ("ok", pa.bool_()), *((name, kind) for name in names_of(plugs))]
        meta = {b"format": FORMAT, b"values": _TENTH if tenths else b"float"}
        self._schema = pa.schema(fields).with_metadata(meta)
        encoding = {"utc_ns": "DELTA_BINARY_PACKED"}
        self._file = pq.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,  # readings that repeat shrink better as they are
            column_encoding=encoding,
            data_page_size=1 << 20,
            write_statistics=["utc_ns"],
        )

    def write(self, block: Block) -> None:
        """Add rows. ValueError where the meter has another number of plugs."""
        if block.plugs != self.plugs:
            raise ValueError("blocks of meters with different numbers of plugs")
        table = self._pa.Table.from_arrays(self._columns(block), schema=self._schema)
        # Groups of equal size, and never a small rest, which would cost as much to find and read.
        groups = max(len(block) // GROUP_ROWS, 1)
        self._file.write_table(table, row_group_size=max(-(-len(block) // groups), 1))

    def _columns(self, block: Block) -> list[Any]:
        columns = [to_column(block.utc_ns), to_column(block.ok)]
        if isinstance(block, TenthsBlock) and self.tenths:
            return [*columns, *map(to_column, block.tenths)]
        bad = ~block.ok
        mask = bad if bad.any() else None
        columns += [self._column(block.volts[:, place], mask) for place in range(PHASES)]
        for place in range(self.plugs):
            columns += [self._column(block.amps[:, place], mask), self._column(block.watts[:, place], mask)]
        return columns

    def _column(self, values: Floats, mask: Any) -> Any:
        if self.tenths:
            whole = np.rint(np.where(np.isfinite(values), values, 0.0) * 10).astype(np.int32)
            return to_column(whole, mask)
        return to_column(values.astype(np.float32), mask)

    def close(self) -> None:
        self._file.close()


def is_tenths(block: Block) -> bool:
    """True where every value is a whole tenth, as `wattmetre-read` prints them."""
    if isinstance(block, TenthsBlock):
        return True
    good = block.take(block.ok)
    for table in (good.volts, good.amps, good.watts):
        if not np.allclose(table * 10, np.rint(table * 10), rtol=0, atol=1e-6):
            return False
    return True


def writing(path: Path, blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks, gathered to row groups, while they are written to a file; it appears when the last was taken."""
    writer: BlockWriter | None = None
    with ExitStack() as stack:
        for block in gathered(blocks, GROUP_ROWS, join):
            if writer is None:
                part = stack.enter_context(replacing(path))
                writer = stack.enter_context(closing(BlockWriter(part, block.plugs, tenths=is_tenths(block))))
            elif writer.tenths and not is_tenths(block):
                raise UsageError(
                    f"{path}: values with two different resolutions.", cure="read one kind of file at a time"
                )
            writer.write(block)
            yield block


def read_parquet(
    path: Path, start_ns: int | None = None, end_ns: int | None = None, plugs: Sequence[int] | None = None
) -> Iterator[Block]:
    """Blocks of a file of ours; row groups outside of the period are not read, nor plugs that are not asked for.

    With `plugs` (from 1) a block has these, in this order.
    """
    pa, pq = arrow("meters")
    try:
        with pq.ParquetFile(path) as file:
            meta = file.schema_arrow.metadata or {}
            if meta.get(b"format") != FORMAT:
                raise UsageError(f"{path} is not a Parquet file of a meter.", cure="everywatt meter import")
            has = sum(name.startswith("p") for name in file.schema_arrow.names)
            wanted = list(plugs) if plugs else list(range(1, has + 1))
            if not set(wanted) <= set(range(1, has + 1)):
                raise UsageError(f"{path} has {has} plugs; there is no plug {max(wanted)}.", cure=f"plugs 1 to {has}")
            columns = ["utc_ns", "ok", "u1", "u2", "u3", *(f"{w}{n}" for n in wanted for w in "ip")]
            scale = 0.1 if meta.get(b"values") == _TENTH else 1.0
            for number in range(file.metadata.num_row_groups):
                if _outside(file.metadata.row_group(number), start_ns, end_ns):
                    continue
                yield _block(file.read_row_group(number, columns), wanted, scale)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, KeyError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {reason}.") from None


def _outside(group: Any, start_ns: int | None, end_ns: int | None) -> bool:
    stats = group.column(0).statistics
    if stats is None or not stats.has_min_max:
        return False
    return (start_ns is not None and stats.max < start_ns) or (end_ns is not None and stats.min >= end_ns)


def _block(table: Any, plugs: Sequence[int], scale: float) -> Block:
    good = to_numpy(table["ok"])

    def column(name: str) -> Floats:
        values = to_numpy(table[name]).astype(np.float64)
        values[~good] = np.nan
        return np.asarray(values / 10 if scale == 0.1 else values)  # a division gives the very number that was printed

    def many(names: list[str]) -> Floats:
        return np.stack([column(name) for name in names], axis=1)

    return Block(
        to_numpy(table["utc_ns"]),
        good,
        many(["u1", "u2", "u3"]),
        many([f"i{n}" for n in plugs]),
        many([f"p{n}" for n in plugs]),
    )
