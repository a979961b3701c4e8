"""Rows taken together must accumulate as the same rows taken one by one."""

from __future__ import annotations

import random

import pytest

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.tape.accumulate import Accumulator, publication_ns

S = 1_000_000_000
GROUP = GroupInfo(
    "gpu.0",
    "x",
    "gpu.0",
    (
        Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU, 1e-3, facts=Facts(max_w=300.0)),
        Channel("gpu.0.power", "W", Kind.GAUGE, "gpu.0", Domain.GPU, 1e-3),
        Channel("gpu.0.power_average", "W", Kind.GAUGE, "gpu.0", Domain.GPU, 1e-3),
        Channel("gpu.0.utilisation", "%", Kind.GAUGE, "gpu.0"),
    ),
)


def rows(seed: int, count: int) -> list[Row]:
    """Every 100 ms; the average is known in about one row of ten."""
    chance = random.Random(seed)
    made, energy = [], 1e6
    for number in range(count):
        at = 50 * S + number * S // 10 + chance.randrange(1_000_000)
        power = float(chance.randrange(50_000, 300_000))
        energy += round(power / 10)
        average = power if chance.random() < 0.1 else NAN
        made.append(Row(at, at, at, (energy, power, average, 50.0)))
    return made


@pytest.mark.parametrize("seed", range(8))
def test_values_that_are_missing_in_most_rows(seed: int) -> None:
    one_by_one, together = Accumulator(GROUP, 0.1), Accumulator(GROUP, 0.1)
    given = rows(seed, 41)
    for row in given:
        assert one_by_one.add(row) == []
    assert together.add(given[0]) == []
    for start in range(1, 41, 10):
        part = given[start : start + 10]
        columns = list(zip(*(row.values for row in part), strict=True))
        assert together.add_all(columns, [publication_ns(row) for row in part])
    found = together.cum()
    assert repr(found) == repr(one_by_one.cum())  # NaN is not equal to itself
    assert found[0].total == given[-1].values[0] - given[0].values[0]
    assert found[2].observed_ns < found[1].observed_ns == found[0].observed_ns


def test_a_counter_that_has_no_value_is_looked_at_row_by_row() -> None:
    accumulator = Accumulator(GROUP, 0.1)
    given = rows(1, 12)
    accumulator.add(given[0])
    before = accumulator.cum()
    values = [row.values for row in given[1:]]
    values[3] = (NAN, *values[3][1:])
    assert not accumulator.add_all(list(zip(*values, strict=True)), [publication_ns(row) for row in given[1:]])
    assert repr(accumulator.cum()) == repr(before)
