"""Chips beside the wall, node by node and cell by cell: clocks set right, the gap, and the line between the two.

What chips drew and what a meter saw are compared on UTC, as lines of joules that had gathered. How far their clocks are
apart comes from what both saw: power that rises and falls. Both signals are turned into their steps (the mean of the
next second less that of the last), which leave out levels and drift; the shift at which these agree best is the offset.
Where nothing moves, or a load repeats itself so that several shifts fit, there is no answer, and it is refused with the
reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.core import foreign
from everywatt.core.channels import Domain
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import format_number, format_watts
from everywatt.core.jsonio import ToDict
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import student_factor
from everywatt.energy.sources import WHOLE, Source, addable, sources
from everywatt.meters.block import Block, Floats, Ints, held
from everywatt.tape.reader import Tape

STEP_S: Final = 0.02
EDGE_S: Final = 1.0
MOST_OFFSET_S: Final = 30.0  # clocks that are further apart were not set at all
LEAST_AGREEMENT: Final = 0.5
RIVAL: Final = 0.95
MOST_POINTS: Final = 2_000_000
COVERED: Final = 0.9  # share of an hour or a cell that a meter has to have seen for a figure


@dataclass(frozen=True, slots=True)
class Offset:
    """`seconds` to add to the second clock to get the first, within ± `within_s`; None with the reason where refused.

    agreement is the correlation of the steps at that shift.
    """

    seconds: float | None
    within_s: float = float("nan")
    agreement: float = float("nan")
    why: str = ""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"refused: {self.why}"
        return f"{self.seconds:+.3f} s ± {self.within_s:.3f} (agreement {self.agreement:.2f})"


@dataclass(frozen=True, slots=True)
class EnergyLine:
    """Joules that had gathered at instants (seconds on the signal's own clock): power of any window follows."""

    t_s: Floats
    joules: Floats

    def means(self, edges_s: Floats) -> Floats:
        return np.asarray(np.diff(np.interp(edges_s, self.t_s, self.joules)) / np.diff(edges_s))

    def seen(self, low_s: Floats, high_s: Floats) -> tuple[Floats, Floats]:
        """Joules of stretches, and the share of each that was observed: all of it."""
        joules = np.interp(high_s, self.t_s, self.joules) - np.interp(low_s, self.t_s, self.joules)
        return joules, np.ones(len(joules))


def estimate(first: EnergyLine, second: EnergyLine) -> Offset:
    """The offset of the second signal's clock against the first's, looked for within ± MOST_OFFSET_S."""
    start, end = max(first.t_s[0], second.t_s[0]), min(first.t_s[-1], second.t_s[-1])
    length_s = end - start
    if not length_s >= 4 * EDGE_S + 1.0:
        return Offset(
            None, why="the two signals do not overlap in time" if length_s <= 0 else "the overlap is too short"
        )
    step_s = max(STEP_S, length_s / MOST_POINTS)
    edges = start + np.arange(int(length_s / step_s) + 1) * step_s
    x, y = (_steps(line.means(edges), step_s) for line in (first, second))
    for name, line, signal in (("first", first, x), ("second", second, y)):
        level = abs(float(np.mean(line.means(edges)))) or 1.0
        if float(np.std(signal)) < 1e-6 * level or float(np.ptp(signal)) < 0.01 * level:
            return Offset(None, why=f"the {name} signal is flat")
    lags = min(round(MOST_OFFSET_S / step_s), int(0.75 * len(x)))
    agree = _correlations(x, y, lags)
    return _best(agree, lags, step_s, length_s)


def _steps(watts: Floats, step_s: float) -> Floats:
    """The mean of the next second less that of the last, at every point."""
    wide = max(round(EDGE_S / step_s), 1)
    gathered = np.concatenate(([0.0], np.cumsum(watts)))
    middle = np.arange(wide, len(watts) - wide + 1)
    return np.asarray((gathered[middle + wide] - 2 * gathered[middle] + gathered[middle - wide]) / wide)


def _correlations(x: Floats, y: Floats, lags: int) -> Floats:
    """Pearson's correlation of x[i] with y[i + lag], over the part in which both are, for lags from -lags to lags."""
    n = len(x)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.conj(np.fft.rfft(x, size)) * np.fft.rfft(y, size)
    products = np.fft.irfft(spectrum, size)
    shifts = np.arange(-lags, lags + 1)
    count = n - np.abs(shifts)
    low_x, high_x = np.maximum(0, -shifts), n - np.maximum(0, shifts)
    low_y, high_y = np.maximum(0, shifts), n - np.maximum(0, -shifts)

    def sums(values: Floats, low: Ints, high: Ints) -> Floats:
        gathered = np.concatenate(([0.0], np.cumsum(values)))
        return np.asarray(gathered[high] - gathered[low])

    sx, sy = sums(x, low_x, high_x), sums(y, low_y, high_y)
    xx, yy = sums(x * x, low_x, high_x) - sx * sx / count, sums(y * y, low_y, high_y) - sy * sy / count
    xy = products[shifts % size] - sx * sy / count
    spread = np.sqrt(np.maximum(xx, 0) * np.maximum(yy, 0))
    # A shift that leaves hardly any of the load in common agrees by chance.
    share = np.minimum(xx / max(float(np.dot(x, x)), 1e-300), yy / max(float(np.dot(y, y)), 1e-300))
    return np.asarray(np.where((spread > 0) & (share > 0.25), xy / np.maximum(spread, 1e-300), -1.0))


def _best(agree: Floats, lags: int, step_s: float, length_s: float) -> Offset:
    place = int(np.argmax(agree))
    best = float(agree[place])
    if best < LEAST_AGREEMENT:
        return Offset(None, agreement=best, why=f"the signals are not correlated (agreement {best:.2f})")
    beside = round(2 * EDGE_S / step_s)
    far = np.concatenate((agree[: max(place - beside, 0)], agree[place + beside + 1 :]))
    if len(far) and float(far.max()) > RIVAL * best:
        return Offset(None, agreement=best, why="the load is periodic: several offsets fit equally well")
    if place in (0, 2 * lags):
        return Offset(
            None, agreement=best, why=f"the best agreement is at the edge of the search range ({lags * step_s:.0f} s)"
        )
    left, middle, right = (float(v) for v in agree[place - 1 : place + 2])
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    # Where the agreement is not less than chance alone could make it.
    slack = 2 * (1 - best * best) / np.sqrt(max(length_s / EDGE_S, 4.0)) + 1e-3
    near = np.flatnonzero(agree >= best - slack)
    width_s = float(near.max() - near.min()) / 2 * step_s
    # y[i + lag] is x[i]: an event of the first clock's t has the second clock's t + lag.
    return Offset(-(place - lags + shift) * step_s, max(width_s, step_s / 2), best)


GRID_S = 0.02
MOST_GRID_POINTS = 1_000_000


def single(run: Run) -> Tape:
    """The run's one tape. UsageError where it has several."""
    if len(run.tapes) != 1:
        raise UsageError(
            f"{run.name} has {len(run.tapes)} segments; pass one of its files.", cure=str(run.tapes[0].path)
        )
    return run.tapes[0]


def chip_sources(tape: Tape) -> list[Source]:
    """What chips report, provably disjoint; nothing that is measured at the wall or modelled."""
    return [source for source in addable(sources(tape)) if source.domain not in WHOLE]


def meter_sources(tape: Tape, device: str | None = None) -> list[Source]:
    """What a meter of the whole says (all its plugs), or one device by name; of a run without either, all it has."""
    found = sources(tape)
    if device is not None:
        chosen = [source for source in found if device in (source.label, source.channel.device)]
        if not chosen:
            listed = ", ".join(sorted(source.label for source in found)) or "none"
            raise UsageError(f"This run has no device '{device}' that measures energy; it has: {listed}.")
        return chosen
    for domain in (Domain.WALL, Domain.PSU, Domain.NODE):
        chosen = [source for source in found if source.domain is domain]
        if chosen:
            return chosen
    return addable(found)


def joules_of(run: Run, chosen: Sequence[Source], edges_utc_s: Floats) -> Floats:
    """Joules between neighbouring edges (UTC seconds), summed over sources; NaN outside of the recording."""
    tape = single(run)
    origin_s = tape.to_utc_ns(tape.extent_ns()[0]) / NS
    at = edges_utc_s - origin_s
    total = np.zeros(len(at) - 1)
    for source in chosen:
        total = total + run.energies(at[:-1], at[1:], device=source.label)
    return total


def line_of(run: Run, chosen: Sequence[Source]) -> EnergyLine:
    """A run's joules over its whole time, on UTC seconds. MeasurementRefused where it has none."""
    tape = single(run)
    if not chosen:
        raise MeasurementRefused(f"{run.name} has no such power source.")
    start_s, end_s = (tape.to_utc_ns(at) / NS for at in tape.extent_ns())
    step_s = max(GRID_S, (end_s - start_s) / MOST_GRID_POINTS)
    edges = np.append(np.arange(start_s, end_s, step_s), end_s)
    edges = edges[np.concatenate(([True], np.diff(edges) > 1e-9))]
    joules = np.nan_to_num(joules_of(run, chosen, edges), nan=0.0)
    return EnergyLine(edges, np.concatenate(([0.0], np.cumsum(joules))))


@dataclass(frozen=True, slots=True)
class MeterLine(EnergyLine):
    """A meter's rows as joules and seconds that had gathered."""

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


LEAST_CELLS = 4


@dataclass(frozen=True, slots=True)
class Overhead(ToDict):
    """The line, 95 % half-widths of its two numbers, and the share of the wall's variance that it explains."""

    JSON = "a_w a_within_w b b_within r2"

    a_w: float
    a_within_w: float
    b: float
    b_within: float
    r2: float

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
    return Overhead(a, within_a, b, within_b, 1 - squares / total if total > 0 else 1.0)


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
        return np.asarray(self.cpu_w + self.gpu_w)

    def means_w(self) -> dict[str, float]:
        """Mean watts of CPUs, cards and wall over the cells that have them; NaN where none has."""
        found = {}
        for name in ("cpu_w", "gpu_w", "wall_w"):
            known = getattr(self, name)[np.isfinite(getattr(self, name))]
            found[name] = float(known.mean()) if len(known) else float("nan")
        return found

    @property
    def gap_pct(self) -> float:
        """Share of the wall's energy that the chips do not explain, in percent."""
        good = np.isfinite(self.chips_w) & np.isfinite(self.wall_w)
        wall = float(self.wall_w[good].sum())
        return 100 * (1 - float(self.chips_w[good].sum()) / wall) if wall > 0 else float("nan")


def compare_node(name: str, chips: Run, wall: EnergyLine, every_s: float) -> Node:
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
    joules, share = wall.seen(edges[:-1] - shift_s, edges[1:] - shift_s)
    at_wall = np.where(share >= COVERED, joules / every_s, np.nan)
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
    offset = Offset(None, why="it was saved")
    cpu, gpu = np.nan_to_num(table[:, 1]), np.nan_to_num(table[:, 2])
    return Node(name, table[:, 0], cpu, gpu, table[:, 3], offset, fit_overhead(cpu + gpu, table[:, 3]))
