"""One idle level is one answer: net energy, the ledger and its intervals, however idle was found."""

import contextlib
import random

import pytest
from machines import Process, write_machine

from everywatt.api.run import Run
from everywatt.core.budget import Budget
from everywatt.ledger.counters import IDLE, UNATTRIBUTED, Counters
from everywatt.ledger.engine import Level
from everywatt.report.live.tape_source import TapeSource
from everywatt.tape.reader import Tape

IDLE_W = 40.0
WAYS = ("measured", "quiet", "regression", "lowest", "prior", "given")
SECONDS, REST = 12, 4
MORE_W = (10.0, 100.0, 40.0)  # of load: from much less than idle may be off by to much more


def uses(way, chance):
    """How busy the card is in each second: what lets idle be found in that way, and in no other."""
    if way in ("prior", "resting"):
        return [0.6 if way == "prior" else 0.0] * SECONDS
    if way in ("measured", "quiet"):
        return [0.0] * REST + [round(chance.uniform(0.3, 1.0), 2) for _ in range(SECONDS - REST)]
    return [0.12, 0.9] * 2 + [round(chance.uniform(0.12, 1.0), 2) for _ in range(SECONDS - 4)]


def machine(tmp_path, way, seed, listed=True, **options):
    """A card under a load that no process explains; `listed`: its processes were recorded, and were none.

    Where those alone are known, and not its utilisation, it would be quiet all the time.
    """
    chance = random.Random(seed)
    busy, more_w = uses(way, chance), MORE_W[seed % len(MORE_W)]
    gpu_w = [IDLE_W + more_w * use for use in busy]
    if way == "resting":
        gpu_w = [IDLE_W + chance.uniform(-3.0, 3.0) for _ in busy]
    path = write_machine(
        tmp_path / "a.tape",
        {"gpu.0": gpu_w},
        [Process(100, [0.01] * SECONDS)],
        seconds=SECONDS,
        gauges=["gpu.0"] if seed % 2 else (),
        gpu_rows={} if listed and way != "lowest" else None,
        utilisation=None if way == "lowest" else {"gpu.0": [100 * use for use in busy]},
        spans=[("idle", 0, REST, {"role": "idle"}), ("run", REST, SECONDS, {})] if way == "measured" else (),
        everything=True,
        **options,
    )
    return Run(path, [Tape.open(path)])


def of(ledger, kind):
    return next(entry for entry in ledger.entries if entry.owner.kind.value == kind)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", WAYS)
def test_what_no_process_explains_is_unattributed_as_far_as_idle_is_known(tmp_path, way, seed, listed):
    run = machine(tmp_path, way, seed, listed)
    ledger = run.ledger(baseline={"gpu.0": IDLE_W} if way == "given" else None)
    level = ledger.idle["gpu.0"]
    assert level["method"] == way
    seconds = run.duration_s * ledger.total.coverage
    idle, lost = of(ledger, "idle"), of(ledger, "unattributed")
    idle_j = min(level["watts"] * seconds, ledger.total.joules)
    assert idle.energy.joules == pytest.approx(idle_j, rel=0.02)
    assert lost.energy.joules == pytest.approx(ledger.total.joules - idle_j, abs=0.02 * ledger.total.joules)
    assert lost.method, "the reason is named"
    # As far as idle may be off, so may both, on opposite sides: together they are as sure as the sensor.
    spread_j = min(level["spread_w"] * seconds, ledger.total.joules)
    for entry in (idle, lost):
        assert max(entry.energy.budget.sides()) >= 0.98 * spread_j
    together = Budget.sum((idle.energy.budget, lost.energy.budget)).sides()
    assert together == pytest.approx(ledger.total.budget.sides(), rel=1e-6, abs=1e-6)
    if (net := run.energy_net()).joules is not None and way != "given":
        assert lost.energy.joules == pytest.approx(net.joules, abs=0.02 * ledger.total.joules)
        ends = (lost.energy.low, max(net.low, 0.0)), (lost.energy.high, min(net.high, ledger.total.high))
        assert all(mine == pytest.approx(theirs, rel=0.1, abs=1.0) for mine, theirs in ends)


@pytest.mark.parametrize("way", WAYS)
def test_the_truth_is_in_both_intervals(tmp_path, way):
    """40 W of idle, whatever is found of it."""
    for seed in range(6):
        if way == "prior" and MORE_W[seed % len(MORE_W)] < 80:
            continue  # no card draws so much of its full power at idle
        run = machine(tmp_path / str(seed), way, seed)
        ledger = run.ledger(baseline={"gpu.0": IDLE_W} if way == "given" else None)
        idle_j = IDLE_W * run.duration_s
        for kind, joules in (("idle", idle_j), ("unattributed", ledger.total.joules - idle_j)):
            found = of(ledger, kind).energy
            assert found.low - 1.0 <= joules <= found.high + 1.0, (seed, kind, joules, found)


def test_idle_is_at_most_what_the_device_drew(tmp_path):
    """1006.7 J of a card without a process, at an idle power that is assumed: idle was 0 … 2013.5 J."""
    for way in ("prior", "lowest", "regression", "resting"):
        for seed in range(6):
            ledger = machine(tmp_path / way / str(seed), way, seed).ledger()
            assert of(ledger, "idle").energy.high <= ledger.total.high + 2e-6, (way, seed)


def live_owners(path):
    with contextlib.closing(TapeSource(path, 1.0, by="process")) as source:
        return {one.id: one for one in source.poll().owners.entries}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", ["measured", "quiet", "regression", "lowest", "prior", "resting"])
def test_a_live_view_has_the_intervals_of_the_ledger(tmp_path, way, seed):
    run = machine(tmp_path, way, seed, seal=False)
    ledger = run.ledger(between=(0.0, float(SECONDS)))
    owners = live_owners(tmp_path / "a.tape")
    for entry in ledger.entries:
        live = owners.get(entry.owner.id)
        if live is None:
            assert not entry.microjoules
            continue
        assert live.joules == pytest.approx(entry.energy.joules, rel=1e-3, abs=1e-3)
        for mine, theirs in ((live.low, entry.energy.low), (live.high, entry.energy.high)):
            assert mine == pytest.approx(theirs, rel=0.02, abs=0.5), (live, entry.energy)


@pytest.mark.parametrize("seed", range(6))
def test_a_live_view_knows_how_well_the_edges_of_its_time_are_known(tmp_path, seed):
    """When the counter is published is being searched for: what it says may be of up to a second earlier."""
    run = machine(tmp_path, "resting", seed, seal=False, searching=True)
    idle = of(run.ledger(), "idle").energy
    live = live_owners(tmp_path / "a.tape")["idle"]
    assert (live.high - live.low) / live.joules == pytest.approx((idle.high - idle.low) / idle.joules, rel=0.3)


@pytest.mark.parametrize("above_w", [0.0, 2.0, 30.0])
def test_series_of_what_is_unattributed_have_the_interval_of_idle(above_w):
    """A card of 100 W whose idle may be off by 20 W, without a process on it: it may all have been load."""
    counters, level = Counters(), Level(100.0, 0.0, 0.0, 20.0, "regression")
    for second in range(1, 601):
        counters.add("gpu.0", round((100.0 + above_w) * 1e6), 1.0, level, {}, now_ns=second * 10**9)
        if second % 20 == 0:
            counters.find_intervals("gpu.0", lambda joules, seconds: Budget(), level, 0.3)
    low, high = counters.bounds_uj[UNATTRIBUTED]["gpu.0"]
    assert counters.uj[UNATTRIBUTED]["gpu.0"] == above_w * 600e6
    assert high == pytest.approx((above_w + 20.0) * 600e6, rel=0.05)
    assert low == pytest.approx(max(above_w - 20.0, 0.0) * 600e6, rel=0.05)
    low, high = counters.bounds_uj[IDLE]["gpu.0"]
    assert low == pytest.approx(80.0 * 600e6, rel=0.05)
    assert high == pytest.approx(min(120.0, 100.0 + above_w) * 600e6, rel=0.05)
