"""How far two clocks are apart, from what both saw: power that rises and falls.

Both signals are turned into their steps (the mean of the next second less that of the last), which leave out levels and
drift; the shift at which these agree best is the offset. Where nothing moves, or a load repeats itself so that several
shifts fit, there is no answer, and it is refused with the reason.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from everywatt.core.lazy_dataclass import dataclass
from everywatt.meters.block import Floats, Ints

STEP_S: Final = 0.02
EDGE_S: Final = 1.0
LEAST_AGREEMENT: Final = 0.5
RIVAL: Final = 0.95
MOST_POINTS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Offset:
    """`seconds` to add to the second clock to get the first, within ± `within_s`; None with the reason where refused.

    agreement is the correlation of the steps at that shift.
    """

    seconds: float | None
    within_s: float = float("nan")
    agreement: float = float("nan")
    why: str = ""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"refused: {self.why}"
        return f"{self.seconds:+.3f} s ± {self.within_s:.3f} (agreement {self.agreement:.2f})"


@dataclass(frozen=True, slots=True)
class Line:
    """Joules that had gathered at instants (seconds on the signal's own clock): power of any window follows."""

    t_s: Floats
    joules: Floats

    def means(self, edges_s: Floats) -> Floats:
        """Mean power between edges."""
        return np.asarray(np.diff(np.interp(edges_s, self.t_s, self.joules)) / np.diff(edges_s))


def estimate(first: Line, second: Line, most_s: float = 30.0) -> Offset:
    """The offset of the second signal's clock against the first's, looked for within ± most_s."""
    start, end = max(first.t_s[0], second.t_s[0]), min(first.t_s[-1], second.t_s[-1])
    length_s = end - start
    if not length_s >= 4 * EDGE_S + min(most_s, 1.0):
        return Offset(
            None, why="the two signals do not overlap in time" if length_s <= 0 else "the overlap is too short"
        )
    step_s = max(STEP_S, length_s / MOST_POINTS)
    edges = start + np.arange(int(length_s / step_s) + 1) * step_s
    x, y = (_steps(line.means(edges), step_s) for line in (first, second))
    for name, line, signal in (("first", first, x), ("second", second, y)):
        level = abs(float(np.mean(line.means(edges)))) or 1.0
        if float(np.std(signal)) < 1e-6 * level or float(np.ptp(signal)) < 0.01 * level:
            return Offset(None, why=f"the {name} signal is flat")
    lags = min(round(most_s / step_s), int(0.75 * len(x)))
    agree = _correlations(x, y, lags)
    return _best(agree, lags, step_s, length_s)


def _steps(watts: Floats, step_s: float) -> Floats:
    """The mean of the next second less that of the last, at every point."""
    wide = max(round(EDGE_S / step_s), 1)
    gathered = np.concatenate(([0.0], np.cumsum(watts)))
    middle = np.arange(wide, len(watts) - wide + 1)
    return np.asarray((gathered[middle + wide] - 2 * gathered[middle] + gathered[middle - wide]) / wide)


def _correlations(x: Floats, y: Floats, lags: int) -> Floats:
    """Pearson's correlation of x[i] with y[i + lag], over the part in which both are, for lags from -lags to lags."""
    n = len(x)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.conj(np.fft.rfft(x, size)) * np.fft.rfft(y, size)
    products = np.fft.irfft(spectrum, size)
    shifts = np.arange(-lags, lags + 1)
    count = n - np.abs(shifts)
    low_x, high_x = np.maximum(0, -shifts), n - np.maximum(0, shifts)
    low_y, high_y = np.maximum(0, shifts), n - np.maximum(0, -shifts)

    def sums(values: Floats, low: Ints, high: Ints) -> Floats:
        gathered = np.concatenate(([0.0], np.cumsum(values)))
        return np.asarray(gathered[high] - gathered[low])

    sx, sy = sums(x, low_x, high_x), sums(y, low_y, high_y)
    xx, yy = sums(x * x, low_x, high_x) - sx * sx / count, sums(y * y, low_y, high_y) - sy * sy / count
    xy = products[shifts % size] - sx * sy / count
    spread = np.sqrt(np.maximum(xx, 0) * np.maximum(yy, 0))
    # A shift that leaves hardly any of the load in common agrees by chance.
    share = np.minimum(xx / max(float(np.dot(x, x)), 1e-300), yy / max(float(np.dot(y, y)), 1e-300))
    return np.asarray(np.where((spread > 0) & (share > 0.25), xy / np.maximum(spread, 1e-300), -1.0))


def _best(agree: Floats, lags: int, step_s: float, length_s: float) -> Offset:
    place = int(np.argmax(agree))
    best = float(agree[place])
    if best < LEAST_AGREEMENT:
        return Offset(None, agreement=best, why=f"the signals are not correlated (agreement {best:.2f})")
    beside = round(2 * EDGE_S / step_s)
    far = np.concatenate((agree[: max(place - beside, 0)], agree[place + beside + 1 :]))
    if len(far) and float(far.max()) > RIVAL * best:
        return Offset(None, agreement=best, why="the load is periodic: several offsets fit equally well")
    if place in (0, 2 * lags):
        return Offset(
            None, agreement=best, why=f"the best agreement is at the edge of the search range ({lags * step_s:.0f} s)"
        )
    left, middle, right = (float(v) for v in agree[place - 1 : place + 2])
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    # Where the agreement is not less than chance alone could make it.
    slack = 2 * (1 - best * best) / np.sqrt(max(length_s / EDGE_S, 4.0)) + 1e-3
    near = np.flatnonzero(agree >= best - slack)
    width_s = float(near.max() - near.min()) / 2 * step_s
    # y[i + lag] is x[i]: an event of the first clock's t has the second clock's t + lag.
    return Offset(-(place - lags + shift) * step_s, max(width_s, step_s / 2), best)
