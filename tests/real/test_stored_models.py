"""A model of power from a real Prometheus, as edge projects have them: series joined by time, not by place."""

import csv
import json
import random
import subprocess
import time
from functools import partial

import pytest
from engines import MARKS, prometheus

from everywatt.cli.main import main
from everywatt.models import fitting

pytestmark = MARKS
STEP_S, ROWS = 5, 240
POWER, SPENT, USE = "tegra_wattage_current_milliwatts", "container_cpu_usage_seconds_total", "tegra_cpu_util_percentage"
WANTED = [[SPENT, {"container": "stressme"}], [USE, {}], [POWER, {"sensor": "vdd_in"}]]


def level(row):
    """Busy share of two cores: another one every minute."""
    return random.Random(row // 12).random()


def series(start):
    """OpenMetrics of 3 W + 8 W × share, each series with times of its own."""
    spent = 0.0
    found = {POWER: [], SPENT: [], USE: []}
    for row in range(ROWS):
        at, share = start + STEP_S * row, level(row)
        spent += 2 * share * STEP_S
        found[POWER].append(f'{POWER}{{sensor="vdd_in"}} {3000 + 8000 * share:.3f} {at + 0.9:.1f}')
        found[SPENT].append(f'{SPENT}{{container="stressme"}} {spent:.4f} {at}')
        found[USE].append(f'{USE}{{cpu="1"}} {100 * share:.3f} {at + 1.3:.1f}')
    lines = []
    for name, rows in found.items():
        kind = "counter" if name == SPENT else "gauge"
        lines += [f"# TYPE {name.removesuffix('_total')} {kind}", *rows]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A Prometheus that has these series in blocks on its disk, and the options that ask for them."""
    folder = tmp_path_factory.mktemp("stored")
    start = int(time.time()) - 2 * STEP_S * ROWS
    (folder / "series.txt").write_text(series(start))
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "series.txt", folder / "data"]
    subprocess.run(made, check=True, capture_output=True)
    (folder / "wanted.json").write_text(json.dumps(WANTED))
    times = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (start, start + STEP_S * ROWS)]
    with (folder / "log").open("wb") as log:
        engine = prometheus(folder, log, "{}")
        try:
            which = ["--start", times[0], "--end", times[1], "--filter", str(folder / "wanted.json")]
            yield engine.base, which
        finally:
            engine.close()


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
    monkeypatch.setattr(fitting, "fit", partial(fitting.fit, only=("linear",)))  # trees take long
    url, which = store
    model = str(tmp_path / "m.json")
    assert main(["model", "fit", url, *which, "--target", POWER, "--out", model, "--no-plot"]) == 0
    told = capsys.readouterr()
    assert "in milliwatts and was turned into watts" in told.err and "on time it had not seen" in told.out
    assert main(["model", "evaluate", model, url, *which, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == POWER and found["r2"] > 0.99
    assert found["mape_pct"] < 3.0 and found["mae_w"] < 0.3  # watts, of 3 to 11
