"""Fits on data whose law is known, and on a stretch of a real server's counters."""

from pathlib import Path

import numpy as np
import pytest

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.models.applying import apply, evaluate, transfer
from everywatt.models.features import Feature
from everywatt.models.fitting import fit
from everywatt.models.learners import Candidate, fit_form, predict_form
from everywatt.models.modelfile import dumps, from_dict, to_dict
from everywatt.models.reading import read_table
from everywatt.models.screening import screen
from everywatt.models.table import Table
from everywatt.models.validation import folds_of

EXTRACT = Path(__file__).with_name("xeon_e5_2667v3_extract.csv")
PLAIN = ("linear", "curved")


def world(rows=400, seed=1, noise=0.01, **more):
    """40 W idle, 60 W for the CPU, 20 W for memory, in steps of ten rows."""
    random = np.random.default_rng(seed)
    cpu, memory = (np.repeat(random.random(rows // 10 + 1), 10)[:rows] for _ in range(2))
    watts = (40 + 60 * cpu + 20 * memory) * (1 + noise * random.standard_normal(rows))
    return Table(np.arange(rows) * 1.0, {"power": watts, "cpu_time": cpu, "memory": memory, **more})


def form_of(kind, x, y):
    features = tuple(Feature("value", f"c{place}") for place in range(x.shape[1]))
    return fit_form(Candidate(kind, kind, features), x, y)


def test_non_negative_weights_are_those_of_the_law():
    table = world(noise=0.0)
    x = np.column_stack([table.columns["cpu_time"], table.columns["memory"]])
    form = form_of("linear", x, table.columns["power"])
    slopes = [curve.points[-1][1] / curve.points[-1][0] for curve in form.curves]
    assert form.idle_w == pytest.approx(40, rel=1e-3) and slopes == pytest.approx([60, 20], rel=1e-3)


@pytest.mark.parametrize("kind", ["linear", "curved", "mixed"])
def test_power_that_falls_with_a_column_is_not_learnt_from_it(kind):
    x = np.linspace(0, 1, 100)
    form = form_of(kind, np.column_stack([x, 1 - x]), 50 - 20 * x)
    assert form.idle_w >= 0
    for place in range(2):
        row = np.full((200, 2), 0.5)
        row[:, place] = np.linspace(-1, 4, 200)
        assert (np.diff(predict_form(form, row)) >= -1e-9).all()


@pytest.mark.parametrize("kind", ["linear", "curved", "mixed"])
def test_rows_one_by_one_are_the_same_as_all_at_once_and_bounded(kind):
    random = np.random.default_rng(6)
    x = random.random((300, 2)) * [1, 1e9]
    y = 20 + 30 * np.sqrt(x[:, 0]) + 1e-8 * x[:, 1] + random.random(300)
    form = form_of(kind, x, y)
    far = np.vstack([x[:20], 10 * x[:20], 0.01 * x[:20], -x[:20], 1e6 * x[:20]])
    assert [form.watts(row) for row in far.tolist()] == pytest.approx(predict_form(form, far).tolist())
    assert predict_form(form, far).max() <= form.most_w == pytest.approx(form.idle_w + 3 * (y.max() - form.idle_w))


def test_trees_rise_with_a_change_and_take_rows_below_the_range_for_falling():
    """Power that is ahead of its counter: half of a row's rise is in the row before."""
    use = np.repeat(np.random.default_rng(7).random(60) + 0.5, 5)
    change = np.diff(use, prepend=use[0])
    features = (Feature("value", "c"), Feature("change", "c", seconds=1.0))
    x = np.column_stack([use, change])
    form = fit_form(Candidate("mixed", "mixed", features), x, 20 + 30 * use + 15 * change)
    for place, span in ((0, (-1, 4)), (1, (-2, 2))):
        row = np.tile([1.0, 0.0], (200, 1))
        row[:, place] = np.linspace(*span, 200)
        watts = predict_form(form, row)
        assert (np.diff(watts) >= -1e-9).all() and np.ptp(watts) > 5
        assert [form.watts(one) for one in row.tolist()] == pytest.approx(watts.tolist())
    below, lowest = form.watts([form.ranges[0].low - 1e-9, 0.0]), form.watts([form.ranges[0].low, form.ranges[1].low])
    assert below == pytest.approx(lowest, rel=1e-6)


def test_a_linear_world_is_learnt_and_its_error_told():
    found = fit(world(), "power", only=("linear",))
    best = found.chosen
    assert best.candidate.name == "linear" and best.blocked_pct < 1.2 and best.loads_pct < 1.5
    assert [one.candidate.name for one in found.scores] == ["mean", "least squares", "linear"]
    tested = evaluate(found.model, world(seed=2), "power")
    assert tested["r2"] > 0.99 and tested["mape_pct"] < 1.2
    assert tested["coverage"] >= 0.88
    assert found.coverage >= 0.88


def test_a_bent_law_is_learnt():
    """20 + 100 × (busy share)^1.5 W, steps of five rows."""
    busy = np.repeat(np.random.default_rng(7).random(60), 5)
    table = Table(np.arange(300.0), {"power": 20 + 100 * busy**1.5, "cpu_time": busy})
    found = fit(table, "power")
    assert found.chosen.candidate.name != "linear" and found.chosen.blocked_pct < 4


def test_noise_has_no_relation():
    random = np.random.default_rng(3)
    use = {c: random.random(150) for c in ("cpu", "b")}
    table = Table(np.arange(150.0), {"power": 50 + random.random(150), **use})
    found = fit(table, "power", only=(*PLAIN, "mixed"))
    assert found.model is None and found.chosen is None
    assert "mean" in found.why
    assert len(found.scores) == 5


def test_inputs_at_twice_the_maximum_are_flagged_and_wider():
    found = fit(world(), "power", only=("linear",))
    usual = world()
    twice = usual.with_columns({name: 2 * values for name, values in usual.columns.items()})
    inside, outside = apply(found.model, usual), apply(found.model, twice)
    hot = usual.columns["cpu_time"] > 0.9
    assert not any(inside.outside) and all(outside.outside[k] for k in np.flatnonzero(hot))
    width = (inside.high - inside.low) / inside.watts
    wide = (outside.high - outside.low) / outside.watts
    assert (wide[hot] > 2 * width[hot]).all()
    truth = 40 + 60 * twice.columns["cpu_time"] + 20 * twice.columns["memory"]
    assert (outside.watts[hot] > 0.85 * truth[hot]).all() and (outside.watts[hot] < truth[hot]).all(), "it saturates"


@pytest.mark.parametrize("power", [0.6, 1.0, 1.6])
def test_intervals_hold_beyond_what_was_learnt(power):
    """Learnt up to half of the CPU's time and asked about the rest, where the line need not be straight."""
    random = np.random.default_rng(4)
    cpu = np.repeat(random.random(120), 5)
    watts = (40 + 60 * cpu**power) * (1 + 0.01 * random.standard_normal(600))
    table = Table(np.arange(600.0), {"power": watts, "cpu_time": cpu, "memory": np.repeat(random.random(60), 10)})
    low = np.flatnonzero(cpu <= 0.5)
    model = fit(table.take(low), "power", only=("linear",)).model
    rest = table.take(np.flatnonzero(cpu > 0.55))
    tested = evaluate(model, rest, "power")
    assert tested["coverage"] >= 0.85 and tested["outside_share"] == 1.0
    assert evaluate(model, table.take(low), "power")["outside_share"] == 0.0


def test_folds_are_time_loads_and_ranges():
    rows = np.arange(100.0)
    folds = folds_of(["a"] * 50 + ["b"] * 50, {"cpu": rows, "flat": np.ones(100)})
    assert [(one.kind, one.name, len(one.rows)) for one in folds] == [
        *(("time", f"block {n} of 5", 20) for n in range(1, 6)),
        ("time", "first 30%", 30),
        ("time", "last 30%", 30),
        ("load", "a", 50),
        ("load", "b", 50),
        ("range", "cpu above 69.3", 30),
        ("range", "cpu below 29.7", 30),
    ]


def test_a_model_of_trees_is_its_file_and_plain_python_says_the_same():
    table = read_table(EXTRACT).take(slice(0, 120))
    found = fit(table, "package_power", ignore=["dram_power"], only=("mixed",))
    model = found.model
    assert found.scores[-1].blocked_pct < found.scores[0].blocked_pct / 2
    again = from_dict(to_dict(model))
    assert dumps(again) == dumps(model)
    from everywatt.models.features import History

    history = History(model.form.features, model.period_s)
    applied = apply(model, table)
    for row in range(len(table)):
        one = again.predict(history.row(table.times_s[row], {n: v[row] for n, v in table.columns.items()}))
        assert one.watts == pytest.approx(applied.watts[row], rel=1e-9)
        assert (one.low, one.high) == pytest.approx((applied.low[row], applied.high[row]))


def test_the_share_of_a_leaky_column_is_left_out_and_told():
    table = world()
    watts = table.columns["power"]
    table = table.with_columns({**table.columns, "dram_power": watts / 2, "echo": np.roll(watts, -1)})
    found = fit(table, "power", only=PLAIN)
    said = " ".join(found.warnings)
    assert "dram_power is itself a power or energy" in said
    assert "echo is power itself 1 row ago" in said or "echo is power itself 1 row ahead" in said
    assert set(found.model.needs) == {"cpu_time", "memory"}


def test_power_that_is_a_line_of_use_is_learnt_and_doubted():
    """20 W + 30 W × share to the last digit: R² is 1, and that no meter gives such figures is said."""
    share = np.random.default_rng(3).random(400)
    table = Table(np.arange(400.0), {"cpu_busy": share, "power": 20 + 30 * share})
    found = fit(table, "power", only=PLAIN)
    assert any("power follows cpu_busy exactly" in text for text in found.warnings)
    assert found.chosen.blocked_pct < 0.1
    assert evaluate(found.model, table, "power")["r2"] > 0.99


def test_constant_missing_and_gappy_columns_are_told():
    table = world(limit=np.full(400, 7.0), hole=np.where(np.arange(400) < 200, np.nan, 1.0), odd=np.full(400, np.nan))
    columns = dict(table.columns)
    columns["memory"] = np.where(np.arange(400) % 50 == 0, np.nan, columns["memory"])
    times = table.times_s + np.where(np.arange(400) > 100, 3600, 0)
    found = fit(Table(times, columns), "power", only=PLAIN)
    said = " ".join(found.warnings)
    texts = ("limit never changes", "hole has no value in 50.0 %", "memory has no value in 2.0 %", "1 gaps in time")
    for text in texts:
        assert text in said
    assert found.chosen.blocked_pct < 2


def test_a_column_too_large_to_compute_with_is_left_out():
    huge = 1e308 * np.random.default_rng(3).random(400)
    found = screen(world(broken=huge), "power")
    assert set(found.names) == {"cpu_time", "memory"}
    assert any("broken" in warning and "too large" in warning for warning in found.warnings)


def test_a_dead_sensor_is_refused_and_a_dead_stretch_left_out():
    table = world()
    with pytest.raises(MeasurementRefused, match="never changes"):
        fit(table.with_columns({**table.columns, "power": np.full(400, 50.0)}), "power")
    watts = table.columns["power"].copy()
    watts[100:180] = 61.0
    found = fit(table.with_columns({**table.columns, "power": watts}), "power", only=PLAIN)
    assert "was constant for 80 rows" in " ".join(found.warnings)
    assert found.chosen.blocked_pct < 1.5


def test_units_that_are_mixed_up_are_caught():
    table = world()
    mixed = np.where(np.arange(400) % 9 == 0, table.columns["power"] * 1000, table.columns["power"])
    with pytest.raises(UsageError, match="two units"):
        fit(table.with_columns({**table.columns, "power": mixed}), "power")
    with pytest.raises(UsageError, match="cannot be the watts of a machine"):
        fit(table.with_columns({**table.columns, "power": table.columns["power"] * 1e6}), "power")
    model = fit(table, "power", only=("linear",)).model
    with pytest.raises(UsageError, match="is the unit different"):
        apply(model, table.with_columns({**table.columns, "cpu_time": table.columns["cpu_time"] * 1e6}))


def test_watts_of_a_hundred_servers_are_doubted():
    table = world()
    milli = table.with_columns({**table.columns, "power": 1000 * table.columns["power"]})
    assert any("milliwatts" in warning for warning in screen(milli, "power").warnings)
    assert not any("milliwatts" in warning for warning in screen(table, "power").warnings)


def test_a_model_without_its_columns_says_which():
    model = fit(world(), "power", only=("linear",)).model
    with pytest.raises(UsageError, match="needs memory"):
        apply(model, Table(np.arange(3.0), {"cpu_time": np.ones(3)}))


def test_a_model_moves_to_another_machine():
    model = fit(world(), "power", only=("linear",)).model
    here = world(rows=120, seed=8)
    here = here.with_columns({**here.columns, "power": 15 + 1.4 * here.columns["power"]})
    assert evaluate(model, here, "power")["mape_pct"] > 25
    moved = transfer(model, here, "power", "laptop")
    later = world(seed=9)
    later = later.with_columns({**later.columns, "power": 15 + 1.4 * later.columns["power"]})
    tested = evaluate(moved, later, "power")
    assert tested["mape_pct"] < 1.5 and tested["coverage"] > 0.8
    assert moved.host == "laptop" and moved.gain == pytest.approx(1.4, rel=0.05)


def test_a_learner_of_somebody_else_is_tried_and_kept_as_data(monkeypatch):
    from everywatt.models import learners

    class Median:
        name = "median"

        def fit(self, x, y, names):
            return {"watts": float(np.median(y))}

        def predict(self, payload, x):
            return np.full(len(x), payload["watts"])

    monkeypatch.setattr(learners, "registered", lambda group: {"median": "other:Median"})
    monkeypatch.setattr(learners, "load_plugin", lambda group, name: Median())
    found = fit(world(), "power", only=("median", "linear"))
    assert [one.candidate.name for one in found.scores] == ["mean", "least squares", "linear", "median"]
    form = learners.fit_form(found.scores[-1].candidate, np.zeros((3, 2)), np.array([1.0, 2, 9]))
    assert form.payload == {"watts": 2.0}
    assert learners.predict_form(form, np.zeros((4, 2))).tolist() == [2.0] * 4
