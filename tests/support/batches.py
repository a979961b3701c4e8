"""Batches that really ran on simulated cards: one on one card, one on two; item i3 fails, i5 takes long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from shared import made_once

import everywatt
from everywatt.api.run import Run
from everywatt.sim.machine import SimMachine

WORK = "sleep 0.3; case $1 in i3) exit 4;; i5) sleep 3;; esac"


def batch_runs(factory) -> list[Run]:
    """Both runs, made once in a test session."""
    folder = made_once(factory, "batches", _run_batches)
    return [everywatt.load(folder / "runs" / name) for name in json.loads((folder / "names.json").read_text())]


def _run_batches(folder: Path) -> None:
    (folder / "items.txt").write_text("".join(f"i{n}\n" for n in range(6)))
    found = []
    with SimMachine.of(gpus=["constant:100W"], replicate=2).start() as lab:
        environ = lab.environment() | {"EVERYWATT_HOME": str(folder / "runs")}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        for gpus in ("0", "0,1"):
            words = [sys.executable, "-m", "everywatt", "batch", "--json", "--max-retries", "0", "--gpus", gpus]
            words += ["items.txt", "--", "sh", "-c", WORK, "x", "{input}"]
            done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=240)
            assert done.returncode == 1, done.stderr
            found.append(json.loads(done.stdout)["run"])
    (folder / "names.json").write_text(json.dumps(found))
