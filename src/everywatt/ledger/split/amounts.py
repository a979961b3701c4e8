"""Whole microjoules, shared by largest remainder, so that parts add up to the whole exactly. Without numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

UJ = 1_000_000


def microjoules(joules: float) -> int:
    """The nearest whole number of microjoules."""
    return round(joules * UJ)


def apportion(whole: int, weights: Iterable[float]) -> list[int]:
    """Whole numbers in proportion to `weights` (≥ 0) that add up to `whole`, each within 1 of its exact share.

    Largest remainders get what is left; among equal ones the first does. ValueError where all weights are 0.

    >>> apportion(10, [1, 1, 1])
    [4, 3, 3]
    """
    shares = [float(weight) for weight in weights]
    total = math.fsum(shares)
    if not 0 < total < math.inf or min(shares) < 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    size = abs(whole)
    exact = [share / total * size for share in shares]
    amounts = [int(amount) for amount in exact]
    rest = size - sum(amounts)
    if rest:
        order = sorted(range(len(exact)), key=lambda index: amounts[index] - exact[index])
        # Beyond 2**53 floating point is coarser than a microjoule, so the rest can be more than one each.
        for index in range(abs(rest)):
            amounts[order[index % len(order)]] += 1 if rest > 0 else -1
    return amounts if whole >= 0 else [-amount for amount in amounts]


def of_devices(whole_uj: int, joules: Sequence[float]) -> list[int]:
    """Microjoules of each device, which add up to the total where the joules do."""
    amounts = [microjoules(amount) for amount in joules]
    if not amounts or abs(whole_uj - sum(amounts)) > len(amounts):
        return amounts
    largest = max(range(len(amounts)), key=lambda index: amounts[index])
    amounts[largest] += whole_uj - sum(amounts)
    return amounts
