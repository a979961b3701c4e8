"""From trials to means, ratios, verdicts and gates; every number is worked out by hand."""

import math
import re
from dataclasses import replace

import pytest

from everywatt.bench.comparing import Plan, Result
from everywatt.bench.figures import answered, failing, figures, narrow, parse_rule, undecided, unjudged
from everywatt.bench.trials import Trial, candidates
from everywatt.bench.verdict import Verdict
from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.core.tables import column_groups, widths, without_spare

TWO = candidates(["a", "b"])


def joules(value, *, seconds=1.0, gain=0.0, offset_w=0.0, card="card"):
    terms = (Term("gain", f"gain:{card}", value * gain), Term("offset", f"offset:{card}", offset_w * seconds))
    return Energy(value, Budget(terms), "gpu", "counter")


def trial(candidate, block, energy, *, seconds=1.0, code=0, warmup=False, net=None):
    return Trial(candidate, block, 0, f"{candidate}-{block}", code, seconds, 0.5, 10**7, warmup, energy, net)


def series(a, b, **more):
    return [
        trial(which, block, joules(value, **more))
        for which, values in ((0, a), (1, b))
        for block, value in enumerate(values)
    ]


def test_the_gain_of_one_card_cancels_in_the_ratio_and_not_in_the_means():
    a, b = figures(TWO, series([10.0, 10.01, 9.99, 10.0], [20.0, 20.02, 19.98, 20.0], gain=0.05))
    assert a.energy.value == pytest.approx(10.0)
    assert (a.energy.high - a.energy.value) > 0.49  # 5 % gain
    assert b.gross.ratio == pytest.approx(2.0, abs=1e-3)
    assert b.gross.high - b.gross.low < 0.05
    assert b.gross.answer is Verdict.MORE


def test_the_mean_of_modelled_energies_is_as_lopsided_as_they_are():
    """A model may be wrong by 60 J downwards and 260 J upwards: so may the mean of equal trials."""
    modelled = Energy(100.0, Budget((), (Bound("model", "model:host", 60.0, 260.0),)), "machine", "modelled")
    (one,) = figures(TWO[:1], [trial(0, block, modelled) for block in range(4)], anytime=False)
    assert (one.energy.low, one.energy.value, one.energy.high) == pytest.approx((40.0, 100.0, 360.0))


def test_the_offset_does_not_cancel_where_the_energies_differ():
    exact = figures(TWO, series([10.0, 10.01, 9.99], [20.0, 20.02, 19.98]))[1]
    shifted = figures(TWO, series([10.0, 10.01, 9.99], [20.0, 20.02, 19.98], offset_w=1.0))[1]
    # (20 + e) / (10 + e) for e = ±1 J: the further end is at -1 J.
    widened = (math.log(shifted.gross.high) - math.log(shifted.gross.ratio)) ** 2
    own = (math.log(exact.gross.high) - math.log(exact.gross.ratio)) ** 2
    assert math.sqrt(widened - own) == pytest.approx(math.log(19 / 9 / 2))


def test_warm_up_does_not_count_and_pairs_are_of_one_block():
    trials = [*series([10.0, 11.0, 12.0], [20.0, 22.0, 24.0]), trial(0, -1, joules(99.0), warmup=True)]
    a, b = figures(TWO, trials)
    assert len(a.trials) == 3
    assert b.gross.ratio == pytest.approx(2.0)
    assert b.gross.trials == 3


def test_power_time_memory_and_the_energy_delay_product():
    trials = [trial(0, block, joules(6.0, seconds=2.0), seconds=2.0) for block in range(3)]
    (one,) = figures(candidates(["a"]), trials)
    assert one.power_w == pytest.approx(3.0)
    assert one.seconds.value == pytest.approx(2.0)
    assert one.edp_js == pytest.approx(12.0)
    assert one.max_rss_bytes == 10**7
    assert narrow(one, 0.02)


def test_one_alone_is_narrow_where_more_trials_would_not_narrow_it():
    """Its card may be wrong by 5 %, which no number of trials changes."""
    (one,) = figures(TWO[:1], [trial(0, block, joules(10.0 + block / 1000, gain=0.05)) for block in range(4)])
    assert one.energy.high - one.energy.low > 0.9
    assert narrow(one, 0.02)
    (one,) = figures(TWO[:1], [trial(0, block, joules(10.0 + block, gain=0.05)) for block in range(4)])
    assert not narrow(one, 0.02)


def test_a_failed_trial_is_kept_and_there_is_no_verdict_unless_asked_for():
    trials = series([10.0, 10.0, 10.1], [20.0, 20.0, 20.1])
    trials[4] = trial(1, 1, joules(20.0), code=3)
    b = figures(TWO, trials)[1]
    assert b.failures == 1
    assert len(b.trials) == 3
    assert b.verdict.startswith("no verdict: 1 trial failed")
    assert not answered(figures(TWO, trials), 0.02)
    assert "more energy" in figures(TWO, trials, ignore_failure=True)[1].verdict


def test_a_refused_energy_is_a_note_and_not_a_zero():
    refused = Energy.refuse("nothing measures power")
    trials = [trial(which, block, refused) for which in (0, 1) for block in range(3)]
    a, b = figures(TWO, trials)
    assert a.energy is None
    assert a.power_w is None
    assert a.notes == ("nothing measures power",)
    assert b.verdict == "no verdict: energy is not available for both"


def test_outliers_are_told_by_their_place():
    a = figures(candidates(["a"]), [trial(0, n, joules(v)) for n, v in enumerate([10, 10.1, 9.9, 10.05, 9.95, 20])])[0]
    assert a.outliers == (5,)
    assert a.outlier_line == "trial 6 is an outlier; kept"
    assert replace(a, outliers=(0, 5)).outlier_line == "trials 1, 6 are outliers; kept"


def test_very_many_outliers_are_summarised():
    a = figures(candidates(["a"]), [trial(0, n, joules(10.0)) for n in range(3000)])[0]
    assert replace(a, outliers=tuple(range(0, 2700, 3))).outlier_line == "900 of 3000 trials are outliers; kept"


@pytest.mark.parametrize(
    ("rule", "fails"),
    [
        ("energy > baseline * 1.05", True),
        ("energy > baseline*3", False),
        ("energy > baseline", True),
        ("energy < baseline", False),
        ("energy > 15 J", True),
        ("energy > 25J", False),
        ("time > 2s", False),
        ("power > 5 W", True),
        ("memory > 5 MB", True),
        ("memory > 1 GiB", False),
    ],
)
def test_a_gate_fails_where_the_interval_says_so(rule, fails):
    found = figures(TWO, series([10.0, 10.01, 9.99, 10.0], [20.0, 20.02, 19.98, 20.0]))
    assert bool(failing(parse_rule(rule), found)) is fails


def test_an_undecided_comparison_does_not_fail_a_gate():
    found = figures(TWO, series([10.0, 14.0, 9.0], [11.0, 13.0, 12.0]))
    assert failing(parse_rule("energy > baseline * 1.01"), found) == []


@pytest.mark.parametrize("text", ["energy", "joules > 3", "energy > banana", "energy ~ 3", "memory > lots"])
def test_a_wrong_rule_is_refused(text):
    with pytest.raises(UsageError):
        parse_rule(text)


def net_series(a, b):
    """Trials of 10 J each that used so much above idle."""
    return [
        trial(which, block, joules(10.0), net=replace(joules(value), signed=True))
        for which, values in ((0, a), (1, b))
        for block, value in enumerate(values)
    ]


# Noise around nothing: where both are positive, the second happens to use more.
NEAR_IDLE = net_series([0.10, -0.20, 0.11, 0.05, 0.10, -0.15, 0.10], [0.19, 0.20, 0.20, -0.12, 0.18, 0.1, 0.19])


def test_no_verdict_above_idle_from_the_pairs_that_happen_to_be_positive():
    one = figures(TWO, NEAR_IDLE)[1]
    assert one.above_idle is None
    assert one.notes == ("no ratio above idle: 3 of 7 pairs have a trial that used no more than idle",)
    assert one.gross is not None


def test_a_gate_on_a_ratio_that_does_not_exist_is_not_judged():
    rule = parse_rule("net > baseline * 1.05")
    found = figures(TWO, NEAR_IDLE)
    assert failing(rule, found) == []
    assert unjudged(rule, found) == ["B: net > baseline * 1.05 cannot be decided: no ratio for net"]


def test_conditions_on_cpu_time_and_open_ones():
    trials = [
        replace(trial(which, block, replace(joules(10.0 + which), pedigree="modelled")), cpu_s=cpu_s)
        for which, cpus in ((0, (1.0, 1.01, 0.99, 1.0)), (1, (2.0, 2.04, 1.97, 2.01)))
        for block, cpu_s in enumerate(cpus)
    ]
    found = figures(TWO, trials)
    assert "B: cpu > baseline * 1.5 (" in failing(parse_rule("cpu > baseline * 1.5"), found)[0]
    assert failing(parse_rule("cpu > 1.5s"), found) and not undecided(parse_rule("cpu > 1.5s"), found)
    assert not failing(parse_rule("cpu > baseline * 2"), found)
    assert "B: cpu > baseline * 2 (1." in undecided(parse_rule("cpu > baseline * 2"), found)[0]
    assert "B: cpu < baseline * 2 (1." in undecided(parse_rule("cpu < baseline * 2"), found)[0]
    assert not undecided(parse_rule("cpu < baseline * 1.5"), found)


def test_where_energy_is_modelled_cpu_time_leads_and_decides():
    trials = [
        replace(trial(which, block, replace(joules(10.0 + which), pedigree="modelled")), cpu_s=cpu_s)
        for which, cpus in ((0, (1.0, 1.01, 0.99, 1.0)), (1, (2.0, 2.02, 1.98, 2.0)))
        for block, cpu_s in enumerate(cpus)
    ]
    found = figures(TWO, trials)
    assert found[1].decisive is found[1].cpu and found[1].cpu.ratio == pytest.approx(2.0, abs=1e-3)
    result = Result(Plan(), tuple(TWO), tuple(found), "decided", None)
    assert result.verdicts()[0].startswith("B uses 100") and result.verdicts()[0].endswith("more CPU time than A")
    assert result.verdicts()[1].endswith("(modelled)")
    assert list(result.tables()[0].headers[3:6]) == ["CPU time", "ratio of CPU time", "energy"]
    measured = figures(TWO, series([10.0, 10.1, 9.9], [20.0, 20.1, 19.9]))
    assert measured[1].decisive is measured[1].gross
    assert "CPU time" not in Result(Plan(), tuple(TWO), tuple(measured), "decided", None).tables()[0].headers


def test_a_mean_energy_is_never_below_zero():
    a = figures(candidates(["a"]), [trial(0, n, joules(v)) for n, v in enumerate([1.0, 9.0, 1.0])])[0]
    assert a.energy.low == 0.0


@pytest.mark.parametrize(("gain", "digits"), [(0.0, "100.2"), (0.01, "100.2"), (0.1, "100"), (0.3, "100")])
def test_verdicts_name_the_baseline_and_power_has_the_digits_of_the_energy(gain, digits):
    found = figures(TWO, series([100.0, 100.4, 100.2, 100.3, 100.1], [201.0, 200.8, 201.2, 201.1, 200.9], gain=gain))
    result = Result(Plan(), TWO, tuple(found), "trials", None)
    assert result.verdicts()[0].endswith(" more energy than A")
    (table,) = result.tables()
    shown = dict(zip(table.headers, table.cells()[0], strict=True))
    assert (shown["power"], shown["energy × time"]) == (f"{digits} W", f"{digits} J·s")


def test_a_large_factor_is_a_factor():
    result = Result(Plan(), TWO, tuple(figures(TWO, series([1.0, 1.02, 0.98], [114.0, 112.0, 116.0]))), "trials", None)
    assert re.fullmatch(r"B uses 114\.?\d* times \([\d.]+ … [\d.]+\) as much energy as A", result.verdicts()[0])
    little = figures(TWO, series([114.0, 112.0, 116.0], [1.0, 1.02, 0.98]))
    assert "less energy than A" in little[1].verdict, "a small share reads well as percent less"


def test_a_comparison_is_one_table_in_120_columns():
    modelled = [replace(one, energy=replace(one.energy, pedigree="modelled"), net=one.energy) for one in
                series([1.0, 1.02, 0.98], [114.0, 112.0, 116.0], gain=0.3)]  # fmt: skip
    result = Result(Plan(), TWO, tuple(figures(TWO, modelled)), "trials", None)
    shown = without_spare(result.tables()[0], 118)
    assert len(column_groups(widths(shown.headers, shown.cells()), shown.right, 118)) == 1
    assert {"ratio of CPU time", "energy", "ratio", "time"} <= set(shown.headers)


def test_times_do_not_reach_below_zero():
    trials = [trial(0, block, joules(1.0), seconds=seconds) for block, seconds in enumerate((0.001, 0.001, 0.06))]
    (one,) = figures(TWO[:1], [replace(each, cpu_s=each.seconds) for each in trials], anytime=False)
    assert one.seconds.low == one.cpu_s.low == 0.0
    assert str(one.seconds.time) == "≈ 21 ms (0 … 55 ms)"


def test_the_energy_of_one_trial_has_the_digits_that_its_measurement_leaves():
    found = figures(TWO, series([10.1234], [20.1234], gain=0.5))
    (table,) = Result(Plan(), TWO, tuple(found), "trials", None).tables()
    first = dict(zip(table.headers, table.cells()[0], strict=True))
    assert (first["energy"], first["power"]) == ("10.1 J", "10.1 W")
