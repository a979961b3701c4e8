"""`everywatt bench train` in a machine of exactly 50 W."""

import csv
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from truths import holds

from everywatt.sim.machine import SimMachine

# Only the programs that are measured import it.
pytestmark = [pytest.mark.ml, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]

ENTRY = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

def broken():
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 999 bytes")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    (folder / "trained.py").write_text(ENTRY)
    inputs = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    np.savez(folder / "data.npz", inputs=inputs, labels=(inputs[:, 0] > 0).astype(int))
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        yield lab.environment() | {"HOME": str(folder), "EVERYWATT_HOME": str(folder / "runs")}


def train(place, *more, code=0):
    words = [sys.executable, "-m", "everywatt", "bench", "train", "--data", "data.npz", "--idle", "0.2", "--json"]
    done = subprocess.run([*words, *more], env=place, cwd=place["HOME"], capture_output=True, text=True, timeout=280)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def trained(place):
    """Two trainings of each of two precisions: each is a process that loads torch, so tests share them."""
    options = ["--precisions", "fp32,bf16", "--epochs", "2", "--lr", "0.01", "--trials", "2", "--no-cooldown"]
    return train(place, "--entry", "trained:build", *options, "-o", "t.csv")


def test_epochs_add_up_to_the_training_and_to_the_truth(place, trained):
    for one in trained["trained"]:
        assert one["failure"] is None and len(one["epochs"]) == 2
        joules = [epoch["energy"]["joules"] for epoch in one["epochs"]]
        assert sum(joules) == pytest.approx(one["energy"]["joules"], rel=1e-9)
        seconds = [epoch["seconds"] for epoch in one["epochs"]]
        assert one["energy"]["joules"] == pytest.approx(50 * sum(seconds), rel=0.05)
        assert [epoch["steps"] for epoch in one["epochs"]] == [63, 63]
        for epoch in one["epochs"]:
            assert len(epoch["losses"]) == len(epoch["step_joules"]) == 63
            assert sum(epoch["step_joules"]) <= epoch["energy"]["joules"] * 1.01
            assert epoch["energy_per_step"]["joules"] * 63 <= epoch["energy"]["joules"] * 1.001
        assert one["epochs"][-1]["val_accuracy"] > 0.9 and one["accuracy"]["low"] < one["accuracy"]["value"]
        assert one["epochs"][-1]["train_loss"] < one["epochs"][0]["train_loss"]
    fp32, bf16 = trained["trained"][:2]
    assert bf16["ratio"]["value"] == pytest.approx(bf16["energy"]["joules"] / fp32["energy"]["joules"])
    show = subprocess.run(
        [sys.executable, "-m", "everywatt", "show", trained["run"], "--json"],
        env=place, cwd=place["HOME"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    spans = json.loads(show.stdout)["spans"]
    whole = [span for span in spans if span["name"] == "training"]
    assert holds(whole[0]["energy"], fp32["energy"]["joules"])


def test_trials_are_interleaved_and_end_in_a_verdict(trained):
    assert trained["order"] == ["fp32", "bf16", "bf16", "fp32"]
    fp32, bf16 = trained["compared"]
    assert len(fp32["trials"]) == len(bf16["trials"]) == 2 and bf16["comparison_gross"]["trials"] == 2
    ran = {(one["precision"], one["trial"]): one for one in trained["trained"]}
    assert len(ran) == 4
    mean = sum(ran["bf16", trial]["energy"]["joules"] for trial in (1, 2)) / 2
    assert bf16["energy"]["value"] == pytest.approx(mean)
    assert bf16["verdict"], "a sentence"
    # Each trial starts elsewhere, at the same place for both precisions.
    losses = [ran["fp32", trial]["epochs"][0]["losses"] for trial in (1, 2)]
    assert losses[0] != losses[1]
    assert ran["bf16", 2]["epochs"][0]["losses"][0] == pytest.approx(losses[1][0], rel=0.02)


def test_out_of_memory_is_a_row_and_that_precision_is_not_trained_again(place):
    told = train(place, "--entry", "trained:broken", "--precisions", "fp32,bf16", "--trials", "2", code=3)
    assert [(one["precision"], one["trial"]) for one in told["trained"]] == [("fp32", 1), ("bf16", 1)]
    assert all(one["failure"].startswith("out of memory") for one in told["trained"])


def test_epochs_as_a_table_and_as_notes(place, trained):
    with (Path(place["HOME"]) / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    epochs = [epoch for one in trained["trained"] for epoch in one["epochs"]]
    assert [int(row["epoch"]) for row in rows] == [1, 2] * 4
    assert [float(row["energy_j"]) for row in rows] == pytest.approx([one["energy"]["joules"] for one in epochs])
    told = train(
        place, "--entry", "trained:build", "--precisions", "fp32", "--epochs", "1", "--limit", "64", "-o", "t.md"
    )
    assert told["compared"] == [], "one training each"
    assert (Path(place["HOME"]) / "t.md").read_text().startswith("| precision | epoch | energy |")
    words = [sys.executable, "-m", "everywatt", "bench", "train", "-o", "t.html"]
    done = subprocess.run(words, env=place, cwd=place["HOME"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 2 and "t.html must end in one of .json, .csv, .md" in done.stderr
