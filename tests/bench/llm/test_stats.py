"""Statistics against values from the literature and from simulation."""

import json

import numpy as np
import pytest

from everywatt.bench.experiment import JsonLines
from everywatt.bench.llm.figure import Share, percentiles, regression, trimmed_mean
from everywatt.bench.llm.loads import Level, parse_rate, parse_sweep
from everywatt.bench.llm.metrics import latencies, parse_bounds, within
from everywatt.bench.llm.records import QUERIES, Answer, Record, read_records
from everywatt.core.errors import UsageError
from everywatt.net.http1 import Backoff


def test_a_share_of_nothing_is_none():
    assert Share.of(0, 0) is None
    share = Share.of(8, 10)
    assert (share.value, share.n) == (0.8, 10) and share.low < 0.8 < share.high


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
    assert one.ttft_s == pytest.approx(0.05)
    assert one.tpot_s == pytest.approx(0.04 / 4)
    assert answer().tpot_s is None
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
    journal = JsonLines(tmp_path / QUERIES)
    journal.write(Record("a", "l", "s1", Answer("failed")).to_dict())
    journal.write(Record("b", "l", "s2", answer()).to_dict())
    journal.close()
    with (tmp_path / QUERIES).open("a") as file:
        file.write('{"id": "c", "level": "l", "ans')
    journal = JsonLines(tmp_path / QUERIES)
    journal.write(Record("a", "l", "s3", answer()).to_dict())
    journal.close()
    found = read_records(tmp_path)
    assert [(one.id, one.span, one.ok) for one in found] == [("b", "s2", True), ("a", "s3", True)]
    assert found[0].answer.piece_ns == answer().piece_ns
    assert len((tmp_path / QUERIES).read_text().splitlines()) == 4
    assert json.loads((tmp_path / QUERIES).read_text().splitlines()[0])["answer"]["status"] == "failed"
