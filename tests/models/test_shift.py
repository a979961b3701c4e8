"""Models under shift: loads, ranges of use and faulty columns that the training did not contain."""

from pathlib import Path

import numpy as np
import pytest

from everywatt.models.applying import effects, evaluate, scale_warnings
from everywatt.models.features import Feature, History
from everywatt.models.fitting import fit
from everywatt.models.learners import Candidate, fit_form, predict_form
from everywatt.models.modelfile import from_dict, to_dict
from everywatt.models.reading import read_table
from everywatt.models.table import Table

EXTRACT = Path(__file__).with_name("xeon_e5_2667v3_extract.csv")


@pytest.fixture(scope="module")
def found():
    return fit(read_table(EXTRACT), "package_power", ignore=["dram_power"])


def test_power_never_falls_while_use_rises(found):
    _, columns = effects(found.model)
    assert min(one.high_w - one.middle_w for one in columns) >= 0
    assert min(one.middle_w - one.low_w for one in columns) >= 0


def test_the_interval_of_a_short_table_holds_every_fold(found):
    """320 rows: each fold has few at any one distance, and still counts."""
    assert min(one.coverage for one in found.shifts) >= 0.88 and not scale_warnings(found.model)


def test_every_validation_is_about_as_close_as_least_squares(found):
    """Each with what was chosen without it."""
    assert max(one.error_pct / one.baseline_pct for one in found.shifts) <= 1.2


@pytest.mark.parametrize("rows", [slice(62), slice(0, 310, 5)])
def test_every_fold_of_62_rows_is_held(rows):
    """The factor that the most demanding fold needs beyond what the others say; 38 and 42 % of a fold without it."""
    found = fit(read_table(EXTRACT).take(rows), "package_power", ignore=["dram_power"])
    assert min(one.coverage for one in found.shifts) >= 0.88 and found.model.about["widened"] > 1


def test_our_own_series_are_columns_to_learn_from():
    random = np.random.default_rng(1)
    busy = np.repeat(random.random(30), 10)
    columns = {
        "everywatt_power_watts{device=cpu.0}": (40 + 60 * busy) * (1 + 0.01 * random.standard_normal(300)),
        "everywatt_host_cpu_seconds_total": busy,
        "everywatt_energy_joules_total{device=cpu.0}": 40 + 60 * busy,
    }
    learnt = fit(Table(np.arange(300.0), columns), "everywatt_power_watts{device=cpu.0}", only=("linear",))
    assert learnt.model.needs == ("everywatt_host_cpu_seconds_total",)


def test_models_that_follow_different_columns_have_the_same_validations():
    found = fit(read_table(EXTRACT).take(slice(62)), "package_power", ignore=["dram_power"])
    faults = {one.name for one in found.scores[0].held if one.kind == "column"}
    assert faults and all({held.name for held in one.held if held.kind == "column"} == faults for one in found.scores)


def test_intervals_of_62_rows_are_honest():
    """Every fifth row of a quarter of an hour, asked about those between."""
    table = read_table(EXTRACT)
    few = np.arange(0, 310, 5)
    model = fit(table.take(few), "dram_power", ignore=["package_power"], only=("linear", "curved")).model
    tested = evaluate(model, table.take(np.setdiff1d(np.arange(320), few)), "dram_power")
    assert tested["coverage"] >= 0.9


def test_watts_between_two_loads_lie_between_theirs():
    """116 W at 43, 172 W at 50, and two rows in which the one load went over to the other."""
    random = np.random.default_rng(3)
    use = np.concatenate([np.repeat(random.uniform(5, 43, 30), 5), random.uniform(50, 51, 60), [43.2, 44.3]])
    use[:150] += random.uniform(-0.2, 0, 150)
    watts = np.where(use < 43.1, 30 + 2 * use, 172.0) * random.normal(1, 0.005, len(use))
    watts[-2:] = 145, 154
    made = fit(Table(np.arange(float(len(use))), {"use": use, "watts": watts}), "watts", only=("mixed",)).model
    for one in (made, from_dict(to_dict(made))):
        at = [one.predict(History(one.form.features, 1.0).row(0.0, {"use": u})).watts for u in (43.0, 44.5, 46.5, 50.0)]
        assert at == sorted(at) and 116 < at[1] < 140 and at[1] < at[2] < 165
    assert predict_form(made.form, np.array([[44.5, 0.0]]))[0] == pytest.approx(at[1])


def test_a_column_that_does_not_flatten_saturates_later():
    random = np.random.default_rng(4)
    use = np.repeat(random.random(40), 5)
    noise = random.normal(1, 0.01, 200)
    straight, bent = 40 + 10 * use, 40 + 10 * np.minimum(use, 0.5) + np.maximum(use - 0.5, 0)
    far = []
    for watts in (straight, bent):
        made = fit(Table(np.arange(200.0), {"use": use, "watts": watts * noise}), "watts", only=("curved",)).model
        far.append(made.predict(History(made.form.features, 1.0).row(0.0, {"use": 5.0})).watts)
    assert 65 < far[0] < 90 and 45 < far[1] < 50


def test_a_straight_machine_is_not_predicted_worse_than_by_least_squares():
    """Curves and trees follow the noise of a straight line: least squares stands within a factor of them."""
    random = np.random.default_rng(8)
    cpu, memory = (np.repeat(random.random(60), 5) for _ in range(2))
    watts = (40 + 60 * cpu + 20 * memory) * random.normal(1, 0.02, 300)
    found = fit(Table(np.arange(300.0), {"cpu": cpu, "memory": memory, "watts": watts}), "watts")
    usual = [one for one in found.shifts if one.kind in ("time", "load")]
    assert sum(one.error_pct > one.baseline_pct + 0.05 for one in usual) == 0
    assert found.chosen.candidate.near > 0 and found.chosen in found.scores


def test_faults_that_may_never_happen_do_not_rule_out_a_model():
    """A clock that follows use: where it is scaled by a quarter, trees are closest, and farther off everywhere else."""
    random = np.random.default_rng(11)
    cpu = np.repeat(random.random(60), 5)
    disk = np.repeat(random.random(60), 5) ** 3
    columns = {
        "seconds": 16 * cpu,
        "clock": (1.2 + 2 * np.sqrt(cpu)) * random.normal(1, 0.02, 300),
        "memory": 8 + np.cumsum(random.normal(0, 0.01, 300)),
        "disk": disk,
        "watts": (60 + 120 * cpu**0.75 + 6 * disk) * random.normal(1, 0.015, 300),
    }
    found = fit(Table(np.arange(300.0), columns), "watts")
    left_out = [one for one in found.shifts if one.kind != "column"]
    assert sum(one.error_pct > one.baseline_pct + 0.1 for one in left_out) <= 1


@pytest.mark.parametrize("kind", ["linear", "curved", "mixed"])
def test_least_squares_within_a_factor_of_a_model_rises_and_stays_there(kind):
    random = np.random.default_rng(9)
    x = np.repeat(random.random((40, 2)), 5, axis=0)
    watts = (30 + 50 * np.sqrt(x[:, 0]) + 10 * x[:, 1]) * random.normal(1, 0.01, 200)
    features = (Feature("value", "a"), Feature("value", "b"))
    bare, made = (fit_form(Candidate(kind, kind, features, near=near), x, watts) for near in (0.0, 0.05))
    rows = np.column_stack([np.linspace(-0.5, 4, 200), np.full(200, 0.5)])
    found, around = predict_form(made, rows), predict_form(bare, rows)
    assert (np.diff(found) >= -1e-9).all() and np.abs(np.log(found / around)).max() <= 0.05 + 1e-9
    line = made.base_w + rows @ np.array(made.weights)
    close = np.abs(np.log(line / around)) < 0.05
    assert close.any() and found[close] == pytest.approx(line[close]) and not close.all()
    assert [made.watts(row) for row in rows.tolist()] == pytest.approx(found.tolist())


def test_above_the_strongest_column_least_squares_stands_within_bounds():
    """Not below the watts at the end of the range, at most e^0.2 of the model's own, and rising with every column."""
    random = np.random.default_rng(9)
    x = np.repeat(random.random((40, 2)), 5, axis=0)
    watts = (30 + 50 * np.sqrt(x[:, 0]) + 10 * x[:, 1]) * random.normal(1, 0.01, 200)
    features = (Feature("value", "a"), Feature("value", "b"))
    bare, made = (fit_form(Candidate("mixed", "mixed", features, lift=lift), x, watts) for lift in (0.0, 0.2))
    end = made.ranges[0].high
    for column in (0, 1):
        rows = np.full((300, 2), [1.3 * end, 0.5])
        rows[:, column] = np.linspace(-0.5, 4, 300)
        found, alone = predict_form(made, rows), predict_form(bare, rows)
        assert (np.diff(found) >= -1e-9).all() and (found <= alone * np.exp(0.2) + 1e-9).all()
        assert [made.watts(row) for row in rows.tolist()] == pytest.approx(found.tolist())
    inside = rows[:, 0] <= end
    assert found[inside] == pytest.approx(alone[inside])
    assert (found >= predict_form(bare, np.minimum(rows, end)) - 1e-9).all()
    line = made.base_w + rows @ np.array(made.weights)
    assert (np.isclose(found, line) & ~inside).any()
