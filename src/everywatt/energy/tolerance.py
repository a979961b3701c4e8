"""How far the power sensor of a card may be off: before it is calibrated, and after.

Every card has one gain and one offset, the same in all its windows: correlated errors, not noise. For a card that was
never compared with a meter they are drawn from what others measured on 19 cards. Gain is a share of the reading. Offset
is a share of the board's power limit, because the current sensors of a large board are scaled for large currents: in
watts the spread that holds for 250 W boards is half of what a 450 W board shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from everywatt.energy.curve import Z95

if TYPE_CHECKING:
    from collections.abc import Iterable

    from everywatt.energy.swing import Array


@dataclass(frozen=True, slots=True)
class Card:
    """One card against an external meter: reading = (1 + gain_pct / 100) × watts + offset_w."""

    name: str
    offset_w: float
    gain_pct: float
    limit_w: float


# Gains and offsets: figures of the paper behind JimZeyuYang/GPU_Power_Benchmark (MIT). Limits: the boards' data sheets.
CARDS = (
    Card("RTX 3090 #1", 3.47, -5.49, 350),
    Card("RTX 3090 #2", -1.66, -0.65, 350),
    Card("RTX 3090 #3", 3.92, -1.77, 350),
    Card("RTX 3090 #4", -5.07, 1.48, 350),
    Card("RTX 3090 #5", -8.53, 1.72, 350),
    Card("RTX 4090", -12.35, 4.45, 450),
    Card("RTX 3070 Ti", -4.80, 0.39, 290),
    Card("RTX 2080 Ti", -5.80, -3.34, 250),
    Card("RTX 2060 S", 11.85, -1.30, 175),
    Card("GTX TITAN Xp", 2.54, -2.59, 250),
    Card("GTX 1080 Ti", -0.33, -0.12, 250),
    Card("GTX 1080", -5.16, 6.36, 180),
    Card("GTX TITAN X", 1.23, 1.06, 250),
    Card("RTX A5000", 8.76, -9.50, 230),
    Card("A100 40G", -1.21, -4.58, 250),
    Card("P100 16G", 0.88, -0.72, 250),
    Card("M40", 1.45, -2.87, 250),
    Card("K80", -6.29, -3.63, 300),
    Card("K40m", 0.81, 2.41, 235),
)
# The commonest limit in the table, for a card that does not tell its own.
USUAL_LIMIT_W = 250.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """95 % half-widths of a card's gain (percent of the reading) and offset (watts), and how many cards say so.

    `correlation` of the two is negative: a card whose offset is too high tends to have a gain that is too low.
    """

    gain_pct: float
    offset_w: float
    cards: int
    correlation: float = 0.0

    def terms_j(self, joules: npt.ArrayLike, duration_s: npt.ArrayLike) -> tuple[Array, Array]:
        """The error of windows as two independent signed terms, the same two unknowns in every window of the card.

        The first goes with the gain and holds the part of the offset that goes with it, the second is the offset's own.
        """
        gain = np.asarray(joules, dtype=np.float64) * self.gain_pct / 100
        offset = np.asarray(duration_s, dtype=np.float64) * self.offset_w
        return gain + self.correlation * offset, np.sqrt(1 - self.correlation**2) * offset

    def half_width_j(self, joules: npt.ArrayLike, duration_s: npt.ArrayLike) -> Array:
        """95 % half-width of the energy of windows, gain and offset together."""
        return np.asarray(np.hypot(*self.terms_j(joules, duration_s)))


def tolerance(*, limit_w: float | None = None, exclude: Iterable[str] = (), cards: Iterable[Card] = CARDS) -> Tolerance:
    """What to expect of a card that was never calibrated.

    limit_w is the board's power limit (at least the highest reading seen); cards whose name contains one of `exclude`
    are left out, with their family if that is what the word names ("3090").
    """
    words = tuple(exclude)
    kept = [card for card in cards if not any(word.lower() in card.name.lower() for word in words)]
    if len(kept) < 3:
        raise ValueError("a tolerance needs at least three cards to be drawn from")
    gains = np.array([card.gain_pct for card in kept])
    offsets = np.array([card.offset_w / card.limit_w for card in kept])
    # Around zero, not around their mean: readings are not corrected by the average card's error.
    wide = student95(len(kept))
    gain, offset = float(np.sqrt(np.mean(gains**2))), float(np.sqrt(np.mean(offsets**2)))
    limit = USUAL_LIMIT_W if limit_w is None else limit_w
    return Tolerance(wide * gain, wide * offset * limit, len(kept), _sure_of(gains, offsets))


def _sure_of(gains: Array, offsets: Array) -> float:
    """Correlation of gains and offsets, one standard error nearer to none than the cards show."""
    shown = float(np.mean(gains * offsets) / np.sqrt(np.mean(gains**2) * np.mean(offsets**2)))
    sure = max(np.arctanh(min(abs(shown), 0.99)) - (len(gains) - 3) ** -0.5, 0.0) if len(gains) > 3 else 0.0
    return float(np.sign(shown) * np.tanh(sure))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted against a meter: watts = gain × reading + bias_w, with the tolerance that is left."""

    gain: float
    bias_w: float
    tolerance: Tolerance


def fit(reading_w: npt.ArrayLike, meter_w: npt.ArrayLike, half_width_w: npt.ArrayLike | None = None) -> Calibration:
    """Gain and bias of a card from the mean power of the same windows by sensor and by meter.

    half_width_w is the sampling error of each reading: windows across a change of load count less, so that they do not
    tilt the line. What is left around the line (bends, drift with temperature) does not average out, so the tolerance
    is its spread and not the standard error of the fit, half of it as gain and half as offset.
    """
    x, y = np.asarray(reading_w, dtype=np.float64), np.asarray(meter_w, dtype=np.float64)
    if len(x) < 3 or np.ptp(x) <= 0:
        raise ValueError("a calibration needs windows at two or more levels of power")
    width = np.zeros(len(x)) if half_width_w is None else np.asarray(half_width_w, dtype=np.float64)
    weight = 1 / (width**2 + (0.002 * np.abs(x)) ** 2 + 1e-12)
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = np.average((x - mean_x) ** 2, weights=weight)
    if spread <= 0:
        raise ValueError("a calibration needs windows at two or more levels of power")
    gain = float(np.average((x - mean_x) * (y - mean_y), weights=weight) / spread)
    bias = float(mean_y - gain * mean_x)
    left = np.sqrt(np.average((y - gain * x - bias) ** 2, weights=weight))
    share = Z95 * float(left) / float(np.sqrt(2))
    middle = abs(float(mean_y)) or 1.0
    return Calibration(gain, bias, Tolerance(100 * max(share / middle, LINEAR), share, 1))


# No calibration holds better than this share elsewhere: a card that was loaded reads 0.8 % less at idle than before.
LINEAR = 0.01


def student95(freedom: int) -> float:
    """The two-sided 95 % point of Student's t (Cornish–Fisher, right to 1 % from three degrees of freedom)."""
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
