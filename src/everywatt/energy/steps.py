"""Place an isolated step of power inside its cell.

Where readings are level before a cell and level after it, and the cell's own mean lies between, power stepped from one
level to the other inside it, and the mean says when: no load that is steady on both sides has a simpler course.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from everywatt.energy.curve import Cells

if TYPE_CHECKING:
    from everywatt.energy.unseen_power import Array

# Two readings are level if they differ by less than this share of the step.
LEVEL = 0.05
# How far the course inside the cell may be from a sharp step, as a share of what it would be off without placing it.
BLUNT = 1 / 3


def place_steps(cells: Cells) -> Cells:
    """The same cells, those that hold an isolated step split at it. For sensors that see the whole of their period."""
    found = _isolated(cells)
    if len(found) == 0:
        return cells
    before, after = cells.mean_w[found - 1], cells.mean_w[found + 1]
    length = cells.end_s[found] - cells.start_s[found]
    share = (cells.mean_w[found] - after) / (before - after)
    at = cells.start_s[found] + share * length
    blunt = BLUNT * np.abs(before - after) * share * (1 - share) * length

    twice = np.ones(len(cells.mean_w), dtype=np.intp)
    twice[found] = 2
    order = np.repeat(np.arange(len(twice)), twice)
    place = found + np.arange(len(found))

    def split(values: Array, first: Array, second: Array) -> Array:
        out = values[order]
        out[place], out[place + 1] = first, second
        return out

    same = {name: getattr(cells, name)[found] for name in ("restless_w", "toggle_w", "common_w")}
    slip = np.hypot(cells.slip_j[found], blunt)
    zero = np.zeros(len(found))
    return Cells(
        split(cells.start_s, cells.start_s[found], at),
        split(cells.end_s, at, cells.end_s[found]),
        split(cells.mean_w, before, after),
        split(cells.swing_w, zero, zero),
        split(cells.restless_w, same["restless_w"], same["restless_w"]),
        split(cells.toggle_w, same["toggle_w"], same["toggle_w"]),
        cells.loose,
        split(cells.random_j, cells.random_j[found], zero),
        split(cells.common_w, same["common_w"], same["common_w"]),
        split(cells.slip_j, slip, slip),
        None if cells.slip_start_j is None else split(cells.slip_start_j, cells.slip_start_j[found], slip),
    )


def _isolated(cells: Cells) -> npt.NDArray[np.intp]:
    """Numbers of the cells between two levels, in an unbroken stretch of cells."""
    y = cells.mean_w
    if len(y) < 5:
        return np.array([], dtype=np.intp)
    a2, a, m, b, b2 = y[:-4], y[1:-3], y[2:-2], y[3:-1], y[4:]
    step = np.abs(b - a)
    level = (np.abs(a - a2) <= LEVEL * step) & (np.abs(b2 - b) <= LEVEL * step)
    between = (m - a) * (b - m) > 0
    whole = np.abs(cells.start_s[1:] - cells.end_s[:-1]) < 1e-9
    unbroken = whole[:-3] & whole[1:-2] & whole[2:-1] & whole[3:]
    # Where the load toggles by more than the step, the step is only the beat of its phase.
    clear = step > cells.toggle_w[2:-2]
    return np.flatnonzero(level & between & unbroken & clear) + 2
