"""Whole microjoules, shared by largest remainder, so that parts add up to the whole exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UJ = 1_000_000


def microjoules(joules: float) -> int:
    """The nearest whole number of microjoules."""
    return round(joules * UJ)


def apportion(whole: int, weights: npt.ArrayLike) -> list[int]:
    """Whole numbers in proportion to `weights` (≥ 0) that add up to `whole`, each within 1 of its exact share.

    Largest remainders get what is left; among equal ones the first does. ValueError where all weights are 0.

    >>> apportion(10, [1, 1, 1])
    [4, 3, 3]
    """
    shares = np.asarray(weights, dtype=np.float64)
    if not len(shares) or not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum() > 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    sign = -1 if whole < 0 else 1
    exact = shares / shares.sum() * abs(whole)
    amounts = [int(amount) for amount in np.floor(exact)]
    rest = abs(whole) - sum(amounts)
    order = np.argsort(-(exact - np.floor(exact)), kind="stable")
    # Beyond 2**53 floating point is coarser than a microjoule, so the rest can be more than one each.
    for index in range(abs(rest)):
        amounts[int(order[index % len(order)])] += 1 if rest > 0 else -1
    return [sign * amount for amount in amounts]


def of_devices(whole_uj: int, joules: Sequence[float]) -> list[int]:
    """Microjoules of each device, which add up to the total where the joules do."""
    amounts = [microjoules(amount) for amount in joules]
    if not amounts or abs(whole_uj - sum(amounts)) > len(amounts):
        return amounts
    largest = max(range(len(amounts)), key=lambda index: amounts[index])
    amounts[largest] += whole_uj - sum(amounts)
    return amounts
