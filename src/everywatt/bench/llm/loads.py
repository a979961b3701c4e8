"""How requests arrive: so many at a time (closed loop), or at a rate whatever the server does (open loop).

A rate may be a ramp: from one rate to another over some seconds, and then it stays. A load may be repeated.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict
from everywatt.core.units import parse_duration_s

MOST_AT_ONCE = 10_000  # open requests: each has a socket
REPEAT = ", repeat "


@dataclass(frozen=True, slots=True)
class Level(ToDict):
    """One load. Either `concurrency` requests are open at any time, or `rate` new ones come each second.

    With `rate_end` the rate goes from `rate` to that in `ramp_s` seconds. `repeat` numbers the repetitions from 1; 0
    where there is only one.
    """

    concurrency: int | None = 1
    rate: float | None = None
    poisson: bool = True
    rate_end: float | None = None
    ramp_s: float = 60.0
    repeat: int = 0

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise UsageError("A load is either a concurrency or a rate.")
        if self.concurrency is not None and not 1 <= self.concurrency <= MOST_AT_ONCE:
            raise UsageError(f"A concurrency of {self.concurrency} is outside 1 … {MOST_AT_ONCE}.")
        for rate in (self.rate, self.rate_end):
            if rate is not None and not 0 < rate <= 100_000:
                raise UsageError(f"A rate of {rate:g} requests/s is not valid.")
        if not self.ramp_s > 0:
            raise UsageError(f"A ramp of {self.ramp_s:g} s is not valid.")

    @property
    def kind(self) -> str:
        """For people and records: `concurrency 4`, `rate 2/s poisson`, `rate 1/s to 10/s in 60 s poisson`."""
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        ramp = "" if self.rate_end is None else f" to {self.rate_end:g}/s in {self.ramp_s:g} s"
        return f"rate {self.rate:g}/s{ramp} {'poisson' if self.poisson else 'constant'}"

    @property
    def label(self) -> str:
        """The kind, and which repetition: `concurrency 4, repeat 2`."""
        return f"{self.kind}{REPEAT}{self.repeat}" if self.repeat else self.kind

    def arrivals(self) -> Iterator[float]:
        """Seconds after the start at which requests of an open loop come."""
        assert self.rate is not None
        chance, expected = random.Random(f"arrivals 0 {self.repeat}"), 0.0
        while True:
            yield self._when(expected)
            # Requests of a Poisson process are a unit exponential apart in what was expected by then.
            expected += chance.expovariate(1.0) if self.poisson else 1.0

    def _when(self, expected: float) -> float:
        """The second by which so many requests are expected: the inverse of the rate's integral."""
        assert self.rate is not None
        if self.rate_end is None or self.rate_end == self.rate:
            return expected / self.rate
        by_the_end = (self.rate + self.rate_end) / 2 * self.ramp_s
        if expected >= by_the_end:
            return self.ramp_s + (expected - by_the_end) / self.rate_end
        slope = (self.rate_end - self.rate) / self.ramp_s
        return (math.sqrt(self.rate**2 + 2 * slope * expected) - self.rate) / slope


def repeated(levels: Sequence[Level], times: int) -> tuple[Level, ...]:
    if times < 2:
        return tuple(levels)
    return tuple(replace(level, repeat=turn) for turn in range(1, times + 1) for level in levels)


def kind_of(label: str) -> str:
    return label.rpartition(REPEAT)[0] or label


def parse_rate(text: str) -> Level:
    """`2`, `2/s`, `poisson:2`, `constant:2`, `ramp:1..10`, `ramp:1..10:30s`, `constant-ramp:1..10:30s`."""
    ramp = re.fullmatch(r"(constant-)?ramp:(\d+(?:\.\d+)?)\.\.(\d+(?:\.\d+)?)(?::(.+))?", text)
    if ramp:
        steady, first, last, seconds = ramp.groups()
        return Level(None, float(first), not steady, float(last), parse_duration_s(seconds) if seconds else 60.0)
    steady = re.fullmatch(r"(?:(poisson|constant):)?(-?\d*\.?\d+(?:e-?\d+)?)(?:/s)?", text)
    if steady is None:
        raise UsageError(f"'{text}' is not a rate such as 2, poisson:2, constant:2 or ramp:1..10:60s.")
    return Level(None, float(steady[2]), steady[1] != "constant")


def parse_levels(concurrency: int | None, rate: str | None, sweep: str | None) -> tuple[Level, ...]:
    """The loads that options ask for; none where they say nothing."""
    if sum(one is not None for one in (concurrency, rate, sweep)) > 1:
        raise UsageError("--concurrency, --rate and --sweep cannot be combined.")
    if sweep is not None:
        return parse_sweep(sweep)
    if rate is not None:
        return (parse_rate(rate),)
    return () if concurrency is None else (Level(concurrency),)


def parse_sweep(text: str) -> tuple[Level, ...]:
    """`1,2,4,8`: concurrencies, each once, in this order."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise UsageError(f"'{text}' is not a list of concurrencies such as 1,2,4,8.")
    return tuple(Level(int(word)) for word in words)
