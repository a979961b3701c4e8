"""Channels that carry no energy (CPU time, utilisation) over a whole tape, read once and continued while it grows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.tape.columns import load_columns
from everywatt.tape.reader import StoredGroup, Tape

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BUSY = "host.cpu_time"
IDLE = "host.idle_time"


class Series:
    """One channel's finite values with the instants they belong to, oldest first."""

    def __init__(self, group: StoredGroup, name: str) -> None:
        self.group, self.name = group, name
        self.at_ns: Ints = np.empty(0, dtype=np.int64)
        self.values: Floats = np.empty(0)
        self._rising: Floats = np.empty(0)

    def update(self, tape: Tape) -> None:
        """Take the rows that came since."""
        start_ns = int(self.at_ns[-1]) if len(self.at_ns) else None
        columns = load_columns(tape, self.group.id, [self.name], start_ns, None, tight=True)
        values = columns.values[self.name]
        new = np.isfinite(values)
        if start_ns is not None:
            new &= columns.published > start_ns
        if new.any():
            self.at_ns = np.concatenate((self.at_ns, columns.published[new]))
            self.values = np.concatenate((self.values, values[new]))

    def rising(self) -> Floats:
        """A counter's values without steps back: what it had counted in all, a fall counting for nothing."""
        if len(self._rising) != len(self.values):
            self._rising = np.concatenate(([0.0], np.cumsum(np.maximum(np.diff(self.values), 0.0))))
        return self._rising

    def used(self, starts_ns: Ints, ends_ns: Ints) -> Floats:
        """What a counter counted in each stretch; NaN where it says nothing."""
        if len(self.at_ns) < 2:
            return np.full(len(starts_ns), np.nan)
        counted = self.rising()
        used = np.interp(ends_ns, self.at_ns, counted) - np.interp(starts_ns, self.at_ns, counted)
        # Before the first and after the last reading the rate of what is known is taken on.
        inside = np.clip(ends_ns, self.at_ns[0], self.at_ns[-1]) - np.clip(starts_ns, self.at_ns[0], self.at_ns[-1])
        whole = ends_ns - starts_ns
        return np.where(inside > 0.2 * whole, used * whole / np.maximum(inside, 1), np.nan)

    def mean(self, edges_ns: Ints) -> Floats:
        """A gauge's mean between neighbouring edges, each value held backwards; NaN where it says nothing."""
        if not len(self.at_ns):
            return np.full(max(len(edges_ns) - 1, 0), np.nan)
        sums = np.concatenate(([0.0], np.cumsum(self.values)))
        at = np.searchsorted(self.at_ns, edges_ns, side="right")
        count = np.diff(at)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.diff(sums[at]) / count
        nearest = self.values[np.clip(at[1:], 0, len(self.values) - 1)]
        return np.where(count > 0, means, nearest)


def find(tape: Tape, name: str) -> Series | None:
    """The series of a channel, still empty; None where the tape has no such channel."""
    for group in tape.groups:
        if any(channel.name == name for channel in group.info.channels):
            return Series(group, name)
    return None
