"""Columns that say nothing: no value, or the same one for too long. The interval is wider, and the column is named."""

from dataclasses import replace

import numpy as np
import pytest

from everywatt.models.applying import apply
from everywatt.models.design import still_rows
from everywatt.models.features import Feature, History
from everywatt.models.fitting import fit
from everywatt.models.modelfile import from_dict, to_dict
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
    old = from_dict(data)
    assert old == replace(model, widths=replace(model.widths, scales=(), stuck={}))
    assert old.predict([0.5, 0.3, 0.1], {"busy": 9999}).outside == model.predict([0.5, 0.3, 0.1]).outside
