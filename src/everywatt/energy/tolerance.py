"""How far the power sensor of a card may be off after it was calibrated.

Every card has one gain and one offset, the same in all its windows: correlated errors, not noise. Of cards that were
never compared with a meter `sensors.nvidia.gpu_known` knows the spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from everywatt.core.stats import student_factor

if TYPE_CHECKING:
    from everywatt.energy.utilisation import Array


@dataclass(frozen=True, slots=True)
class Tolerance:
    """95 % half-widths of a card's gain (percent of the reading) and offset (watts), and their correlation."""

    gain_pct: float
    offset_w: float
    correlation: float = 0.0
    freedom: float = np.inf


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted against a meter: watts = gain × reading + bias_w, with the tolerance that is left.

    The fit alone leaves `gain_sd` and `bias_sd_w`; the tolerance also allows for drift.
    """

    gain: float
    bias_w: float
    tolerance: Tolerance
    gain_sd: float = 0.0
    bias_sd_w: float = 0.0


# sd of a meter's own reading, as a share of it: what the meters of the recordings scatter by over a second.
METER = 0.001
# What a calibration does not know of another hour (sd): the recorded RTX 3090 reads 1.3 % (1.9 W of 440 W) less at idle
# after a load than before it, the A100 0.3 % less. As a gain, and as an offset in shares of the highest power seen. A
# recording with such a change in it has it as its misfit too, which takes the place of the gain where it is larger.
DRIFT_GAIN, DRIFT_OFFSET = 0.003, 0.003
LEVELS = "a calibration needs windows at two or more levels of power"


def fit(reading_w: npt.ArrayLike, meter_w: npt.ArrayLike, covariance: npt.ArrayLike | None = None) -> Calibration:
    """Gain and bias of a card from the mean power of the same windows by sensor and by meter.

    The line of generalised distance regression (ISO/TS 28037, errors on both axes): `covariance` is that of the
    readings by their sampling, the meter scatters by METER of its own. Where windows lie further from the line than
    both explain, that is a misfit (a bend, heat) that no number of windows averages out: it is found such that χ²
    equals its degrees of freedom, and stays in the gain.
    """
    x, y = np.asarray(reading_w, dtype=np.float64), np.asarray(meter_w, dtype=np.float64)
    if len(x) < 3 or np.ptp(x) <= 0:
        raise ValueError(LEVELS)
    spread = np.zeros((len(x), len(x))) if covariance is None else np.asarray(covariance, dtype=np.float64)
    line = _Line(x, y, spread)
    freedom = len(x) - 2
    misfit = line.misfit(freedom)
    found = line.fitted(misfit)
    drift = np.diag([max(DRIFT_GAIN, misfit) ** 2 * found.gain**2, (DRIFT_OFFSET * float(y.max())) ** 2])
    left = found.covariance + drift
    gain_sd, bias_sd = np.sqrt(np.diag(left))
    factor = student_factor(freedom)
    return Calibration(
        found.gain,
        found.bias_w,
        Tolerance(
            100 * factor * float(gain_sd) / found.gain,
            factor * float(bias_sd),
            float(left[0, 1] / (gain_sd * bias_sd)),
            freedom,
        ),
        *(float(sd) for sd in np.sqrt(np.diag(found.covariance))),
    )


class _Fitted(NamedTuple):
    gain: float
    bias_w: float
    covariance: Array
    chi2: float


@dataclass(frozen=True, slots=True)
class _Line:
    """Windows by sensor and by meter, and the covariance of the sensor's."""

    x: Array
    y: Array
    spread: Array

    def misfit(self, freedom: int) -> float:
        """The sd, as a share of power, that brings χ² down to its degrees of freedom; 0 where it is not above."""
        if self.fitted(0.0).chi2 <= freedom:
            return 0.0
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self.fitted(middle).chi2 > freedom else (low, middle)
        return high

    def fitted(self, misfit: float) -> _Fitted:
        """The line with the least sum of squared distances, each in units of its sd."""
        ones = np.ones(len(self.x))
        gain, bias = (float(value) for value in np.polyfit(self.x, self.y, 1))
        own = np.diag(self.y**2 * (METER**2 + misfit**2) + 1e-12)
        for _ in range(50):
            weight = np.linalg.inv(own + gain**2 * self.spread)
            # Where the true readings are, by the line and both errors; at the solution they are orthogonal to what is
            # left (York's equations, with matrices).
            true = self.x + gain * self.spread @ weight @ (self.y - gain * self.x - bias)
            sides = np.stack((true, ones)) @ weight
            before = gain
            gain, bias = (float(v) for v in np.linalg.solve(sides @ np.stack((self.x, ones), axis=1), sides @ self.y))
            if abs(gain - before) < 1e-9:
                break
        left = self.y - gain * self.x - bias
        covariance = np.linalg.inv(sides @ np.stack((true, ones), axis=1))
        return _Fitted(gain, bias, covariance, float(left @ weight @ left))
