"""Columns that say nothing: no value, or the same one for too long. The interval is wider, and the column is named."""

from dataclasses import replace

import numpy as np
import pytest

from everywatt.cli.main import main
from everywatt.models.applying import apply, scale_warnings
from everywatt.models.design import still_rows
from everywatt.models.features import Feature, History
from everywatt.models.fitting import fit
from everywatt.models.modelfile import dumps, from_dict, to_dict
from everywatt.models.table import Table

ROWS = 400


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(5)
    busy = np.repeat(random.random(ROWS // 4), 4) + 0.01 * random.random(ROWS)
    watts = 20 + 80 * busy + random.standard_normal(ROWS)
    return Table(np.arange(ROWS) * 3.0, {"busy": busy, "other": random.random(ROWS), "watts": watts})


@pytest.fixture(scope="module")
def model(table):
    made = fit(table, "watts", only=["linear"]).model
    assert made is not None
    return from_dict(to_dict(made))


@pytest.fixture(scope="module")
def two():
    """Use that two columns count, one of them within 5 %."""
    random = np.random.default_rng(6)
    busy = np.repeat(random.random(ROWS // 4), 4) + 0.05
    columns = {"cycles": busy * random.normal(1, 0.01, ROWS), "seconds": busy * random.normal(1, 0.05, ROWS)}
    return Table(np.arange(ROWS) * 3.0, {**columns, "watts": 20 + 80 * busy + random.standard_normal(ROWS)})


def test_while_a_column_is_stuck_the_others_say_the_watts(two):
    """At its median the watts would be up to 60 % off; the other column knows them within 5 %."""
    made = fit(two, "watts", only=["curved"])
    (frozen,) = [one for one in made.shifts if one.name == "cycles frozen"]
    assert frozen.error_pct < 6 and frozen.coverage >= 0.88
    model = from_dict(to_dict(made.model))
    assert to_dict(model) == to_dict(made.model) and "cycles" in model.without
    truth, stuck = two.column("watts"), two.with_columns({**two.columns, "cycles": np.full(ROWS, 0.5)})
    found = apply(model, stuck)
    assert all("cycles" in names for names in found.outside)
    assert np.mean(np.abs(found.watts / truth - 1)) < 0.06
    assert ((found.low <= truth) & (truth <= found.high)).mean() >= 0.88
    history, last = History(model.form.features, 3.0), None
    for place in range(ROWS):
        row = history.row(place * 3.0, {name: stuck.column(name)[place] for name in ("cycles", "seconds")})
        last = model.predict(row, history.still)
    assert last.watts == pytest.approx(found.watts[-1])


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_a_stuck_column_is_named_and_its_interval_holds(model, table, value):
    stuck = table.with_columns({**table.columns, "busy": np.full(ROWS, value)})
    fine, broken = apply(model, table), apply(model, stuck)
    assert not any("busy" in names for names in fine.outside) and all("busy" in names for names in broken.outside)
    truth = table.column("watts")
    assert ((broken.low <= truth) & (truth <= broken.high)).mean() >= 0.88
    assert np.median(broken.high - broken.low) > 5 * np.median(fine.high - fine.low)


def test_a_sensor_sees_it_from_the_first_row_that_is_too_many(model):
    history, rows = History(model.form.features, 3.0), model.widths.stuck["busy"].rows
    named = []
    for place in range(rows + 2):
        values = {"busy": 0.5, "other": 0.3 + place / 1000}
        row = history.row(place * 3.0, values)
        named.append("busy" in model.predict(row, history.still).outside)
    assert named == [False] * rows + [True] * 2


def test_nothing_may_happen_for_as_long_as_it_likes():
    values = np.array([0.0, 0, 0, 2, 2, 3, np.nan, np.nan, 3])
    assert still_rows(values).tolist() == [1, 1, 1, 2, 2, 1, 0, 0, 1]
    history = History([Feature("value", "a")], 1.0)
    found = []
    for place, value in enumerate(values[:6].tolist()):
        history.row(float(place), {"a": value})
        found.append(history.still["a"])
    assert found == [1, 1, 1, 1, 2, 1]  # so far, where `still_rows` knows the whole stretch


def test_files_of_earlier_versions_have_neither(model):
    data = to_dict(model)
    for key in ("scales", "stuck"):
        del data["interval"][key]
    del data["without"]
    old = from_dict(data)
    assert old == replace(model, widths=replace(model.widths, scales=(), stuck={}), without={})
    assert old.predict([0.5, 0.3, 0.1], {"busy": 9999}).outside == model.predict([0.5, 0.3, 0.1]).outside


def test_a_model_says_which_column_could_be_scaled_without_a_sign(table, tmp_path, capsys):
    """One column alone: nothing shows that it counts a quarter more than before."""
    made = fit(table, "watts", features=["busy"], only=["linear"])
    assert min(one.coverage for one in made.shifts if one.kind == "column") < 0.5
    (warning,) = scale_warnings(from_dict(to_dict(made.model)))
    assert warning in made.warnings and warning.startswith("the interval does not allow for a scaled busy")
    file = tmp_path / "m.json"
    file.write_text(dumps(made.model))
    assert main(["model", "install", str(file), "--dry-run"]) == 0
    assert warning in " ".join(capsys.readouterr().err.split())
