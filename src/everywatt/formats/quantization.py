"""Result files of an earlier quantisation study: read into one form, and a result of ours in their columns.

The team's sheet `results.csv`, a trial as JSON or one-row CSV, `aggregated_comparison.csv`, `benchmark_results.csv`, a
baseline and a training as JSON; and by layer `per_layer_energy.csv` and `prediction_impact.csv`. Its "per inference" is
a whole batch: here it is named so, and a sample's energy is worked out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.result import Result, Row
from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict, declared
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

    @property
    def size_bytes(self) -> float | None:
        return None if self.size_mb is None else self.size_mb * 1e6


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
        lines = [line for _, line in foreign.csv_rows(foreign.read_text(file), str(file))]
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
        """A parsed line. ValueError if a number is not valid."""
        found: dict[str, Any] = {"note": self.note(line)}
        found |= {name: _scaled(line, column, factor) for name, column, factor in _fields(self.columns)}
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


def _fields(columns: str) -> Iterator[tuple[str, str, float]]:
    """Of words `name`, `name=path` or `name=path*factor`: the name, the path and the factor."""
    for word in columns.split():
        name, _, where = word.partition("=")
        path, _, factor = (where or name).partition("*")
        yield name, path, float(factor or 1)


# The columns that they had, and where they are in a line of ours; what a line does not have is an empty cell.
SHEET = (
    "timestamp precision=row.precision batch_size=row.batch_size seq_length=row.seq_length num_samples "
    "accuracy_%=row.accuracy*100 latency_s=row.latency.mean_s throughput_samples_s=row.throughput "
    "avg_power_w=row.figures.power_w energy_j energy_per_sample_mj=row.energy_per_sample.value*1e3 notes"
)
LAYER_COLUMNS = (
    "layer_name=of.layer mean_time_ms=of.seconds*1e3 std_time_ms total_time_s=of.seconds num_calls=of.calls "
    "percent_total=of.share*100 energy_j=of.joules energy_mj=of.joules*1e3 layer_type=of.kind"
)
IMPACT = "layer_name=of.layer kl_divergence=of.kl logit_l2=of.logit_l2 {}=worse impact_score layer_type"
TRIAL = (
    "total_time mean_latency=trial.seconds throughput batch_size=row.batch_size num_iters accuracy=row.accuracy "
    "num_correct num_samples_accuracy mean_power_w std_power_w=trial.power.sd_w min_power_w=trial.power.min_w "
    "max_power_w=trial.power.max_w median_power_w=trial.power.median_w total_energy_j "
    "energy_per_inference_j=trial.joules energy_per_inference_mj=trial.joules*1e3 "
    "num_power_samples=trial.power.samples power_samples_per_s=trial.power.rate_hz energy_accuracy_product "
    "inferences_per_joule accuracy_per_millijoule num_parameters=row.computed.parameters model_size_mb dtype "
    "device=row.computed.device is_quantized model_name=job.name precision=row.precision dataset_path=job.data "
    "warmup_steps=job.warmup trial_number timestamp"
)
AGGREGATED = (
    *("mean_latency", "throughput", "mean_power_w", "energy_per_inference_mj", "accuracy", "model_size_mb"),
    "peak_allocated_gb",
)
FORMS = ("sheet", "trials", "aggregated", "layers", "impact")


def old_csv(form: str, result: Result, now: datetime) -> str:
    """The result in one of `FORMS`; layers are those of the baseline, precisions without figures are left out."""
    rows = [row for row in result.rows if row.failure is None]
    stamp = now.isoformat(timespec="seconds")
    if form == "sheet":
        return _csv(SHEET, [_sheet_line(row, stamp) for row in rows])
    if form == "trials":
        return _csv(TRIAL, [line for row in rows for line in _trial_lines(row, result.job, stamp)])
    if form == "aggregated":
        columns = ["precision", *(f"{name}_{kind}" for name in AGGREGATED for kind in ("mean", "std"))]
        return csv_text(columns, map(_aggregated_cells, rows))
    if form == "impact":
        return _impact_csv(result)
    return _csv(LAYER_COLUMNS, [{"of": layer} for layer in (result.baseline.layers if result.baseline else ())])


def _csv(columns: str, lines: Iterable[Mapping[str, Any]]) -> str:
    fields = list(_fields(columns))
    paths = " ".join(path for _, path, _ in fields)

    def cells(line: Mapping[str, Any]) -> list[Any]:
        found = declared(line, paths)
        values = [(found[path], factor) for _, path, factor in fields]
        return [value if value is None or factor == 1 else value * factor for value, factor in values]

    return csv_text([name for name, _, _ in fields], map(cells, lines))


def _sheet_line(row: Row, stamp: str) -> dict[str, Any]:
    count, sample = None if row.iters is None else row.iters * row.batch_size, row.energy_per_sample
    joules = None if sample is None or count is None else sample.value * count
    return {"row": row, "timestamp": stamp, "num_samples": count, "energy_j": joules, "notes": "; ".join(row.notes)}


def _aggregated_cells(row: Row) -> list[Any]:
    """Mean and standard deviation over trials; the energy is of a batch."""
    seconds = [trial.seconds for trial in row.trials]
    joules = [trial.joules for trial in row.trials if trial.joules is not None]
    watts = [trial.joules / trial.seconds for trial in row.trials if trial.joules is not None]
    known = [] if row.accuracy is None else [row.accuracy]
    cells: list[Any] = [row.precision]
    rates, size_mb = [row.batch_size / one for one in seconds], _disk_mb(row)
    disk = [] if size_mb is None else [size_mb]
    for values in (seconds, rates, watts, [one * 1e3 for one in joules], known, disk, []):
        cells += [statistics.fmean(values) if values else None, statistics.stdev(values) if len(values) > 1 else None]
    return cells


def _disk_mb(row: Row) -> float | None:
    return None if row.computed is None or row.computed.disk_bytes is None else row.computed.disk_bytes / 1e6


def _trial_lines(row: Row, job: Job, stamp: str) -> Iterator[dict[str, Any]]:
    """A line for each timed loop; "per inference" is a batch there, so it is one here.

    Left out is what was never measured: the memory of a CUDA allocator. `power_samples_per_s` is ours: how often the
    sensor was really read.
    """
    weights, known = {} if row.computed is None else dict(row.computed.weights), row.accuracy
    n = None if row.score is None or known is None else row.score.n
    for number, (trial, count) in enumerate(zip(row.trials, row.batches, strict=True), 1):
        line = {"row": row, "trial": trial, "job": job, "timestamp": stamp, "trial_number": number}
        line |= {"num_iters": count, "total_time": trial.seconds * count, "throughput": job.batch_size / trial.seconds}
        line |= {"num_samples_accuracy": n, "num_correct": None if known is None or n is None else round(known * n)}
        line |= {"model_size_mb": _disk_mb(row), "is_quantized": row.precision.startswith(("int8", "mixed"))}
        line["dtype"] = max(weights, key=lambda kind: weights[kind]) if weights else None
        if (joules := trial.joules) is not None:
            line |= {"mean_power_w": joules / trial.seconds, "total_energy_j": joules * count}
            line |= {"inferences_per_joule": 1 / joules if joules else None}
            if known is not None:
                each = known / (joules * 1e3) if joules else None
                line |= {"energy_accuracy_product": joules * (1 - known), "accuracy_per_millijoule": each}
        yield line


def _impact_csv(result: Result) -> str:
    """Layer sensitivity as `prediction_impact.csv`; here each layer was quantised, where the study set it to zero."""
    base, language = result.baseline, result.job.task == "causal-lm"
    kinds = {} if base is None else {one.layer: one.kind for one in base.layers}
    whole = base.score.value if base is not None and base.score is not None else None
    lines = []
    for one in () if result.sensitivity is None else result.sensitivity.layers:
        worse = None if one.change is None else -one.change
        if language:
            worse = None if one.change is None or whole is None else (one.change - 1) * whole
        score = None if one.logit_l2 is None else one.kl + one.logit_l2
        lines.append({"of": one, "worse": worse, "impact_score": score, "layer_type": kinds.get(one.layer)})
    return _csv(IMPACT.format("perplexity_change" if language else "accuracy_drop"), lines)
