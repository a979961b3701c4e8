"""Wall and chips of one run: two totals, what the chips do not explain, and how far the two clocks are apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from everywatt.api.run import Run
from everywatt.core.channels import Pedigree
from everywatt.core.energy import Energy, sum_energies
from everywatt.core.errors import EverywattError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.energy.sources import WHOLE, Source
from everywatt.meters.wall import chip_sources, line_of, meter_sources, single

if TYPE_CHECKING:
    from everywatt.meters.wall import Offset, Overhead

CELLS = 60
SHORTEST_CELL_S = 1.0


@dataclass(frozen=True, slots=True)
class Wall:
    """What a meter and the chips say of the same time. `unexplained` is their difference, a figure of its own."""

    devices: tuple[str, ...]
    wall: Energy
    chips: Energy
    unexplained: Energy

    @property
    def share(self) -> float | None:
        """Part of the wall's energy that the chips do not explain."""
        return self.unexplained.value / self.wall.value if self.wall.joules else None

    @property
    def remark(self) -> str:
        """What is wrong with the comparison, if anything: a platform counter, for one, does not see every card."""
        if self.unexplained.value + self.unexplained.sides()[1] >= 0:
            return ""
        return f"{', '.join(self.devices)} shows less than the chips: it does not measure all of them"


def wall_of(run: Run) -> Wall | None:
    """Both totals of a run that has a meter of the whole and chips; None where one of them is missing."""
    chosen = _meters(run)
    if not chosen:
        return None
    try:
        at_wall = sum_energies(run.energy(device=source.label) for source in chosen)
        chips = run.energy()
        rest = Energy(
            at_wall.value - chips.value,
            at_wall.budget - chips.budget,
            f"{at_wall.scope} less {chips.scope}",
            chips.pedigree if chips.pedigree == at_wall.pedigree else f"{at_wall.pedigree} less {chips.pedigree}",
            min(at_wall.coverage, chips.coverage),
            signed=True,
            sampling_only=at_wall.sampling_only or chips.sampling_only,
        )
    except EverywattError:
        return None  # one of the two has no figure, which the run itself says
    devices = tuple(source.label for source in chosen)
    return Wall(devices, replace(at_wall, parts=()), replace(chips, parts=()), rest)


def _meters(run: Run) -> list[Source]:
    if len(run.tapes) != 1 or not chip_sources(single(run)):
        return []
    found = meter_sources(single(run))
    return [s for s in found if s.domain in WHOLE and s.channel.pedigree is not Pedigree.MODELLED]


def fitted(run: Run) -> tuple[Offset, Overhead | None]:
    """The offset of the chips' clock against the meter's, from the signals, and the line between the two."""
    from everywatt.meters.wall import (
        Offset,  # few runs have a meter, and every run looks for one
        compare_node,
    )

    every_s = max(SHORTEST_CELL_S, round(run.duration_s / CELLS))
    try:
        node = compare_node(run.name, run, line_of(run, _meters(run)), every_s)
    except EverywattError as error:
        return Offset(None, why=error.message), None
    return node.clock, node.overhead
