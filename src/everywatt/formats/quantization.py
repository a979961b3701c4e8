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
        data = foreign.read_json(file)
        lines = data if isinstance(data, list) else [data]
    else:
        lines = list(csv.DictReader(foreign.lines(file, errors="strict", ends=True, limits=foreign.SMALL)))
    return [_line(file, number, line) for number, line in enumerate(lines, 1)]


BATCH = "its energy_per_inference is the energy of a batch"
ZEROED = "its layers were set to zero, not quantised; impact adds nats to a norm of logits"


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of file: the columns by which it is known, and where its fields are: `field`, `field=column` or
    `field=column*factor`, the factor being that to our unit. `single`: a line is one trial."""

    known: str
    columns: str
    note: Callable[[Mapping[str, Any]], str] = lambda line: ""
    label: str = "precision"
    single: bool = False

    def line(self, line: Mapping[str, Any], source: str) -> OldLine:
        """What a line says. ValueError where a number is none."""
        found: dict[str, Any] = {"note": self.note(line)}
        for word in self.columns.split():
            name, _, where = word.partition("=")
            column, _, factor = (where or name).partition("*")
            found[name] = _scaled(line, column, float(factor or 1))
        if self.label == "layer_name":
            return OldLayer(str(line["layer_name"]), str(line.get("layer_type") or ""), source, **found)
        if found.get("batch_size") is not None:
            found["batch_size"] = int(found["batch_size"])
        size, sample, batches = found.get("batch_size"), found.get("energy_per_sample_j"), found.pop("batches", None)
        if batches and found["energy_j"] is not None:
            sample = found["energy_j"] / int(batches) / size if size else None
            found |= {"energy_per_batch_j": found["energy_j"] / int(batches), "energy_per_sample_j": sample}
        elif size is not None and sample is not None:
            found["energy_per_batch_j"] = sample * size
        return OldFigure(str(line[self.label]).lower(), source, trials=1 if self.single else None, **found)


def _trial_note(line: Mapping[str, Any]) -> str:
    """What is wrong with the file's own words."""
    if str(line.get("precision", "")).lower() == "int8" and "int8" not in str(line.get("dtype", "")):
        return f"{BATCH}; labelled int8, but its dtype is {line.get('dtype') or 'unknown'}"
    return BATCH


LAYOUTS = (
    Layout(
        "energy_per_sample_mj accuracy_%",
        "batch_size accuracy=accuracy_%*0.01 latency_s throughput=throughput_samples_s power_w=avg_power_w energy_j "
        "energy_per_sample_j=energy_per_sample_mj*1e-3",
        lambda line: str(line.get("notes") or ""),
        single=True,
    ),
    Layout(
        "precision total_energy_j num_iters batch_size",
        "batch_size batches=num_iters accuracy latency_s=mean_latency throughput power_w=mean_power_w "
        "energy_j=total_energy_j size_mb=model_size_mb",
        _trial_note,
        single=True,
    ),
    Layout(
        "precision energy_per_inference_mj_mean",
        "accuracy=accuracy_mean latency_s=mean_latency_mean throughput=throughput_mean power_w=mean_power_w_mean "
        "energy_per_batch_j=energy_per_inference_mj_mean*1e-3 size_mb=model_size_mb_mean",
        lambda line: f"mean over trials; {BATCH}",
    ),
    Layout(
        "name energy_per_sample_mj mean_latency_ms",
        "accuracy latency_s=mean_latency_ms*1e-3 throughput power_w=mean_power_w "
        "energy_per_sample_j=energy_per_sample_mj*1e-3 size_mb=model_size_mb",
        label="name",
    ),
    Layout(
        "precision_type accuracy inference_time",
        "batch_size accuracy throughput=samples_per_second",
        label="precision_type",
    ),
    Layout(
        "precision train_time_s total_energy_j",
        "accuracy=final_val_acc power_w=mean_power_w energy_j=total_energy_j",
        lambda line: f"a training run of {_scaled(line, 'train_time_s'):g} s" if line["train_time_s"] else "a training",
    ),
    Layout(
        "layer_name kl_divergence impact_score accuracy_drop",
        "kl=kl_divergence logit_l2 change=accuracy_drop impact=impact_score",
        lambda line: ZEROED,
        label="layer_name",
    ),
    Layout(
        "layer_name kl_divergence impact_score",
        "kl=kl_divergence logit_l2 change=perplexity_change impact=impact_score",
        lambda line: ZEROED,
        label="layer_name",
    ),
    Layout(
        "layer_name mean_time_ms percent_total",
        "seconds=mean_time_ms*1e-3 share=percent_total*0.01 energy_j",
        lambda line: "shares refer to hooked layers only: the energy of others (Conv1D of GPT-2) is spread over them",
        label="layer_name",
    ),
)


def _line(file: Path, number: int, line: Any) -> OldLine:
    if not isinstance(line, dict):
        raise UsageError(f"{file} contains no table of results.")
    layout = next((one for one in LAYOUTS if set(one.known.split()) <= set(line)), None)
    if layout is None:
        shown = ", ".join(sorted(map(str, line))[:8])
        raise UsageError(f"{file}: not the columns of a known result file: {shown}.")
    try:
        return layout.line(line, file.name)
    except ValueError as error:
        raise UsageError(f"{file}, line {number}: {error}.") from None


def _scaled(line: Mapping[str, Any], key: str, factor: float = 1.0) -> float | None:
    value = line.get(key)
    if value in (None, "", "N/A", "nan"):
        return None
    try:
        return float(str(value)) * factor
    except ValueError:
        raise ValueError(f"{key} is {value!r}, not a number") from None


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
    rows = [_sheet_row(row, now) for row in result.rows if row.failure is None]
    return csv_text(SHEET, rows)


def _sheet_row(row: Row, now: datetime) -> list[Any]:
    size, figures, sample = row.batch_size, row.figures, row.energy_per_sample
    count = None if row.iters is None else row.iters * size
    return [
        now.isoformat(timespec="seconds"),
        row.precision,
        size,
        row.seq_length,
        count,
        None if row.accuracy is None else row.accuracy * 100,
        None if row.latency is None else row.latency.mean_s,
        row.throughput,
        None if figures is None else figures.power_w,
        None if sample is None or count is None else sample.value * count,
        None if sample is None else sample.value * 1e3,
        "; ".join(row.notes),
    ]


def aggregated_csv(result: Result) -> str:
    """The result as `aggregated_comparison.csv`: mean and standard deviation over trials, energy of a batch."""
    columns = ["precision", *(f"{name}_{kind}" for name in AGGREGATED for kind in ("mean", "std"))]
    rows = [_aggregated_row(row) for row in result.rows if row.failure is None]
    return csv_text(columns, rows)


def _aggregated_row(row: Row) -> list[Any]:
    seconds = [trial.seconds for trial in row.trials]
    joules = [trial.joules for trial in row.trials if trial.joules is not None]
    watts = [trial.joules / trial.seconds for trial in row.trials if trial.joules is not None]
    known = [] if row.accuracy is None else [row.accuracy]
    disk = [row.computed.disk_bytes / 1e6] if row.computed is not None and row.computed.disk_bytes is not None else []
    cells: list[Any] = [row.precision]
    rates = [row.batch_size / one for one in seconds]
    for values in (seconds, rates, watts, [one * 1e3 for one in joules], known, disk, []):
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
        if row.failure is None:
            pairs = zip(row.trials, row.batches, strict=True)
            rows += [_trial_row(row, result, trial, count, n, now) for n, (trial, count) in enumerate(pairs, 1)]
    return csv_text(TRIAL, rows)


def _trial_row(row: Row, result: Result, trial: Trial, count: int, number: int, now: datetime) -> list[Any]:
    """`trial` is of one batch already."""
    job, joules, seen, score = result.job, trial.joules, row.computed, row.score
    known = row.accuracy
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
