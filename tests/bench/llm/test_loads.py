import itertools

import numpy as np
import pytest

from everywatt.bench.llm.loads import Level, kind_of, parse_rate, parse_sweep, repeated
from everywatt.core.errors import UsageError


def first(level, count):
    return list(itertools.islice(level.arrivals(), count))


def test_a_constant_rate_and_a_poisson_rate():
    assert first(parse_rate("constant:4"), 4) == [0.0, 0.25, 0.5, 0.75]
    gaps = np.diff(first(parse_rate("poisson:10"), 5000))
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() == pytest.approx(0.1, rel=0.1)


def test_a_ramp_has_the_rate_that_it_has_by_then():
    level = parse_rate("constant-ramp:1..9:10s")
    # The integral of 1 + 0.8 t is t + 0.4 t²: 50 requests by the tenth second, and 9 a second from then on.
    at = np.array(first(level, 60))
    assert at[at < 10] + 0.4 * at[at < 10] ** 2 == pytest.approx(np.arange(np.sum(at < 10)))
    assert at[50] == pytest.approx(10.0) and at[59] == pytest.approx(11.0)
    down = parse_rate("constant-ramp:9..1:10s")
    assert first(down, 51)[50] == pytest.approx(10.0)
    assert parse_rate("ramp:1..9").ramp_s == 60.0 and parse_rate("ramp:1..9").poisson
    assert level.label == "rate 1/s to 9/s in 10 s constant"
    flat = parse_rate("constant-ramp:2..2:5s")
    assert first(flat, 3) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("text", ["ramp:1..", "ramp:0..3", "often:2", "-1", "ramp:1..2:soon", "nan"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError):
        parse_rate(text)


def test_repeats_go_round_and_a_record_of_a_load_makes_it_again():
    levels = repeated(parse_sweep("1,4"), 2)
    assert [level.label for level in levels] == [
        "concurrency 1, repeat 1",
        "concurrency 4, repeat 1",
        "concurrency 1, repeat 2",
        "concurrency 4, repeat 2",
    ]
    assert {kind_of(level.label) for level in levels} == {"concurrency 1", "concurrency 4"}
    assert [Level(**level.to_dict()) for level in levels] == list(levels)
    assert repeated(parse_sweep("1,4"), 1) == parse_sweep("1,4")
    # Another repetition has other arrivals.
    two = repeated((parse_rate("poisson:5"),), 2)
    assert first(two[0], 9) != first(two[1], 9)
