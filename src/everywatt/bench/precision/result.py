"""What the lab found: one row for each precision, absolute and beside the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everywatt.bench.figures import Figures, Mean, quantity
from everywatt.bench.precision.computed import Computed
from everywatt.bench.precision.layers import LayerRow, Ranking, apportion, by_part
from everywatt.bench.precision.plan import TARGET, Job, LayerTime
from everywatt.bench.precision.scoring import Beside, Score
from everywatt.bench.sweep import pareto
from everywatt.bench.trials import Trial
from everywatt.core.energy import Energy
from everywatt.core.format import (
    format_bytes,
    format_column,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
    format_rounded,
)
from everywatt.core.jsonio import ToDict, declared
from everywatt.core.tables import Cell, Column, Table, columns_of, csv_text, in_one_unit

LAYERS = "layer, type, share [%], energy / batch [J]"
MOST_LAYERS = 12  # rows of a table on a terminal
COST = columns_of(
    "precision, trials [], energy / sample [J], energy / batch [J], power [W], mean [s], p50 [s], p95 [s], p99 [s], "
    "samples / s [], samples / J []"
)
WORTH = columns_of(
    "precision, quality [], vs baseline [], agreement [%], on disk [B], in memory [B], correct / J [], Pareto []"
)
SHARES = {
    "energy / sample": "energy_per_sample",
    "power": "power",
    "mean": "latency_mean",
    "p50": "latency_p50",
    "p95": "latency_p95",
    "p99": "latency_p99",
    "samples / s": "throughput",
    "quality": "accuracy",
    "on disk": "disk",
    "in memory": "memory",
    "samples / J": "samples_per_joule",
    "correct / J": "accuracy_per_joule",
}
OF_ENERGY = ("energy_per_sample", "power", "samples_per_joule", "accuracy_per_joule")
OF_TIME = ("latency_mean", "latency_p50", "latency_p95", "latency_p99", "throughput")
COMPARED = (
    "latency_p50=latency.p50_s latency_p95=latency.p95_s latency_p99=latency.p99_s accuracy=score.value "
    "disk=computed.disk_bytes memory=computed.memory_bytes"
)
TRIALS = columns_of(
    "precision, trial [], time / batch [s], energy / batch [J], power [W], sd [W], readings [], readings / s []"
)


@dataclass(frozen=True, slots=True)
class Latency(ToDict):
    """Seconds of one batch over all timed loops."""

    mean_s: float
    sd_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    least_s: float
    most_s: float
    n: int

    @classmethod
    def of(cls, values_s: Sequence[float]) -> Latency | None:
        """Statistics over all batches, or None if there are no batches."""
        if not values_s:
            return None
        array = np.asarray(values_s)
        p50, p95, p99 = (float(value) for value in np.quantile(array, (0.5, 0.95, 0.99)))
        sd = float(array.std(ddof=1)) if len(array) > 1 else 0.0
        return cls(float(array.mean()), sd, p50, p95, p99, float(array.min()), float(array.max()), len(array))


@dataclass(frozen=True, slots=True)
class Window:
    """Whether the timed loop is long enough for the sensor.

    own     half-width that a longer loop would narrow, as a share; shared: what no loop narrows (gain, model)
    needed_s  the loop that brings `own` to the target
    """

    seconds: float
    own: float
    shared: float
    needed_s: float

    @classmethod
    def of(cls, energy: Energy, seconds: float, target: float = TARGET) -> Window | None:
        """Of one trial's energy; None where it has no figure."""
        if not energy.joules or energy.joules <= 0:
            return None
        sides = (energy.budget.repeated(shared).sides() for shared in (False, True))
        own, shared = (sum(both) / 2 / energy.joules for both in sides)
        return cls(seconds, own, shared, seconds * own / target)

    @property
    def enough(self) -> bool:
        """Whether this loop is as long as it has to be."""
        return self.seconds >= self.needed_s

    def text(self, target: float = TARGET) -> str:
        own, shared = (format_rounded("%", 100 * share, 100 * share) for share in (self.own, self.shared))
        common = f"± {shared} is common to all precisions; its gain part cancels in ratios"
        if not self.own:  # a model: no loop narrows it
            return common
        said = f"the sensor contributes ± {own} over a loop of {format_duration(self.seconds)}"
        if not self.enough:
            said += f"; ± {format_percent(target)} would take {format_duration(self.needed_s)}"
        return said + (f" ({common})" if self.shared > target else "")


@dataclass(frozen=True, slots=True)
class Row(ToDict):
    """One precision. `failure` says why there is no figure; then most of the rest is None."""

    JSON = (
        "precision failure cure notes computed emulated iters batch_size seq_length latency throughput "
        "energy_per_batch energy_per_sample energy_net_per_batch=figures.net power_w=figures.power_w "
        "ratio=figures.gross.ends verdict score paired=beside samples_per_joule accuracy_per_joule peak_bytes hooks "
        "loop_s=window.seconds loop_needed_s=window.needed_s trials layers"
    )

    precision: str
    failure: str | None = None
    cure: str | None = None
    notes: tuple[str, ...] = ()
    computed: Computed | None = None
    emulated: str | None = None
    iters: int | None = None
    seq_length: int | None = None
    latency: Latency | None = None
    figures: Figures | None = None
    score: Score | None = None
    beside: Beside | None = None
    peak_bytes: int | None = None
    window: Window | None = None
    hooks: int | None = None
    layers: tuple[LayerRow, ...] = ()
    batches: tuple[int, ...] = ()
    batch_size: int = 1

    def with_layers(self, times: Sequence[LayerTime], batch_s: float) -> Row:
        """With the energy of its layers, from their times in a batch of so many seconds."""
        mean = self.energy_per_batch
        found, note = apportion(times, batch_s, None if mean is None else mean.value)
        return replace(self, layers=tuple(found), notes=self.notes if note is None else (*self.notes, note))

    def joules_of_layers(self, joules: Sequence[float | None]) -> list[str | None]:
        """Parts of a batch's energy in one unit, with the digits that its interval leaves them."""
        share = 0.0 if self.figures is None else self.figures.half_share
        return format_column("J", [None if one is None else (one, share * abs(one)) for one in joules])

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Its trials, each as energy and seconds of one batch."""
        return () if self.figures is None else self.figures.trials

    @property
    def verdict(self) -> str | None:
        """What its trials say of it beside the baseline; None where they say nothing."""
        return None if self.figures is None else self.figures.verdict or None

    @property
    def energy_per_batch(self) -> Mean | None:
        return None if self.figures is None else self.figures.energy

    @property
    def energy_per_sample(self) -> Mean | None:
        """Joules of one item: a batch's over its size."""
        mean, size = self.energy_per_batch, self.batch_size
        return mean and Mean(mean.value / size, mean.low / size, mean.high / size, mean.sd / size, mean.n)

    @property
    def samples_per_joule(self) -> float | None:
        mean = self.energy_per_batch
        return None if mean is None or mean.value <= 0 else self.batch_size / mean.value

    @property
    def accuracy(self) -> float | None:
        """The share of right answers; None where the score is another."""
        return self.score.value if self.score is not None and self.score.metric == "accuracy" else None

    @property
    def accuracy_per_joule(self) -> float | None:
        """Right answers that a joule pays for."""
        each, right = self.samples_per_joule, self.accuracy
        return None if each is None or right is None else each * right

    @property
    def throughput(self) -> float | None:
        return None if self.latency is None else self.batch_size / self.latency.mean_s


@dataclass(frozen=True, slots=True)
class Result:
    """All rows; the first without a failure is the baseline. `ended` is why: decided, trials, time, interrupted."""

    job: Job
    rows: tuple[Row, ...]
    ended: str
    run: str | None
    order: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sensitivity: Ranking | None = None

    @property
    def baseline(self) -> Row | None:
        """What percentages are of."""
        return next((row for row in self.rows if row.failure is None), None)

    def pareto(self) -> list[str]:
        """Precisions that no other beats in energy (the ratio to the baseline) and quality at once."""
        points = {}
        for row in self.rows:
            ratio = energy_ratio(row, self.baseline)
            if ratio is not None and row.score is not None:
                good = row.score.value if row.score.metric == "accuracy" else -row.score.value
                points[row.precision] = (ratio, -good)
        return pareto(points)

    def tables(self) -> list[Table]:
        """Cost, worth, and everything in percent of the baseline; precisions that failed are in the notes alone."""
        rows = [row for row in self.rows if row.failure is None]
        notes = [*self.failures(), *self.verdicts(), *self.computed_lines()]
        if not rows:
            return [Table.of("precision", rows=[], notes=notes)]
        best, base = self.pareto(), self.baseline
        # CPU time, which the kernel counts, leads where energy is modelled from it.
        cpu = any(row.figures is not None and row.figures.modelled for row in rows)
        heads = (*COST[:2], *(columns_of("CPU time / batch [s]") if cpu else ()), *COST[2:])
        columns = [
            in_one_unit(cells) if head.unit == "J" else cells
            for head, cells in zip(heads, zip(*(_cost(row, cpu) for row in rows), strict=True), strict=True)
        ]
        return [
            Table.of(*heads, rows=zip(*columns, strict=True)),
            Table.of(*WORTH, rows=[_worth(row, row.precision in best) for row in rows]),
            Table.of(
                "precision",
                *(Column(name, "") for name in SHARES),
                rows=[[row.precision, *_shares(row, base)] for row in rows],
                title="" if base is None else f"percent of {base.precision}",
                notes=notes,
            ),
        ]

    def trial_table(self) -> Table:
        """Every trial with how its power varied, by how many readings, and how often they came."""
        every = [(row, number, trial) for row in self.rows for number, trial in enumerate(row.trials, start=1)]
        joules: list[tuple[float, float] | None] = []
        means, spreads = joules[:], joules[:]
        for _, _, trial in every:
            known = trial.energy if trial.energy and trial.energy.joules else None
            share = sum(known.sides()) / 2 / abs(known.value) if known else 0.0
            seen = (trial.joules, *((None, None) if trial.power is None else (trial.power.mean_w, trial.power.sd_w)))
            for column, value in zip((joules, means, spreads), seen, strict=True):
                column.append(None if value is None else (value, share * abs(value)))
        columns = (format_column(unit, cells) for unit, cells in (("J", joules), ("W", means), ("W", spreads)))
        rows: list[list[Cell]] = []
        for (row, number, trial), *cells in zip(every, *columns, strict=True):
            readings = (None, None) if trial.power is None else (trial.power.samples, trial.power.rate_hz)
            rows.append([row.precision, number, trial.seconds, *cells, *readings])
        return Table.of(*TRIALS, rows=rows)

    def failures(self) -> list[str]:
        """A line for each precision without figures."""
        return [
            f"{row.precision}: {row.failure}" + (f" (try: {row.cure})" if row.cure else "")
            for row in self.rows
            if row.failure is not None
        ]

    def verdicts(self) -> list[str]:
        """A sentence for each precision beside the baseline."""
        first = "" if self.baseline is None else self.baseline.precision
        return [line for row in self.rows if row.figures is not None for line in row.figures.verdicts(first)]

    def remarks(self) -> list[str]:
        """What else there is to know: of the run, of each precision, and whether its loops were long enough."""
        lines = list(self.notes)
        for row in self.rows:
            said = list(row.notes)
            if row.window is not None and (not row.window.enough or row is self.baseline):
                said.append(row.window.text())
            if row.figures is not None and row.figures.outliers:
                said.append(row.figures.outlier_line)
            lines += [f"{row.precision}: {text}" for text in said]
        return lines

    @property
    def batches(self) -> str:
        """The shape of a timed batch: `8 × 24 tokens`."""
        length = next((row.seq_length for row in self.rows if row.seq_length), None)
        return str(self.job.batch_size) + (f" × {length} tokens" if length else "")

    def computed_lines(self) -> list[str]:
        """What was really computed, a line for each precision."""
        lines = []
        for row in self.rows:
            seen = row.computed
            if seen is None or not seen.visible:
                continue
            weights = ", ".join(f"{dtype} {format_bytes(size)}" for dtype, size in _largest(seen.weights, 3))
            compute = ", ".join(dtype for dtype, _ in _largest(seen.compute, 3)) or "?"
            largest = list(seen.operators.items())[:3]
            integer = [(name, seen.operators[name]) for name in seen.int8_operators if name not in dict(largest)]
            operators = ", ".join(f"{name} × {count}" for name, count in largest + integer[:1])
            said = f"{row.precision}: weights {weights}; products in {compute}; {operators}"
            lines.append(said + (f"; {row.emulated}" if row.emulated else ""))
        return lines

    def to_csv(self) -> str:
        """A line for each precision, plain numbers."""
        records = []
        for row in self.rows:
            data = row.to_dict()
            flat = {key: value for key, value in data.items() if not isinstance(value, dict | list)}
            for name in ("energy_per_batch", "energy_per_sample", "energy_net_per_batch", "ratio", "score", "latency"):
                flat |= {f"{name}_{key}": value for key, value in (data[name] or {}).items()}
            flat |= {f"percent_{key}": value for key, value in percent(row, self.baseline).items()}
            seen = row.computed
            flat |= {"disk_bytes": seen and seen.disk_bytes, "memory_bytes": seen and seen.memory_bytes}
            records.append(flat)
        columns = list(dict.fromkeys(key for record in records for key in record))
        return csv_text(columns, [[record.get(name) for name in columns] for record in records])

    def to_dict(self) -> dict[str, Any]:
        base, best = self.baseline, self.pareto()
        return {
            "run": self.run,
            "ended": self.ended,
            "job": self.job.to_dict(),
            "baseline": None if base is None else base.precision,
            "precisions": [row.to_dict() | {"percent": percent(row, base)} for row in self.rows],
            "pareto": best,
            "order": list(self.order),
            "notes": list(self.notes),
            "sensitivity": {} if self.sensitivity is None else self.sensitivity.to_dict(),
        }


def energy_ratio(row: Row, base: Row | None) -> float | None:
    """The energy of a batch as a multiple of the baseline's, from the blocks in which both ran."""
    if row.figures is None or row.failure is not None:
        return None
    if row is base:
        return None if row.figures.energy is None else 1.0
    return None if row.figures.gross is None else row.figures.gross.ratio


def percent(row: Row, base: Row | None) -> dict[str, float | None]:
    """Each figure in percent of the baseline's; None where one of them is missing.

    Energy, mean time and what follows from them are paired ratios, over the blocks in which both ran.
    """
    compared = None if row.figures is None else row.figures.time
    energy, time = energy_ratio(row, base), None if compared is None else compared.ratio
    time = 1.0 if row is base else time
    mine, theirs = declared(row, COMPARED), declared(base, COMPARED)
    plain = {name: _share(mine[name], theirs[name]) for name in mine}
    known = base is not None and base.accuracy_per_joule is not None
    return {
        "energy_per_sample": _share(energy, 1.0),
        "latency_mean": _share(time, 1.0),
        **{name: plain[name] for name in ("latency_p50", "latency_p95", "latency_p99")},
        "throughput": _share(1.0, time),
        "power": _share(energy, time),
        **{name: plain[name] for name in ("accuracy", "disk", "memory")},
        "samples_per_joule": _share(1.0, energy),
        "accuracy_per_joule": _share(plain["accuracy"], 100 * energy) if known and energy else None,
    }


def _share(mine: float | None, theirs: float | None) -> float | None:
    if mine is None or not theirs or not math.isfinite(mine):
        return None
    return 100 * mine / theirs


def _shares(row: Row, base: Row | None) -> list[Cell]:
    """The figures in percent, those that follow from ratios with the digits that the intervals of these leave."""
    found = percent(row, base)
    gross, time = (None, None) if row.figures is None else (row.figures.gross, row.figures.time)

    def rounded(name: str, value: float | None) -> Cell:
        of = gross if name in OF_ENERGY else time if name in OF_TIME else None
        if of is None or value is None:
            return value
        share = (of.high - of.low) / 2 / of.ratio
        return format_rounded("", value * (share if math.isfinite(share) else 1.0), value)

    return [rounded(key, found[key]) for key in SHARES.values()]


def _cost(row: Row, cpu: bool) -> list[Cell]:
    latency, figures = row.latency, row.figures
    apart = None if figures is None else figures.seconds
    share = (apart.high - apart.low) / 2 / apart.value if apart and apart.value and math.isfinite(apart.low) else 0.0
    times = (None,) * 4 if latency is None else (latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s)
    return [
        row.precision,
        0 if figures is None else len(figures.trials),
        *([None if figures is None else quantity(figures.cpu_s, "s")] if cpu else []),
        quantity(row.energy_per_sample, "J"),
        None if figures is None else figures.energy_cell,
        None if figures is None else figures.rounded(figures.power_w, "W"),
        *times,
        None if row.throughput is None else format_rounded("", share * row.throughput, row.throughput),
        None if figures is None else figures.rounded(row.samples_per_joule, ""),
    ]


def _worth(row: Row, best: bool) -> list[Cell]:
    seen, beside = row.computed, row.beside
    return [
        row.precision,
        None if row.score is None else str(row.score),
        None if beside is None else beside_text(beside, row.score),
        None if beside is None else beside.agreement,
        None if seen is None else seen.disk_bytes,
        None if seen is None else seen.memory_bytes,
        None if row.figures is None else row.figures.rounded(row.accuracy_per_joule, ""),
        "yes" if best else "",
    ]


def layer_table(row: Row) -> Table:
    """The most expensive layers, then the others together; everything is in JSON and CSV."""
    layers = row.layers
    largest = sorted(layers[:-1], key=lambda one: -one.seconds)[:MOST_LAYERS]
    rest = [one for one in layers[:-1] if one not in largest]
    rows: list[tuple[str, str, float, float | None]] = [(o.layer, o.kind, o.share, o.joules) for o in largest]
    if rest:
        joined = None if rest[0].joules is None else sum(one.joules or 0.0 for one in rest)
        rows.append((f"{len(rest)} other layers", "", sum(one.share for one in rest), joined))
    rows.append((layers[-1].layer, "", layers[-1].share, layers[-1].joules))
    joules = row.joules_of_layers([joules for *_, joules in rows])
    parts = ", ".join(f"{part} {format_percent(share)}" for part, share, _ in by_part(row.layers))
    each = row.energy_per_batch
    whole = "" if each is None else f" {each.quantity('J')} / batch:"
    title = f"{row.precision}:{whole} {parts}"
    shown = [(*cells[:3], energy) for cells, energy in zip(rows, joules, strict=True)]
    return Table.of(*columns_of(LAYERS), rows=shown, title=title)


def sensitivity_table(found: Ranking, most: int = MOST_LAYERS) -> Table:
    """What to quantise first, with what it does to the answers."""
    rows: list[list[Cell]] = [
        [
            one.layer,
            one.share,
            format_percent(one.saved, signed=True),
            f"{one.kl:.2e}",  # over many powers of ten
            None if one.change is None else format_number(one.change, signed=True),
            "int8" if one.layer in found.plan else "fp32",
        ]
        for one in found.layers[:most]
    ]
    columns = columns_of("share [%], saves [%], divergence [], change [], plan")
    return Table.of("layer, in order of sensitivity", *columns, rows=rows)


def beside_text(beside: Beside, score: Score | None) -> str:
    """`−0.2 points (−1.9 … +1.4)`, or the ratio of perplexities."""
    if score is not None and score.metric != "accuracy":
        return f"× {format_ratio(beside.change, beside.low, beside.high)}"
    below, above = beside.change - beside.low, beside.high - beside.change
    return format_number(beside.change * 100, "points", below * 100, above * 100, signed=True)


def _largest(counts: Mapping[str, int], most: int) -> Sequence[tuple[str, int]]:
    return sorted(counts.items(), key=lambda one: -one[1])[:most]
