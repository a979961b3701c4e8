"""Memory held by processes: bytes over time, for the refresh of DRAM and for the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.use.usage import ProcessUse

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of each process (by its number): the mean over the windows, and the most at any read in them."""

    mean_bytes: Floats
    peak_bytes: Floats


def memory_held(use: ProcessUse, name: str, windows: Sequence[tuple[int, int]]) -> Held | None:
    """What processes held of `rss_bytes`, `pss_bytes` or `uss_bytes`; None where it was not recorded.

    A value holds from the read that told it until the next. Many windows are taken as one from first to last.
    """
    if name not in use.memory or not windows:
        return None
    count = len(use.processes)
    number, at_ns, value = (np.array(column) for column in use.memory[name])
    order = np.lexsort((at_ns, number))
    number, at_ns, value = number[order], at_ns[order], value[order]
    same = np.append(number[1:] == number[:-1], False)
    until_ns = np.where(same, np.append(at_ns[1:], 0), windows[-1][1])
    mean, peak = np.zeros(count), np.zeros(count)
    hull = windows if len(windows) <= 16 else [(windows[0][0], windows[-1][1])]
    for start_ns, end_ns in hull:
        overlap = np.clip(np.minimum(until_ns, end_ns) - np.maximum(at_ns, start_ns), 0, None)
        mean += np.bincount(number, value * overlap, count)
        np.maximum.at(peak, number[overlap > 0], value[overlap > 0])
    return Held(mean / max(sum(end - start for start, end in hull), 1), peak)


def refresh(idle_j: float, held_bytes: Floats, machine_bytes: float | None) -> Floats:
    """Joules of keeping each owner's memory, of a device's idle joules; what is not held stays idle.

    Shared pages are counted for each holder by RSS, so where the owners hold more than there is, by their shares.
    """
    whole = max(float(machine_bytes or 0.0), float(held_bytes.sum()))
    if not machine_bytes or whole <= 0 or idle_j <= 0:
        return np.zeros(len(held_bytes))
    return np.asarray(idle_j * held_bytes / whole, dtype=np.float64)
