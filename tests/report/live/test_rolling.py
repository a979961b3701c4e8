"""Rolling averages answer a step as the formula says, however often they are fed."""

import math
import random

import pytest

from everywatt.report.live.gather import CONSTANTS_S, Rolling


@pytest.mark.parametrize(("index", "tau"), list(enumerate(CONSTANTS_S)))
def test_a_step_is_answered_by_the_formula(index, tau):
    rolling = Rolling()
    rolling.add(0.0, 60.0)
    for second in range(1, 31):
        rolling.add(100.0, 1.0)
        assert rolling.watts[index] == pytest.approx(100 * (1 - math.exp(-second / tau)), rel=1e-12)
    for second in range(1, 31):  # and back down
        top = 100 * (1 - math.exp(-30 / tau))
        rolling.add(0.0, 1.0)
        assert rolling.watts[index] == pytest.approx(top * math.exp(-second / tau), rel=1e-9)


def test_irregular_readings_give_the_same_average_as_regular_ones():
    regular, irregular, chance = Rolling(), Rolling(), random.Random(7)
    for rolling in (regular, irregular):
        rolling.add(50.0, 1.0)
    regular.add(200.0, 10.0)
    left = 10.0
    while left > 0:
        step = min(left, chance.uniform(0.01, 1.5))
        irregular.add(200.0, step)
        left -= step
    assert irregular.watts == pytest.approx(regular.watts, rel=1e-12)


def test_it_starts_from_the_first_power_and_is_none_before():
    rolling = Rolling()
    assert rolling.watts == [None, None, None]
    rolling.add(42.0, 0.1)
    assert rolling.watts == [42.0, 42.0, 42.0]
