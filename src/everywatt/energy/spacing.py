"""How far apart ticks are: how often a sensor publishes, and how far apart they are most of the time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.energy.median import median

Floats = npt.NDArray[np.float64]


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
