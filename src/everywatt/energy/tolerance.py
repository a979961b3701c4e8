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
from everywatt.sensors.nvidia.gpu_known import spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from everywatt.energy.unseen_power import Array


# The commonest limit in the table, for a card that does not tell its own.
USUAL_LIMIT_W = 250.0
# Loads seldom drive a board to its limit: a 450 W board under a heavy one reads 392 W.
HEADROOM = 1.15


@dataclass(frozen=True, slots=True)
class Tolerance:
    """95 % half-widths of a card's gain (percent of the reading) and offset (watts)."""

    gain_pct: float
    offset_w: float

    def half_width_j(self, joules: npt.ArrayLike, duration_s: npt.ArrayLike) -> Array:
        """95 % half-width of the energy of windows: gain and offset, two unknowns of the card, in quadrature."""
        gain = np.asarray(joules, dtype=np.float64) * self.gain_pct / 100
        return np.asarray(np.hypot(gain, np.asarray(duration_s, dtype=np.float64) * self.offset_w))


def tolerance(*, limit_w: float | None = None, exclude: Iterable[str] = ()) -> Tolerance:
    """What to expect of a card that was never calibrated.

    limit_w is the board's power limit (see `likely_limit_w` where it is not known); cards whose name contains one of
    `exclude` are left out, with their family if that is what the word names ("3090").
    """
    wide = spread(*exclude)
    limit = USUAL_LIMIT_W if limit_w is None else limit_w
    return Tolerance(wide.gain_pct, wide.offset_limit_pct / 100 * limit)


def likely_limit_w(highest_w: float) -> float:
    """The power limit to assume for a card that does not tell it, from the highest reading seen."""
    return max(USUAL_LIMIT_W, HEADROOM * highest_w)


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
    scatter = np.average((x - mean_x) ** 2, weights=weight)
    if scatter <= 0:
        raise ValueError("a calibration needs windows at two or more levels of power")
    gain = float(np.average((x - mean_x) * (y - mean_y), weights=weight) / scatter)
    bias = float(mean_y - gain * mean_x)
    left = np.sqrt(np.average((y - gain * x - bias) ** 2, weights=weight))
    share = Z95 * float(left) / float(np.sqrt(2))
    middle = abs(float(mean_y)) or 1.0
    return Calibration(gain, bias, Tolerance(100 * max(share / middle, LINEAR), share))


# No calibration holds better than this share elsewhere: a card that was loaded reads 0.8 % less at idle than before.
LINEAR = 0.01
