"""From rows of a meter to joules: each reading is held backwards to the good row before it, unless that is too far.

The box gives the mean of each stretch at its end, so a reading belongs to the time before it. A stretch of more than
three usual periods is a gap: then one period before the row is covered and the rest was not observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.meters.block import Block, Floats, Ints

GAP_PERIODS: Final = 3
DEFAULT_PERIOD_NS: Final = NS // 100
FEW_STEPS: Final = 16


@dataclass(frozen=True, slots=True)
class Stretches:
    """Time that readings cover: from `start_ns` to `end_ns` the plugs drew `watts` (rows, plugs)."""

    start_ns: Ints
    end_ns: Ints
    watts: Floats

    def joules(self) -> Floats:
        """Energy of every plug."""
        return np.asarray(((self.end_ns - self.start_ns) / NS) @ self.watts)

    def observed_s(self) -> float:
        """Seconds that are covered."""
        return float((self.end_ns - self.start_ns).sum() / NS)


def _usual(block: Block) -> tuple[int | None, int]:
    """The median step between good rows, None where there is none, and how many there are."""
    steps = np.diff(block.utc_ns[block.ok])
    steps = steps[steps > 0]
    return (int(np.median(steps)) if len(steps) else None), len(steps)


def held(blocks: Iterable[Block], period_ns: int | None = None) -> Iterator[tuple[Block, Stretches]]:
    """Every block with what its rows cover. The very first row covers nothing: the start of its period is unknown."""
    last_ns: int | None = None
    settled = period_ns is not None
    for block in blocks:
        if not settled:
            # A period of time may begin with the last row of a file, which tells nothing of how far rows are apart.
            found, steps = _usual(block)
            period_ns, settled = found or period_ns, steps >= FEW_STEPS
        usual_ns = period_ns or DEFAULT_PERIOD_NS
        whole = bool(block.ok.all())
        ends = block.utc_ns if whole else block.utc_ns[block.ok]
        watts = block.watts if whole else block.watts[block.ok]
        if not len(ends):
            yield block, Stretches(ends, ends, watts)
            continue
        starts = np.concatenate(([ends[0] if last_ns is None else last_ns], ends[:-1]))
        starts = np.where(ends - starts > GAP_PERIODS * usual_ns, ends - usual_ns, starts)
        last_ns = int(ends[-1])
        yield block, Stretches(starts, ends, watts)
