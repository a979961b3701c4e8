"""A model file from elsewhere is data: whatever is wrong with it is told, and nothing is executed."""

import copy
import json

import numpy as np
import pytest

from everywatt.core.errors import UsageError
from everywatt.models.fitting import fit
from everywatt.models.modelfile import MOST_BYTES, dumps, from_dict, load_model, to_dict
from everywatt.models.table import Table


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(1)
    cpu = np.repeat(random.random(30), 10)
    table = Table(np.arange(300.0), {"power": 10 + 5 * cpu + 0.5 * random.random(300), "cpu": cpu})
    made = to_dict(fit(table, "power", only=("linear",)).model)
    made["form"]["trees"] = [
        {
            "feature": [0, -1, -1],
            "threshold": [0.5, 0, 0],
            "left": [1, 0, 0],
            "right": [2, 0, 0],
            "value": [0, 0.1, 0.2],
        }
    ]
    return made


def broken(data, path, value):
    made = copy.deepcopy(data)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def test_the_file_is_small_readable_and_whole(data, tmp_path):
    path = tmp_path / "m.json"
    model = from_dict(data)
    path.write_text(dumps(model))
    assert path.stat().st_size < 20_000
    head = json.loads(path.read_text())
    assert head["kind"] == "model" and head["target"] == "power" and head["unit"] == "W"
    assert {"model", "rows", "validated", "blocked_error_pct", "load_out_error_pct"} <= head["about"].keys()
    assert load_model(path) == model


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kind",), "run"),
        (("target",), ""),
        (("period_s",), -1),
        (("form", "near"), -0.1),
        (("form", "lift"), -0.1),
        (("period_s",), float("inf")),
        (("gain",), "1"),
        (("features",), {}),
        (("features", 0, "kind"), "__import__('os').system('true')"),
        (("features", 0, "column"), "not named"),
        (("features", 0, "weight"), None),
        (("features", 0, "low"), 1e9),
        (("form", "kind"), "pickle"),
        (("form", "idle_w"), True),
        (("form", "trees", 0, "left"), [0, 0, 0]),
        (("form", "trees", 0, "right"), [9, 0, 0]),
        (("form", "trees", 0, "feature"), [7, -1, -1]),
        (("form", "trees", 0, "value"), [0]),
        (("form", "trees"), [{}] * 3000),
        (("interval", "places"), [4]),
        (("interval", "below"), [-1]),
        (("interval", "novelty"), []),
        (("interval", "level"), 2),
        (("about",), []),
        (("about",), {"watts": [1, 2]}),
        (("about",), {"watts": {"low": "1"}}),
        (("about",), {"rows": 3, "seconds": "long"}),
        (("about",), {"load_out_error_pct": float("nan")}),
        (("about",), {"importance": {"cpu": None}}),
        (("errors",), [{"model": "x", "blocked_pct": "small"}]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_refused(data, path, value):
    with pytest.raises(UsageError, match="not a usable model file"):
        from_dict(broken(data, path, value))


def test_files_that_are_none(tmp_path):
    path = tmp_path / "m.json"
    for text in ("", "[1]", "[" * 100_000, "\x80\x04pickle"):
        path.write_text(text)
        with pytest.raises(UsageError):
            load_model(path)
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UsageError, match="larger"):
        load_model(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_model(tmp_path / "none.json")
