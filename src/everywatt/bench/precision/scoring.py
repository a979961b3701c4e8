"""Scores from the answers that workers left in files: accuracy by a probe or by the model's own head, or perplexity;
each with an interval, and paired with the baseline's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.bench.precision.data import Dataset, halves
from everywatt.bench.precision.plan import Job
from everywatt.core.errors import MissingExtra, UsageError
from everywatt.core.format import format_number, format_percent
from everywatt.core.jsonio import ToDict
from everywatt.core.stats import Z95, mcnemar, paired_difference, wilson

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score(ToDict):
    """A figure of merit with its 95 % interval over `n` items. `metric` is `accuracy` (up is good) or `perplexity`."""

    metric: str
    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        below, above = self.value - self.low, self.high - self.value
        if self.metric == "accuracy":
            return format_percent(self.value, below, above)
        return f"perplexity {format_number(self.value, '', below, above)}"


@dataclass(frozen=True, slots=True)
class Beside(ToDict):
    """The same items beside the baseline.

    change     accuracy minus the baseline's, or perplexity over the baseline's, with its 95 % interval
    agreement  share of items with the same answer; kl: mean Kullback-Leibler divergence from the baseline, in nats
    p          of McNemar's exact test (accuracy only)
    """

    change: float
    low: float
    high: float
    agreement: float | None = None
    kl: float | None = None
    p: float | None = None


def accuracy(correct: npt.NDArray[np.bool_]) -> Score:
    right, n = int(correct.sum()), len(correct)
    return Score("accuracy", right / n, *wilson(right, n), n)


def paired_accuracy(baseline: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> tuple[float, float, float, float]:
    """Difference of two accuracies on the same items with its 95 % interval, and McNemar's exact p."""
    only_base, only_other = int((baseline & ~other).sum()), int((~baseline & other).sum())
    return *paired_difference(only_base, only_other, len(baseline)), mcnemar(only_base, only_other)


def perplexity(loss: Floats, tokens: npt.NDArray[np.int64]) -> Score:
    """exp of the mean loss per token; the interval is over items (a ratio of sums, linearised)."""
    mean, half = _ratio_of_sums(loss, tokens)
    return Score("perplexity", math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(loss))


def paired_perplexity(baseline: Floats, other: Floats, tokens: npt.NDArray[np.int64]) -> Beside:
    """Perplexity over the baseline's on the same tokens."""
    mean, half = _ratio_of_sums(other - baseline, tokens)
    return Beside(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _ratio_of_sums(values: Floats, weights: npt.NDArray[np.int64]) -> tuple[float, float]:
    total, n = float(weights.sum()), len(values)
    mean = float(values.sum()) / total
    if n < 2:
        return mean, math.inf
    errors = values - mean * weights
    return mean, Z95 * math.sqrt(n / (n - 1) * float((errors**2).sum())) / total


def log_softmax(logits: npt.ArrayLike) -> Floats:
    """Logarithms of the shares, rows apart."""
    values = np.asarray(logits, dtype=np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)))


def divergence(baseline: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Mean KL(baseline ‖ other) of rows of logits, in nats."""
    first, second = log_softmax(baseline), log_softmax(other)
    return float((np.exp(first) * (first - second)).sum(axis=-1).mean())


def paired_logits(baseline: npt.ArrayLike, other: npt.ArrayLike, labels: npt.NDArray[np.int64]) -> Beside:
    """Two sets of logits on the same items."""
    first, second = np.argmax(baseline, axis=1), np.argmax(other, axis=1)
    change, low, high, p = paired_accuracy(first == labels, second == labels)
    return Beside(change, low, high, float((first == second).mean()), divergence(baseline, other), p)


Answers = dict[str, npt.NDArray[Any]]
PENALTIES = (0.01, 0.1, 0.3, 1.0, 3.0)
"""L2 penalties of an item, tried in turn: with too small a one, a few hundred sentences with hundreds of features each
are memorised."""
FOLDS = 4  # of the cross-validation; a class needs as many items


class Probe:
    """A linear probe: logistic regression on sentence vectors, so that an encoder without a head has a real accuracy.

    The penalty is the one that does best in cross-validation among these very items, so that nothing is tuned on the
    items that are scored; the largest, where a class has too few items for that.
    """

    def __init__(self, vectors: npt.ArrayLike, labels: npt.NDArray[np.int64]) -> None:
        try:
            from sklearn.linear_model import LogisticRegression
            from sklearn.model_selection import GridSearchCV
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler
        except ImportError:
            raise MissingExtra("scikit-learn", "precision") from None
        rarest = int(np.unique(labels, return_counts=True)[1].min())
        penalties = PENALTIES if rarest >= FOLDS else PENALTIES[-1:]
        strengths = {1 / (penalty * len(labels)): penalty for penalty in penalties}
        search = GridSearchCV(
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
            {"logisticregression__C": sorted(strengths)},
            scoring="neg_log_loss",
            cv=FOLDS if len(penalties) > 1 else [(np.arange(len(labels)),) * 2],
        ).fit(np.asarray(vectors, dtype=np.float64), labels)
        self.penalty = strengths[search.best_params_["logisticregression__C"]]
        self.how = "chosen by cross-validation" if len(penalties) > 1 else "as a class has few items"
        self._model = search.best_estimator_

    def logits(self, vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Scores of each class for each vector; a class that no item of the training had is never chosen."""
        made = np.asarray(self._model.decision_function(np.asarray(vectors, dtype=np.float64)))
        if made.ndim == 1:
            made = np.stack([np.zeros_like(made), made], axis=1)
        classes = self._model.classes_
        found = np.full((len(made), int(classes.max()) + 1), -1e9)
        found[:, classes] = made
        return found


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
        self._probe = Probe(read_answers(file)["outputs"], self.data.labels[items])
        said = f"accuracy of a linear probe trained on the other {len(items)} items"
        self.notes.append(f"{said}, its penalty of {self._probe.penalty:g} {self._probe.how}")

    def add(self, precision: str, file: Path) -> None:
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
        assert self.data.labels is not None
        return np.asarray(self.data.labels[answers["items"]])

    def scores(self, precision: str, baseline: str | None) -> tuple[Score | None, Beside | None]:
        """The score of a precision and its comparison with the baseline; None if it gave no answers."""
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
