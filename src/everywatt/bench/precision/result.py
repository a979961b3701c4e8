"""What the lab found: one row for each precision, absolute and beside the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everywatt.bench.figures import SHARED, Figures, Mean
from everywatt.bench.precision.computed import Computed
from everywatt.bench.precision.plan import TARGET, Job
from everywatt.bench.precision.scoring import Beside, Score
from everywatt.bench.sweep import pareto
from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.format import format_duration, format_percent


@dataclass(frozen=True, slots=True)
class Latency:
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
        """Of every batch; None where there is none."""
        if not values_s:
            return None
        array = np.asarray(values_s)
        p50, p95, p99 = (float(value) for value in np.quantile(array, (0.5, 0.95, 0.99)))
        sd = float(array.std(ddof=1)) if len(array) > 1 else 0.0
        return cls(float(array.mean()), sd, p50, p95, p99, float(array.min()), float(array.max()), len(array))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


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
        own, shared = _half(energy, shared=False) / energy.joules, _half(energy, shared=True) / energy.joules
        return cls(seconds, own, shared, seconds * own / target)

    @property
    def enough(self) -> bool:
        """Whether this loop is as long as it has to be."""
        return self.seconds >= self.needed_s

    def text(self, target: float = TARGET) -> str:
        """A sentence for the person."""
        said = f"the sensor contributes ± {format_percent(self.own)} over a loop of {format_duration(self.seconds)}"
        if not self.enough:
            said += f"; ± {format_percent(target)} would take {format_duration(self.needed_s)}"
        if self.shared > target:
            common = format_percent(self.shared)
            said += f" (± {common} is common to all precisions; its gain part cancels in ratios)"
        return said


def _half(energy: Energy, *, shared: bool) -> float:
    terms = tuple(term for term in energy.budget.terms if (term.source in SHARED) is shared)
    bounds = tuple(bound for bound in energy.budget.bounds if (bound.source in SHARED) is shared)
    return sum(Budget(terms, bounds).sides()) / 2


@dataclass(frozen=True, slots=True)
class Row:
    """One precision. `failure` says why there is no figure; then most of the rest is None."""

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
    layers: tuple[dict[str, Any], ...] = ()
    batches: tuple[int, ...] = ()

    @property
    def energy_per_batch(self) -> Mean | None:
        """Joules of one batch."""
        return None if self.figures is None else self.figures.energy

    def energy_per_sample(self, batch_size: int) -> Mean | None:
        """Joules of one item: a batch's over its size."""
        mean = self.energy_per_batch
        if mean is None:
            return None
        return Mean(
            mean.value / batch_size, mean.low / batch_size, mean.high / batch_size, mean.sd / batch_size, mean.n
        )

    def samples_per_joule(self, batch_size: int) -> float | None:
        """Items that a joule pays for."""
        mean = self.energy_per_batch
        return None if mean is None or mean.value <= 0 else batch_size / mean.value

    def accuracy_per_joule(self, batch_size: int) -> float | None:
        """Right answers that a joule pays for."""
        each = self.samples_per_joule(batch_size)
        if each is None or self.score is None or self.score.metric != "accuracy":
            return None
        return each * self.score.value

    def throughput(self, batch_size: int) -> float | None:
        """Items a second."""
        return None if self.latency is None else batch_size / self.latency.mean_s


@dataclass(frozen=True, slots=True)
class Result:
    """All rows; the first without a failure is the baseline. `ended` is why: decided, trials, time, interrupted."""

    job: Job
    rows: tuple[Row, ...]
    ended: str
    run: str | None
    order: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sensitivity: dict[str, Any] = field(default_factory=dict)

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

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `cli` puts schema and kind around it."""
        base, best = self.baseline, self.pareto()
        return {
            "run": self.run,
            "ended": self.ended,
            "job": self.job.to_dict(),
            "baseline": None if base is None else base.precision,
            "precisions": [
                row_dict(row, self.job.batch_size) | {"percent": percent(row, base, self.job.batch_size)}
                for row in self.rows
            ],
            "pareto": best,
            "order": list(self.order),
            "notes": list(self.notes),
            "sensitivity": self.sensitivity,
        }


def energy_ratio(row: Row, base: Row | None) -> float | None:
    """The energy of a batch as a multiple of the baseline's, from the blocks in which both ran."""
    if row.figures is None or row.failure is not None:
        return None
    if row is base:
        return None if row.figures.energy is None else 1.0
    return None if row.figures.gross is None else row.figures.gross.ratio


def _time_ratio(row: Row, base: Row | None) -> float | None:
    if row is base:
        return 1.0
    return None if row.figures is None or row.figures.time is None else row.figures.time.ratio


def row_dict(row: Row, batch_size: int) -> dict[str, Any]:
    """Plain data of one row."""
    figures, sample = row.figures, row.energy_per_sample(batch_size)
    return {
        "precision": row.precision,
        "failure": row.failure,
        "cure": row.cure,
        "notes": list(row.notes),
        "computed": None if row.computed is None else row.computed.to_dict(),
        "emulated": row.emulated,
        "iters": row.iters,
        "batch_size": batch_size,
        "seq_length": row.seq_length,
        "latency": None if row.latency is None else row.latency.to_dict(),
        "throughput": row.throughput(batch_size),
        "energy_per_batch": None if figures is None or figures.energy is None else figures.energy.to_dict(),
        "energy_per_sample": None if sample is None else sample.to_dict(),
        "energy_net_per_batch": None if figures is None or figures.net is None else figures.net.to_dict(),
        "power_w": None if figures is None else figures.power_w,
        "ratio": None if figures is None or figures.gross is None else figures.gross.to_dict()["ratio"],
        "verdict": None if figures is None else figures.verdict or None,
        "score": None if row.score is None else row.score.to_dict(),
        "paired": None if row.beside is None else row.beside.to_dict(),
        "samples_per_joule": row.samples_per_joule(batch_size),
        "accuracy_per_joule": row.accuracy_per_joule(batch_size),
        "peak_bytes": row.peak_bytes,
        "hooks": row.hooks,
        "loop_s": None if row.window is None else row.window.seconds,
        "loop_needed_s": None if row.window is None else row.window.needed_s,
        "trials": [] if figures is None else [trial.to_dict() for trial in figures.trials],
        "layers": list(row.layers),
    }


def percent(row: Row, base: Row | None, batch_size: int) -> dict[str, float | None]:
    """Each figure in percent of the baseline's; None where one of them is missing.

    Energy, mean time and what follows from them are paired ratios, over the blocks in which both ran.
    """
    names = (
        "energy_per_sample", "latency_mean", "latency_p50", "latency_p95", "latency_p99", "throughput", "power",
        "accuracy", "disk", "memory", "samples_per_joule", "accuracy_per_joule",
    )  # fmt: skip
    if base is None:
        return dict.fromkeys(names)
    energy, time = energy_ratio(row, base), _time_ratio(row, base)
    mine, theirs = _plain(row), _plain(base)
    found: dict[str, float | None] = {name: _share(mine[name], theirs[name]) for name in mine}
    right = _share(row.score.value, base.score.value) if row.score is not None and base.score is not None else None
    known = base.accuracy_per_joule(batch_size) is not None and energy
    found |= {
        "energy_per_sample": _share(energy, 1.0),
        "latency_mean": _share(time, 1.0),
        "throughput": _share(1.0, time),
        "power": _share(energy, time),
        "samples_per_joule": _share(1.0, energy),
        "accuracy_per_joule": right / energy if known and right is not None and energy else None,
    }
    return {name: found[name] for name in names}


def _plain(row: Row) -> dict[str, float | None]:
    latency, seen = row.latency, row.computed
    return {
        "latency_p50": None if latency is None else latency.p50_s,
        "latency_p95": None if latency is None else latency.p95_s,
        "latency_p99": None if latency is None else latency.p99_s,
        "accuracy": None if row.score is None else row.score.value,
        "disk": None if seen is None else seen.disk_bytes,
        "memory": None if seen is None else seen.memory_bytes,
    }


def _share(mine: float | None, theirs: float | None) -> float | None:
    if mine is None or not theirs or not math.isfinite(mine):
        return None
    return 100 * mine / theirs
