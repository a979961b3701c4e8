"""Rows taken together must accumulate as the same rows taken one by one."""

from __future__ import annotations

import random

import pytest

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.tape.accumulate import Accumulator, Found
from everywatt.tape.columns import load_columns, ticks_by_frame
from everywatt.tape.reader import Tape
from everywatt.tape.validate import validate
from everywatt.tape.writer import TapeWriter

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
    accumulator = Accumulator(GROUP, 0.1)
    given = rows(seed, 41)
    for row in given:
        assert accumulator.add(row) == []
    found = accumulator.cum()
    assert found[0].total == given[-1].values[0] - given[0].values[0]
    assert found[2].observed_ns < found[1].observed_ns == found[0].observed_ns


def counter(**facts: float) -> GroupInfo:
    """A package's counter of microjoules, as RAPL has it."""
    known = Facts(period_s=0.001, **facts)
    channel = Channel("cpu.0.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, 1e-6, facts=known)
    return GroupInfo("rapl.cpu.0", "rapl", "cpu.0", (channel,))


def read_at(second: float, joules: float) -> Row:
    at = round((50 + second) * S)
    return Row(at, at, at, (joules * 1e6,))


def drawn(info: GroupInfo, *readings: tuple[float, float]) -> tuple[float, list[Found]]:
    """Joules that were accumulated over these readings (second, joules), and the gaps."""
    accumulator, found = Accumulator(info, 0.1), []
    for reading in readings:
        found += accumulator.add(read_at(*reading))
    return accumulator.cum()[0].total * 1e-6, found


# 100 W; one reading in between says 0.4 J, and the next one is 3,664.6 J more.
GLITCH = [(0.0, 3645.0), (0.1, 3655.0), (0.2, 0.4), (0.3, 3665.0), (0.4, 3675.0), (0.5, 3685.0)]


@pytest.mark.parametrize("facts", [{}, {"max_w": 125.0}, {"wrap": 262_143_328_850.0}, {"max_w": 125.0, "wrap": 262e9}])
def test_a_step_that_no_package_draws_is_a_gap_and_no_joules(facts: dict[str, float]) -> None:
    joules, found = drawn(counter(**facts), *GLITCH)
    assert joules == pytest.approx(30.0)
    assert [(gap.kind, (gap.end_ns - 50 * S) / S) for gap in found] == [("reset", 0.2), ("jump", 0.3)]


def test_a_jump_on_a_tape_counts_nowhere(tmp_path) -> None:
    writer = TapeWriter(tmp_path / "a.tape", {})
    group = writer.add_group(counter(max_w=125.0), 0.1)
    for place, reading in enumerate(GLITCH):
        writer.append(group, [read_at(*reading)])
        if place == 2:
            writer.flush()  # what the next row is compared with is in another frame
    writer.append(group, [read_at(0.6 + number / 10, 3695.0 + 10 * number) for number in range(5)])
    path = writer.seal()
    assert list(validate(path)) == []
    with Tape.open(path) as tape:
        joules = load_columns(tape, group, ["cpu.0.energy"]).accumulated["cpu.0.energy"] * 1e-6
        assert joules == pytest.approx([0, 10, 10, 10, 20, 30, 40, 50, 60, 70, 80])
        assert ticks_by_frame(tape, tape.group(group), ["cpu.0.energy"]) is None


def test_a_counter_that_stood_still_catches_up() -> None:
    still = [(second / 10, 500.0) for second in range(2, 600)]
    joules, found = drawn(counter(max_w=125.0), (0.0, 480.0), (0.1, 490.0), *still, (60.0, 6490.0))
    assert (joules, found) == (pytest.approx(6010.0), [])


def test_wraps_and_sleep_are_counted() -> None:
    top = 262_143.328850
    joules, found = drawn(counter(wrap=top * 1e6), (0.0, top - 15), (0.1, top - 5), (0.2, 5.0))
    assert (joules, found) == (pytest.approx(20.0), [])
    # An hour without a reading, at 60 W.
    assert drawn(counter(max_w=125.0), (0.0, 10.0), (3600.0, 216_010.0))[0] == pytest.approx(216_000.0)
    # A night at 1 W in which the clock stood still.
    for slept in (True, False):
        accumulator = Accumulator(counter(max_w=125.0), 0.1)
        accumulator.add(read_at(0.0, 10.0))
        if slept:
            accumulator.suspended()
        kinds = [gap.kind for gap in accumulator.add(read_at(0.1, 28_810.0))]
        assert kinds == ([] if slept else ["jump"])
        assert [gap.kind for gap in accumulator.add(read_at(0.2, 90_000.0))] == ["jump"]
