"""Fixtures of the public plug-in, also where everywatt is not installed and its entry point is not known."""

import json
import subprocess
import sys

import pytest

from everywatt.testing import sim_machine, simulated_gpu, simulated_package  # noqa: F401


@pytest.fixture
def inside():
    """Run Python code inside a machine; gives what it printed as JSON."""

    def run(lab, code: str):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=lab.environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
