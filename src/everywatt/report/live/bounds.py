"""How sure the joules of a live view are: the error budget is worked out now and then, and carried on in between.

The two edges of the window and the quantum of a reading stay what they are while the energy grows; all else (gain,
offset, aliasing, gaps) is taken to grow with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.errors import TapeError
from everywatt.energy.sources import Source, addable
from everywatt.energy.window import source_energy, windows_energy
from everywatt.tape.reader import Tape

# A view may read more seldom than a power sensor publishes; then its readings say little about the counter beside it.
CROSS_CHECK = "for the same window"
STANDING = ("edges", "quantum")
FIRST_S = 2.0
LONGEST_S = 120.0
YOUNG_S = 30.0
SETTLED_S = 10.0
USUAL_S = 0.1
COST_SHARE = 0.001  # of one core


@dataclass(frozen=True, slots=True)
class Width:
    """A 95 % interval in two parts: joules that stand, and shares of the energy that grow with it."""

    standing_j: float
    growing: float
    below: float
    above: float

    @classmethod
    def of(cls, energy: Energy) -> Width | None:
        """The parts of a figure's budget; None where there is no figure."""
        if not energy.joules:
            return None
        terms, bounds = energy.budget.terms, energy.budget.bounds
        size = abs(energy.joules)
        return cls(
            Budget(tuple(term for term in terms if term.source in STANDING)).sides()[0],
            Budget(tuple(term for term in terms if term.source not in STANDING)).sides()[0] / size,
            sum(bound.below for bound in bounds) / size,
            sum(bound.above for bound in bounds) / size,
        )

    def at(self, joules: float) -> tuple[float, float]:
        """How far below and above, in joules, where the energy is `joules`."""
        size = abs(joules)
        spread = math.hypot(self.standing_j, self.growing * size)
        return spread + self.below * size, spread + self.above * size


class Bounds:
    """95 % half-widths of each device and of the total (label "")."""

    def __init__(self, *, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = cpu_clock
        self._tape: Tape | None = None
        self._sources: list[Source] = []
        self._widths: dict[str, Width] = {}
        self._next_s = FIRST_S
        self._sparse = False
        self.notes: tuple[str, ...] = ()

    def adopt(self, tape: Tape, found: Sequence[Source]) -> None:
        """From now on ask this tape."""
        self._tape, self._sources = tape, list(found)
        self._sparse = _sparse(tape, found)
        # A young tape's edges are wide: what the one before it said stands for a while.
        self._next_s = YOUNG_S if self._widths else FIRST_S

    def of(self, label: str, joules: float) -> tuple[float | None, float | None]:
        """How far the energy may be below and above, in joules; None where it is not known yet."""
        found = self._widths.get(label)
        return (None, None) if found is None else found.at(joules)

    def update(self, age_s: float, *, now: bool = False) -> None:
        """Work the budget out again `now`, or where it is time: the more it costs, the more seldom.

        `age_s` is how long the tape is.
        """
        if self._tape is None or (age_s < self._next_s and not now):
            return
        began_s = self._clock()
        try:
            self._tape.refresh()
            start_ns, end_ns = self._tape.extent_ns()
        except TapeError:
            return
        whole = windows_energy(self._sources, [(start_ns, end_ns)])
        if age_s >= SETTLED_S or now:  # at a tape's very start not all devices have been read yet
            self.notes = tuple(note for note in whole.notes if not (self._sparse and CROSS_CHECK in note))
        counted = {source.label for source in addable(self._sources)}
        found = {"": whole, **dict(whole.parts)}
        for source in self._sources:
            if source.label not in counted:
                found[source.label] = source_energy(source, start_ns, end_ns)
        self._widths.update({label: width for label, energy in found.items() if (width := Width.of(energy))})
        cost_s = self._clock() - began_s
        self._next_s = age_s + min(max(FIRST_S, cost_s / COST_SHARE), LONGEST_S)


def _sparse(tape: Tape, found: Sequence[Source]) -> bool:
    """Whether power sensors that publish by themselves were read more seldom than they do."""
    period_s = tape.meta.get("period_s")
    publishing = [
        channel.facts.period_s or USUAL_S for source in found for group, channel in source.mirrors if group.info.tracked
    ]
    return isinstance(period_s, int | float) and any(period_s > 2 * known for known in publishing)
