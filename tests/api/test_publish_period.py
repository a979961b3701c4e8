"""An interval follows from what the sensor shows: a card that publishes ten times as often gives a narrower one."""

from __future__ import annotations

from pathlib import Path

from virtual_world import VirtualWorld

from everywatt import measure, span

PERIODS_MS = (100, 10, 1)


def windows(folder: Path, period_ms: int) -> list[tuple[float, float]]:
    """For windows of 0.25 s the half-width as a share of the joules, and how far off they are in half-widths."""
    with VirtualWorld(folder, gpu="square:100W,300W,0.37s") as world:
        world.machine.card_ns = period_ms * 1_000_000
        with measure("short windows", estimate=False, sensors=["virtual"]) as meter:
            world.sleep(1.5)
            for number in range(20):
                with span(f"s{number}"):
                    world.sleep(0.25)
                world.sleep(0.13)
        found = []
        for one in meter.run.spans:
            if one.parent is not None:
                energy = meter.run.energy(one)
                half = (energy.high - energy.low) / 2
                off = abs(energy.joules - world.machine.energy_j("gpu", one.start_ns, one.end_ns)) / half
                found.append((half / energy.joules, off))
        assert len(found) == 20
        return found


def test_a_tenth_of_the_period_makes_the_interval_several_times_narrower(tmp_path) -> None:
    widths = {}
    for period_ms in PERIODS_MS:
        (tmp_path / str(period_ms)).mkdir()
        found = windows(tmp_path / str(period_ms), period_ms)
        assert sum(off > 1 for _, off in found) <= 1, (period_ms, found)
        assert all(off < 1.5 for _, off in found), (period_ms, found)
        widths[period_ms] = min(width for width, _ in found)
    assert widths[10] < widths[100] / 2.5, widths
    assert widths[1] < widths[100] / 2, widths  # read every 100 ms all the same: the power between is not seen
