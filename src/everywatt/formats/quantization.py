"""Result files of an earlier quantisation study: read into one form, and a result of ours in their columns.

The team's sheet `results.csv`, a trial as JSON or one-row CSV, `aggregated_comparison.csv`, `benchmark_results.csv`, a
baseline and a training as JSON; and by layer `per_layer_energy.csv` and `prediction_impact.csv`. Its "per inference" is
a whole batch: here it is named so, and a sample's energy is worked out.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from everywatt.bench.precision.result import Result, Row
from everywatt.bench.trials import Trial
from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict
from everywatt.core.tables import csv_text

TRIAL_KEYS = {"precision", "total_energy_j", "num_iters", "batch_size"}


@dataclass(frozen=True, slots=True)
class OldFigure(ToDict):
    """One line of an old file. Energies are joules of a batch and of a sample; None where the file does not say."""

    precision: str
    source: str
    batch_size: int | None = None
    trials: int | None = None
    accuracy: float | None = None
    latency_s: float | None = None
    throughput: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    energy_per_batch_j: float | None = None
    energy_per_sample_j: float | None = None
    size_mb: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class OldLayer(ToDict):
    """One layer of an old file: where the time went, or what the layer's loss did to the answers.

    `share` is of the time; `change` is the drop of accuracy (positive: worse) or the change of perplexity; `impact` is
    the sum that the study made of a divergence in nats and a length of logits.
    """

    layer: str
    kind: str
    source: str
    seconds: float | None = None
    share: float | None = None
    energy_j: float | None = None
    kl: float | None = None
    logit_l2: float | None = None
    change: float | None = None
    impact: float | None = None
    note: str = ""


OldLine = OldFigure | OldLayer


def read_old(paths: Iterable[Path]) -> list[OldLine]:
    """Every line of the files, in their order; a folder stands for the .csv and .json files in it."""
    found: list[OldLine] = []
    for path in paths:
        files = sorted([*path.rglob("*.json"), *path.rglob("*.csv")]) if path.is_dir() else [path]
        # A trial was written twice, as .json and as .csv: the first is enough.
        files = [f for f in files if not (f.suffix == ".csv" and f.with_suffix(".json") in files)]
        for file in files:
            found += _read(file)
    if not found:
        raise UsageError("These files are empty.")
    return found


def _read(file: Path) -> list[OldLine]:
    if file.suffix == ".json":
        told = foreign.read_json(file)
        lines = told if isinstance(told, list) else [told]
    else:
        lines = list(csv.DictReader(foreign.lines(file, errors="strict", ends=True, limits=foreign.SMALL)))
    return [_line(file, number, line) for number, line in enumerate(lines, 1)]


def _line(file: Path, number: int, line: Any) -> OldLine:
    if not isinstance(line, dict):
        raise UsageError(f"{file} contains no table of results.")
    keys = set(line)
    readers: tuple[tuple[set[str], Callable[[Mapping[str, Any], str], OldLine]], ...] = (
        ({"energy_per_sample_mj", "accuracy_%"}, _sheet),
        (TRIAL_KEYS, _trial),
        ({"precision", "energy_per_inference_mj_mean"}, _aggregated),
        ({"name", "energy_per_sample_mj", "mean_latency_ms"}, _benchmark),
        ({"precision_type", "accuracy", "inference_time"}, _baseline),
        ({"precision", "train_time_s", "total_energy_j"}, _training),
        ({"layer_name", "kl_divergence", "impact_score"}, _impact),
        ({"layer_name", "mean_time_ms", "percent_total"}, _layer),
    )
    for known, reader in readers:
        if known <= keys:
            try:
                return reader(line, file.name)
            except ValueError as error:
                raise UsageError(f"{file}, line {number}: {error}.") from None
    raise UsageError(f"{file}: not the columns of a known result file: {', '.join(sorted(map(str, keys))[:8])}.")


def _sheet(line: Mapping[str, Any], source: str) -> OldFigure:
    size, sample = _whole(line, "batch_size"), _scaled(line, "energy_per_sample_mj", 1e-3)
    return OldFigure(
        str(line["precision"]).lower(),
        source,
        size,
        1,
        _scaled(line, "accuracy_%", 0.01),
        _scaled(line, "latency_s"),
        _scaled(line, "throughput_samples_s"),
        _scaled(line, "avg_power_w"),
        _scaled(line, "energy_j"),
        None if sample is None or size is None else sample * size,
        sample,
        note=str(line.get("notes") or ""),
    )


def _trial(line: Mapping[str, Any], source: str) -> OldFigure:
    size, iters = _whole(line, "batch_size"), _whole(line, "num_iters")
    energy = _scaled(line, "total_energy_j")
    batch = None if energy is None or not iters else energy / iters
    return OldFigure(
        str(line["precision"]).lower(),
        source,
        size,
        1,
        _scaled(line, "accuracy"),
        _scaled(line, "mean_latency"),
        _scaled(line, "throughput"),
        _scaled(line, "mean_power_w"),
        energy,
        batch,
        None if batch is None or not size else batch / size,
        _scaled(line, "model_size_mb"),
        _trial_note(line),
    )


def _trial_note(line: Mapping[str, Any]) -> str:
    """What is wrong with the file's own words."""
    said = ["its energy_per_inference is the energy of a batch"]
    if str(line.get("precision", "")).lower() == "int8" and "int8" not in str(line.get("dtype", "")):
        said.append(f"labelled int8, but its dtype is {line.get('dtype') or 'unknown'}")
    return "; ".join(said)


def _aggregated(line: Mapping[str, Any], source: str) -> OldFigure:
    return OldFigure(
        str(line["precision"]).lower(),
        source,
        accuracy=_scaled(line, "accuracy_mean"),
        latency_s=_scaled(line, "mean_latency_mean"),
        throughput=_scaled(line, "throughput_mean"),
        power_w=_scaled(line, "mean_power_w_mean"),
        energy_per_batch_j=_scaled(line, "energy_per_inference_mj_mean", 1e-3),
        size_mb=_scaled(line, "model_size_mb_mean"),
        note="mean over trials; its energy_per_inference is the energy of a batch",
    )


def _benchmark(line: Mapping[str, Any], source: str) -> OldFigure:
    return OldFigure(
        str(line["name"]).lower(),
        source,
        accuracy=_scaled(line, "accuracy"),
        latency_s=_scaled(line, "mean_latency_ms", 1e-3),
        throughput=_scaled(line, "throughput"),
        power_w=_scaled(line, "mean_power_w"),
        energy_per_sample_j=_scaled(line, "energy_per_sample_mj", 1e-3),
        size_mb=_scaled(line, "model_size_mb"),
    )


def _baseline(line: Mapping[str, Any], source: str) -> OldFigure:
    return OldFigure(
        str(line["precision_type"]).lower(),
        source,
        _whole(line, "batch_size"),
        accuracy=_scaled(line, "accuracy"),
        throughput=_scaled(line, "samples_per_second"),
    )


def _training(line: Mapping[str, Any], source: str) -> OldFigure:
    return OldFigure(
        str(line["precision"]).lower(),
        source,
        accuracy=_scaled(line, "final_val_acc"),
        power_w=_scaled(line, "mean_power_w"),
        energy_j=_scaled(line, "total_energy_j"),
        note=f"a training run of {_scaled(line, 'train_time_s'):g} s" if line.get("train_time_s") else "a training",
    )


def _impact(line: Mapping[str, Any], source: str) -> OldLayer:
    drop, worse = _scaled(line, "accuracy_drop"), _scaled(line, "perplexity_change")
    return OldLayer(
        str(line["layer_name"]),
        str(line.get("layer_type") or ""),
        source,
        kl=_scaled(line, "kl_divergence"),
        logit_l2=_scaled(line, "logit_l2"),
        change=worse if drop is None else drop,
        impact=_scaled(line, "impact_score"),
        note="its layers were set to zero, not quantised; impact adds nats to a norm of logits",
    )


def _layer(line: Mapping[str, Any], source: str) -> OldLayer:
    return OldLayer(
        str(line["layer_name"]),
        str(line.get("layer_type") or ""),
        source,
        seconds=_scaled(line, "mean_time_ms", 1e-3),
        share=_scaled(line, "percent_total", 0.01),
        energy_j=_scaled(line, "energy_j"),
        note="shares refer to hooked layers only: the energy of others (Conv1D of GPT-2) is spread over them",
    )


def _scaled(line: Mapping[str, Any], key: str, factor: float = 1.0) -> float | None:
    value = line.get(key)
    if value in (None, "", "N/A", "nan"):
        return None
    try:
        return float(str(value)) * factor
    except ValueError:
        raise ValueError(f"{key} is {value!r}, not a number") from None


def _whole(line: Mapping[str, Any], key: str) -> int | None:
    value = _scaled(line, key)
    return None if value is None else int(value)


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
            one.layer, one.seconds * 1e3, None, one.seconds, one.calls, one.share * 100, one.joules,
            None if one.joules is None else one.joules * 1e3, one.kind,
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
    found = () if result.sensitivity is None else result.sensitivity.layers
    base = result.baseline
    kinds = {} if base is None else {one.layer: one.kind for one in base.layers}
    language = result.job.task == "causal-lm"
    whole = base.score.value if base is not None and base.score is not None else None
    columns = tuple("perplexity_change" if language and name == "accuracy_drop" else name for name in IMPACT)
    rows = []
    for one in found:
        change, far = one.change, one.logit_l2
        worse = None if change is None else -change
        if language:
            worse = None if change is None or whole is None else (change - 1) * whole
        score = None if far is None else one.kl + far
        rows.append([one.layer, one.kl, far, worse, score, kinds.get(one.layer)])
    return csv_text(columns, rows)
