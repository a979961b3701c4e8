"""The model file: readable JSON. A file from elsewhere is data: every part is checked, and nothing is executed."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import declared, document, plain
from everywatt.models.features import KINDS, Feature
from everywatt.models.form import FORMS, Curve, Form, Model, Range, Stuck, Tree, Widths

KIND = "model"
MOST_BYTES = 16 << 20
MOST_FEATURES = 512
MOST_TREES = 2000
MOST_NODES = 1024
MOST_NAME = 200
ABOUT_NUMBERS = (
    *("rows", "seconds", "loads", "blocked_error_pct", "load_out_error_pct", "coverage_in_blocks"),
    *("worst_error_pct", "least_coverage", "widened", "looks"),
)
RISING = "seen_w most_w band near base_w lift"  # numbers that only a rising form has
ABOUT_TABLES = ("watts", "importance", "scale_unseen")


def to_dict(model: Model) -> dict[str, Any]:
    """The file as plain data, what people read first."""
    form = model.form
    return document(
        KIND,
        {
            "target": model.target,
            "unit": "W",
            **declared(model, "host period_s gain offset_w"),
            "about": plain(model.about),
            "errors": plain(list(model.errors)),
            "columns": {
                name: {"low": r.low, "high": r.high, "middle": r.middle, "unit": model.units.get(name, "")}
                for name, r in model.columns.items()
            },
            "features": [
                {**feature.to_dict(), **_of_feature(form, place)} for place, feature in enumerate(form.features)
            ],
            "form": {
                **declared(form, "kind idle_w least_w share"),
                **(declared(form, RISING) if form.kind == "rising" else {}),
                "plugin": form.plugin,
                "payload": plain(form.payload),
                "trees": plain(form.trees),
            },
            "without": {
                name: {
                    "idle_w": spare.idle_w,
                    "most_w": spare.most_w,
                    "features": [_curve_data(curve) for curve in spare.curves],
                }
                for name, spare in model.without.items()
            },
            "interval": plain(model.widths),
        },
    )


def _of_feature(form: Form, place: int) -> dict[str, Any]:
    """Weight or curve of a feature, and its range."""
    curve = form.curves[place] if form.curves else None
    data: dict[str, Any] = {"weight": form.weights[place] if form.weights else 0.0}
    return {**data, **_curve_data(curve), **form.ranges[place]._asdict()}


def _curve_data(curve: Curve | None) -> dict[str, Any]:
    return {} if curve is None else {"curve": [list(point) for point in curve.points], "reach": curve.reach}


def dumps(model: Model) -> str:
    """The text of the file: indented, with lists of numbers on one line."""
    return _pretty(to_dict(model), 0) + "\n"


def _pretty(data: Any, depth: int) -> str:
    if isinstance(data, Mapping) and data:
        inner = ",\n".join(
            f"{' ' * (depth + 1)}{json.dumps(key, ensure_ascii=False)}: {_pretty(value, depth + 1)}"
            for key, value in data.items()
        )
        return f"{{\n{inner}\n{' ' * depth}}}"
    if isinstance(data, list) and any(isinstance(item, Mapping | list) for item in data):
        inner = ",\n".join(f"{' ' * (depth + 1)}{_line(item)}" for item in data)
        return f"[\n{inner}\n{' ' * depth}]"
    return _line(data)


def _line(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def load_model(path: str | Path) -> Model:
    """A model from its file. UsageError says what is wrong with one that is not to be trusted."""
    path = Path(path)
    try:
        data = foreign.parse_json(foreign.read_text(path, limits=foreign.Limits(total_bytes=MOST_BYTES)))
    except UsageError as error:
        raise UsageError(error.message, cure="everywatt model fit … --out FILE") from None
    except ValueError:
        raise UsageError(f"{path} is not a model file: it is not JSON.") from None
    return from_dict(data, str(path))


def from_dict(data: Any, where: str = "the model") -> Model:
    """A model from plain data, checked in full."""
    check = _Check(where)
    whole = check.table(data, "the file")
    if whole.get("kind") != KIND or not str(whole.get("schema", "")).startswith("everywatt/"):
        check.fail("it is not marked as one")
    entries = check.items(whole.get("features"), "features", MOST_FEATURES)
    columns = {
        check.name(name): check.range(entry) for name, entry in check.table(whole.get("columns"), "columns").items()
    }
    features = tuple(_feature(check, entry, columns) for entry in entries)
    form = _form(check, check.table(whole.get("form"), "form"), features, entries)
    units = {name: str(entry.get("unit", ""))[:40] for name, entry in whole["columns"].items()}
    return Model(
        target=check.name(whole.get("target")),
        form=form,
        widths=_widths(check, check.table(whole.get("interval"), "interval"), len(features)),
        period_s=check.number(whole.get("period_s"), "period_s", 1e-4, 1e7),
        columns=columns,
        units=units,
        host=str(whole.get("host", ""))[:MOST_NAME],
        gain=check.number(whole.get("gain", 1.0), "gain", 1e-6, 1e6),
        offset_w=check.number(whole.get("offset_w", 0.0), "offset_w", -1e6, 1e6),
        errors=[_error(check, entry) for entry in check.items(whole.get("errors", []), "errors", 1000)],
        about=_about(check, check.table(whole.get("about", {}), "about")),
        without={
            check.name(name): _without(check, entry, form)
            for name, entry in check.table(whole.get("without", {}), "without").items()
        },
    )


def _without(check: _Check, entry: Any, form: Form) -> Form:
    """The curves that do without a column."""
    data = check.table(entry, "without")
    entries = check.items(data.get("features"), "features", MOST_FEATURES)
    curves = [_curve(check, check.table(one, "a feature")) for one in entries]
    if form.kind != "rising" or len(curves) != len(form.features):
        check.fail("curves without a column that do not belong to its features")
    idle_w = check.number(data.get("idle_w"), "idle_w", -1e9, 1e9)
    most_w = check.number(data.get("most_w"), "most_w", 0.0, 1e9)
    return replace(form, idle_w=idle_w, most_w=most_w, curves=tuple(curves), trees=(), band=0.0, near=0.0, lift=0.0)


def _error(check: _Check, entry: Any) -> dict[str, Any]:
    data = check.table(entry, "errors")
    for key in ("blocked_pct", "blocked_w", "load_out_pct", "worst_pct"):
        if data.get(key) is not None:
            check.number(data[key], key)
    return dict(data)


def _about(check: _Check, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Descriptions for people. Figures must be numbers, since reports calculate with them."""
    for key in ABOUT_NUMBERS:
        if data.get(key) is not None:
            check.number(data[key], key)
    for key in ABOUT_TABLES:
        for name, value in check.table(data.get(key, {}), key).items():
            check.number(value, name[:MOST_NAME])
    return data


def _feature(check: _Check, entry: Any, columns: Mapping[str, Range]) -> Feature:
    data = check.table(entry, "a feature")
    if data.get("kind") not in KINDS:
        check.fail(f"there is no feature of kind {str(data.get('kind'))[:40]!r}")
    seconds = check.number(data.get("seconds", 0.0), "seconds", 0.0, 1e6)
    if data["kind"] == "mean" and seconds <= 0:
        check.fail("an average over no time")
    feature = Feature(data["kind"], check.name(data.get("column")), str(data.get("other", ""))[:MOST_NAME], seconds)
    for name in feature.columns:
        if name not in columns:
            check.fail(f"the feature {feature.name[:80]!r} needs a column that is not named")
    return feature


def _form(check: _Check, data: Mapping[str, Any], features: Sequence[Feature], entries: Sequence[Any]) -> Form:
    if data.get("kind") not in FORMS:
        check.fail(f"there is no form {str(data.get('kind'))[:40]!r}")
    trees = tuple(_tree(check, tree, len(features)) for tree in check.items(data.get("trees", []), "trees", MOST_TREES))
    return Form(
        data["kind"],
        tuple(features),
        tuple(check.range(entry) for entry in entries),
        check.number(data.get("least_w"), "least_w", 0.0, 1e9),
        check.number(data.get("idle_w"), "idle_w", -1e9, 1e9),
        tuple(check.number(entry.get("weight", 0.0), "weight") for entry in entries),
        trees,
        check.number(data.get("share", 1.0), "share", 0.0, 1.0),
        str(data.get("plugin", ""))[:MOST_NAME],
        dict(check.table(data.get("payload", {}), "payload")),
        tuple(_curve(check, entry) for entry in entries) if data["kind"] == "rising" else (),
        check.number(data.get("seen_w", 0.0), "seen_w", 0.0, 1e9),
        check.number(data.get("most_w", 0.0), "most_w", 0.0, 1e9),
        check.number(data.get("band", 0.0), "band", 0.0, 100.0),
        check.number(data.get("near", 0.0), "near", 0.0, 10.0),
        check.number(data.get("base_w", 0.0), "base_w", 0.0, 1e9),
        check.number(data.get("lift", 0.0), "lift", 0.0, 10.0 if features else 0.0),  # it is about the first column
    )


def _curve(check: _Check, entry: Mapping[str, Any]) -> Curve | None:
    if entry.get("curve") is None:
        return None
    points = [check.items(point, "a point", 2) for point in check.items(entry["curve"], "curve", MOST_NODES)]
    if len(points) < 2 or any(len(point) != 2 for point in points):
        check.fail("a curve without points")
    made = tuple((check.number(x, "curve", -1e30, 1e30), check.number(w, "curve", -1e9, 1e9)) for x, w in points)
    if any(a[0] >= b[0] or a[1] > b[1] for a, b in itertools.pairwise(made)):
        check.fail("a curve that does not rise")
    return Curve(made, check.number(entry.get("reach", 0.0), "reach", 0.0, 1e30))


def _tree(check: _Check, data: Any, features: int) -> Tree:
    table = check.table(data, "a tree")
    parts = [check.items(table.get(key), key, MOST_NODES) for key in ("feature", "threshold", "left", "right", "value")]
    size = len(parts[0])
    if not size or any(len(part) != size for part in parts):
        check.fail("a tree with lists of different lengths")
    until = check.items(table.get("until", []), "until", MOST_NODES)
    if until and len(until) != size:
        check.fail("a tree with lists of different lengths")
    feature, left, right = ([check.whole(v, "a node") for v in parts[place]] for place in (0, 2, 3))
    for node in range(size):
        if feature[node] >= features or feature[node] < -1:
            check.fail("a tree that refers to a missing feature")
        # Children come after their parent, so that every walk ends.
        if feature[node] >= 0 and not (node < left[node] < size and node < right[node] < size):
            check.fail("a tree with an invalid link")
    # Each has one parent, so that no walk over both sides of many nodes visits one again and again.
    children = [side[node] for node in range(size) if feature[node] >= 0 for side in (left, right)]
    if len(set(children)) != len(children):
        check.fail("a tree with an invalid link")
    threshold, value, last = (tuple(check.number(v, "a tree") for v in part) for part in (parts[1], parts[4], until))
    return Tree(tuple(feature), threshold, tuple(left), tuple(right), value, last)


def _widths(check: _Check, data: Mapping[str, Any], features: int) -> Widths:
    def numbers(key: str, most: int) -> tuple[float, ...]:
        return tuple(check.number(v, key) for v in check.items(data.get(key), key, most))

    places = tuple(check.whole(v, "places") for v in check.items(data.get("places"), "places", MOST_FEATURES))
    weights = numbers("weights", MOST_FEATURES)
    lists = {
        key: tuple(
            tuple(check.number(v, key) for v in check.items(part, key, 1024))
            for part in check.items(data.get(key), key, 1024)
        )
        for key in ("knots", "centres")
    }
    novelty, below, above = numbers("novelty", 100), numbers("below", 100), numbers("above", 100)
    if any(not 0 <= place < features for place in places) or not len(places) == len(weights) == len(lists["knots"]):
        check.fail("the interval refers to missing features")
    if any(len(centre) != len(places) for centre in lists["centres"]):
        check.fail("the interval's centres have a different length")
    if not novelty or not len(novelty) == len(below) == len(above) or list(novelty) != sorted(novelty):
        check.fail("the interval's steps are not sorted")
    out = check.number(data.get("out", 1.0), "out", 0.0, 100.0)
    if min(*below, *above, 0.0) < 0:
        check.fail("an interval of negative width")
    level = check.number(data.get("level"), "level", 0.01, 0.9999)
    scales = tuple(check.number(v, "scales", 1e-12) for v in check.items(data.get("scales", []), "scales", 1024))
    if scales and len(scales) != len(lists["centres"]):
        check.fail("the interval's scales have a different length")
    stuck = {check.name(name): _stuck(check, one) for name, one in check.table(data.get("stuck", {}), "stuck").items()}
    centres = lists["centres"]
    return Widths(level, places, weights, lists["knots"], centres, novelty, below, above, out, scales, stuck)


def _stuck(check: _Check, entry: Any) -> Stuck:
    data = check.table(entry, "stuck")
    below, above = (check.number(data.get(key), key, 0.0, 100.0) for key in ("below", "above"))
    return Stuck(check.whole(data.get("rows"), "rows"), below, above)


class _Check:
    """Takes values out of untrusted data."""

    def __init__(self, where: str) -> None:
        self._where = where

    def fail(self, what: str) -> NoReturn:
        raise UsageError(f"{self._where} is not a usable model file: {what}.")

    def table(self, value: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(value, dict) or len(value) > 10_000:
            self.fail(f"{what} is not a table")
        return value

    def items(self, value: Any, what: str, most: int) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            self.fail(f"{what} is not a list of at most {most}")
        return value

    def name(self, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME:
            self.fail("a name is missing or too long")
        return value

    def number(self, value: Any, what: str, low: float = -1e300, high: float = 1e300) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.fail(f"{what} is not a number")
        if not low <= value <= high:
            self.fail(f"{what} is {value:g}")
        return float(value)

    def whole(self, value: Any, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"{what} is not a whole number")
        return value

    def range(self, entry: Any) -> Range:
        data = self.table(entry, "a range")
        low, high, middle = (self.number(data.get(key), key) for key in ("low", "high", "middle"))
        if low > high:
            self.fail("a range that ends before it begins")
        return Range(low, high, middle)
