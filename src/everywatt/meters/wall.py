"""Chips beside the wall, node by node and cell by cell: clocks set right, the gap, and the line between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.core import foreign
from everywatt.core.channels import Domain
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import format_number, format_watts
from everywatt.core.stats import student_factor
from everywatt.meters.block import Floats
from everywatt.meters.clock_offset import Line, Offset, estimate
from everywatt.meters.power import chip_sources, joules_of, line_of, single

LEAST_CELLS = 4


@dataclass(frozen=True, slots=True)
class Overhead:
    """The line, 95 % half-widths of its two numbers, and the share of the wall's variance that it explains."""

    a_w: float
    a_within_w: float
    b: float
    b_within: float
    r2: float
    cells: int

    def __str__(self) -> str:
        offset = format_watts(self.a_w, self.a_within_w, self.a_within_w)
        slope = format_number(self.b, "", self.b_within, self.b_within)
        return f"wall = ({offset}) + ({slope}) × chips"


def fit_overhead(chips_w: npt.ArrayLike, wall_w: npt.ArrayLike) -> Overhead | None:
    """The line through cells' mean powers; None where there are too few or the chips hardly moved.

    Neighbouring cells are alike, which makes fewer of them count: the number is taken down by how far what is left over
    follows the cell before.
    """
    x, y = np.asarray(chips_w, dtype=np.float64), np.asarray(wall_w, dtype=np.float64)
    good = np.isfinite(x) & np.isfinite(y)
    x, y = x[good], y[good]
    if len(x) < LEAST_CELLS or np.ptp(x) < 0.02 * max(abs(float(np.mean(x))), 1.0):
        return None
    middle, scatter = float(np.mean(x)), float(np.sum((x - np.mean(x)) ** 2))
    b = float(np.sum((x - middle) * (y - np.mean(y))) / scatter)
    a = float(np.mean(y) - b * middle)
    left = y - a - b * x
    total = float(np.sum((y - np.mean(y)) ** 2))
    squares = float(np.sum(left**2))
    follows = float(np.sum(left[1:] * left[:-1]) / squares) if squares > 0 else 0.0
    follows = min(max(follows, 0.0), 0.95)
    inflate = (1 + follows) / (1 - follows)
    variance = squares / (len(x) - 2) * inflate
    width = student_factor(len(x) - 2) * np.sqrt(variance)
    within_b = float(width / np.sqrt(scatter))
    within_a = float(width * np.sqrt(1 / len(x) + middle**2 / scatter))
    return Overhead(a, within_a, b, within_b, 1 - squares / total if total > 0 else 1.0, len(x))


FAR_S = 0.05  # clocks that are closer than this are left as they are


@dataclass(frozen=True, slots=True)
class Node:
    """One node: cells (start, UTC s), mean watts of its CPUs, of its cards and at the wall, and what follows."""

    name: str
    start_s: Floats
    cpu_w: Floats
    gpu_w: Floats
    wall_w: Floats
    clock: Offset
    overhead: Overhead | None

    @property
    def chips_w(self) -> Floats:
        """Mean watts of all chips."""
        return np.asarray(self.cpu_w + self.gpu_w)

    @property
    def gap_pct(self) -> float:
        """Share of the wall's energy that the chips do not explain, in percent."""
        good = np.isfinite(self.chips_w) & np.isfinite(self.wall_w)
        wall = float(self.wall_w[good].sum())
        return 100 * (1 - float(self.chips_w[good].sum()) / wall) if wall > 0 else float("nan")


def compare_node(name: str, chips: Run, wall: Line, every_s: float) -> Node:
    """Chips of a run beside a meter's line over the time of both; MeasurementRefused where that is too short."""
    found = chip_sources(single(chips))
    if not found:
        raise MeasurementRefused(f"{chips.name} has no chips that measure power.")
    cards = [source for source in found if source.domain is Domain.GPU]
    others = [source for source in found if source.domain is not Domain.GPU]
    own = line_of(chips, found)
    clock = estimate(own, wall)
    shift_s = clock.seconds if clock.seconds is not None and abs(clock.seconds) > FAR_S else 0.0
    start, end = max(own.t_s[0], wall.t_s[0] + shift_s), min(own.t_s[-1], wall.t_s[-1] + shift_s)
    first = np.ceil(start / every_s) * every_s
    edges = np.arange(first, end + 1e-9, every_s)
    if len(edges) < 2:
        raise MeasurementRefused(
            f"{name}: chips and wall have {max(end - start, 0):.1f} s in common, less than one cell of {every_s:g} s."
        )
    at_wall = wall.means(edges - shift_s)
    holes = np.interp(edges[1:] - shift_s, wall.t_s, np.arange(len(wall.t_s))) - np.interp(
        edges[:-1] - shift_s, wall.t_s, np.arange(len(wall.t_s))
    )
    at_wall = np.where(holes >= 1, at_wall, np.nan)
    cpu, gpu = (
        joules_of(chips, part, edges) / every_s if part else np.zeros(len(edges) - 1) for part in (others, cards)
    )
    return Node(name, edges[:-1], cpu, gpu, at_wall, clock, fit_overhead(cpu + gpu, at_wall))


def saved(nodes: Sequence[Node]) -> dict[str, Any]:
    """The comparison as Lab-IA keeps it: {node: {epoch: {rapl, nvidia, omegawatt_power_draw}}}."""
    return {
        node.name: {
            f"{start:.3f}".rstrip("0").rstrip("."): {
                "rapl": _plain(cpu),
                "nvidia": _plain(gpu),
                "omegawatt_power_draw": _plain(wall),
            }
            for start, cpu, gpu, wall in zip(node.start_s, node.cpu_w, node.gpu_w, node.wall_w, strict=True)
        }
        for node in nodes
    }


def _plain(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


def from_saved(path: Path) -> list[Node]:
    """A comparison saved by everywatt or by Lab-IA. UsageError if it is not one."""
    return nodes_of(foreign.read_json(path), path)


def nodes_of(data: Any, path: Path) -> list[Node]:
    """The nodes of a saved comparison. UsageError if it is not one."""
    if not isinstance(data, Mapping) or not data or not all(isinstance(cells, Mapping) for cells in data.values()):
        raise UsageError(
            f"{path} is not a comparison of chips and wall.", cure="a file written by meter compare --out FILE.json"
        )
    return [_node(str(name), cells, path) for name, cells in data.items()]


def _node(name: str, cells: Mapping[str, Any], path: Path) -> Node:
    rows = []
    for epoch, entry in cells.items():
        try:
            values = [entry.get(key) for key in ("rapl", "nvidia", "omegawatt_power_draw")]
            rows.append([float(epoch), *(float("nan") if v is None else float(v) for v in values)])
        except (TypeError, ValueError, AttributeError):
            raise UsageError(f"{path}: node '{name}', cell '{epoch}' does not have three powers.") from None
    table = np.array(sorted(rows), dtype=np.float64).reshape(len(rows), 4)
    told = Offset(None, why="it was saved")
    cpu, gpu = np.nan_to_num(table[:, 1]), np.nan_to_num(table[:, 2])
    return Node(name, table[:, 0], cpu, gpu, table[:, 3], told, fit_overhead(cpu + gpu, table[:, 3]))
