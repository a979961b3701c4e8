"""Files of meters, opened with care: plain, gzip, zip (also Lab-IA's), Parquet; bombs and foreign paths refused."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Final

from everywatt.core.errors import UsageError
from everywatt.meters.block import Block, Oddities, forwards
from everywatt.meters.omegawatt_csv import read_blocks

READ_BYTES: Final = 1 << 20
# Text of a meter shrinks to a tenth, a day of zeros to a hundredth; deflate itself cannot do better than a thousandth.
MOST_RATIO: Final = 250
FREE_BYTES: Final = 64 << 20
MOST_BYTES: Final = 200 << 30
MOST_MEMBERS: Final = 10_000


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
        found = _chosen(read_blocks(pieces_of(path), odd, str(path)), plugs, path)
    for block in forwards(found, odd):
        chosen = block.between(start_ns, end_ns)
        if len(chosen):
            yield chosen


def _chosen(blocks: Iterator[Block], plugs: Sequence[int] | None, path: Path) -> Iterator[Block]:
    for block in blocks:
        if plugs and max(plugs) > block.plugs:
            raise UsageError(
                f"{path} has {block.plugs} plugs, and no plug {max(plugs)}.", cure=f"plugs 1 to {block.plugs}"
            )
        yield block.only(plugs) if plugs else block


def pieces_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked where it is gzip or zip. UsageError where it cannot be read or is not safe."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            file.seek(0)
            if magic[:2] == b"\x1f\x8b":
                yield from _guarded(gzip.GzipFile(fileobj=file), path.stat().st_size, path)
            elif magic[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
                yield from _members(file, path)
            else:
                while piece := file.read(READ_BYTES):
                    yield piece
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {reason}.") from None


def _members(file: IO[bytes], path: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(file) as packed:
        members = [member for member in packed.infolist() if not member.is_dir()]
        if not members or len(members) > MOST_MEMBERS:
            raise UsageError(f"{path} holds {len(members)} files.", cure="a zip with the log of one meter")
        for member in members:
            check_name(member.filename, path)
        for member in sorted(members, key=lambda member: member.filename):
            with packed.open(member) as inner:
                yield from _guarded(inner, member.compress_size, path)
            yield b"\n"  # a member whose last line was cut must not run into the next


def check_name(name: str, path: Path) -> None:
    """UsageError where a name in an archive leads out of it."""
    plain = PurePosixPath(name.replace("\\", "/"))
    if plain.is_absolute() or ".." in plain.parts or (plain.parts and plain.parts[0].endswith(":")) or "\0" in name:
        raise UsageError(f"{path} holds a file named '{name}', which leads out of it: nothing of it is read.")


def _guarded(file: IO[bytes] | gzip.GzipFile, packed_bytes: int, path: Path) -> Iterator[bytes]:
    """What a packed file holds, unless it grows as only a bomb does."""
    given = 0
    while piece := file.read(READ_BYTES):
        given += len(piece)
        if given > MOST_BYTES or given > FREE_BYTES + MOST_RATIO * packed_bytes:
            raise UsageError(
                f"{path} unpacks to more than {MOST_RATIO} times its size: that is no recording of a meter."
            )
        yield piece
