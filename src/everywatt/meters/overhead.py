"""wall = a + b × chips: what the chips do not explain, fitted over cells of time, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from everywatt.core.format import format_number, format_watts
from everywatt.core.stats import student_factor

LEAST_CELLS = 4


@dataclass(frozen=True, slots=True)
class Overhead:
    """The line, 95 % half-widths of its two numbers, and the share of the wall's variance that it explains."""

    a_w: float
    a_within_w: float
    b: float
    b_within: float
    r2: float
    cells: int

    def __str__(self) -> str:
        offset = format_watts(self.a_w, self.a_within_w, self.a_within_w)
        slope = format_number(self.b, "", self.b_within, self.b_within)
        return f"wall = ({offset}) + ({slope}) × chips"


def fit_overhead(chips_w: npt.ArrayLike, wall_w: npt.ArrayLike) -> Overhead | None:
    """The line through cells' mean powers; None where there are too few or the chips hardly moved.

    Neighbouring cells are alike, which makes fewer of them count: the number is taken down by how far what is left over
    follows the cell before.
    """
    x, y = np.asarray(chips_w, dtype=np.float64), np.asarray(wall_w, dtype=np.float64)
    good = np.isfinite(x) & np.isfinite(y)
    x, y = x[good], y[good]
    if len(x) < LEAST_CELLS or np.ptp(x) < 0.02 * max(abs(float(np.mean(x))), 1.0):
        return None
    middle, scatter = float(np.mean(x)), float(np.sum((x - np.mean(x)) ** 2))
    b = float(np.sum((x - middle) * (y - np.mean(y))) / scatter)
    a = float(np.mean(y) - b * middle)
    left = y - a - b * x
    total = float(np.sum((y - np.mean(y)) ** 2))
    squares = float(np.sum(left**2))
    follows = float(np.sum(left[1:] * left[:-1]) / squares) if squares > 0 else 0.0
    follows = min(max(follows, 0.0), 0.95)
    inflate = (1 + follows) / (1 - follows)
    variance = squares / (len(x) - 2) * inflate
    width = student_factor(len(x) - 2) * np.sqrt(variance)
    within_b = float(width / np.sqrt(scatter))
    within_a = float(width * np.sqrt(1 / len(x) + middle**2 / scatter))
    return Overhead(a, within_a, b, within_b, 1 - squares / total if total > 0 else 1.0, len(x))
