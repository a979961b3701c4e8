"""A model of power from a real Prometheus, as edge projects have them: series joined by time, not by place."""

import csv
import json
import time
from functools import partial

import pytest
from engines import MARKS
from stored_series import BOARD_START_S, POWER, ROWS, SPENT, STEP_S, USE

from everywatt.cli.main import main
from everywatt.models import fitting

pytestmark = MARKS
WANTED = [[SPENT, {"container": "stressme"}], [USE, {}], [POWER, {"sensor": "vdd_in"}]]


@pytest.fixture(scope="module")
def store(engines, tmp_path_factory):
    """The Prometheus that has the series of the board on its disk, and the options that ask for them."""
    wanted = tmp_path_factory.mktemp("stored") / "wanted.json"
    wanted.write_text(json.dumps(WANTED))
    ends = (BOARD_START_S, BOARD_START_S + STEP_S * ROWS)
    times = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in ends]
    return engines[0].base, ["--start", times[0], "--end", times[1], "--filter", str(wanted)]


def test_a_filter_file_gives_a_table_joined_by_time(store, tmp_path):
    url, which = store
    assert main(["import", "prometheus", url, *which, "-o", str(tmp_path / "perf.csv")]) == 0
    with (tmp_path / "perf.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if all(row.values())]
    assert len(rows) >= ROWS - 4
    assert set(rows[0]) == {"time", f"rate({SPENT})", USE, POWER}
    near = zip(rows, rows[1:], rows[2:], rows[3:], strict=False)  # at a step one series may be a row behind another
    settled = [row for before, last, row, after in near if before[USE] == last[USE] == row[USE] == after[USE]]
    assert len(settled) > ROWS / 2
    for row in settled:
        share = float(row[USE]) / 100
        assert float(row[f"rate({SPENT})"]) == pytest.approx(2 * share, abs=1e-3)
        assert float(row[POWER]) == pytest.approx(3000 + 8000 * share, abs=1.0)


def test_a_model_is_fitted_from_the_store_and_holds_there(store, tmp_path, capsys, monkeypatch):
    # Trees take long. Replaced in the command: imported meanwhile, it would keep for good what it finds elsewhere.
    monkeypatch.setattr("everywatt.cli.model.fit.fit", partial(fitting.fit, only=("linear",)))
    url, which = store
    model = str(tmp_path / "m.json")
    assert main(["model", "fit", url, *which, "--target", POWER, "--out", model, "--no-plot"]) == 0
    told = capsys.readouterr()
    assert "in milliwatts and was converted to watts" in told.err and "on held-out time" in told.out
    assert main(["model", "evaluate", model, url, *which, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == POWER and found["r2"] > 0.99
    assert found["mape_pct"] < 3.0 and found["mae_w"] < 0.3  # watts, of 3 to 11
