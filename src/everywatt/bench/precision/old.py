"""Result files of an earlier quantisation study: read into one form, and written in its columns on request.

Four layouts: the team's sheet `results.csv`, a trial as JSON or one-row CSV, `aggregated_comparison.csv`, and
`benchmark_results.csv`. Its "per inference" is a whole batch: here it is named so, and a sample's energy is worked out.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from everywatt.bench.precision.result import Result, Row
from everywatt.bench.tables import csv_text
from everywatt.core.errors import UsageError

SHEET = (
    "timestamp", "precision", "batch_size", "seq_length", "num_samples", "accuracy_%", "latency_s",
    "throughput_samples_s", "avg_power_w", "energy_j", "energy_per_sample_mj", "notes",
)  # fmt: skip
AGGREGATED = (
    "mean_latency", "throughput", "mean_power_w", "energy_per_inference_mj", "accuracy", "model_size_mb",
    "peak_allocated_gb",
)  # fmt: skip
TRIAL_KEYS = {"precision", "total_energy_j", "num_iters", "batch_size"}
LAYER_COLUMNS = (
    "layer_name", "mean_time_ms", "std_time_ms", "total_time_s", "num_calls", "percent_total", "energy_j", "energy_mj",
    "layer_type",
)  # fmt: skip
FORMS = ("sheet", "aggregated", "layers")


@dataclass(frozen=True, slots=True)
class OldFigure:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def read_old(paths: Iterable[Path]) -> list[OldFigure]:
    """Every line of the files, in their order; a folder stands for the .csv and .json files in it."""
    found: list[OldFigure] = []
    for path in paths:
        files = sorted([*path.rglob("*.json"), *path.rglob("*.csv")]) if path.is_dir() else [path]
        # A trial was written twice, as .json and as .csv: the first is enough.
        files = [f for f in files if not (f.suffix == ".csv" and f.with_suffix(".json") in files)]
        for file in files:
            found += _read(file)
    if not found:
        raise UsageError("There is nothing in these files.")
    return found


def _read(file: Path) -> list[OldFigure]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error
    if file.suffix == ".json":
        try:
            told = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{file} is not JSON: {error}.") from None
        lines = told if isinstance(told, list) else [told]
    else:
        lines = list(csv.DictReader(io.StringIO(text)))
    return [_line(file, number, line) for number, line in enumerate(lines, 1)]


def _line(file: Path, number: int, line: Any) -> OldFigure:
    if not isinstance(line, dict):
        raise UsageError(f"{file} holds no table of results.")
    keys = set(line)
    for known, reader in (
        ({"energy_per_sample_mj", "accuracy_%"}, _sheet),
        (TRIAL_KEYS, _trial),
        ({"precision", "energy_per_inference_mj_mean"}, _aggregated),
        ({"name", "energy_per_sample_mj", "mean_latency_ms"}, _benchmark),
        ({"precision_type", "accuracy", "inference_time"}, _baseline),
    ):
        if known <= keys:
            try:
                return reader(line, file.name)
            except ValueError as error:
                raise UsageError(f"{file}, line {number}: {error}.") from None
    raise UsageError(
        f"{file}: these are not the columns of a known result file: {', '.join(sorted(map(str, keys))[:8])}."
    )


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
    said = ["its energy_per_inference is that of a batch"]
    if str(line.get("precision", "")).lower() == "int8" and "int8" not in str(line.get("dtype", "")):
        said.append(f"called int8, but its dtype is {line.get('dtype') or 'not told'}")
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
        note="a mean over trials; its energy_per_inference is that of a batch",
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
