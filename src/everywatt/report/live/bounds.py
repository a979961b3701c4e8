"""How sure the joules of a live view are: the error budget is worked out now and then, and scaled in between.

The parts of a budget grow no faster than the energy does, so the relative width of an earlier window bounds that of the
window that it has grown into.
"""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.core.energy import Energy
from everywatt.core.errors import TapeError
from everywatt.energy.sources import Source, addable
from everywatt.energy.window import source_energy, windows_energy
from everywatt.tape.reader import Tape

# A view may read more seldom than a power sensor publishes; then its readings say little about the counter beside it.
CROSS_CHECK = "for the same window"
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
        self._sparse = False
        self.notes: tuple[str, ...] = ()

    def adopt(self, tape: Tape, found: Sequence[Source]) -> None:
        """From now on ask this tape."""
        self._tape, self._sources = tape, list(found)
        self._sparse = _sparse(tape, found)
        # A young tape's edges are wide: what the one before it said stands for a while.
        self._next_s = YOUNG_S if self._relative else FIRST_S

    def of(self, label: str, joules: float) -> tuple[float | None, float | None]:
        """How far the energy may be below and above, in joules; None where it is not known yet."""
        found = self._relative.get(label)
        return (None, None) if found is None else (found[0] * abs(joules), found[1] * abs(joules))

    def update(self, age_s: float, *, now: bool = False) -> None:
        """Work the budget out again where it is time, or `now`: when the tape has doubled, at least every 2 min.

        `age_s` is how long the tape is.
        """
        if self._tape is None or (age_s < self._next_s and not now):
            return
        try:
            self._tape.refresh()
            start_ns, end_ns = self._tape.extent_ns()
        except TapeError:
            return
        self._next_s = age_s + min(max(age_s, FIRST_S), LONGEST_S)
        whole = windows_energy(self._sources, [(start_ns, end_ns)])
        self.notes = tuple(note for note in whole.notes if not (self._sparse and CROSS_CHECK in note))
        counted = {source.label for source in addable(self._sources)}
        found = {"": whole, **dict(whole.parts)}
        for source in self._sources:
            if source.label not in counted:
                found[source.label] = source_energy(source, start_ns, end_ns)
        self._relative.update({label: width for label, energy in found.items() if (width := _width(energy))})


def _sparse(tape: Tape, found: Sequence[Source]) -> bool:
    period_s = tape.meta.get("period_s")
    publishing = [channel.facts.period_s for source in found for _, channel in source.mirrors]
    return isinstance(period_s, int | float) and any(known and period_s > 2 * known for known in publishing)


def _width(energy: Energy) -> tuple[float, float] | None:
    if not energy.joules:
        return None
    below, above = energy.budget.sides()
    return below / abs(energy.joules), above / abs(energy.joules)
