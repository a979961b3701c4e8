"""Use of a run whose recorder was killed: its segments have the CPU time of the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter


def test_cpu_time_of_a_run_whose_recorder_was_killed_is_whole(tmp_path: Path) -> None:
    """Tables are written every ten seconds: those of the last ones before the kill are not on its segment."""
    with VirtualWorld(tmp_path, cpu="constant:60W") as world:
        meter = Meter("work", sensors=["virtual"])
        meter.start()
        world.sleep(27)
        assert world.recorder is not None
        world.kill(world.recorder)
        world.sleep(30)
        meter.stop()
        run = meter.run
        assert run is not None
        found = run.ledger(by="process")
    assert len(run.tapes) == 2
    assert sum(entry.use.get("cpu_s", 0.0) for entry in found.entries) == pytest.approx(0.75 * 57, abs=0.75 * 1.5)
    assert found.checks.hold
