"""Power curves in closed form: the watts at a time and the exact joules of a window, by formula and never by samples.

A curve is a table of straight pieces, a sine, or follows a load. The same formulas in C are in truth.h.
"""

from __future__ import annotations

import bisect
import csv
import math
import random
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from everywatt.core import foreign
from everywatt.core.errors import SimError, UsageError
from everywatt.core.format import format_count
from everywatt.core.units import parse_duration_s, parse_power_w

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TIMES = ("seconds", "unix_s", "t_s", "time_s", "time", "timestamp")
_WATTS = ("watts", "power_w", "power", "power.draw.instant [w]", "power.draw [w]", "power.draw")
NO_LIMIT_W = math.inf
TELEGRAPH_DWELLS = 20_000
_CURE = (
    "constant:100W, square:100W,300W,1.3s[,duty], ramp:100W,300W,10s, sine:MEAN,AMPLITUDE,PERIOD, "
    "step:100W,300W,5s[,back at], telegraph:LOW,HIGH,MEAN DWELL,SEED, replay:FILE or load:IDLE,MAX[,exponent]"
)


class Curve(Protocol):
    """Power over time since the machine's start. `limit_w` clips the power, as a card's power limit does."""

    @property
    def text(self) -> str: ...
    @property
    def low_w(self) -> float: ...
    @property
    def high_w(self) -> float: ...
    def power_w(self, t_s: float, limit_w: float = NO_LIMIT_W) -> float: ...
    def energy_j(self, a_s: float, b_s: float, limit_w: float = NO_LIMIT_W) -> float: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A straight piece: from `t_s` for `length_s` the power goes from `from_w` to `to_w`; `before_j` came before it."""

    t_s: float
    length_s: float
    from_w: float
    to_w: float
    before_j: float

    def joules(self, x_s: float, limit_w: float) -> float:
        """Joules of the first `x_s` seconds, clipped at the limit."""
        slope = (self.to_w - self.from_w) / self.length_s if 0 < self.length_s < math.inf else 0.0
        start, end = self.from_w, self.from_w + slope * x_s
        if start <= limit_w and end <= limit_w:
            return (start + end) / 2 * x_s
        if start >= limit_w and end >= limit_w:
            return limit_w * x_s
        cross = (limit_w - start) / slope
        if start < limit_w:
            return (start + limit_w) / 2 * cross + limit_w * (x_s - cross)
        return limit_w * cross + (limit_w + end) / 2 * (x_s - cross)


@dataclass(frozen=True)
class Table:
    """Straight pieces one after the other; repeated every `period_s` unless that is 0, else the last power is held."""

    text: str
    pieces: tuple[Piece, ...]
    period_s: float = 0.0
    low_w: float = field(init=False)
    high_w: float = field(init=False)
    _starts: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "low_w", min(min(p.from_w, p.to_w) for p in self.pieces))
        object.__setattr__(self, "high_w", max(max(p.from_w, p.to_w) for p in self.pieces))
        object.__setattr__(self, "_starts", tuple(p.t_s for p in self.pieces))

    @property
    def total_j(self) -> float:
        """Joules of one period; 0 where the table is not repeated."""
        last = self.pieces[-1]
        return last.before_j + last.joules(last.length_s, NO_LIMIT_W) if self.period_s else 0.0

    def power_w(self, t_s: float, limit_w: float = NO_LIMIT_W) -> float:
        x = t_s - math.floor(t_s / self.period_s) * self.period_s if self.period_s else max(t_s, 0.0)
        piece = self.pieces[max(bisect.bisect_right(self._starts, x) - 1, 0)]
        slope = (piece.to_w - piece.from_w) / piece.length_s if 0 < piece.length_s < math.inf else 0.0
        return min(piece.from_w + slope * (x - piece.t_s), limit_w)

    def energy_j(self, a_s: float, b_s: float, limit_w: float = NO_LIMIT_W) -> float:
        return self._since_start(b_s, limit_w) - self._since_start(a_s, limit_w)

    def _since_start(self, t_s: float, limit_w: float) -> float:
        if not self.period_s:
            return self._part(t_s, limit_w)
        whole = math.floor(t_s / self.period_s)
        if not whole:
            return self._part(t_s, limit_w)
        one = self.total_j if limit_w >= self.high_w else self._part(self.period_s, limit_w)
        return whole * one + self._part(t_s - whole * self.period_s, limit_w)

    def _part(self, x_s: float, limit_w: float) -> float:
        if x_s < 0:
            return min(self.pieces[0].from_w, limit_w) * x_s
        last = max(bisect.bisect_right(self._starts, x_s) - 1, 0)
        piece = self.pieces[last]
        if limit_w >= self.high_w:
            before = piece.before_j
        else:
            before = sum(p.joules(p.length_s, limit_w) for p in self.pieces[:last])
        return before + piece.joules(x_s - piece.t_s, limit_w)


@dataclass(frozen=True)
class Sine:
    """`mean_w` plus `amplitude_w` times the sine of a turn every `period_s`."""

    text: str
    mean_w: float
    amplitude_w: float
    period_s: float

    @property
    def low_w(self) -> float:
        return self.mean_w - self.amplitude_w

    @property
    def high_w(self) -> float:
        return self.mean_w + self.amplitude_w

    def power_w(self, t_s: float, limit_w: float = NO_LIMIT_W) -> float:
        return min(self.mean_w + self.amplitude_w * math.sin(2 * math.pi * t_s / self.period_s), limit_w)

    def energy_j(self, a_s: float, b_s: float, limit_w: float = NO_LIMIT_W) -> float:
        return self._since_start(b_s, limit_w) - self._since_start(a_s, limit_w)

    def _since_start(self, t_s: float, limit_w: float) -> float:
        whole = math.floor(t_s / self.period_s)
        return whole * self._part(self.period_s, limit_w) + self._part(t_s - whole * self.period_s, limit_w)

    def _part(self, x_s: float, limit_w: float) -> float:
        omega = 2 * math.pi / self.period_s
        if limit_w >= self.high_w:
            return self.mean_w * x_s + self.amplitude_w / omega * (1 - math.cos(omega * x_s))
        level = (limit_w - self.mean_w) / self.amplitude_w
        if level <= -1:
            return limit_w * x_s
        rise = math.asin(level)
        turns = sorted((math.fmod(rise + 2 * math.pi, 2 * math.pi) / omega, (math.pi - rise) / omega))
        edges = [0.0, *(min(turn, x_s) for turn in turns), x_s]
        total = 0.0
        for start, end in pairwise(edges):
            if math.sin(omega * (start + end) / 2) > level:
                total += limit_w * (end - start)
            else:
                change = math.cos(omega * start) - math.cos(omega * end)
                total += self.mean_w * (end - start) + self.amplitude_w / omega * change
        return total


@dataclass(frozen=True)
class Load:
    """Power that follows a share of use u: idle + (max - idle) · u ^ exponent. Its truth is in the machine's events."""

    text: str
    low_w: float
    high_w: float
    exponent: float = 1.0

    def at_share_w(self, share: float) -> float:
        """Watts when this share (0 to 1) of the device is in use."""
        part: float = min(max(share, 0.0), 1.0) ** self.exponent
        return self.low_w + (self.high_w - self.low_w) * part

    def power_w(self, t_s: float, limit_w: float = NO_LIMIT_W) -> float:
        return min(self.low_w, limit_w)

    def energy_j(self, a_s: float, b_s: float, limit_w: float = NO_LIMIT_W) -> float:
        return min(self.low_w, limit_w) * (b_s - a_s)


def table(text: str, rows: Sequence[tuple[float, float, float]], *, repeat: bool) -> Table:
    """A table of (length_s, from_w, to_w) rows; without `repeat` the last row's length is taken as endless."""
    if not repeat:
        rows = [*rows[:-1], (math.inf, rows[-1][1], rows[-1][2])]
    starts = [0.0, *accumulate(length for length, _, _ in rows)]
    joules = [0.0, *accumulate(length * (a + b) / 2 for length, a, b in rows)]
    pieces = tuple(
        Piece(start, length, a, b, before) for start, (length, a, b), before in zip(starts, rows, joules, strict=False)
    )
    return Table(text, pieces, period_s=starts[-1] if repeat else 0.0)


def _constant(text: str, args: list[str]) -> Curve:
    watts = _power(args[0])
    return table(text, [(1.0, watts, watts)], repeat=False)


def _square(text: str, args: list[str]) -> Curve:
    low, high, period = _power(args[0]), _power(args[1]), _duration(args[2])
    duty = float(args[3]) if len(args) > 3 else 0.5
    if not 0 < duty < 1:
        raise UsageError(f"The duty of '{text}' is not between 0 and 1.")
    return table(text, [(period * (1 - duty), low, low), (period * duty, high, high)], repeat=True)


def _ramp(text: str, args: list[str]) -> Curve:
    start, end = _power(args[0]), _power(args[1])
    return table(text, [(_duration(args[2]), start, end), (1.0, end, end)], repeat=False)


def _step(text: str, args: list[str]) -> Curve:
    low, high, at = _power(args[0]), _power(args[1]), _duration(args[2])
    if len(args) == 3:
        return table(text, [(at, low, low), (1.0, high, high)], repeat=False)
    back = _duration(args[3])
    if back <= at:
        raise UsageError(f"'{text}' goes back before it steps up.")
    return table(text, [(at, low, low), (back - at, high, high), (1.0, low, low)], repeat=False)


def _sine(text: str, args: list[str]) -> Curve:
    mean, amplitude = _power(args[0]), _power(args[1])
    if amplitude > mean:
        raise UsageError(f"The amplitude of '{text}' is larger than its mean: the power would be negative.")
    if amplitude == 0:
        return table(text, [(1.0, mean, mean)], repeat=False)
    return Sine(text, mean, amplitude, _duration(args[2]))


def _telegraph(text: str, args: list[str]) -> Curve:
    """Jumps between two powers after exponential dwells. The same seed is the same curve; it repeats at its end."""
    low, high, dwell = _power(args[0]), _power(args[1]), _duration(args[2])
    chance = random.Random(int(args[3]) if len(args) > 3 else 0)
    levels = (low, high)
    rows = [(chance.expovariate(1 / dwell) + 1e-6, levels[i % 2], levels[i % 2]) for i in range(TELEGRAPH_DWELLS)]
    return table(text, rows, repeat=True)


def _load(text: str, args: list[str]) -> Curve:
    idle, most = _power(args[0]), _power(args[1])
    exponent = float(args[2]) if len(args) > 2 else 1.0
    if most < idle or exponent <= 0:
        raise UsageError(f"'{text}' needs IDLE below MAX and an exponent above 0.")
    return Load(text, idle, most, exponent)


def _replay(text: str, args: list[str]) -> Curve:
    times, watts = read_trace(",".join(args))
    rows = [(b - a, u, v) for a, b, u, v in zip(times, times[1:], watts, watts[1:], strict=False)]
    return table(text, rows, repeat=True)


_KINDS: dict[str, tuple[Callable[[str, list[str]], Curve], int, int]] = {
    "constant": (_constant, 1, 1),
    "square": (_square, 3, 4),
    "ramp": (_ramp, 3, 3),
    "step": (_step, 3, 4),
    "sine": (_sine, 3, 3),
    "telegraph": (_telegraph, 3, 4),
    "load": (_load, 2, 3),
    "replay": (_replay, 1, 99),
}


def parse_curve(text: str) -> Curve:
    """The curve that a text like `square:100W,300W,1.3s` names.

    >>> parse_curve("square:100W,300W,2s").energy_j(0.0, 4.0)
    800.0
    """
    kind, _, rest = text.partition(":")
    args = [part.strip() for part in rest.split(",")] if rest else []
    if kind not in _KINDS:
        raise UsageError(f"'{text}' is not a power curve.", cure=_CURE)
    make, least, most = _KINDS[kind]
    if not least <= len(args) <= most:
        raise UsageError(
            f"'{text}' has {format_count(len(args), 'value')}; {kind} takes {least} to {most}.", cure=_CURE
        )
    try:
        return make(text, args)
    except ValueError as error:
        raise UsageError(f"'{text}' is not a power curve: {error}.", cure=_CURE) from None


def _power(text: str) -> float:
    watts = parse_power_w(text)
    if watts < 0:
        raise UsageError(f"'{text}' is a negative power.")
    return watts


def _duration(text: str) -> float:
    seconds = parse_duration_s(text)
    if seconds <= 0:
        raise UsageError(f"'{text}' is not a duration above 0.")
    return seconds


def read_trace(name: str) -> tuple[list[float], list[float]]:
    """Seconds since the first row, and watts. Rows without a number are left out; times have to grow."""
    path = Path(name).expanduser()
    try:
        text = list(foreign.lines(path, errors="strict"))
    except UsageError as error:
        raise SimError(f"The recording {error.message}", cure="a CSV file with seconds,watts") from None
    rows = csv.reader(text, skipinitialspace=True)
    header = [cell.strip().lower() for cell in next(rows, [])]
    at, of = _column(header, _TIMES, name), _column(header, _WATTS, name)
    times: list[float] = []
    watts: list[float] = []
    for row in rows:
        try:
            t, w = _seconds(row[at]), float(row[of].removesuffix(" W"))
        except (ValueError, IndexError):
            continue
        if w >= 0 and (not times or t > times[-1]):
            times.append(t)
            watts.append(w)
    if len(times) < 2:
        raise SimError(f"The recording {name} has fewer than two readings.", cure="a CSV file with seconds,watts")
    return [t - times[0] for t in times], watts


def _column(header: Sequence[str], names: Sequence[str], path: str) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise SimError(f"The recording {path} has no column {' or '.join(names[:3])}.", cure="a header like seconds,watts")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        stamp = datetime.strptime(text.strip(), "%Y/%m/%d %H:%M:%S.%f")
        return stamp.replace(tzinfo=timezone.utc).timestamp()  # noqa: UP017 - differences only
