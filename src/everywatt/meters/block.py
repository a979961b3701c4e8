"""Rows of a wattmeter as columns, and their joules: one block is one stretch of a recording, oldest row first.

The box gives the mean of each stretch at its end, so a reading is held backwards to the good row before it (`held`). A
stretch of more than three usual periods is a gap: then one period before the row is covered and the rest was not
observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import field
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.lazy_dataclass import dataclass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Tenths = npt.NDArray[np.int32]
PHASES = 3


@dataclass(frozen=True, slots=True)
class Block:
    """Rows by column. A row whose frame was bad has `ok` False and NaN everywhere.

    utc_ns  when the row was written, UTC
    volts   (rows, 3), by phase
    amps, watts  (rows, plugs); plug 1 is column 0
    """

    utc_ns: Ints
    ok: Bools
    volts: Floats
    amps: Floats
    watts: Floats

    def __len__(self) -> int:
        return len(self.utc_ns)

    @property
    def plugs(self) -> int:
        return int(self.watts.shape[1])

    def take(self, chosen: Bools | Ints | slice) -> Block:
        return Block(self.utc_ns[chosen], self.ok[chosen], self.volts[chosen], self.amps[chosen], self.watts[chosen])

    def only(self, plugs: Sequence[int]) -> Block:
        """Some of the plugs (from 1), in this order."""
        places = [plug - 1 for plug in plugs]
        return Block(self.utc_ns, self.ok, self.volts, self.amps[:, places], self.watts[:, places])

    def between(self, start_ns: int | None, end_ns: int | None) -> Block:
        """Rows from `start_ns` up to but not with `end_ns` (None: without a bound)."""
        keep = np.ones(len(self), dtype=np.bool_)
        if start_ns is not None:
            keep &= self.utc_ns >= start_ns
        if end_ns is not None:
            keep &= self.utc_ns < end_ns
        return self if keep.all() else self.take(keep)

    def repeats(self) -> Bools:
        """True for rows that say in every column what the row before said: the box had nothing new."""
        same = np.zeros(len(self), dtype=np.bool_)
        if len(self) > 1:
            same[1:] = self.ok[1:] & self.ok[:-1]
            for table in (self.volts, self.amps, self.watts):
                same[1:] &= (table[1:] == table[:-1]).all(axis=1)
        return same


@dataclass(slots=True)
class Oddities:
    """What was in the files beside rows, counted; `samples` has the first few lines."""

    log_lines: int = 0
    bad_frames: int = 0
    torn_lines: int = 0
    cut_end: int = 0
    backwards: int = 0
    samples: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Keep a line to show, where there are few yet."""
        if len(self.samples) < 5:
            self.samples.append(line[:160])

    def sentences(self) -> list[str]:
        """The problems found, one phrase each, for a report."""
        counts = (
            (self.bad_frames, "bad frames"),
            (self.log_lines, "interspersed log lines"),
            (self.torn_lines, "incomplete lines"),
            (self.cut_end, "last line incomplete"),
            (self.backwards, "rows earlier than the row before, skipped"),
        )
        return [f"{count} {what}" for count, what in counts if count]


def names_of(plugs: int) -> list[str]:
    """The names of a row's values, in the order in which `wattmetre-read` prints them."""
    return [*(f"u{n}" for n in (1, 2, 3)), *(f"{w}{n + 1}" for n in range(plugs) for w in ("i", "p"))]


def of_rows(utc_ns: Sequence[int], ok: Sequence[bool], values: Sequence[Sequence[float]], plugs: int) -> Block:
    """A block from rows of U1, U2, U3, then current and power of each plug."""
    table = np.array(values, dtype=np.float64).reshape(len(utc_ns), PHASES + 2 * plugs)
    return Block(
        np.array(utc_ns, dtype=np.int64),
        np.array(ok, dtype=np.bool_),
        table[:, :PHASES],
        table[:, PHASES::2],
        table[:, PHASES + 1 :: 2],
    )


class TenthsBlock(Block):
    """A block that stays in whole tenths until its numbers are needed: `tenths` has one line a column of the file."""

    __slots__ = ("tenths",)
    tenths: Tenths

    def __init__(self, utc_ns: Ints, ok: Bools, tenths: Tenths) -> None:
        object.__setattr__(self, "utc_ns", utc_ns)
        object.__setattr__(self, "ok", ok)
        object.__setattr__(self, "tenths", tenths)

    @property
    def plugs(self) -> int:
        return int(self.tenths.shape[0] - PHASES) // 2

    def take(self, chosen: Bools | Ints | slice) -> TenthsBlock:
        return TenthsBlock(self.utc_ns[chosen], self.ok[chosen], self.tenths[:, chosen])

    @property
    def volts(self) -> Floats:
        return np.asarray(self.tenths[:PHASES].T / 10)

    @property
    def amps(self) -> Floats:
        return np.asarray(self.tenths[PHASES::2].T / 10)

    @property
    def watts(self) -> Floats:
        return np.asarray(self.tenths[PHASES + 1 :: 2].T / 10)


Piece = TypeVar("Piece", bound=Sized)


def gathered(pieces: Iterable[Piece], rows: int, joined: Callable[[list[Piece]], Piece]) -> Iterator[Piece]:
    """The same rows in pieces of at least so many, but for the last."""
    waiting: list[Piece] = []
    count = 0
    for piece in pieces:
        waiting.append(piece)
        count += len(piece)
        if count >= rows:
            whole = joined(waiting)
            waiting, count = [], 0
            yield whole
            del whole  # before the next is made
    if waiting:
        yield joined(waiting)


def join(blocks: Iterable[Block]) -> Block:
    """Blocks of one meter one after the other, at least one. UsageError where plugs differ."""
    parts = list(blocks)
    if len({part.plugs for part in parts}) > 1:
        raise UsageError("The files come from meters with different numbers of plugs.", cure="read one meter at a time")
    if len(parts) == 1:
        return parts[0]
    times, good = (np.concatenate([getattr(part, name) for part in parts]) for name in ("utc_ns", "ok"))
    tenths = [part.tenths for part in parts if isinstance(part, TenthsBlock)]
    if len(tenths) == len(parts):
        return TenthsBlock(times, good, np.concatenate(tenths, axis=1))
    return Block(
        times, good, *(np.concatenate([getattr(part, n) for part in parts]) for n in ("volts", "amps", "watts"))
    )


def forwards(blocks: Iterable[Block], odd: Oddities) -> Iterable[Block]:
    """Blocks whose times only rise: rows that step back (a box or a host that set its clock) are left out, counted."""
    last = np.iinfo(np.int64).min
    for block in blocks:
        highest = np.maximum.accumulate(np.concatenate(([last], block.utc_ns)))
        keep = block.utc_ns > highest[:-1]
        odd.backwards += int(len(block) - keep.sum())
        last = int(highest[-1])
        if keep.any():
            yield block if keep.all() else block.take(keep)


GAP_PERIODS: Final = 3
DEFAULT_PERIOD_NS: Final = NS // 100
FEW_STEPS: Final = 16


@dataclass(frozen=True, slots=True)
class Stretches:
    """Time that readings cover: from `start_ns` to `end_ns` the plugs drew `watts` (rows, plugs)."""

    start_ns: Ints
    end_ns: Ints
    watts: Floats

    def joules(self) -> Floats:
        return np.asarray(((self.end_ns - self.start_ns) / NS) @ self.watts)

    def observed_s(self) -> float:
        return float((self.end_ns - self.start_ns).sum() / NS)


def _usual(block: Block) -> tuple[int | None, int]:
    """The median step between good rows (None if there are no steps) and the number of steps."""
    steps = np.diff(block.utc_ns[block.ok])
    steps = steps[steps > 0]
    return (int(np.median(steps)) if len(steps) else None), len(steps)


def held(blocks: Iterable[Block]) -> Iterator[tuple[Block, Stretches]]:
    """Every block with what its rows cover. The very first row covers nothing: the start of its period is unknown."""
    last_ns = period_ns = None
    settled = False
    for block in blocks:
        if not settled:
            # A period of time may begin with the last row of a file, which says nothing about how far rows are apart.
            found, steps = _usual(block)
            period_ns, settled = found or period_ns, steps >= FEW_STEPS
        usual_ns = period_ns or DEFAULT_PERIOD_NS
        whole = bool(block.ok.all())
        ends = block.utc_ns if whole else block.utc_ns[block.ok]
        watts = block.watts if whole else block.watts[block.ok]
        if not len(ends):
            yield block, Stretches(ends, ends, watts)
            continue
        starts = np.concatenate(([ends[0] if last_ns is None else last_ns], ends[:-1]))
        starts = np.where(ends - starts > GAP_PERIODS * usual_ns, ends - usual_ns, starts)
        last_ns = int(ends[-1])
        yield block, Stretches(starts, ends, watts)
