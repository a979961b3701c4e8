"""This machine as a source, live: temporary tapes follow one another, and the view loses nothing."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from everywatt.sim.machine import SimMachine

LOOK = """
import json, time
from everywatt.report.live.local import LocalSource

source = LocalSource(0.5, 0.1, by="process", rotate_s=2.0)
folder, seen = source._folder, []
try:
    began, tapes = time.monotonic(), set()
    while len(tapes) < 5 and time.monotonic() - began < 60.0:
        time.sleep(0.25)
        told = source.poll()
        tapes.update(path.name for path in folder.glob("*.tape"))
        seen.append({
            "tapes": sorted(path.name for path in folder.glob("*.tape")),
            "elapsed_s": told.elapsed_s,
            "joules": told.total.joules,
            "owners": None if told.owners is None else {o.label: o.joules for o in told.owners.entries},
            "power": {device.name: device.power_w for device in told.devices},
        })
finally:
    source.close()
print(json.dumps({"seen": seen, "left": folder.exists()}))
"""


def test_a_tape_is_replaced_every_two_seconds_and_no_joule_is_lost():
    with SimMachine.of(gpus=["constant:100W"], packages=["constant:40W"]).start() as lab:
        done = subprocess.run(
            [sys.executable, "-c", LOOK], env=lab.environment(), capture_output=True, text=True, timeout=90
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    seen = told["seen"]
    names = list(dict.fromkeys(name for one in seen for name in one["tapes"]))
    assert len(names) >= 4, "it went over to another tape at least three times"
    assert all(len(one["tapes"]) == 1 for one in seen), "the old one is removed at once"
    assert not told["left"], "and the folder in the end"
    for before, after in pairwise(seen):
        assert after["elapsed_s"] >= before["elapsed_s"] and after["joules"] >= before["joules"]
    first, last = seen[len(seen) // 4], seen[-1]
    watts = (last["joules"] - first["joules"]) / (last["elapsed_s"] - first["elapsed_s"])
    # Devices publish at different moments: an interval of some seconds is known to a tenth of a second.
    assert watts == pytest.approx(140.0, rel=0.05)
    assert last["joules"] == pytest.approx(140.0 * last["elapsed_s"], rel=0.06)
    known = [one["power"]["gpu.0"] for one in seen if one["power"].get("gpu.0") is not None]
    assert known and all(80 < value < 120 for value in known), known
    # Rows of idle and of what nobody used are always there, with their joules since the view began.
    owed = {name: joules for one in seen for name, joules in (one["owners"] or {}).items()}
    assert sum(owed.values()) == pytest.approx(last["joules"], rel=0.45) and len(owed) >= 2
