"""Shapes: how a load goes over time, as text. A shape gives levels in percent, each for the same share of the time.

constant:50                 one level (a bare number is the same)
steps:0,25,100              these levels, each for the same time
ramp:0..100 ramp:0..100:20  from end to end in equal steps of at most 20, both ends reached
sine:20..80,30s             a sine between two levels, with its period (one period over all the time if left out)
random:0..100               levels drawn between two, from the seed
walk:0..100,10              a random walk that is reflected at its ends, by at most 10 at each step
latin:0..100                each part of the range once, in random order; over several resources a Latin hypercube
replay:RUN                  the utilisation of a run, stretched over the time
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from everywatt.core.errors import UsageError
from everywatt.core.units import parse_duration_s

STEPS = 11
"""Default number of steps of a shape: a ramp from 0 to 100 goes by tens."""

_CURE = "ramp:0..100, constant:50, steps:0,50,100, sine:20..80,30s, random:0..100, walk:0..100,10, latin:0..100"
_RANGE = re.compile(r"([\d.]+)\.\.([\d.]+)")


@dataclass(frozen=True, slots=True)
class Shape:
    """How a load goes over time.

    kind    constant, steps, ramp, sine, random, walk, latin, replay
    levels  of `steps`; the ends of the range for all others
    size    the height of a ramp's step, the most that a walk moves; None: as many steps as there are
    """

    kind: str
    levels: tuple[float, ...] = (0.0, 100.0)
    size: float | None = None
    period_s: float | None = None
    run: str = ""

    def sampled(self, time_s: float, *, steps: int | None = None, seed: object = 0) -> list[float]:
        """Levels in percent, each for the same share of `time_s`. The same seed gives the same levels.

        `steps` is how many, for shapes that leave it open. A replay has to be resolved first (`files.resolved`).
        """
        return _LEVELS[self.kind](self, time_s, steps, random.Random(f"{seed}"))

    @property
    def low(self) -> float:
        """The lowest level."""
        return min(self.levels)

    @property
    def high(self) -> float:
        """The highest level."""
        return max(self.levels)


def parse_shape(text: str) -> Shape:
    """The shape that a text names; UsageError says what is wrong with it."""
    text = text.strip()
    kind, colon, rest = text.partition(":")
    if not colon and re.fullmatch(r"[\d.]+", text):
        kind, rest = "constant", text
    if kind == "replay":
        if not rest:
            raise UsageError(f"The shape '{text}' names no run.", cure="replay:last")
        return Shape("replay", run=rest)
    if kind == "constant":
        return Shape("constant", (_level(rest, text),))
    if kind == "steps":
        return Shape("steps", tuple(_level(word, text) for word in rest.split(",")))
    if kind not in _LEVELS:
        raise UsageError(f"There is no shape '{text}'.", cure=f"one of: {_CURE}, replay:RUN")
    ends, more = _split(rest if colon else "0..100", text, ":" if kind == "ramp" else ",")
    if kind == "sine":
        return Shape(kind, ends, period_s=_period(more, text) if more else None)
    if kind in ("random", "latin") and more:
        raise UsageError(f"'{more}' is not valid in the shape '{text}'.", cure=f"{kind}:{rest.partition(',')[0]}")
    return Shape(kind, ends, size=_size(more, text) if more else None)


def _split(rest: str, text: str, sign: str) -> tuple[tuple[float, float], str]:
    head, _, more = rest.partition(sign)
    match = _RANGE.fullmatch(head.replace(" ", ""))
    if match is None:
        raise UsageError(f"'{head}' in the shape '{text}' is not a range.", cure=_CURE)
    ends = (_level(match.group(1), text), _level(match.group(2), text))
    return ends, more.strip()


def _level(word: str, text: str) -> float:
    try:
        level = float(word)
    except ValueError:
        raise UsageError(f"'{word}' in the shape '{text}' is not a percentage.", cure=_CURE) from None
    if not 0 <= level <= 100:
        raise UsageError(f"{word} % in the shape '{text}' is outside 0 … 100.")
    return level


def _size(word: str, text: str) -> float:
    size = _level(word, text)
    if size == 0:
        raise UsageError(f"A step size of 0 in the shape '{text}' is not valid.")
    return size


def _period(word: str, text: str) -> float:
    period_s = parse_duration_s(word)
    if period_s <= 0:
        raise UsageError(f"A period of {word} in the shape '{text}' is not valid.")
    return period_s


def _ramp(shape: Shape, _time_s: float, steps: int | None, _chance: random.Random) -> list[float]:
    first, last = shape.levels
    size = shape.size
    count = steps or STEPS if size is None else max(1, math.ceil(abs(last - first) / size - 1e-9)) + 1
    if count == 1:
        raise UsageError("A ramp of one step cannot reach both ends.", cure="two steps or more")
    return [first + (last - first) * number / (count - 1) for number in range(count)]


def _sine(shape: Shape, time_s: float, steps: int | None, _chance: random.Random) -> list[float]:
    periods = time_s / shape.period_s if shape.period_s else 1.0
    count = steps or max(STEPS, math.ceil(periods * 12))
    middle, swing = (shape.low + shape.high) / 2, (shape.high - shape.low) / 2
    return [middle + swing * math.sin(2 * math.pi * periods * (number + 0.5) / count) for number in range(count)]


def _random(shape: Shape, _time_s: float, steps: int | None, chance: random.Random) -> list[float]:
    return [chance.uniform(shape.low, shape.high) for _ in range(steps or STEPS)]


def _walk(shape: Shape, _time_s: float, steps: int | None, chance: random.Random) -> list[float]:
    span = shape.high - shape.low
    size = shape.size if shape.size is not None else span / 5
    levels = [chance.uniform(shape.low, shape.high)]
    while len(levels) < (steps or STEPS):
        levels.append(_reflected(levels[-1] + chance.uniform(-size, size), shape.low, shape.high))
    return levels


def _reflected(level: float, low: float, high: float) -> float:
    while not low <= level <= high:
        if low == high:
            return low
        level = 2 * low - level if level < low else 2 * high - level
    return level


def _latin(shape: Shape, _time_s: float, steps: int | None, chance: random.Random) -> list[float]:
    return [shape.low + (shape.high - shape.low) * share for share in stratified(steps or STEPS, chance)]


def stratified(count: int, chance: random.Random) -> list[float]:
    """Shares between 0 and 1: one in each of `count` equal parts, in random order."""
    shares = [(number + chance.random()) / count for number in range(count)]
    chance.shuffle(shares)
    return shares


def _listed(shape: Shape, _time_s: float, _steps: int | None, _chance: random.Random) -> list[float]:
    return list(shape.levels)


def _unresolved(shape: Shape, _time_s: float, _steps: int | None, _chance: random.Random) -> list[float]:
    raise UsageError(f"The run '{shape.run}' has not been read yet.")


_LEVELS: dict[str, Callable[[Shape, float, int | None, random.Random], list[float]]] = {
    "constant": _listed,
    "steps": _listed,
    "ramp": _ramp,
    "sine": _sine,
    "random": _random,
    "walk": _walk,
    "latin": _latin,
    "replay": _unresolved,
}
