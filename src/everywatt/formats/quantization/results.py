"""Result files of an earlier quantisation study, read into one form; `old_columns` writes them.

The team's sheet `results.csv`, a trial as JSON or one-row CSV, `aggregated_comparison.csv`, `benchmark_results.csv`, a
baseline and a training as JSON; and by layer `per_layer_energy.csv` and `prediction_impact.csv`. Its "per inference" is
a whole batch: here it is named so, and a sample's energy is worked out.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everywatt.core import foreign
from everywatt.core.errors import UsageError

TRIAL_KEYS = {"precision", "total_energy_j", "num_iters", "batch_size"}


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


@dataclass(frozen=True, slots=True)
class OldLayer:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


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
