"""How requests arrive: so many at a time (closed loop), or at a rate whatever the server does (open loop)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from everywatt.core.errors import UsageError

MOST_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Level:
    """One load. Either `concurrency` requests are open at any time, or `rate` new ones come each second."""

    concurrency: int | None = 1
    rate: float | None = None
    poisson: bool = True

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise UsageError("A load is a concurrency or a rate, one of them.")
        if self.concurrency is not None and not 1 <= self.concurrency <= MOST_AT_ONCE:
            raise UsageError(f"A concurrency of {self.concurrency} is outside 1 … {MOST_AT_ONCE}.")
        if self.rate is not None and not 0 < self.rate <= 100_000:
            raise UsageError(f"A rate of {self.rate:g} requests a second makes no sense.")

    @property
    def label(self) -> str:
        """For people and records: `concurrency 4`, `rate 2/s poisson`."""
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"rate {self.rate:g}/s {'poisson' if self.poisson else 'constant'}"

    def arrivals(self, seed: int = 0) -> Iterator[float]:
        """Seconds after the start at which requests of an open loop come."""
        assert self.rate is not None
        chance, at_s = random.Random(f"arrivals {seed}"), 0.0
        while True:
            yield at_s
            at_s += chance.expovariate(self.rate) if self.poisson else 1 / self.rate


def parse_rate(text: str) -> Level:
    """`2`, `2/s`, `poisson:2`, `constant:2`."""
    kind, _, number = text.rpartition(":")
    if kind not in ("", "poisson", "constant"):
        raise UsageError(f"'{text}' is not a rate such as 2, poisson:2 or constant:2.")
    try:
        rate = float(number.removesuffix("/s"))
    except ValueError:
        raise UsageError(f"'{text}' is not a rate such as 2, poisson:2 or constant:2.") from None
    return Level(None, rate, kind != "constant")


def parse_sweep(text: str) -> tuple[Level, ...]:
    """`1,2,4,8`: concurrencies, each once, in this order."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise UsageError(f"'{text}' is not a list of concurrencies such as 1,2,4,8.")
    return tuple(Level(int(word)) for word in words)
