"""Idle watts: found by each way in its turn, with an interval that holds the truth."""

import csv
from pathlib import Path

import numpy as np
import pytest
from tapes import at, counter_group, write_tape

from everywatt.api.run import load
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Row
from everywatt.ledger.idle import PRIORS, Idle, Watched, find_idle, from_blocks, given

SERVERS = Path(__file__).parents[1] / "sensors" / "specpower_held_out.csv"


def servers():
    """Watts of real servers at 0, 10, … 100 % load."""
    with SERVERS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [np.array([float(row[f"w{load}"]) for load in range(0, 101, 10)]) for row in rows]


def power(curve, use, rng):
    return np.interp(use, np.linspace(0, 1, 11), curve) * (1 + rng.normal(0, 0.01, len(use)))


def holding(kind, uses):
    """In how many of the servers the interval holds the true idle power, and the methods that found it."""
    held, methods = 0, set()
    for seed, curve in enumerate(servers()):
        rng = np.random.default_rng(seed)
        use = np.asarray(uses(rng))
        idle = find_idle(Watched(power(curve, use, rng), use, 1.0, kind))
        held += abs(idle.watts - curve[0]) <= idle.spread_w
        methods.add(idle.method)
    return held / len(servers()), methods


@pytest.mark.parametrize(
    ("uses", "method"),
    [
        (lambda rng: np.r_[np.full(20, 0.02), np.full(40, 0.8)], "quiet"),
        (lambda rng: rng.uniform(0.0, 0.08, 60), "quiet"),
        (lambda rng: rng.uniform(0.12, 0.9, 120), "regression"),
        (lambda rng: np.full(30, 0.95), "prior"),
    ],
)
def test_the_interval_holds_the_idle_power_of_real_servers(uses, method):
    share, methods = holding("cpu", uses)
    assert methods == {method}
    assert share >= 0.9


def test_the_prior_is_what_the_servers_say():
    shares = [curve[0] / curve[-1] for curve in servers()]
    assert PRIORS["cpu"] == pytest.approx(np.percentile(shares, (50, 2.5, 97.5)), abs=0.01)


def test_quiet_is_by_use_and_not_by_power():
    use = np.r_[np.full(10, 0.0), np.full(30, 0.9)]
    watts = np.r_[np.full(10, 50.0), np.full(30, 40.0)]  # a machine that is slowed down under load draws less
    idle = find_idle(Watched(watts, use, 1.0, "cpu"))
    assert (idle.method, idle.watts) == ("quiet", pytest.approx(50.0))


def test_measured_wins_and_has_the_scatter_of_its_blocks():
    measured = from_blocks(np.array([19.0, 21.0, 19.0, 21.0, 19.0, 21.0, 19.0, 21.0]), 1.0)
    assert (measured.watts, measured.method) == (20.0, "measured")
    assert measured.spread_w == pytest.approx(2.364624 * np.std([19, 21] * 4, ddof=1) / np.sqrt(8))
    assert find_idle(Watched(np.full(20, 99.0), np.zeros(20), 1.0, "cpu"), measured) is measured
    assert from_blocks(np.array([np.nan]), 1.0) is None


def gpu(watts, use, held):
    return find_idle(Watched(np.array(watts), np.array(use), 1.0, "gpu", None if held is None else np.array(held)))


def test_a_gpu_is_idle_where_nobody_is_on_it_and_held_where_somebody_does_nothing():
    idle = gpu([30.0] * 5 + [127.0] * 5 + [300.0] * 5, [0.0] * 10 + [0.9] * 5, [False] * 5 + [True] * 10)
    assert (idle.watts, idle.method) == (pytest.approx(30), "quiet")
    assert idle.held_w == pytest.approx(97)


def test_a_gpu_that_always_had_a_holder_says_that_idle_may_be_half():
    idle = gpu([127.0] * 5 + [300.0] * 5, [0.0] * 5 + [0.9] * 5, [True] * 10)
    assert (idle.watts, idle.method, idle.held_w) == (pytest.approx(127), "quiet, held", 0.0)
    assert idle.spread_w > 60 and "never observed without a process" in idle.note


def test_a_gpu_that_was_always_busy_has_a_prior():
    idle = gpu([300.0] * 10, [1.0] * 10, [True] * 10)
    assert idle.method == "prior" and idle.watts == pytest.approx(36)
    assert "--idle" in idle.note


def test_where_nothing_is_known_of_use_it_says_so():
    idle = find_idle(Watched(np.r_[np.full(5, 20.0), np.full(15, 80.0)], np.full(20, np.nan), 1.0, "cpu"))
    assert (idle.method, idle.watts) == ("lowest", pytest.approx(20))
    assert "its utilisation was not recorded" in idle.note
    assert find_idle(Watched(np.full(5, np.nan), np.zeros(5), 1.0, "cpu")) is None


def test_given_watts_are_of_devices_or_of_all_together():
    found = {"cpu.0": Idle(30.0, 2.0, "quiet"), "gpu.0": Idle(10.0, 1.0, "prior", note="x")}
    together = given(found, 80.0)
    assert [together[name].watts for name in found] == [60.0, 20.0]
    assert {one.method for one in together.values()} == {"given"}
    single = given(found, {"gpu.0": 12.0})
    assert (single["cpu.0"].method, single["gpu.0"].watts, single["gpu.0"].note) == ("quiet", 12.0, "")


def test_twice_the_power_is_twice_the_idle_and_its_spread():
    rng = np.random.default_rng(3)
    for use in (rng.uniform(0, 1, 50), rng.uniform(0.2, 1, 50), np.full(20, 0.9)):
        watts = 20 + 60 * use + rng.normal(0, 1, len(use))
        one, two = (find_idle(Watched(factor * watts, use, 1.0, "cpu")) for factor in (1, 2))
        assert (two.watts, two.spread_w) == (pytest.approx(2 * one.watts), pytest.approx(2 * one.spread_w))


@pytest.mark.parametrize("used", [False, True], ids=["use unknown", "no use"])
def test_a_reading_that_comes_late_does_not_change_idle_power(tmp_path, used):
    """A card of 20 W: its second reading comes after 5 s, and when in them that was published is not known."""
    reads = [0.0, 5.0, *np.arange(5.1, 20.0, 0.1)]
    rows = [Row(at(t), at(0 if t == 5 else max(t - 0.1, 0)), at(t), (1000 + 20 * t,)) for t in reads]
    groups = [(counter_group("gpu.0", Domain.GPU, period_s=0.1, quantum=0.001), 0.1, rows)]
    if used:
        channel = Channel("gpu.0.utilisation", "%", Kind.GAUGE, "gpu.0")
        still = [Row(at(t), at(t), at(t), (0.0,)) for t in range(20)]
        groups.append((GroupInfo("use", "test", "gpu.0", (channel,)), 1.0, still))
    run = load(write_tape(tmp_path / "x.tape", groups))
    idle = run.ledger().idle["gpu.0"]
    assert idle["watts"] == pytest.approx(20, abs=0.1)
    assert idle["method"] == ("quiet" if used else "lowest")
