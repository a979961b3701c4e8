"""Scores from the answers that workers left in files: accuracy by a probe or by the model's own head, or perplexity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.bench.precision.data import Dataset, halves
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.probe import Probe, train_probe
from everywatt.bench.precision.quality import (
    Beside,
    Score,
    accuracy,
    divergence,
    paired_logits,
    paired_perplexity,
    perplexity,
)
from everywatt.core.errors import UsageError

Answers = dict[str, npt.NDArray[Any]]


class Scorer:
    """Keeps the answers of every precision to the same items."""

    def __init__(self, job: Job, data: Dataset) -> None:
        self.task = job.task
        self.data = data
        self.notes: list[str] = []
        self._seed = job.seed
        self._probe: Probe | None = None
        self._answers: dict[str, Answers] = {}
        if job.task == "causal-lm" and not data.tokens:
            raise UsageError(f"{data.name} has no input_ids, which a language model needs.")
        if job.task != "causal-lm" and data.labels is None:
            raise UsageError(f"{data.name} has no labels, which the task {job.task} needs.")

    @property
    def ready(self) -> bool:
        """Whether answers can be scored: an encoder's only after its probe was trained."""
        return self.task != "encode" or self._probe is not None

    def train(self, file: Path) -> None:
        """Train the probe on the vectors of the first half, at the precision that came first."""
        assert self.data.labels is not None
        items = halves(len(self.data), self._seed)[0]
        self._probe = train_probe(read_answers(file)["outputs"], self.data.labels[items])
        said = f"accuracy of a linear probe trained on the other {len(items)} items"
        self.notes.append(f"{said}, its penalty of {self._probe.penalty:g} chosen by cross-validation")

    def add(self, precision: str, file: Path) -> None:
        """The answers of one precision."""
        self._answers[precision] = read_answers(file)

    def logits(self, answers: Answers) -> npt.NDArray[Any]:
        """Scores of each class for each item."""
        outputs = answers["outputs"]
        if not np.isfinite(outputs).all():
            self.notes.append("some outputs are not numbers; they count as wrong")
            outputs = np.nan_to_num(outputs, nan=0.0, posinf=1e30, neginf=-1e30)
        if self._probe is not None:
            outputs = self._probe.logits(outputs)
        if outputs.ndim != 2:
            raise UsageError(f"The outputs of the model have shape {outputs.shape}; expected items × classes.")
        return np.asarray(outputs)

    def labels(self, answers: Answers) -> npt.NDArray[np.int64]:
        """What the right answers are."""
        assert self.data.labels is not None
        return np.asarray(self.data.labels[answers["items"]])

    def scores(self, precision: str, baseline: str | None) -> tuple[Score | None, Beside | None]:
        """The score of a precision, and how it stands beside the baseline; None where it gave no answers."""
        mine = self._answers.get(precision)
        if mine is None:
            return None, None
        first = self._answers.get(baseline) if baseline not in (None, precision) else None
        return self.compared(mine, first)

    def compared(self, mine: Answers, first: Answers | None) -> tuple[Score, Beside | None]:
        """Some answers, and beside others to the same items."""
        if self.task == "causal-lm":
            score = perplexity(mine["loss"], mine["tokens"])
            if first is None:
                return score, None
            beside = paired_perplexity(first["loss"], mine["loss"], mine["tokens"])
            return score, beside
        logits, labels = self.logits(mine), self.labels(mine)
        score = accuracy(logits.argmax(axis=1) == labels)
        return score, None if first is None else paired_logits(self.logits(first), logits, labels)

    def answers(self, precision: str) -> Answers | None:
        """What a precision answered."""
        return self._answers.get(precision)

    def divergence(self, mine: Answers, first: Answers) -> float:
        """How far answers are from others: KL in nats, or for a language model the added loss per token."""
        if self.task == "causal-lm":
            return float(np.abs(mine["loss"] - first["loss"]).sum() / mine["tokens"].sum())
        return divergence(self.logits(first), self.logits(mine))

    def distance(self, mine: Answers, first: Answers) -> float | None:
        """Mean length of the difference of an item's logits; None for a language model, whose logits are not kept."""
        if self.task == "causal-lm":
            return None
        return float(np.linalg.norm(self.logits(mine) - self.logits(first), axis=1).mean())


def read_answers(file: Path) -> Answers:
    """What a worker left in a file."""
    with np.load(file, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}
