"""Idle, cooling down, blocks and when to stop, in virtual time: an hour of trials takes a moment."""

import math
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from trial_lab import TrialLab

from everywatt.bench import experiment
from everywatt.bench.comparing import Comparing, Plan
from everywatt.bench.experiment import COOL_MOST_S, COOL_WITHIN, LOOK_S, RECENT_S, Experiment, interleaved
from everywatt.bench.trials import Candidate
from everywatt.core.clocks import NS

IDLE_S = 5.0


@pytest.fixture
def lab(tmp_path):
    return TrialLab(tmp_path)


def idle(lab):
    """An idle that is known to be idle."""
    uid = lab.span_open("idle", attributes={"role": "idle"})
    lab.sleep_until(lab.now_ns + round(IDLE_S * NS))
    lab.span_close(uid)


def cool_down(lab, show=None):
    """After a trial."""
    loop = Experiment(lab.meter(), clock=lab, show=show)
    loop.heated = True
    loop.cool_down()


def candidates(*commands):
    return [Candidate(n, "ABCD"[n], command, tuple(command.split())) for n, command in enumerate(commands)]


def compare(lab, plan, *commands):
    comparison = Comparing(candidates(*commands), plan, lab.meter(), clock=lab, execute=lab.execute)
    comparison.work()
    run = Experiment(lab.meter(), clock=lab).live()
    return comparison.result(run)


def test_cooling_ends_when_the_power_is_a_tenth_above_idle(lab):
    idle(lab)
    began_s, tau_s = lab.now_s, 20.0
    lab.power_w = lambda: lab.idle_w * (1 + 4 * math.exp(-(lab.now_s - began_s) / tau_s))
    shown = []
    cool_down(lab, shown.append)
    true_s = tau_s * math.log(4 / COOL_WITHIN)
    assert true_s <= lab.now_s - began_s <= true_s + RECENT_S + 2 * LOOK_S
    assert "idle 20.00 W" in shown[-1]


@pytest.fixture
def seldom(monkeypatch):
    """Look every three seconds: five minutes are a hundred looks."""
    monkeypatch.setattr(experiment, "LOOK_S", 3.0)


def test_what_never_cools_down_is_waited_for_five_minutes(lab, seldom):
    idle(lab)
    began_s = lab.now_s
    lab.power_w = lambda: 2 * lab.idle_w
    cool_down(lab)
    assert lab.now_s - began_s == pytest.approx(COOL_MOST_S, abs=3.0)


def test_a_recorder_that_writes_no_more_is_waited_for_too(lab, seldom):
    """What is old says nothing of the power now."""
    idle(lab)
    lab.power_w = lambda: 2 * lab.idle_w
    lab.sleep_until(lab.now_ns + NS)
    began_s, lab._next_ns = lab.now_s, 1 << 62
    cool_down(lab)
    assert lab.now_s - began_s == pytest.approx(COOL_MOST_S, abs=3.0)


def test_without_an_idle_nothing_is_waited_for(lab):
    lab.sleep_until(lab.now_ns + NS)
    began_s = lab.now_s
    cool_down(lab)
    assert lab.now_s == began_s


def test_a_difference_that_is_plain_is_decided_when_three_blocks_are_on_the_tape(lab):
    result = compare(lab, Plan(idle_s=IDLE_S, warmup=1, cool=True), "10 100 0", "10 80 0")
    assert result.ended == "decided"
    a, b = result.found
    assert a.energy.value == pytest.approx(1000, rel=1e-3) and b.energy.value == pytest.approx(800, rel=1e-3)
    # The reading after the third block's last trial is on the tape when the fourth block has ended.
    order = sorted((t for one in result.found for t in one.trials), key=lambda t: (t.block, t.place))
    assert [t.candidate for t in order if not t.warmup] == [0, 1, 1, 0, 0, 1, 1, 0]
    assert all(t.seconds == pytest.approx(10) for t in order)


def test_after_the_longest_time_no_block_is_begun(lab):
    """Two that are equal but for noise: an hour and not more, in whole blocks."""
    noise = iter(range(10_000))

    def noisy(words, *, show_output=False):
        seconds, watts, code = words
        off = (-1) ** next(noise) * 30 * (1 + next(noise) % 7)
        return lab.execute((seconds, float(watts) + off, code))

    plan = Plan(idle_s=IDLE_S, warmup=0, cool=False, max_s=3600.0, target=1e-6)
    comparison = Comparing(candidates("60 500 0", "60 500 0"), plan, lab.meter(), clock=lab, execute=noisy)
    comparison.work()
    result = comparison.result(Experiment(lab.meter(), clock=lab).live())
    assert result.ended == "time"
    assert 3600 < lab.now_s <= 3600 + 2 * 60 + IDLE_S
    assert {len(one.trials) for one in result.found} == {30}


def test_a_command_that_fails_again_and_again_is_given_up(lab):
    result = compare(lab, Plan(idle_s=0.0, warmup=0, cool=False), "60 100 1", "60 100 0")
    assert result.ended == "failures"
    assert lab.now_s == pytest.approx(6 * 60, abs=0.2), "three blocks"


def test_so_many_trials_are_so_many(lab):
    result = compare(lab, Plan(idle_s=0.0, warmup=2, cool=False, trials=4), "1 100 0", "2 50 0")
    assert result.ended == "trials"
    assert [len([t for t in one.trials if not t.warmup]) for one in result.found] == [4, 4]
    assert lab.now_s == pytest.approx((4 + 2) * 3, abs=0.2)


def schedule(variants, trials, done, fails, first=0):
    """What the loop runs of variants by number: `done` was run before, `fails` stop for good when they are run."""
    ran, failed = [], set()

    def trial(variant, block, place):
        ran.append((variant, block, place))
        if (variant, block) in fails:
            failed.add(variant)

    loop = Experiment(SimpleNamespace(recording=None), clock=FakeClock())
    ended = loop.blocks(
        range(variants),
        trial,
        trials=trials,
        first=first,
        skip=lambda variant, block: variant in failed or (variant, block) in done,
    )
    assert ended == "trials"
    return ran


TRIALS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=6)


@given(variants=st.integers(1, 5), trials=st.integers(0, 6), done=TRIALS, fails=TRIALS, first=st.integers(0, 2))
def test_what_is_done_is_not_run_again_and_what_failed_is_left(variants, trials, done, fails, first):
    """Against the order written out: every block, then each variant at its place in it."""
    wanted, failed = [], set()
    for block, order in zip(range(first, first + trials), interleaved(variants), strict=False):
        for place, variant in enumerate(order):
            if variant not in failed and (variant, block) not in done:
                wanted.append((variant, block, place))
                if (variant, block) in fails:
                    failed.add(variant)
    assert schedule(variants, trials, done, fails, first) == wanted


def test_a_comparison_that_is_taken_up_completes_the_block_that_was_cut_off(lab):
    plan = Plan(idle_s=0.0, warmup=0, cool=False, trials=3)
    calls = iter(range(100))

    def interrupted(words, *, show_output=False):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return lab.execute(words)

    cut = Comparing(candidates("1 100 0", "2 50 0"), plan, lab.meter(), clock=lab, execute=interrupted)
    with pytest.raises(KeyboardInterrupt):
        cut.work()
    again = Comparing(candidates("1 100 0", "2 50 0"), plan, lab.meter(), clock=lab, execute=lab.execute)
    again.take_up(Experiment(lab.meter(), clock=lab).live())
    again.work()
    result = again.result(Experiment(lab.meter(), clock=lab).live())
    order = sorted((t.block, t.place, t.candidate) for one in result.found for t in one.trials)
    assert order == [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 0, 0), (2, 1, 1)]
