"""Quantiles, intervals and tests: one implementation of each.

Pure Python where a figure is one number (checked against scipy in the tests), so that results do not depend on what is
installed; numpy, imported on use, for arrays and where thousands of resamples are drawn.

- Student and normal quantiles; half-width of a mean
- shares: Wilson's interval, Agresti and Min's difference of paired shares, McNemar's exact test
- `percentile` interpolates linearly between order statistics (numpy's default, type 7 of Hyndman and Fan);
  `conformal_quantile` is the order statistic that holds for one more value
- bootstrap: sums of rows drawn with replacement, whole groups where there are groups
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

Z95 = 1.959963984540054  # normal_quantile(0.975): half-width of 95 % in standard deviations
TO_95 = 1.96 / 1.645  # of a normal law: a half-width of 90 %, as models state it, as one of 95 %
RESAMPLES = 2000
SEED = 20261115
FEWEST_GROUPS = 5  # fewer groups do not show how groups differ
_FEW, _SHORT = 8, 64
_EPSILON = 4e-15  # some continued fractions never settle to the last digit
_TINY = 1e-300
_MANY_FREEDOM = 1e4  # beyond this, an expansion around the normal quantile is more accurate than log-gamma functions
_MANY_DISCORDANT = 1000  # beyond this, McNemar's tail comes from the incomplete beta function instead of integers


def normal_quantile(p: float) -> float:
    """The value that a standard normal variable stays below with probability `p` (0 < p < 1)."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


@lru_cache(maxsize=1024)
def student_quantile(p: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees of freedom (> 0, not only whole) stays below with probability
    `p`; infinite degrees of freedom are the normal distribution.

    >>> round(student_quantile(0.975, 7), 6)
    2.364624
    """
    if not 0 < p < 1 or not freedom > 0:
        raise ValueError("a quantile needs 0 < p < 1 and freedom > 0")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -student_quantile(1 - p, freedom)
    if freedom > _MANY_FREEDOM:
        z, n = normal_quantile(p), freedom
        # Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5); the next term is below 1e-12.
        second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        return z + (z**3 + z) / (4 * n) + second + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    tail = 1 - p
    low, high = 0.0, 1.0
    while _student_tail(high, freedom) > tail:
        low, high = high, high * 2
    # Bisection brings Newton's method near enough to converge in a few steps, also for heavy tails.
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_tail(middle, freedom) > tail else (low, middle)
    t = (low + high) / 2
    for _ in range(3):
        t += (_student_tail(t, freedom) - tail) / _student_density(t, freedom)
    return t


def student_factor(freedom: float) -> float:
    """Half-width of a two-sided 95 % interval in standard errors: 2.364624 for 7 degrees of freedom."""
    return student_quantile(0.975, freedom)


def mean_half_width(values: Sequence[float]) -> float:
    """Half-width of Student's 95 % interval of the mean of independent values; infinite for fewer than two."""
    n = len(values)
    return student_factor(n - 1) * deviation(values) / math.sqrt(n) if n > 1 else math.inf


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, added up without rounding; nan of nothing."""
    return math.fsum(values) / len(values) if len(values) else math.nan


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample (n - 1); nan of fewer than two."""
    if len(values) < 2:
        return math.nan
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, by linear interpolation; nan of nothing.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.5
    """
    if not len(values):
        return math.nan
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    index = min(int(place), len(ordered) - 1)
    below, above = ordered[index], ordered[min(index + 1, len(ordered) - 1)]
    return below + (above - below) * (place - index) if above > below else below


def median(values: Sequence[float] | npt.NDArray[Any]) -> float:
    """The value in the middle, or the mean of the two there; nan of nothing, or where one is nan.

    >>> median([4.0, 1.0, 2.0, 3.0])
    2.5
    """
    if not isinstance(values, Sequence):
        flat = values.ravel()
        if len(flat) > _FEW:
            return float(row_medians(flat.astype("float64")[None, :])[0])
        values = flat.tolist()  # so few are sorted faster without numpy
    if not len(values) or any(value != value for value in values):
        return math.nan
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def row_medians(rows: npt.NDArray[Any]) -> Floats:
    """Median of each row of an array of at least one column; nan for a row that holds one.

    The first call of `numpy.median` in a process loads `numpy.ma`, which takes longer than all else of one window.
    """
    import numpy as np

    count = rows.shape[1]
    low, high = (count - 1) // 2, count // 2
    # NaN sorts last, so the last place tells whether there is one. Short rows are sorted faster than parted.
    parted = np.sort(rows, axis=1) if count <= _SHORT else np.partition(rows, sorted({low, high, count - 1}), axis=1)
    middle = (parted[:, low] + parted[:, high]) / 2 if low != high else parted[:, low]
    return np.where(np.isnan(parted[:, -1]), np.nan, middle)


def conformal_quantile(values: Sequence[float], share: float) -> float:
    """The bound that one more value from where these came from keeps with probability `share`.

    An order statistic of the n values and the one to come: rounded up in the upper half, down in the lower one. With
    too few values it is the largest or smallest of them.
    """
    n, ordered = len(values), sorted(values)
    if share >= 0.5:
        return float(ordered[min(math.ceil((n + 1) * share) - 1, n - 1)])
    return float(ordered[max(math.floor((n + 1) * share) - 1, 0)])


def wilson(hits: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of the share `hits` / `n`; everything from 0 to 1 of nothing.

    >>> tuple(round(end, 4) for end in wilson(81, 100))
    (0.7222, 0.8749)
    """
    if n <= 0:
        return 0.0, 1.0
    z = Z95 if level == 0.95 else normal_quantile((1 + level) / 2)
    share, scale = hits / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and n the formula gives exactly 0 and 1, but for the last digit of a sum.
    return (max(0.0, middle - half) if hits else 0.0), (min(1.0, middle + half) if hits < n else 1.0)


def paired_difference(only_first: int, only_second: int, n: int) -> tuple[float, float, float]:
    """Share of the second minus share of the first on the same `n` items, and Agresti and Min's 95 % interval of it.

    The counts are of items that only one of the two got right. Half an item more in each of the four cells gives an
    interval that does not vanish where no item differs (docs/llm.md says why it is this one).

    >>> tuple(round(end, 3) for end in paired_difference(1, 9, 100))
    (0.08, 0.017, 0.14)
    """
    if n <= 0:
        return math.nan, -1.0, 1.0
    more, differ = only_second - only_first, only_first + only_second + 1
    half = Z95 * math.sqrt(max(differ - more**2 / (n + 2), 0.0)) / (n + 2)
    return more / n, max(-1.0, more / (n + 2) - half), min(1.0, more / (n + 2) + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact test, two-sided, from the items that only one of the two got right.

    >>> mcnemar(0, 0), mcnemar(1, 9)
    (1.0, 0.021484375)
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    if n > _MANY_DISCORDANT:
        return min(1.0, 2 * _incomplete_beta(n - fewer, fewer + 1, 0.5))
    tail: float = sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n
    return min(1.0, 2 * tail)


def resampled_sums(table: Floats, resamples: int = RESAMPLES) -> Floats:
    """Bootstrap: sums of the columns of as many rows drawn with replacement, one row for each time; always the same."""
    import numpy as np

    chance = np.random.default_rng(SEED)
    found = np.empty((resamples, table.shape[1]))
    for turn in range(resamples):
        found[turn] = table[chance.integers(0, len(table), len(table))].sum(axis=0)
    return found


def clustered(table: Floats, groups: Sequence[str]) -> Floats:
    """Rows of one group added up, so that whole groups are drawn; rows as they are with fewer than five groups."""
    import numpy as np

    if len(groups) != len(table) or len(set(groups)) < FEWEST_GROUPS:
        return table
    _, number = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    return np.column_stack([np.bincount(number, column) for column in table.T]).astype(np.float64)


def bootstrap_ratio(
    tops: Sequence[float], bottoms: Sequence[float], groups: Sequence[str] = (), *, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """95 % percentile interval of Σ tops / Σ bottoms, items drawn with both of their values.

    Items of one group are alike: with five groups or more, whole groups are drawn. None for fewer than two rows, or
    where the bottoms add up to nothing.
    """
    import numpy as np

    table = clustered(np.column_stack([tops, bottoms]).astype(np.float64), groups)
    if len(table) < 2 or not table[:, 1].sum() > 0:
        return None
    sums = resampled_sums(table, resamples)
    found = np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), np.nan), where=sums[:, 1] > 0)
    low, high = np.nanpercentile(found, (2.5, 97.5))
    return float(low), float(high)


def _student_tail(t: float, freedom: float) -> float:
    """P(T > t) for t ≥ 0."""
    # Of the two arguments that add up to 1, the smaller is computed, so that nothing cancels.
    if t * t < freedom:
        return 0.5 - _incomplete_beta(0.5, freedom / 2, t * t / (freedom + t * t)) / 2
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def _student_density(t: float, freedom: float) -> float:
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return math.exp(log - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22, after Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + numerator * d)
            c = _off_zero(1 + numerator / c)
            fraction *= c * d
        if abs(c * d - 1) <= _EPSILON:
            break
    return math.exp(log) * fraction / a


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
