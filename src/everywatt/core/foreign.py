r"""Files from elsewhere: the one way to open what other programs wrote.

Nothing in such a file is trusted. What it unpacks to is bounded, as are the length of a line and the depth of JSON, and
all of it is read in pieces, so that a file of any size costs little memory until the caller keeps it. gzip and zip are
recognised by their first bytes, not by the name. Lines end at "\n" (with or without "\r" before it) and nowhere else:
`str.splitlines` also splits at "\v", "\x1e", "\x85" and U+2028, which may stand in a job's name or in a model's answer.

Every function raises UsageError where a file cannot be read or exceeds a limit.
"""

from __future__ import annotations

import codecs
import json
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Literal

from everywatt.core.errors import UsageError
from everywatt.core.lazy_dataclass import dataclass

PIECE_BYTES: Final = 1 << 20
MAX_MEMBERS: Final = 10_000
MIN_PIECE: Final = 100_000  # characters, before a piece counts as made of empty lines
_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken from one file.

    total_bytes   after unpacking
    line_bytes    of one line
    depth         of JSON
    ratio         of unpacked to packed bytes, beyond the first `free_bytes`: text shrinks to a tenth, a day of zeros
                  from a meter to a hundredth, and deflate cannot do better than a thousandth
    """

    total_bytes: int = 8 << 30
    line_bytes: int = 64 << 20
    depth: int = 64
    ratio: int = 250
    free_bytes: int = 64 << 20


LIMITS: Final = Limits()
SMALL: Final = Limits(total_bytes=256 << 20)
"""For files that are read as a whole: JSON documents, TOML, tables of settings."""

Errors = Literal["strict", "replace", "surrogateescape"]


def pieces(path: Path, limits: Limits = LIMITS) -> Iterator[bytes]:
    """The bytes of a file, unpacked; the members of a zip one after another, by name, each ended by a line end."""
    try:
        with path.open("rb") as file:
            first = file.read(4)  # handed on, because a pipe cannot be read again
            if first[:2] == _GZIP:
                packed_bytes = path.stat().st_size if file.seekable() else None
                yield from _bounded(_gunzipped(file, first), path, limits, packed_bytes)
            elif first in _ZIP:
                yield from _members(file, path, limits)
            else:
                if path.stat().st_size > limits.total_bytes:
                    raise _too_large(path, limits)  # before reading gigabytes of it
                yield from _bounded(_read(file, first), path, limits, None)
    except (OSError, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise _unreadable(path, error) from None


def lines(path: Path, *, errors: Errors = "replace", ends: bool = False, limits: Limits = LIMITS) -> Iterator[str]:
    """The lines of a text file. A byte order mark is dropped, and UTF-16 read where it says so.

    `ends` keeps the line ends, which the csv module needs for cells of several lines.
    """
    return split_lines(pieces(path, limits), path, errors=errors, ends=ends, limits=limits)


def split_lines(
    data: Iterator[bytes], path: Path, *, errors: Errors = "replace", ends: bool = False, limits: Limits = LIMITS
) -> Iterator[str]:
    """The lines of bytes that come in pieces. `path` is for messages."""
    found = _lines(_decoded(data, path, errors), path, limits)
    return found if ends else (line.removesuffix("\n").removesuffix("\r") for line in found)


def text_lines(text: str) -> list[str]:
    """The lines of a text in memory: what `str.splitlines` gives, if lines end at line feeds only."""
    found = text.split("\n")
    if not found[-1]:
        found.pop()
    return [line.removesuffix("\r") for line in found]


def read_text(path: Path, *, errors: Errors = "strict", limits: Limits = SMALL) -> str:
    return "".join(_decoded(pieces(path, limits), path, errors))


def read_json(path: Path) -> Any:
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from None


def parse_json(text: str | bytes, depth: int = LIMITS.depth) -> Any:
    """JSON from elsewhere. ValueError where it is something else, or nested more than `depth` deep."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {depth} deep") from None
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(depth):
        if not level:
            return data
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise ValueError(f"it is nested more than {depth} deep")
    return data


def json_lines(path: Path, what: str = "JSON") -> Iterator[tuple[int, Any]]:
    """What each line of a file holds, with the line's number; empty lines are passed over."""
    for number, line in enumerate(lines(path, errors="strict"), start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except ValueError as error:
                raise UsageError(f"{path}:{number} is not {what}: {error}.") from None


def csv_rows(text: str, where: str, delimiter: str = ",") -> list[tuple[int, dict[str, str]]]:
    """The rows of a whole table by column, each with the number of its last line; rows of empty cells are passed over.

    Damage is refused: a quote that is never closed, a row longer or shorter than the header, a column name twice.
    """
    import csv
    import io

    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    before = csv.field_size_limit(max(len(text), csv.field_size_limit()))
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UsageError(f"{where}: line {reader.line_num} cannot be read: {error}.") from None
    finally:
        csv.field_size_limit(before)
    header = [name.strip() for name in rows[0][1]] if rows else []
    if len(set(header)) < len(header):
        raise UsageError(f"{where}: the header must have a distinct name for each column, and has {', '.join(header)}.")
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise UsageError(f"{where}: line {number} has {len(row)} cells, the header {len(header)}.")
    return [(number, dict(zip(header, row, strict=True))) for number, row in rows[1:]]


def check_member(name: str, path: Path) -> None:
    """UsageError where a name in an archive leads out of it."""
    plain = PurePosixPath(name.replace("\\", "/"))
    if plain.is_absolute() or ".." in plain.parts or (plain.parts and plain.parts[0].endswith(":")) or "\0" in name:
        raise UsageError(
            f"{path} contains a file named '{name}', which leads out of the archive; nothing of it was read."
        )


def _read(file: IO[bytes], first: bytes = b"") -> Iterator[bytes]:
    if first:
        yield first
    while piece := file.read(PIECE_BYTES):
        yield piece


def _gunzipped(file: IO[bytes], first: bytes) -> Iterator[bytes]:
    """All members of a gzip file; zeros after the last one are padding."""
    unpacker = zlib.decompressobj(31)
    begun = False
    for packed in _read(file, first):
        data = packed
        while data:
            begun = True
            yield unpacker.decompress(data, PIECE_BYTES)
            data = unpacker.unconsumed_tail
            if unpacker.eof:
                data = unpacker.unused_data.lstrip(b"\0")
                unpacker, begun = zlib.decompressobj(31), False
    if begun:
        raise EOFError("the compressed data is truncated")


def _members(file: IO[bytes], path: Path, limits: Limits) -> Iterator[bytes]:
    import zipfile

    try:
        with zipfile.ZipFile(file) as packed:
            members = [member for member in packed.infolist() if not member.is_dir()]
            if not members or len(members) > MAX_MEMBERS:
                raise UsageError(f"{path} contains {len(members)} files.", cure=f"a zip with 1 to {MAX_MEMBERS}")
            for member in members:
                check_member(member.filename, path)
            left = limits.total_bytes
            for member in sorted(members, key=lambda member: member.filename):
                with packed.open(member) as inner:
                    for piece in _bounded(_read(inner), path, limits, member.compress_size):
                        left -= len(piece)
                        if left < 0:
                            raise _too_large(path, limits)
                        yield piece
                yield b"\n"  # a member whose last line was cut must not run into the next
    except zipfile.BadZipFile as error:
        raise _unreadable(path, error) from None


def _bounded(data: Iterator[bytes], path: Path, limits: Limits, packed_bytes: int | None) -> Iterator[bytes]:
    given = 0
    for piece in data:
        given += len(piece)
        if given > limits.total_bytes:
            raise _too_large(path, limits)
        if packed_bytes is not None and given > limits.free_bytes + limits.ratio * packed_bytes:
            raise UsageError(f"{path} unpacks to more than {limits.ratio} times its size, so it is not a recording.")
        if piece:
            yield piece


def _decoded(data: Iterator[bytes], path: Path, errors: Errors) -> Iterator[str]:
    """Text of bytes, as they come; the encoding is UTF-8 unless a byte order mark says otherwise."""
    first = b""
    for piece in data:
        first += piece
        if len(first) >= 3:
            break
    mark, encoding = next(((mark, name) for mark, name in _BOMS if first.startswith(mark)), (b"", "utf-8"))
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    try:
        ended: list[bytes | None] = [None]
        for part in chain([first[len(mark) :]], data, ended):
            text = decoder.decode(part or b"", final=part is None)
            if errors == "strict" and "\0" in text:
                raise UsageError(f"{path} is not a text file: it contains a zero byte.")
            yield text
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not {encoding.upper()} text ({error.reason}).", cure="iconv -f latin1 -t utf-8"
        ) from None


def _lines(data: Iterator[str], path: Path, limits: Limits) -> Iterator[str]:
    rest: list[str] = []
    size = 0
    for text in data:
        first, *more = text.split("\n")
        if more:
            if len(more) > MIN_PIECE and len(more) > 0.75 * len(text):
                raise UsageError(f"{path} contains almost nothing but empty lines.")
            yield "".join((*rest, first, "\n"))
            last = more.pop()
            for line in more:
                yield line + "\n"
            rest, size = [last], len(last)
        else:
            rest.append(text)
            size += len(text)
        if size > limits.line_bytes:
            raise UsageError(f"{path} has a line of more than {limits.line_bytes >> 20} MiB, so it is not a text file.")
    if size:
        yield "".join(rest)


def _too_large(path: Path, limits: Limits) -> UsageError:
    return UsageError(f"{path} is larger than the limit of {limits.total_bytes / (1 << 20):.0f} MiB (unpacked).")


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")
