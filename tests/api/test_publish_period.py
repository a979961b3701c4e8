"""An interval follows from what the sensor shows: a card that publishes ten times as often gives a narrower one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, time
from everywatt import measure, span
with measure("short windows", estimate=False) as meter:
    time.sleep(1.5)
    for number in range(8):
        with span(f"s{number}"):
            time.sleep(0.25)
        time.sleep(0.13)
run = meter.run
spans = [one for one in run.spans if one.name != "short windows"]
print(json.dumps([[one.start_ns, one.end_ns, run.energy(one).to_dict()] for one in spans]))
"""


def windows(sim_machine, folder, period: str) -> list[tuple[float, float]]:
    """For windows of 0.25 s the half-width as a share of the joules, and how far off they are in half-widths."""
    lab = sim_machine(gpus=["square:100W,300W,0.37s"], sensor=[f"period={period},counter_period={period}"])
    environ = lab.environment() | {"EVERYWATT_RECORDER_IDLE_S": "0.2"}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=True)
    found = []
    for start_ns, end_ns, energy in json.loads(done.stdout):
        half = (energy["high"] - energy["low"]) / 2
        off = abs(energy["joules"] - lab.truth("gpu.0", start_ns, end_ns)) / half
        found.append((half / energy["joules"], off))
    return found


@pytest.mark.serial
def test_a_tenth_of_the_period_makes_the_interval_several_times_narrower(sim_machine, tmp_path) -> None:
    """The narrowest of eight: a machine that is held up leaves some of them wide, and rightly so."""
    narrow = {}
    for period in ("100ms", "10ms", "1ms"):
        found = windows(sim_machine, tmp_path, period)
        assert sum(off > 1 for _, off in found) <= 2, (period, found)
        assert all(off < 3 for _, off in found), (period, found)
        narrow[period] = min(width for width, _ in found)
    assert narrow["10ms"] < narrow["100ms"] / 2.5, narrow
    assert narrow["1ms"] < narrow["100ms"] / 2.5, narrow
