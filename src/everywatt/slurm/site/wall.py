"""What a wattmeter or a BMC saw of a node, joined to the node's jobs: chips against wall for each job.

The wall of a node is more than its chips: fans, disks, regulators, the supply. That unexplained part is shared like the
chips' energy of the same hour: with a job's own share goes its part of what is unexplained, with its share of idle (by
allocation) another, and what idle and the system are left with keeps theirs. So the walls of all jobs, idle and the
system add up to the node's, and a job's wall is Σ over its hours of (own + idle) × wall / chips.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS
from everywatt.core.tables import Column, Table
from everywatt.ledger.engine import UJ
from everywatt.meters.block import Block
from everywatt.meters.integrate import held
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.carbon import HOUR_S, over_hours
from everywatt.slurm.site.store import Store

Floats = npt.NDArray[np.float64]
COVERED: Final = 0.9
RULE: Final = "the unexplained part is shared in proportion to the chips' energy: own by own, idle by allocation"


class Wall(Protocol):
    """What a meter saw of one node."""

    def seen(self, low_s: Floats, high_s: Floats) -> tuple[Floats, Floats]:
        """Joules of stretches of UTC time, and the share of each that was observed."""


@dataclass(frozen=True, slots=True)
class MeterLine:
    """A meter's rows as joules and seconds that had gathered."""

    t_s: Floats
    joules: Floats
    observed_s: Floats

    def seen(self, low_s: Floats, high_s: Floats) -> tuple[Floats, Floats]:
        """Joules of stretches, scaled to their whole length, and the share that was observed."""
        joules, observed = (
            np.interp(high_s, self.t_s, rising) - np.interp(low_s, self.t_s, rising)
            for rising in (self.joules, self.observed_s)
        )
        share = observed / np.maximum(high_s - low_s, 1e-9)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(share > 0, joules / share, np.nan), share


def meter_line(blocks: Iterable[Block]) -> MeterLine | None:
    """The line of all plugs of blocks together; None where there is no reading."""
    times, joules, seconds = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    gathered_j = gathered_s = 0.0
    for _, covered in held(blocks):
        if not len(covered.end_ns):
            continue
        lengths = (covered.end_ns - covered.start_ns) / NS
        for target, steps, base in (
            (joules, lengths * covered.watts.sum(axis=1), gathered_j),
            (seconds, lengths, gathered_s),
        ):
            risen = base + np.cumsum(steps)
            target.append(np.column_stack((risen - steps, risen)).ravel())
        times.append(np.column_stack((covered.start_ns, covered.end_ns)).ravel() / NS)
        gathered_j, gathered_s = float(joules[-1][-1]), float(seconds[-1][-1])
    if len(times) == 1:
        return None
    return MeterLine(np.concatenate(times), np.concatenate(joules), np.concatenate(seconds))


@dataclass(frozen=True, slots=True)
class NodeWall:
    """A node over the hours that both chips and meter saw. `jobs_j` is the wall of its jobs, own and idle share."""

    node: str
    hours: int
    hours_left_out: int
    chips_j: float
    wall_j: float
    jobs_j: float
    jobs: int
    why: str = ""

    @property
    def unexplained(self) -> float | None:
        """Share of the wall that the chips do not explain."""
        return 1 - self.chips_j / self.wall_j if self.wall_j > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = ("node", "hours", "hours_left_out", "chips_j", "wall_j", "jobs_j", "jobs", "why")
        return {**{name: getattr(self, name) for name in names}, "unexplained": self.unexplained, "rule": RULE}


def table_of(nodes: Iterable[NodeWall]) -> Table:
    """Nodes with their chips, wall and jobs."""
    energies = (Column("CHIPS", "J"), Column("WALL", "J"), Column("UNEXPLAINED", "%"))
    jobs = (Column("JOBS", ""), Column("WALL OF JOBS", "J"), "")
    rows = [
        [one.node, one.hours, one.chips_j, one.wall_j, one.unexplained, one.jobs, one.jobs_j, one.why] for one in nodes
    ]
    return Table.of("NODE", Column("HOURS", ""), *energies, *jobs, rows=rows)


def join_wall(
    store: Store, walls: Mapping[str, Wall], since_s: float, until_s: float
) -> tuple[list[JobOnNode], list[NodeWall]]:
    """Records that get another `wall_uj` than they have, and what was found of each node. Nothing is written."""
    changed: list[JobOnNode] = []
    nodes: list[NodeWall] = []
    for node, wall in walls.items():
        table = store.jobs(since_s, until_s, "node = ? AND energy_uj IS NOT NULL", [node])
        first_s = min([since_s, *table.column("start_s").to_pylist()])
        hours = _hours(store, node, first_s, until_s)
        ratios, facts = _ratios(node, hours, wall)
        amounts = _of_jobs(table, hours, ratios)
        jobs_j = 0.0
        for row, joules in zip(table.to_pylist(), amounts.tolist(), strict=True):
            if not np.isfinite(joules):
                continue
            jobs_j += joules
            job = JobOnNode.of_row(row)
            if job.wall_uj != round(joules * UJ):
                changed.append(replace(job, wall_uj=round(joules * UJ), written_s=0.0))
        nodes.append(replace(facts, jobs_j=jobs_j, jobs=int(np.isfinite(amounts).sum())))
    return changed, nodes


def _hours(store: Store, node: str, since_s: float, until_s: float) -> Any:
    sql = """
      SELECT node, hour_s, CAST(sum(total_uj) AS BIGINT) AS total_uj, CAST(sum(jobs_uj) AS BIGINT) AS jobs_uj,
        min(from_s) AS from_s, max(to_s) AS to_s
      FROM nodes WHERE node = ? AND hour_s >= ? AND hour_s < ? GROUP BY 1, 2 ORDER BY 2"""
    return store.query(sql, [node, since_s - HOUR_S, until_s], since_s - HOUR_S, until_s)


def _ratios(node: str, hours: Any, wall: Wall) -> tuple[dict[int, float], NodeWall]:
    """Wall over chips of each hour that both saw."""
    if not len(hours):
        return {}, NodeWall(node, 0, 0, 0.0, 0.0, 0.0, 0, "the store has no hours of it")
    hour = np.asarray(hours.column("hour_s"), dtype=np.int64)
    chips = np.asarray(hours.column("total_uj"), dtype=np.float64) / UJ
    told = np.asarray(hours.column("to_s"), dtype=np.float64) > 0
    low = np.where(told, np.asarray(hours.column("from_s"), dtype=np.float64), hour)
    high = np.where(told, np.asarray(hours.column("to_s"), dtype=np.float64), hour + HOUR_S)
    joules, share = wall.seen(low, high)
    good = (share >= COVERED) & (chips > 0) & np.isfinite(joules)
    why = "" if good.any() else f"the meter covered none of its hours to {100 * COVERED:g} %"
    if good.any() and joules[good].sum() < chips[good].sum():
        why = "the wall is below its chips: is the plug mapped to another node?"
    facts = NodeWall(
        node, int(good.sum()), int((~good).sum()), float(chips[good].sum()), float(joules[good].sum()), 0.0, 0, why
    )
    return {int(h): float(j / c) for h, j, c in zip(hour[good], joules[good], chips[good], strict=True)}, facts


def _of_jobs(table: Any, hours: Any, ratios: Mapping[int, float]) -> Floats:
    """The wall of each record in joules; NaN where one of its hours was not seen."""
    if not len(table):
        return np.zeros(0)
    pieces = over_hours(table, hours if len(hours) else None)
    chips = np.array(
        [(own + (idle or 0)) / UJ for own, idle in zip(*(table.column(n).to_pylist() for n in _OWN), strict=True)]
    )
    ratio = np.array([ratios.get(int(hour), np.nan) for hour in pieces.hour_s.tolist()])
    return np.asarray(np.bincount(pieces.record, pieces.share * ratio, len(table)) * chips)


_OWN: Final = ("energy_uj", "idle_uj")
