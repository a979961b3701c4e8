"""Statistics against values from the literature and from simulation."""

import json

import numpy as np
import pytest

from everywatt.bench.llm.latency import latencies, parse_bounds, tpot_s, ttft_s, within
from everywatt.bench.llm.loads import Level, parse_rate, parse_sweep
from everywatt.bench.llm.records import QUERIES, Journal, Record, read_records
from everywatt.bench.llm.stats import joint_bootstrap, percentiles, regression, trimmed_mean, wilson
from everywatt.bench.llm.values import Answer
from everywatt.core.errors import UsageError
from everywatt.core.retry import Backoff


@pytest.mark.parametrize(
    ("right", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)]
)
def test_wilson(right, n, low, high):
    share = wilson(right, n)
    assert (share.low, share.high) == pytest.approx((low, high), abs=5e-5)
    assert wilson(0, 0) is None


def test_the_joint_bootstrap_covers_the_truth():
    chance = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        joules = chance.gamma(4, 1.0, 120)
        right = chance.random(120) < 0.7
        low, high = joint_bootstrap(list(right), list(joules), resamples=400)
        hits += low <= 0.7 / 4 <= high
    assert hits >= 52


def test_items_of_one_group_are_drawn_together():
    right = [True] * 50 + [False] * 50
    groups = [str(n // 10) for n in range(100)]
    alone, grouped = joint_bootstrap(right, [1.0] * 100), joint_bootstrap(right, [1.0] * 100, groups)
    assert grouped[1] - grouped[0] > 2 * (alone[1] - alone[0])


def test_a_regression_finds_what_was_put_in():
    chance = np.random.default_rng(2)
    inputs, outputs = chance.integers(10, 500, 200), chance.integers(10, 300, 200)
    joules = 2 + 0.01 * inputs + 0.2 * outputs + chance.normal(0, 0.5, 200)
    found = regression({"input_tokens": list(inputs), "output_tokens": list(outputs)}, list(joules))
    for name, truth in (("constant", 2), ("input_tokens", 0.01), ("output_tokens", 0.2)):
        assert abs(found[name]["value"] - truth) < 4 * found[name]["se"]
    assert found["r2"] > 0.99
    assert regression({"input_tokens": [1, 1, 1]}, [1, 2, 3]) is None


def test_small_things():
    assert percentiles([]) is None
    assert percentiles([1, 2, 3])["p50"] == 2
    assert trimmed_mean([0.0] * 9 + [1.0] * 10 + [100.0]) == pytest.approx(10 / 18)
    assert list(Backoff(retries=4, jitter=0, most_s=3).delays()) == [0.5, 1.0, 2.0, 3]
    assert Backoff(most_s=5).at_least(1.0, 60) == 5


MS = 1_000_000


def answer(**more):
    times = tuple(1000 * MS + ms * MS for ms in (50, 60, 70, 90))
    return Answer("ok", "x", began_ns=900 * MS, sent_ns=1000 * MS, ended_ns=1100 * MS, piece_ns=times, **more)


def test_times_by_their_definitions():
    one = answer(output_tokens=5)
    assert ttft_s(one) == pytest.approx(0.05)
    assert tpot_s(one) == pytest.approx(0.04 / 4)
    assert tpot_s(answer()) is None
    found = latencies([Record("a", "l", None, one)])
    assert found["itl_s"]["n"] == 3 and found["itl_s"]["p50"] == pytest.approx(0.01)
    assert found["e2e_s"]["mean"] == pytest.approx(0.1)
    assert within(one, parse_bounds("ttft=50ms,tpot=10ms"))
    assert not within(one, parse_bounds("e2e=99ms"))
    with pytest.raises(UsageError):
        parse_bounds("speed=1s")


def test_loads():
    assert [level.label for level in parse_sweep("1,8")] == ["concurrency 1", "concurrency 8"]
    constant = parse_rate("constant:4").arrivals()
    assert [next(constant) for _ in range(3)] == [0, 0.25, 0.5]
    poisson = parse_rate("10/s").arrivals()
    times = [next(poisson) for _ in range(2001)]
    assert times[-1] == pytest.approx(200, rel=0.1)
    assert np.std(np.diff(times)) == pytest.approx(0.1, rel=0.1)
    for wrong in ("0", "gamma:2", "x"):
        with pytest.raises(UsageError):
            parse_rate(wrong)
    with pytest.raises(UsageError):
        Level(3, 2.0)


def test_half_a_record_is_not_one_and_the_last_of_an_item_counts(tmp_path):
    journal = Journal(tmp_path)
    journal.add(Record("a", "l", "s1", Answer("failed")))
    journal.add(Record("b", "l", "s2", answer()))
    journal.close()
    with (tmp_path / QUERIES).open("a") as file:
        file.write('{"id": "c", "level": "l", "ans')
    journal = Journal(tmp_path)
    journal.add(Record("a", "l", "s3", answer()))
    journal.close()
    found = read_records(tmp_path)
    assert [(one.id, one.span, one.ok) for one in found] == [("b", "s2", True), ("a", "s3", True)]
    assert found[0].answer.piece_ns == answer().piece_ns
    assert len((tmp_path / QUERIES).read_text().splitlines()) == 4
    assert json.loads((tmp_path / QUERIES).read_text().splitlines()[0])["answer"]["status"] == "failed"
