"""Idle watts as the agent goes along."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock
from tapes import at, counter_group

from everywatt.core.channels import Cadence, Domain, GroupInfo, Row
from everywatt.fleet import device_counters as idle
from everywatt.fleet.jobs import Places
from everywatt.fleet.watch import Watcher
from everywatt.ledger.counters import Counters
from everywatt.ledger.engine import ASSUMED, Level


def test_quiet_time_gives_idle():
    finder = idle.IdleFinder("cpu")
    for second in range(300):
        busy = 0.0 if second % 100 < 30 else 0.8
        finder.add(40 + 100 * busy, 1.0, busy)
    level = finder.level()
    assert level.method == "quiet"
    assert level.idle_w == pytest.approx(40, abs=1)


def test_a_line_where_it_was_never_quiet():
    finder = idle.IdleFinder("cpu")
    for second in range(300):
        busy = 0.2 + 0.6 * (second % 60) / 60
        finder.add(40 + 100 * busy, 1.0, busy)
    assert finder.level().method == "regression"
    assert finder.level().idle_w == pytest.approx(40, abs=0.5)


def test_a_prior_where_nothing_varied():
    finder = idle.IdleFinder("cpu")
    for _ in range(60):
        finder.add(140.0, 1.0, 1.0)
    assert finder.level().method == "prior"
    assert finder.level().idle_w == pytest.approx(140 * 0.26)


def test_what_was_known_before_the_start_holds_while_it_is_busy():
    finder = idle.IdleFinder("cpu")
    finder.know(Level(40.0, method="quiet"))
    assert finder.level() == Level(40.0, method="quiet")
    for _ in range(60):
        finder.add(140.0, 1.0, 1.0)
    assert finder.level().idle_w == 40.0


def test_a_card_with_a_holder_draws_more():
    finder = idle.IdleFinder("gpu")
    for second in range(120):
        finder.add(30.0 if second < 60 else 55.0, 1.0, 0.0, second >= 60)
    assert finder.level().idle_w == pytest.approx(30, abs=0.5)
    assert finder.level().held_w == pytest.approx(25, abs=0.5)


def test_a_card_that_draws_most_of_its_limit_without_utilisation_is_not_idle():
    """As in ledgers: 200 W of 300 W is a load that utilisation does not show."""
    info = counter_group("gpu.0", Domain.GPU)
    channel = replace(info.channels[0], facts=replace(info.channels[0].facts, max_w=300.0))
    (line,) = idle.Lines.of([(replace(info, channels=(channel,)), 1.0)]).all
    for _ in range(60):
        line.idle.add(200.0, 1.0, 0.0)
    assert line.idle.level().method == "lowest"


def test_memory_is_bounded():
    finder = idle.IdleFinder("cpu")
    for _ in range(60_000):
        finder.add(50.0, 1.0, 0.0)
    assert len(finder._watts) <= idle.MOST_CELLS


def test_a_reading_that_comes_late_does_not_change_idle_power():
    """A card of 20 W: when its readings after 5 and 10 s were published is not known; then it is read once a second."""
    watcher = Watcher(FakeClock(), 10**9, Places([]), Counters())
    watcher.lines = idle.Lines.of([(counter_group("gpu.0", Domain.GPU), 1.0)])
    for read in (0.0, 5.0, 10.0, *(10.1 + second for second in range(12))):
        early = read - 5 if read in (5, 10) else max(read - 0.1, 0.0)
        watcher.lines.feed("test.gpu.0.gpu", [Row(at(read), at(early), at(read), (1000 + 20 * read,))])
        watcher.settle(at(read))
    level = watcher.lines.all[0].idle.level()
    assert (level.idle_w, level.method) == (pytest.approx(20, abs=0.5), "quiet")


@pytest.mark.parametrize("instances", [{}, {"gpu_instance": 1, "compute_instance": 0, "slices": 1, "of_slices": 7}])
def test_idle_of_a_card_is_not_found_where_the_driver_reports_no_use_of_its_processes(instances):
    """200 W throughout, of a card whose utilisation is not reported either."""
    card = counter_group("gpu.0", Domain.GPU)
    table = GroupInfo("nvml.processes", "nvml", "gpu", (), Cadence.SLOW, table=True)
    watcher = Watcher(FakeClock(at(0)), at(1) - at(0), Places([]), Counters())
    sources = [SimpleNamespace(info=i, outage=None, listeners=[], expected_s=lambda _: 1.0) for i in (card, table)]
    watcher.listen(sources)
    for second in range(60):
        now_ns = watcher.clock.now_ns = at(second)
        watcher.rows(sources[0], [Row(now_ns, now_ns, now_ns, (200 * second,))])
        row = {"gpu": 0, "pid": 100, "type": "C", "memory_bytes": 1, "sm": None, **instances}
        watcher.table(sources[1], now_ns, [row] if second < 2 else [])
        watcher.settle(now_ns, anyway=True)
    assert watcher.lines.all[0].idle.level().method in ASSUMED
