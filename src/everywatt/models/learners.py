"""The models that are tried, from plain to rich, and the seam for others.

A learner of somebody else is an entry point of the group `everywatt.models`: an object with `name`,
`fit(x, y, names) -> payload` (plain JSON data) and `predict(payload, x) -> watts`. A model file names the learner and
holds the payload; it is evaluated by the learner that is installed under that name, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from everywatt.core.errors import UsageError
from everywatt.core.plugins import MODELS, load_plugin, registered
from everywatt.models.boosting import Growth, grow, grow_forest, sum_of
from everywatt.models.design import correlation
from everywatt.models.features import Feature
from everywatt.models.form import LEAST_SHARE, MOST_LOG, REACH, Form, Range
from everywatt.models.linear import fit_linear
from everywatt.models.table import Floats
from everywatt.models.trees import Tree

MOST_TREES_ROWS = 20_000
USEFUL_LINEAR = 0.15
BELOW_TREES = 1
FETCHES = re.compile(r"cache.?miss|llc|bandwidth|dram_(read|access)|membw", re.I)


class Learner(Protocol):
    """A model of somebody else."""

    name: str

    def fit(self, x: Floats, y: Floats, names: Sequence[str]) -> Mapping[str, Any]: ...
    def predict(self, payload: Mapping[str, Any], x: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model to try: its name for people, its form and features, and whether trees may only rise with use.

    `forest`: trees side by side instead of one after another, on what `share` of the line leaves over.
    `dram` says that the target is memory, whose power follows what is fetched from it.
    `both` is the mean of a forest and of boosted trees. `share` is how much of the line is below the trees.
    """

    name: str
    kind: str
    features: tuple[Feature, ...]
    monotone: bool = False
    share: float = 1.0
    plugin: str = ""
    baseline: bool = False
    dram: bool = False
    forest: bool = False
    both: bool = False


def candidates(
    values: Sequence[Feature], ratios: Sequence[Feature], pasts: Sequence[Feature], cpu: Feature | None
) -> list[Candidate]:
    """Everything that is tried, baselines first."""
    tried = [Candidate("mean", "mean", (), baseline=True)]
    if cpu is not None:
        tried.append(Candidate("linear in CPU", "linear", (cpu,), baseline=True))
    tried.append(Candidate("linear", "linear", tuple(values)))
    rich = (*values, *ratios)
    tried.append(Candidate("boosted, rising", "boosted", rich, monotone=True))
    tried.append(Candidate("boosted with past", "boosted", (*rich, *pasts)))
    tried.append(Candidate("both with past", "boosted", (*rich, *pasts), forest=True, both=True))
    plain = (*values, *pasts[: len(pasts) // 2])
    tried.append(Candidate("forest with past", "boosted", plain, forest=True))
    tried.append(Candidate("forest alone", "boosted", plain, share=0.0, forest=True))
    tried += [Candidate(name, "plugin", rich, plugin=name) for name in sorted(registered(MODELS))]
    return tried


def learner(name: str) -> Learner:
    """The installed learner of that name; UsageError where there is none."""
    made: Learner | None = load_plugin(MODELS, name)
    if made is None:
        raise UsageError(f"The model was made with the learner '{name}', which is not installed here.")
    return made


def fit_form(candidate: Candidate, x: Floats, y: Floats, seed: int = 0) -> Form:
    """A candidate fitted to rows: x has its features, y watts above zero."""
    ranges = _ranges(x)
    least = LEAST_SHARE * float(y.min())
    features = candidate.features
    if candidate.kind == "mean":
        return Form("mean", (), (), least, idle_w=_central(y))
    if candidate.kind == "plugin":
        payload = dict(learner(candidate.plugin).fit(x, y, [feature.name for feature in features]))
        return Form("plugin", features, ranges, least, plugin=candidate.plugin, payload=payload)
    form = _linear(candidate, x, y, ranges, least)
    if candidate.kind == "linear":
        return form
    if len(x) > MOST_TREES_ROWS:  # trees do not get better by more rows than that, only slower
        keep = np.linspace(0, len(x) - 1, MOST_TREES_ROWS).astype(int)
        x, y = x[keep], y[keep]
    return _boosted(candidate, form, x, y, seed)


def _ranges(x: Floats) -> tuple[Range, ...]:
    limits = zip(x.min(axis=0).tolist(), x.max(axis=0).tolist(), np.median(x, axis=0).tolist(), strict=True)
    return tuple(Range(*three) for three in limits)


def _linear(candidate: Candidate, x: Floats, y: Floats, ranges: tuple[Range, ...], least: float) -> Form:
    """The linear form; below trees it has the strongest columns alone, since weights of many like ones do not last."""
    features = candidate.features
    strength = {
        place: correlation(x[:, place], y, by_rank=False)
        for place, f in enumerate(features)
        if f.kind in ("value", "mean") and not _wild(x[:, place])
    }
    if candidate.kind != "linear":
        strength = {place: value for place, value in strength.items() if value >= USEFUL_LINEAR}
    most = len(features) if candidate.kind == "linear" else BELOW_TREES
    # Memory draws by what is fetched from it: where a column tells that, the line goes on along it.
    fetches = [place for place in strength if candidate.dram and FETCHES.search(features[place].column)]
    if candidate.kind != "linear" and fetches:
        strength = {place: strength[place] for place in fetches}
    usable = sorted(sorted(strength, key=lambda place: -strength[place])[:most])
    idle_w, some = fit_linear(x[:, usable], y)
    weights = np.zeros(len(features))
    weights[usable] = some
    return Form("linear", features, ranges, least, idle_w, tuple(float(w) for w in weights))


def _boosted(candidate: Candidate, form: Form, x: Floats, y: Floats, seed: int) -> Form:
    rising = [1 if candidate.monotone and f.kind != "ratio" else 0 for f in candidate.features]
    share = candidate.share
    left = np.log(y) - share * np.log(predict_form(form, x))
    trees: list[Tree] = []
    if candidate.forest:
        trees += grow_forest(x, left, seed)
    if candidate.both or not candidate.forest:
        trees += grow(x, left, rising, Growth(), seed)
    if candidate.both:
        trees = [tree.times(0.5) for tree in trees]
    return replace(form, kind="boosted", trees=tuple(trees), share=share)


def _central(y: Floats) -> float:
    """The constant with the least relative error: a median in which low watts count more."""
    order = np.argsort(y)
    reached = np.cumsum(1 / y[order])
    return float(y[order][np.searchsorted(reached, reached[-1] / 2)])


def _wild(x: Floats) -> bool:
    """Whether a column has values far beyond all others: a straight line through them would lead anywhere."""
    usual = float(np.quantile(x, 0.99))
    return float(x.max()) - usual > 20 * max(usual - float(x.min()), 1e-300)


def predict_form(form: Form, x: Floats) -> Floats:
    """Watts of many rows; the same as `Form.watts` for each."""
    if form.kind == "plugin":
        return np.asarray(learner(form.plugin).predict(form.payload, x), dtype=np.float64)
    linear = np.full(len(x), form.idle_w)
    if form.weights and any(form.weights):
        low = np.array([limit.low for limit in form.ranges])
        high = np.array([limit.high for limit in form.ranges])
        linear = linear + np.clip(x, low - REACH * (high - low), high + REACH * (high - low)) @ np.array(form.weights)
    linear = np.maximum(np.maximum(linear, form.least_w), 1e-9)
    if not form.trees:
        return np.asarray(linear)
    logs = form.share * np.log(linear) + sum_of(form.trees, x)
    return np.asarray(np.maximum(np.exp(np.minimum(logs, MOST_LOG)), form.least_w))


def importances(form: Form, x: Floats) -> Floats:
    """How much each feature moves the prediction, as shares: by weights over the range, and by splits of the trees."""
    share = np.zeros(len(form.features))
    if form.kind == "plugin":
        return np.full(len(share), 1 / max(len(share), 1))
    if form.weights:
        share += np.abs(np.array(form.weights)) * x.std(axis=0) / max(float(predict_form(form, x).std()), 1e-12)
    for tree in form.trees:
        middle = list(tree.value)
        # Children come after their parent, so that going backwards each side is known before its split.
        for node in range(len(middle) - 1, -1, -1):
            feature = tree.feature[node]
            if feature >= 0:
                left, right = middle[tree.left[node]], middle[tree.right[node]]
                middle[node] = (left + right) / 2
                share[feature] += abs(left - right)
    return share / share.sum() if share.sum() > 0 else share
