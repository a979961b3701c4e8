"""Files of meters, opened with care: plain, gzip, zip (also Lab-IA's), Parquet; bombs and foreign paths refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from everywatt.core.errors import UsageError
from everywatt.core.foreign import Limits, pieces
from everywatt.meters.block import Block, Oddities, forwards
from everywatt.meters.omegawatt_csv import read_blocks

LIMITS: Final = Limits(total_bytes=200 << 30)  # years of fifty readings a second are read block by block


def blocks_of(
    path: Path,
    odd: Oddities,
    start_ns: int | None = None,
    end_ns: int | None = None,
    plugs: Sequence[int] | None = None,
) -> Iterator[Block]:
    """Blocks of one file of an Omegawatt, times rising, between two instants. UsageError where it is no such file.

    With `plugs` (from 1) a block has these, in this order.
    """
    if path.suffix.lower() == ".parquet":
        from everywatt.meters.parquet import read_parquet

        found = read_parquet(path, start_ns, end_ns, plugs)
    else:
        found = _chosen(read_blocks(pieces(path, LIMITS), odd, str(path)), plugs, path)
    for block in forwards(found, odd):
        chosen = block.between(start_ns, end_ns)
        if len(chosen):
            yield chosen


def blocks_of_files(
    paths: Sequence[Path],
    odd: Oddities,
    start_ns: int | None = None,
    end_ns: int | None = None,
    plugs: Sequence[int] | None = None,
) -> Iterator[Block]:
    """Blocks of files of one meter, given in any order, as `blocks_of` gives those of each. UsageError where their
    numbers of plugs differ."""
    return iter(forwards(_in_order(paths, odd, start_ns, end_ns, plugs), odd))


def _in_order(
    paths: Sequence[Path], odd: Oddities, start_ns: int | None, end_ns: int | None, plugs: Sequence[int] | None
) -> Iterator[Block]:
    heads = []
    for path in paths if len(paths) > 1 else ():
        first = next(blocks_of(path, Oddities(), start_ns, end_ns, plugs), None)
        if first is not None:
            heads.append((int(first.utc_ns[0]), path, first.plugs))
    if len({count for _, _, count in heads}) > 1:
        raise UsageError("The files come from meters with different numbers of plugs.", cure="read one meter at a time")
    for path in [path for _, path, _ in sorted(heads)] or paths:
        yield from blocks_of(path, odd, start_ns, end_ns, plugs)


def _chosen(blocks: Iterator[Block], plugs: Sequence[int] | None, path: Path) -> Iterator[Block]:
    for block in blocks:
        if plugs and max(plugs) > block.plugs:
            raise UsageError(
                f"{path} has {block.plugs} plugs; there is no plug {max(plugs)}.", cure=f"plugs 1 to {block.plugs}"
            )
        yield block.only(plugs) if plugs else block
