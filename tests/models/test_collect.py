"""A simulated machine with a power law of its own is learnt from load that is made on purpose."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from everywatt.models.features import History
from everywatt.models.fitting import fit
from everywatt.models.modelfile import load_model
from everywatt.models.reading import run_table
from everywatt.models.table import Table
from everywatt.stress.shapes import Load, latin_hypercube

pytestmark = pytest.mark.timeout(900)


OURS = [sys.executable, "-m", "everywatt"]


def collect(time_s):
    """Rows of a machine of 20 W idle and 20 + 100 × (busy share)^1.5 W, as `model collect` accounts for them."""
    sim = [*OURS, "sim", "--package", "load:20W,120W,1.5", "--"]
    done = subprocess.run(
        [*sim, *OURS, "model", "collect", "--json", "--time", f"{time_s}s", "--kinds", "integer"],
        capture_output=True,
        text=True,
        timeout=time_s + 400,
    )
    assert done.returncode == 0, done.stderr
    collected = json.loads(done.stdout)
    assert "cpu.0.package.power" in collected["targets"]
    return collected


def learn(own_home, time_s):
    """Collect and fit: both accounts, and the model."""
    collected = collect(time_s)
    out = own_home / "m.json"
    fitted = [*OURS, "model", "fit", "--json", "--no-plot", collected["path"], "--target", "cpu.0.package.power"]
    done = subprocess.run([*fitted, "--out", str(out)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return collected, json.loads(done.stdout), load_model(out)


def test_load_is_collected_as_rows_to_learn_from(own_home):
    from everywatt.api.run import load

    collected = collect(10)
    table = run_table([load(collected["path"])])
    assert collected["rows"] == len(table) >= 8 and "host.cpu_time" in table.columns
    watts = table.column("cpu.0.package.power")
    assert np.nanmin(watts) >= 19 and np.nanmax(watts) <= 121


def planned(time_s, cores=8):
    """Use of each second of what `model collect` plans, and the watts of a machine of 20 + 100 × (busy share)^1.5 W."""
    idle_s = round(0.1 * time_s)
    plan = latin_hypercube(Load(cpu_cores=cores, cpu_kinds=("integer",)), time_s=time_s - idle_s, steps=time_s // 4)
    ends = idle_s + np.cumsum([step.duration_s for step in plan.steps])
    busy = np.array([step.cpu.cores * step.cpu.percent / 100 if step.cpu else 0.0 for step in plan.steps])
    at = np.arange(1.0, time_s + 1)
    used = np.where(at <= idle_s, 0.0, busy[np.minimum(np.searchsorted(ends, at), len(busy) - 1)])
    used = used + 0.01 * np.random.default_rng(3).random(time_s)
    watts = 20 + 100 * (used / cores) ** 1.5
    return Table(at, {"host.cpu_time": used, "cpu.0.package.power": watts})


def test_a_nonlinear_machine_is_learnt_in_two_minutes():
    """The load is planned, not made: how busy this machine is does not matter."""
    found = fit(planned(120), "cpu.0.package.power", only=["curved"])
    assert found.chosen.blocked_pct < 6 and found.model.needs == ("host.cpu_time",)
    for busy in (0.5, 3.0, 7.0):
        history = History(found.model.form.features, 1.0)
        watts = found.model.predict(history.row(0.0, {"host.cpu_time": busy})).watts
        assert watts == pytest.approx(20 + 100 * (busy / 8) ** 1.5, rel=0.08)


@pytest.mark.serial
@pytest.mark.long
@pytest.mark.timeout(3600)  # ten minutes of load, and a fit that may have to wait for a core
def test_a_nonlinear_machine_is_learnt_to_three_percent_in_ten_minutes(own_home):
    _, fitted, model = learn(own_home, 600)
    assert model.host == os.uname().nodename and "host.cpu_time" in model.needs
    best = next(row for row in fitted["models"] if row["model"] == fitted["chosen"])
    assert best["blocked_pct"] <= 3, fitted["models"]


def test_a_tape_is_a_table_of_rates(own_home):
    """50 W for four seconds, told by a counter of microjoules."""
    from everywatt.api.run import load

    ours = [sys.executable, "-m", "everywatt"]
    done = subprocess.run(
        [*ours, "sim", "--package", "constant:50W", "--", *ours, "run", "--json", "--", "sleep", "6"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = [entry for entry in (own_home / "everywatt-runs").iterdir() if not entry.name.startswith(".")]
    table = run_table([load(folder)])
    watts = table.columns["cpu.0.package.power"]
    assert watts[np.isfinite(watts)] == pytest.approx(50, rel=0.03)
    assert table.units["cpu.0.package.power"] == "W" and table.units["host.cpu_time"] == "s/s"
