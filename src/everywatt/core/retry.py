"""The one retry: how often, and how long to wait in between. Pure: the caller sleeps, in whatever way it sleeps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow: `first_s`, then `factor` times as long each, `most_s` at most, `retries` of them.

    `jitter` shortens each wait by up to that share, so that many clients do not come back at the same instant.

    >>> list(Backoff(retries=3, jitter=0).delays())
    [0.5, 1.0, 2.0]
    """

    retries: int = 3
    first_s: float = 0.5
    factor: float = 2.0
    most_s: float = 30.0
    jitter: float = 0.25

    def delays(self, seed: int | None = None) -> Iterator[float]:
        """Seconds to wait before each further attempt."""
        chance = random.Random(seed)
        for number in range(self.retries):
            yield min(self.first_s * self.factor**number, self.most_s) * (1 - self.jitter * chance.random())

    def at_least(self, delay_s: float, asked_s: float | None) -> float:
        """The wait where the other side said how long it wants (Retry-After); never more than `most_s`."""
        return min(max(delay_s, asked_s or 0.0), self.most_s)
