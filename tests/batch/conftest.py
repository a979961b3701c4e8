"""Batches in simulated machines, run as a user would."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Place:
    """A folder with a machine to run batches in."""

    folder: Path
    environ: dict

    def words(self, *more):
        return [sys.executable, "-m", "everywatt", "batch", *map(str, more)]

    def batch(self, *more, code=0, **environ):
        done = subprocess.run(
            self.words(*more),
            env=self.environ | environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done

    def found(self, *more, code=0, **environ):
        first = more[:1] if more and more[0] in ("probe", "summary") else ()
        return json.loads(self.batch(*first, "--json", *more[len(first) :], code=code, **environ).stdout)

    def items(self, *names):
        (self.folder / "items.txt").write_text("".join(f"{name}\n" for name in names))
        return "items.txt"

    def script(self, text, name="work.sh"):
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return f"./{name}"


@pytest.fixture
def place(sim_machine, tmp_path):
    """A function that makes a machine and gives the place in it: `place(gpus=["constant:100W"], replicate=4)`."""

    def make(**machine):
        lab = sim_machine(**machine)
        environ = {k: v for k, v in lab.environment().items() if k != "CUDA_VISIBLE_DEVICES"}
        environ |= {"EVERYWATT_HOME": str(tmp_path / "runs"), "EVERYWATT_RECORDER_IDLE_S": "1"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        made = Place(tmp_path, environ)
        made.lab = lab
        return made

    return make
