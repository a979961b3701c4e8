"""Meters of whole nodes: a wattmeter's files or archive with a map of its plugs, and runs of BMCs or meters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run, load
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.energy.sources import sources
from everywatt.meters.archive import read_archive
from everywatt.meters.block import Block, Oddities
from everywatt.meters.files import blocks_of
from everywatt.meters.importing import GAIN_PCT
from everywatt.meters.plugmap import load_map
from everywatt.meters.power import meter_sources, single
from everywatt.slurm.site.reconcile import ORDER, Sensor
from everywatt.slurm.site.wall import Wall, meter_line

Floats = npt.NDArray[np.float64]
MARGIN_S: Final = 31 * 86_400.0  # a job may have begun that long before the time that is asked for


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
        start_ns, end_ns = round((bounds_s[0] - MARGIN_S) * NS), round((bounds_s[1] + 3600) * NS)
        found: dict[str, Wall] = {}
        for node in table.nodes:
            feeds = table.feeds_of(node, self.meter or "", round(bounds_s[0] * NS), end_ns)
            line = meter_line(self._blocks((start_ns, end_ns), [feed.plug for feed in feeds]))
            if line is not None:
                found[node] = line
        return found

    def _blocks(self, between: tuple[int, int], plugs: Sequence[int]) -> Iterator[Block]:
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
