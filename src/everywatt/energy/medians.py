"""The median of finite numbers, as `numpy.median` gives it, without what that costs; and the usual step of ticks.

The first call of `numpy.median` in a process loads `numpy.ma`, which takes longer than all else that one window needs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SHORT = 64
# So few are sorted faster without numpy.
FEW = 8


def median(values: npt.ArrayLike) -> float:
    """Median of all values; NaN if there are no values, or one is NaN.

    >>> median([4.0, 1.0, 2.0, 3.0])
    2.5
    """
    flat = np.asarray(values, dtype=np.float64).ravel()
    if 0 < len(flat) <= FEW:
        few = sorted(flat.tolist())
        middle = (few[(len(few) - 1) // 2] + few[len(few) // 2]) / 2
        # NaN has no place in an order.
        return float("nan") if any(value != value for value in few) else middle
    return float(row_medians(flat[None, :])[0]) if len(flat) else float("nan")


def row_medians(rows: npt.NDArray[np.floating]) -> Floats:
    """Median of each row of an array of at least one column; NaN for a row that holds one."""
    count = rows.shape[1]
    low, high = (count - 1) // 2, count // 2
    # NaN sorts last, so the last place tells whether there is one. Short rows are sorted faster than parted.
    parted = np.sort(rows, axis=1) if count <= SHORT else np.partition(rows, sorted({low, high, count - 1}), axis=1)
    middle = (parted[:, low] + parted[:, high]) / 2 if low != high else parted[:, low]
    return np.where(np.isnan(parted[:, -1]), np.nan, middle)


def publishing_s(steps: Floats) -> float:
    """The usual short step: two reads find a publication, also where a long time passes before the next two."""
    return float(np.mean(steps[steps < 1.5 * median(steps)]))


def spacing_s(steps: Floats) -> float:
    """The step in the middle of all the time (and not of all steps).

    >>> spacing_s(np.array([0.1, 0.9, 0.1, 0.9]))
    0.9
    """
    ordered = np.sort(steps)
    return float(ordered[int(np.searchsorted(np.cumsum(ordered), ordered.sum() / 2))])
