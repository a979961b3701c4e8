"""A result in the columns of an earlier quantisation study's files, for whoever has scripts that read those."""

from __future__ import annotations

import statistics
from datetime import datetime
from typing import Any

from everywatt.bench.precision.result import Result, Row
from everywatt.bench.trials import Trial
from everywatt.core.tables import csv_text

SHEET = (
    "timestamp", "precision", "batch_size", "seq_length", "num_samples", "accuracy_%", "latency_s",
    "throughput_samples_s", "avg_power_w", "energy_j", "energy_per_sample_mj", "notes",
)  # fmt: skip
AGGREGATED = (
    "mean_latency", "throughput", "mean_power_w", "energy_per_inference_mj", "accuracy", "model_size_mb",
    "peak_allocated_gb",
)  # fmt: skip
LAYER_COLUMNS = (
    "layer_name", "mean_time_ms", "std_time_ms", "total_time_s", "num_calls", "percent_total", "energy_j", "energy_mj",
    "layer_type",
)  # fmt: skip
IMPACT = ("layer_name", "kl_divergence", "logit_l2", "accuracy_drop", "impact_score", "layer_type")
TRIAL = (
    "total_time", "mean_latency", "throughput", "batch_size", "num_iters", "accuracy", "num_correct",
    "num_samples_accuracy", "mean_power_w", "std_power_w", "min_power_w", "max_power_w", "median_power_w",
    "total_energy_j", "energy_per_inference_j", "energy_per_inference_mj", "num_power_samples", "power_samples_per_s",
    "energy_accuracy_product", "inferences_per_joule", "accuracy_per_millijoule", "num_parameters", "model_size_mb",
    "dtype", "device", "is_quantized", "model_name", "precision", "dataset_path", "warmup_steps", "trial_number",
    "timestamp",
)  # fmt: skip
FORMS = ("sheet", "trials", "aggregated", "layers", "impact")


def old_csv(form: str, result: Result, now: datetime) -> str:
    """The result in one of `FORMS`; layers are those of the baseline."""
    base = result.baseline
    if form == "sheet":
        return sheet_csv(result, now)
    if form == "trials":
        return trials_csv(result, now)
    if form == "aggregated":
        return aggregated_csv(result)
    if form == "impact":
        return impact_csv(result)
    return csv_text(LAYER_COLUMNS, []) if base is None else layers_csv(base)


def sheet_csv(result: Result, now: datetime) -> str:
    """The result as the team's sheet `results.csv`."""
    rows = [_sheet_row(row, result, now) for row in result.rows if row.failure is None]
    return csv_text(SHEET, rows)


def _sheet_row(row: Row, result: Result, now: datetime) -> list[Any]:
    size, figures = result.job.batch_size, row.figures
    sample = row.energy_per_sample(size)
    count = None if row.iters is None else row.iters * size
    known = row.score.value * 100 if row.score is not None and row.score.metric == "accuracy" else None
    return [
        now.isoformat(timespec="seconds"),
        row.precision,
        size,
        row.seq_length,
        count,
        known,
        None if row.latency is None else row.latency.mean_s,
        row.throughput(size),
        None if figures is None else figures.power_w,
        None if sample is None or count is None else sample.value * count,
        None if sample is None else sample.value * 1e3,
        "; ".join(row.notes),
    ]


def aggregated_csv(result: Result) -> str:
    """The result as `aggregated_comparison.csv`: mean and standard deviation over trials, energy of a batch."""
    columns = ["precision", *(f"{name}_{kind}" for name in AGGREGATED for kind in ("mean", "std"))]
    rows = [_aggregated_row(row, result.job.batch_size) for row in result.rows if row.failure is None]
    return csv_text(columns, rows)


def _aggregated_row(row: Row, size: int) -> list[Any]:
    trials = () if row.figures is None else row.figures.trials
    seconds = [trial.seconds for trial in trials]
    joules = [trial.joules for trial in trials if trial.joules is not None]
    watts = [trial.joules / trial.seconds for trial in trials if trial.joules is not None]
    known = [row.score.value] if row.score is not None and row.score.metric == "accuracy" else []
    disk = [row.computed.disk_bytes / 1e6] if row.computed is not None and row.computed.disk_bytes is not None else []
    cells: list[Any] = [row.precision]
    for values in (seconds, [size / one for one in seconds], watts, [one * 1e3 for one in joules], known, disk, []):
        cells += [statistics.fmean(values) if values else None, statistics.stdev(values) if len(values) > 1 else None]
    return cells


def layers_csv(row: Row) -> str:
    """The layers of one precision as `per_layer_energy.csv`."""
    rows = [
        [
            one["layer"], one["seconds"] * 1e3, None, one["seconds"], one["calls"], one["share"] * 100, one["joules"],
            None if one["joules"] is None else one["joules"] * 1e3, one["kind"],
        ]
        for one in row.layers
    ]  # fmt: skip
    return csv_text(LAYER_COLUMNS, rows)


def trials_csv(result: Result, now: datetime) -> str:
    """The columns of a trial's file, a line for each timed loop; "per inference" is a batch there, so it is one here.

    Left out is what was never measured: the memory of a CUDA allocator. `power_samples_per_s` is ours: how often the
    sensor was really read.
    """
    rows = []
    for row in result.rows:
        if row.failure is None and row.figures is not None:
            pairs = zip(row.figures.trials, row.batches, strict=True)
            rows += [_trial_row(row, result, trial, count, n, now) for n, (trial, count) in enumerate(pairs, 1)]
    return csv_text(TRIAL, rows)


def _trial_row(row: Row, result: Result, trial: Trial, count: int, number: int, now: datetime) -> list[Any]:
    """`trial` is of one batch already."""
    job, joules, seen, score = result.job, trial.joules, row.computed, row.score
    known = score.value if score is not None and score.metric == "accuracy" else None
    n = None if score is None or known is None else score.n
    weights = {} if seen is None else dict(seen.weights)
    power = trial.power
    spread = [None] * 4 if power is None else [power.sd_w, power.min_w, power.max_w, power.median_w]
    return [
        trial.seconds * count,
        trial.seconds,
        job.batch_size / trial.seconds,
        job.batch_size,
        count,
        known,
        None if known is None or n is None else round(known * n),
        n,
        None if joules is None else joules / trial.seconds,
        *spread,
        None if joules is None else joules * count,
        joules,
        None if joules is None else joules * 1e3,
        None if power is None else power.samples,
        None if power is None else power.rate_hz,
        None if joules is None or known is None else joules * (1 - known),
        None if not joules else 1 / joules,
        None if not joules or known is None else known / (joules * 1e3),
        None if seen is None else seen.parameters,
        None if seen is None or seen.disk_bytes is None else seen.disk_bytes / 1e6,
        max(weights, key=lambda kind: weights[kind]) if weights else None,
        None if seen is None else seen.device,
        row.precision.startswith(("int8", "mixed")),
        job.name,
        row.precision,
        job.data,
        job.warmup,
        number,
        now.isoformat(timespec="seconds"),
    ]


def impact_csv(result: Result) -> str:
    """Layer sensitivity as `prediction_impact.csv`; here each layer was quantised, where the study set it to zero."""
    told = result.sensitivity.get("layers", []) if result.sensitivity else []
    base = result.baseline
    kinds = {} if base is None else {one["layer"]: one["kind"] for one in base.layers}
    language = result.job.task == "causal-lm"
    whole = base.score.value if base is not None and base.score is not None else None
    columns = tuple("perplexity_change" if language and name == "accuracy_drop" else name for name in IMPACT)
    rows = []
    for one in told:
        change, far = one["change"], one["logit_l2"]
        worse = None if change is None else -change
        if language:
            worse = None if change is None or whole is None else (change - 1) * whole
        score = None if far is None else one["kl"] + far
        rows.append([one["layer"], one["kl"], far, worse, score, kinds.get(one["layer"])])
    return csv_text(columns, rows)
