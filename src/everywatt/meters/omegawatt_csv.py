"""What `wattmetre-read` prints, in all its forms, as blocks.

A file starts with a header `#timestamp,#frame_is_ok,#U1,#U2,#U3,#current1,#activepow1,…`, which a log line without an
end may be glued to; log lines, bad frames (`…,false,,,,`) and torn lines lie in between, and the last line may be cut
off. Rows are parsed a megabyte at a time (`read_tenths`); in a piece that holds something odd each other line is looked
at by itself. With pyarrow's CSV reader instead, an import takes 1.6 times the CPU time (pandas 1.3 times as much as
that, 2.1 times as much as ours), and needs the same checks.

What `wattmetre-read` prints, without its points, is integers, and these are quick: `1794765346.932382660` without its
point is nanoseconds, and `232.3` tenths. That holds where times have nine decimals and values one, and every byte is
looked at for it. Half of the rows of a box repeat the one before but for their time: these are compared, not parsed.
"""

from __future__ import annotations

import csv
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, Final, TextIO

import numpy as np
import numpy.typing as npt

from everywatt.core.errors import UsageError
from everywatt.meters.block import PHASES, Block, Ints, Oddities, Tenths, TenthsBlock, join, of_rows

PIECE_BYTES: Final = 1 << 20
HEAD_BYTES: Final = len(b"1794765346.932382660,true,")
Bytes = npt.NDArray[np.uint8]
MOST_DIGITS: Final = 8  # before the point: nine digits of tenths fit into an int32
_POINT, _COMMA, _END, _MINUS, _ZERO = (ord(mark) for mark in ".,\n-0")
_DIGITS = np.array([place for place in range(20) if place != 10])
_NS = 10 ** np.arange(18, -1, -1, dtype=np.int64)
LONGEST_LINE: Final = 1 << 20
MOST_PLUGS: Final = 600
HEADER = re.compile(rb"#?timestamp[,\t;]#?frame_is_ok", re.IGNORECASE)
_NUMBER = rb"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_TIME = re.compile(rb"\d{6,10}(?:\.\d{1,9})?\Z")
_WHOLE = re.compile(rb"-?\d+\.\d")  # every value of a row has one decimal: less is a cut line
_PLAIN = re.compile(rb"[0-8]\d{9}\.\d{9},true(?:,-?\d{1,8}\.\d)+\Z")  # what `read_tenths` reads
_MOST: Final = 2**31 / 10  # what fits into an int32 of tenths, and far beyond any plug
_CELL = re.compile(rb"(?:" + _NUMBER + rb"|-?nan|-?inf|)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a file has: the place of each quantity, and what separates cells."""

    columns: int
    separator: bytes
    volts: tuple[int, ...]
    amps: tuple[int, ...]
    watts: tuple[int, ...]

    @property
    def plugs(self) -> int:
        return len(self.watts)

    @property
    def plain(self) -> bool:
        """True for the order in which `wattmetre-read` writes."""
        pairs = range(2 + PHASES, self.columns, 2)
        return (
            self.volts == (2, 3, 4)
            and self.amps == tuple(pairs)
            and self.watts == tuple(place + 1 for place in pairs)
            and self.columns == 2 + PHASES + 2 * self.plugs
        )


def layout_of(header: bytes, where: str = "the file") -> Layout:
    """The layout from a header line, even with log text glued before it. UsageError if it is not one."""
    found = HEADER.search(header)
    if found is None:
        raise UsageError(
            f"{where} has no wattmetre-read header.", cure="a file that starts with #timestamp,#frame_is_ok"
        )
    line = header[found.start() :].strip()
    separator = next(mark for mark in (b",", b"\t", b";") if mark in line)
    names = [cell.strip().lstrip(b"#").lower().decode("ascii", "replace") for cell in line.split(separator)]
    places = {name: place for place, name in enumerate(names)}
    plugs = 0
    while f"activepow{plugs + 1}" in places and plugs < MOST_PLUGS:
        plugs += 1
    wanted = (
        [f"u{phase}" for phase in (1, 2, 3)],
        *([f"{what}{n + 1}" for n in range(plugs)] for what in ("current", "activepow")),
    )
    missing = [name for names_ in wanted for name in names_ if name not in places]
    if not plugs or missing or len(places) != len(names):
        raise UsageError(
            f"{where}: the header lacks {', '.join(missing[:3]) or 'plugs'}.", cure="a complete header line"
        )
    volts, amps, watts = (tuple(places[name] for name in names_) for names_ in wanted)
    return Layout(len(names), separator, volts, amps, watts)


def read_blocks(pieces: Iterable[bytes], odd: Oddities, where: str = "the file") -> Iterator[Block]:
    """Blocks of a stream of bytes (pieces of any size); `odd` counts what was no row. UsageError without a header."""
    for text, layout in _texts(pieces, odd, where):
        block = parse(text, layout, odd)
        if len(block):
            yield block


def _texts(pieces: Iterable[bytes], odd: Oddities, where: str) -> Iterator[tuple[bytes, Layout]]:
    """Whole lines after the header, with the layout that it declares."""
    layout: Layout | None = None
    for piece, ended in _whole_lines(pieces, where):
        text = piece
        if layout is None:
            found = HEADER.search(text)
            if found is None:
                if ended:
                    raise UsageError(f"{where} has no wattmetre-read header.", cure="use the output of wattmetre-read")
                odd.log_lines += text.count(b"\n")
                continue
            end = text.find(b"\n", found.start())
            end = len(text) if end < 0 else end
            layout = layout_of(text[found.start() : end], where)
            before = text[: found.start()]
            odd.log_lines += before.count(b"\n") + bool(before.rpartition(b"\n")[2].strip())
            text = text[end + 1 :]
        if text and not text.endswith(b"\n"):
            text = _without_cut_end(text, layout, odd)
        if text.strip():
            yield text, layout
    if layout is None:
        raise UsageError(f"{where} is empty.", cure="use the output of wattmetre-read")


def _whole_lines(pieces: Iterable[bytes], where: str) -> Iterator[tuple[bytes, bool]]:
    """Pieces that end at the end of a line; the very last as it is, with True."""
    rest: list[bytes] = []
    held = 0
    for piece in pieces:
        if held + len(piece) < PIECE_BYTES or b"\n" not in piece:
            rest.append(piece)
            held += len(piece)
            if held > PIECE_BYTES + LONGEST_LINE and not any(b"\n" in part for part in rest):
                raise UsageError(
                    f"{where} has a line longer than a megabyte, so it is not a recording of wattmetre-read."
                )
            continue
        end = piece.rfind(b"\n") + 1
        yield b"".join((*rest, memoryview(piece)[:end])), False
        rest, held = [piece[end:]], len(piece) - end
    if held:
        yield b"".join(rest), True


def _without_cut_end(text: bytes, layout: Layout, odd: Oddities) -> bytes:
    """The text without its last line where that was cut off; a whole one stays."""
    head, newline, line = text.rpartition(b"\n")
    cells = line.split(layout.separator)
    whole = len(cells) == layout.columns and _WHOLE.fullmatch(cells[-1]) is not None
    if not whole and line.strip():
        odd.cut_end += 1
    return text + b"\n" if whole else head + newline


def parse(text: bytes, layout: Layout, odd: Oddities) -> Block:
    """Rows of whole lines: plain ones together as whole tenths, others one by one."""
    block = read_tenths(_with_commas(text, layout), layout.plugs) if layout.plain else None
    if block is not None:
        return block
    lines = [(place, line.rstrip(b"\r")) for place, line in enumerate(text.split(b"\n")) if line.strip()]
    plain = {place: row for place, line in lines if (row := _plain(line, layout)) is not None}
    whole = read_tenths(b"".join(row + b"\n" for row in plain.values()), layout.plugs)
    if whole is None:
        return _carefully(lines, layout, odd)[1]
    kept, rest = _carefully([(place, line) for place, line in lines if place not in plain], layout, odd)
    if not kept:
        return whole
    order = np.argsort(np.array([*plain, *kept]), kind="stable")
    return join((whole, rest)).take(order.astype(np.int64))


def _plain(line: bytes, layout: Layout) -> bytes | None:
    """A good row as `wattmetre-read` prints it, with commas; None for any other line."""
    row = _with_commas(line, layout) if layout.plain else b""
    return row if _PLAIN.match(row) and row.count(b",") == layout.columns - 1 else None


def _with_commas(text: bytes, layout: Layout) -> bytes:
    """Text whose cells are separated by commas; as it is where a comma would then not be a separator."""
    return text if layout.separator == b"," or b"," in text else text.replace(layout.separator, b",")


def _carefully(lines: Sequence[tuple[int, bytes]], layout: Layout, odd: Oddities) -> tuple[list[int], Block]:
    """Rows one by one, with what is no row counted; the places of the rows, and the rows."""
    found = [(place, row) for place, line in lines if (row := _row(line, layout, odd)) is not None]
    order = [*layout.volts, *(place for pair in zip(layout.amps, layout.watts, strict=True) for place in pair)]
    values = [[cells[place] for place in order] for _, (_, _, cells) in found]
    times, flags = [at for _, (at, _, _) in found], [ok for _, (_, ok, _) in found]
    return [place for place, _ in found], of_rows(times, flags, values, layout.plugs)


def _row(line: bytes, layout: Layout, odd: Oddities) -> tuple[int, bool, list[float]] | None:
    """One line as time, whether its frame was good, and every cell as a number; None where it is no row."""
    cells = line.split(layout.separator)
    stamp = cells[0].strip()
    if not _TIME.match(stamp) or (stamp >= b"9223372036" and len(stamp.partition(b".")[0]) == 10):
        _count_stranger(line, odd)
        return None
    whole, _, part = stamp.partition(b".")
    at = int(whole) * 1_000_000_000 + int(part.ljust(9, b"0"))
    flag = cells[1].strip().lower() if len(cells) > 1 else b""
    if flag == b"false":
        odd.bad_frames += 1
        return at, False, [float("nan")] * layout.columns
    if flag != b"true" or len(cells) != layout.columns or not all(_CELL.match(cell.strip()) for cell in cells[2:]):
        _count_stranger(line, odd, torn=True)
        return None
    numbers = [float(cell) if cell.strip() else float("nan") for cell in cells[2:]]
    if not all(abs(number) < _MOST for number in numbers):  # also NaN and infinity: "NAN FOUND" of the box
        odd.bad_frames += 1
        return at, False, [float("nan")] * layout.columns
    return at, True, [float("nan"), float("nan"), *numbers]


def _count_stranger(line: bytes, odd: Oddities, *, torn: bool = False) -> None:
    if HEADER.search(line) or (b";" in line and not torn):
        odd.log_lines += 1
    elif torn:
        odd.torn_lines += 1
    else:
        odd.log_lines += 1
    odd.note(line.decode("utf-8", "replace"))


def read_tenths(text: bytes, plugs: int) -> TenthsBlock | None:
    """Whole lines as tenths; None where one is anything but a plain good row."""
    ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _END)
    starts = np.concatenate(([0], ends[:-1] + 1))
    if not len(ends) or ends[-1] + 1 != len(text) or (ends - starts <= HEAD_BYTES).any():
        return None
    utc_ns = _times(text, starts)
    if utc_ns is None:
        return None
    tails = [text[start:end] for start, end in zip((starts + HEAD_BYTES).tolist(), (ends + 1).tolist(), strict=True)]
    fresh = np.fromiter(map(operator.ne, tails, chain((b"",), tails)), dtype=np.bool_, count=len(tails))
    values = read_digits(b"".join(compress(tails, fresh)), PHASES + 2 * plugs)
    if values is None or values.shape[1] != np.count_nonzero(fresh):
        return None
    tenths = values if fresh.all() else np.take(values, np.cumsum(fresh) - 1, axis=1)
    return TenthsBlock(utc_ns, np.ones(len(tails), dtype=np.bool_), tenths)


def _times(text: bytes, starts: Ints) -> Ints | None:
    """Nanoseconds of the `1794765346.932382660,true,` that each line starts with; None where one is something else."""
    heads = np.ndarray((len(text) - HEAD_BYTES,), dtype=f"V{HEAD_BYTES}", buffer=text, strides=(1,))[starts]
    table = heads.view(np.uint8).reshape(len(starts), HEAD_BYTES)
    digits = table[:, _DIGITS] - np.uint8(_ZERO)  # what is below wraps to a large one
    marks = (table[:, 10] == _POINT).all() and (table[:, 20:] == np.frombuffer(b",true,", dtype=np.uint8)).all()
    if not marks or (digits > 9).any() or (digits[:, 0] > 8).any():  # 9… would not fit into 63 bits
        return None
    return np.asarray(digits.astype(np.int64) @ _NS)


def read_digits(text: bytes, columns: int) -> Tenths | None:
    """The cells of whole lines as tenths, one line of the result a column; None where any is something else.

    A cell is digits, a point, one digit and a separator. So the points say where each cell is and how long, and the
    digits of one place (the tenths, the ones, the tens) of all cells are taken together, not cell by cell.
    """
    minus = b"-" in text
    raw = np.frombuffer(b"".join((b"0" * MOST_DIGITS, text.replace(b"-", b"0") if minus else text)), dtype=np.uint8)
    points = np.flatnonzero(raw[MOST_DIGITS:] == _POINT)
    if not len(points) or len(points) % columns or points[-1] + 3 != len(text):
        return None
    long = _lengths(points)
    if long is None or not _only_rows(raw, points, columns):
        return None
    digits = raw & np.uint8(15)
    tenths = (digits[MOST_DIGITS - 1 :].take(points) * 10 + digits[MOST_DIGITS + 1 :].take(points)).astype(np.int32)
    scale = 100
    for place in range(2, int(long.max()) + 1):
        there = digits[MOST_DIGITS - place :].take(points)
        there *= long >= place
        tenths += there * np.int32(scale)
        scale *= 10
    if minus and not _turn(tenths, text, points):
        return None
    return tenths.reshape(-1, columns).T.copy()


def _lengths(points: Any) -> Bytes | None:
    """How many digits each cell has before its point, None where one has none or too many."""
    low = points.astype(np.uint8)
    long = np.empty(len(low), dtype=np.uint8)
    long[0] = low[0]
    np.subtract(low[1:], low[:-1], out=long[1:])
    long[1:] -= np.uint8(3)  # a point, a digit and a separator lie between
    # One that is longer than a byte can say would be missing from the sum.
    whole = int(long.sum(dtype=np.int64)) + 3 * (len(long) - 1) == int(points[-1])
    return long if whole and long.min() >= 1 and long.max() <= MOST_DIGITS else None


def _only_rows(raw: Bytes, points: Any, columns: int) -> bool:
    """True where every cell ends as its column must, and all that is no point and no end is a digit."""
    ends = raw[MOST_DIGITS + 2 :].take(points).reshape(-1, columns)
    if not ((ends[:, -1] == _END).all() and (ends[:, :-1] == _COMMA).all()):
        return False
    digits = np.count_nonzero(raw - np.uint8(_ZERO) < 10)
    return bool(digits + 2 * len(points) == len(raw))


def _turn(tenths: Tenths, text: bytes, points: Any) -> bool:
    """Make cells with a minus negative; False where one is not at the start of a cell or alone before its point."""
    signs = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _MINUS)
    cells = np.searchsorted(points, signs)
    starts = np.concatenate(([0], points + 3))  # one more than there are cells, so that of a last "1.-" is found too
    if (starts[cells] != signs).any() or (points[cells] - signs < 2).any():
        return False
    tenths[cells] = -tenths[cells]
    return True


def write_csv(blocks: Iterable[Block], file: TextIO) -> int:
    """Blocks as `wattmetre-read` prints them; gives the number of rows."""
    rows = 0
    writer = csv.writer(file, lineterminator="\n")
    for number, block in enumerate(blocks):
        if number == 0:
            pairs = [name for plug in range(1, block.plugs + 1) for name in (f"#current{plug}", f"#activepow{plug}")]
            writer.writerow(["#timestamp", "#frame_is_ok", "#U1", "#U2", "#U3", *pairs])
        for place in range(len(block)):
            seconds, ns = divmod(int(block.utc_ns[place]), 1_000_000_000)
            stamp = f"{seconds}.{ns:09d}"
            if not block.ok[place]:
                writer.writerow([stamp, "false", "", "", "", ""])
                continue
            pairs_ = np.stack((block.amps[place], block.watts[place]), axis=1).ravel()
            writer.writerow([stamp, "true", *(f"{v:.1f}" for v in (*block.volts[place], *pairs_))])
        rows += len(block)
    return rows
