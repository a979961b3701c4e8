"""How sure the joules of a live view are: the error budget is worked out now and then, and scaled in between.

The parts of a budget grow no faster than the energy does, so the relative width of an earlier window bounds that of the
window that it has grown into.
"""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.core.clocks import NS
from everywatt.core.energy import Energy
from everywatt.core.errors import TapeError
from everywatt.energy.sources import Source, addable
from everywatt.energy.window import source_energy, windows_energy
from everywatt.tape.reader import Tape

FIRST_S = 2.0
LONGEST_S = 120.0
YOUNG_S = 30.0


class Bounds:
    """95 % half-widths of each device and of the total (label "")."""

    def __init__(self) -> None:
        self._tape: Tape | None = None
        self._sources: list[Source] = []
        self._relative: dict[str, tuple[float, float]] = {}
        self._next_s = FIRST_S
        self.notes: tuple[str, ...] = ()

    def adopt(self, tape: Tape, found: Sequence[Source]) -> None:
        """From now on ask this tape."""
        self._tape, self._sources = tape, list(found)
        # A young tape's edges are wide: what the one before it said stands for a while.
        self._next_s = YOUNG_S if self._relative else FIRST_S

    def of(self, label: str, joules: float) -> tuple[float | None, float | None]:
        """How far the energy may be below and above, in joules; None where it is not known yet."""
        found = self._relative.get(label)
        return (None, None) if found is None else (found[0] * abs(joules), found[1] * abs(joules))

    def update(self, *, now: bool = False) -> None:
        """Work the budget out again where it is time, or `now`: when the tape has doubled, at least every 2 min."""
        if self._tape is None:
            return
        try:
            if not self._tape.sealed:
                self._tape.refresh()
            start_ns, end_ns = self._tape.extent_ns()
        except TapeError:
            return
        age_s = (end_ns - start_ns) / NS
        if age_s < self._next_s and not now:
            return
        self._next_s = age_s + min(max(age_s, FIRST_S), LONGEST_S)
        whole = windows_energy(self._sources, [(start_ns, end_ns)])
        self.notes = whole.notes
        counted = {source.label for source in addable(self._sources)}
        found = {"": whole, **dict(whole.parts)}
        for source in self._sources:
            if source.label not in counted:
                found[source.label] = source_energy(source, start_ns, end_ns)
        self._relative.update({label: width for label, energy in found.items() if (width := _width(energy))})


def _width(energy: Energy) -> tuple[float, float] | None:
    if not energy.joules:
        return None
    below, above = energy.budget.sides()
    return below / abs(energy.joules), above / abs(energy.joules)
