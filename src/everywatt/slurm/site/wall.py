"""Meters of whole nodes (wattmeters, runs of BMCs), and what they saw joined to jobs: chips against wall.

The wall of a node is more than its chips: fans, disks, regulators, the supply. That unexplained part is shared like the
chips' energy of the same hour: with a job's own share goes its part of what is unexplained, with its share of idle (by
allocation) another, and what idle and the system are left with keeps theirs. So the walls of all jobs, idle and the
system add up to the node's, and a job's wall is Σ over its hours of (own + idle) × wall / chips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run, load
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.format import format_count
from everywatt.core.tables import Table, columns_of
from everywatt.energy.sources import sources
from everywatt.ledger.engine import UJ
from everywatt.meters.archive import read_archive
from everywatt.meters.block import Block, Oddities
from everywatt.meters.importing import GAIN_PCT, blocks_of
from everywatt.meters.plugmap import load_map
from everywatt.meters.wall import COVERED, meter_line, meter_sources, single
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.carbon import HOUR_S, over_hours
from everywatt.slurm.site.store import Store

Floats = npt.NDArray[np.float64]
MARGIN_S: Final = 31 * 86_400.0  # a job may have begun that long before the time that is asked for
# From the inside out; each contains those before it.
ORDER: Final = ("node", "psu", "wall")
RULE: Final = "the unexplained part is shared in proportion to the chips' energy: own by own, idle by allocation"


class Wall(Protocol):
    """What a meter saw of one node."""

    def seen(self, low_s: Floats, high_s: Floats) -> tuple[Floats, Floats]:
        """Joules of stretches of UTC time, and the share of each that was observed."""


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
        return {**asdict(self), "unexplained": self.unexplained, "rule": RULE}


@dataclass(frozen=True, slots=True)
class JoinedWall:
    """Records that get another `wall_uj` than they have, and what was found of each node."""

    changed: Sequence[JobOnNode]
    nodes: Sequence[NodeWall]
    dry: bool = False  # nothing was written

    def to_dict(self) -> dict[str, Any]:
        return {"nodes": [node.to_dict() for node in self.nodes], "changed": len(self.changed), "dry": self.dry}

    def tables(self) -> list[Table]:
        """Nodes with their chips, wall and jobs."""
        heads = columns_of("NODE, HOURS [], CHIPS [J], WALL [J], UNEXPLAINED [%], JOBS [], WALL OF JOBS [J], ")
        rows = [
            [one.node, one.hours, one.chips_j, one.wall_j, one.unexplained, one.jobs, one.jobs_j, one.why]
            for one in self.nodes
        ]
        count = format_count(len(self.changed), "record")
        note = f"{count} {'would get' if self.dry else 'got'} their energy at the wall; {RULE}."
        return [Table.of(*heads, rows=rows, notes=[note])]


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
    known = np.asarray(hours.column("to_s"), dtype=np.float64) > 0
    low = np.where(known, np.asarray(hours.column("from_s"), dtype=np.float64), hour)
    high = np.where(known, np.asarray(hours.column("to_s"), dtype=np.float64), hour + HOUR_S)
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
        [
            (own + (idle or 0)) / UJ
            for own, idle in zip(*(table.column(n).to_pylist() for n in ("energy_uj", "idle_uj")), strict=True)
        ]
    )
    ratio = np.array([ratios.get(int(hour), np.nan) for hour in pieces.hour_s.tolist()])
    return np.asarray(np.bincount(pieces.record, pieces.share * ratio, len(table)) * chips)


@dataclass(frozen=True, slots=True)
class Sensor:
    """A sensor of a whole node; `domain` is one of ORDER. `relative`: half-width of its 95 % interval, if known."""

    domain: str
    line: Wall
    relative: float | None = None


@dataclass(frozen=True, slots=True)
class NodeMeters:
    """Which meters there are. `runs` are pairs of a node and the run that has its BMC or meter."""

    files: Sequence[Path] = ()
    map_file: Path | None = None
    archive: Path | None = None
    meter: str | None = None
    runs: Sequence[tuple[str, str]] = ()

    def walls(self, bounds_s: tuple[float, float]) -> dict[str, Wall]:
        """What the outermost meter of each node saw. UsageError where no meter was given."""
        found = self._plugs(bounds_s) | {node: RunWall(load(run)) for node, run in self.runs}
        if not found:
            raise UsageError("No meter was given.", cure="FILE --map MAP, --archive DIR --map MAP, or --run NODE=RUN")
        return found

    def sensors(self, bounds_s: tuple[float, float]) -> Mapping[str, list[Sensor]]:
        """All sensors of whole nodes, each with the width of its interval."""
        found: dict[str, list[Sensor]] = {}
        for node, line in self._plugs(bounds_s).items():
            found.setdefault(node, []).append(Sensor("wall", line, GAIN_PCT / 100))
        for node, run in self.runs:
            found.setdefault(node, []).extend(_of_run(load(run)))
        return found

    def _plugs(self, bounds_s: tuple[float, float]) -> dict[str, Wall]:
        """What plugs saw of the nodes of the map; {} where there is no wattmeter."""
        if not self.files and self.archive is None:
            return {}
        if self.map_file is None:
            raise UsageError("No map of plugs to nodes was given.", cure="--map map.toml")
        table = load_map(self.map_file)
        inner = round(bounds_s[0] * NS), round((bounds_s[1] + 3600) * NS)
        outer = round((bounds_s[0] - MARGIN_S) * NS), inner[1]
        sample = next(self._blocks(outer), None)
        found: dict[str, Wall] = {}
        if sample is None:
            return found
        for node in table.nodes:
            plugs = table.plugs_of(node, self.meter, *inner, sample)
            line = meter_line(self._blocks(table.own_time(node, inner, outer), plugs))
            if line is not None:
                found[node] = line
        return found

    def _blocks(self, between: tuple[int, int], plugs: Sequence[int] | None = None) -> Iterator[Block]:
        if self.archive is not None:
            yield from read_archive(self.archive, self.meter, *between, plugs)
        for file in self.files:
            yield from blocks_of(file, Oddities(), *between, plugs)


class RunWall:
    """A run of a node that has a meter of the whole in it: the outermost one, unless `devices` are given."""

    def __init__(self, run: Run, devices: Sequence[str] = ()) -> None:
        self.run = run
        tape = single(run)
        self.devices = devices or [source.label for source in meter_sources(tape)]
        self.origin_s = tape.to_utc_ns(tape.extent_ns()[0]) / NS
        self.end_s = tape.to_utc_ns(tape.extent_ns()[1]) / NS

    def seen(self, low_s: Floats, high_s: Floats) -> tuple[Floats, Floats]:
        """Joules of stretches, scaled to their whole length, and the share of each that was observed."""
        joules, share = np.full(len(low_s), np.nan), np.zeros(len(low_s))
        for place, (low, high) in enumerate(zip(low_s.tolist(), high_s.tolist(), strict=True)):
            between = max(low, self.origin_s) - self.origin_s, min(high, self.end_s) - self.origin_s
            if between[1] <= between[0]:
                continue
            found = [self.run.energy(between=between, device=device) for device in self.devices]
            inside = (between[1] - between[0]) / max(high - low, 1e-9)
            share[place] = min(one.coverage for one in found) * inside
            if all(one.joules is not None and one.coverage > 0 for one in found):
                joules[place] = sum((one.joules or 0.0) / one.coverage for one in found) / inside
        return joules, share


def _of_run(run: Run) -> list[Sensor]:
    """The sensors of a whole node in a run, each kind by itself."""
    found = []
    for domain in ORDER:
        devices = [source.label for source in sources(single(run)) if source.domain.value == domain]
        if devices:
            energies = [run.energy(device=device) for device in devices]
            joules = sum(one.joules or 0.0 for one in energies)
            widths = [one.half_width for one in energies]
            known = joules > 0 and not any(width is None for width in widths)
            # Sensors of one kind err alike, so their widths are added.
            relative = sum(width or 0.0 for width in widths) / joules if known else None
            found.append(Sensor(domain, RunWall(run, devices), relative))
    return found
