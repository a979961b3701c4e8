"""Counters go on while a recorder is dead: the next one goes on from its last rows, and no joule is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter


def measured(world: VirtualWorld, dead_s: float):
    """A minute of work whose recorder is killed in the middle, and is missed after `dead_s`."""
    with Meter("work", sensors=["virtual"]) as meter:
        begin_ns = world.now_ns
        world.sleep(20)
        assert world.recorder is not None
        world.kill(world.recorder)
        world.sleep(dead_s)
        with meter.span("after"):
            world.sleep(40 - dead_s)
        end_ns = world.now_ns
    return meter.run, begin_ns, end_ns


@pytest.mark.parametrize("dead_s", [3.0, 25.0])
def test_no_joule_of_a_counter_is_lost_with_its_recorder(tmp_path: Path, dead_s: float) -> None:
    with VirtualWorld(tmp_path, cpu="square:20W,80W,7s", gpu="square:50W,250W,11s") as world:
        run, begin_ns, end_ns = measured(world, dead_s)
        assert len(run.tapes) == 2
        energy = run.energy()
        assert energy.coverage == pytest.approx(1.0, abs=1e-3)
        for device, name in (("cpu.0", "cpu"), ("gpu.0", "gpu")):
            truth = world.machine.energy_j(name, begin_ns, end_ns)
            assert energy.part(device).joules == pytest.approx(truth, rel=0.01), device
        ledger = run.ledger("process")
        assert ledger.checks.hold
        # Processes went on meanwhile, at three quarters of a CPU. Their table is written every 10 s: what the dead
        # recorder had not written yet is known of the segment after only.
        used_s = sum(entry.use.get("cpu_s", 0.0) for entry in ledger.entries)
        assert 0.75 * (60 - 11) < used_s < 0.75 * 60 + 1
        assert ledger.microjoules == round(energy.value * 1e6)
        world.wait_gone()


def test_a_gauge_has_a_gap_where_its_recorder_was_dead(tmp_path: Path) -> None:
    with VirtualWorld(tmp_path, board="constant:100W") as world:
        run, _, _ = measured(world, 20.0)
        energy = run.energy()
        assert energy.coverage < 0.7
        assert energy.high > 60 * 100 - 50
        world.wait_gone()
