"""Curves of gauges and counters, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.energy.sampling import CounterCurve, GaugeCurve
from everywatt.energy.unseen_power import own_swing, restlessness
from everywatt.energy.utilisation import Witness, toggling, unwitnessed

# Utilisation that can tell busy from idle, and says busy all the time that matters.
WORKING = Witness.of_percent([-10.0, -9.0, 30.0], [0, 100, 100])


def test_a_reading_belongs_to_the_time_before_it():
    curve = GaugeCurve([1.0, 2.0, 3.0], [100.0, 300.0, 300.0], period_s=1.0)
    assert curve.energy(0.0, 1.0).joules == pytest.approx([100.0])
    assert curve.energy(1.0, 2.0).joules == pytest.approx([300.0])
    assert curve.energy([0.5, 0.0], [1.5, 3.0]).joules == pytest.approx([200.0, 700.0])


def test_a_steady_load_is_known_almost_exactly():
    t = np.arange(0.1, 20, 0.1)
    always = np.full(len(t), 250.0)
    curve = GaugeCurve(t, always, period_s=0.1, quantum_w=0.01, witness=WORKING)
    found = curve.energy(3.0, 8.1)
    assert found.joules == pytest.approx([250 * 5.1])
    assert found.half_width_j[0] == pytest.approx(0.005 * 5.1)
    # A window that ends inside a cell may hold more or less of a ripple than its share of the cell.
    assert curve.edge_half_width(8.15) == pytest.approx(1.7 * 0.4 * 250 * 0.1 / np.sqrt(12))


@pytest.mark.parametrize("witness", [None, Witness.of_percent([0.0, 20.0], [100, 100])], ids=["none", "stuck at 100 %"])
def test_without_a_witness_that_moves_a_load_may_toggle_inside_a_cell(witness):
    t = np.arange(0.1, 20, 0.1)
    steady = GaugeCurve(t, np.full(len(t), 250.0), period_s=0.1, witness=witness)
    # 125 to 375 W, once in a cell: in its middle up to 125 W × 0.05 s are out of place
    assert steady.energy(3.05, 8.0).half_width_j[0] == pytest.approx(125 * 0.05, rel=0.05)
    assert steady.energy(3.1, 8.0).half_width_j[0] == pytest.approx(0.0, abs=1e-9)


def test_a_device_that_is_always_busy_may_show_one_level_to_a_sensor_that_looks_at_a_part_of_each_period():
    t = np.arange(0.1, 20, 0.1)
    busy = Witness.of_percent([0.0, 20.0], [100, 100])
    partly = GaugeCurve(t, np.full(len(t), 250.0), period_s=0.1, window_s=0.025, witness=busy)
    assert partly.energy(3.0, 8.0).half_width_j[0] == pytest.approx(0.25 * 250 * 5, rel=0.01)


def test_what_a_sensor_does_not_see_without_utilisation_is_anywhere_up_to_the_limit():
    t = np.arange(0.1, 20, 0.1)
    partly = GaugeCurve(t, np.full(len(t), 250.0), period_s=0.1, window_s=0.025, limit_w=400.0)
    # three quarters of five seconds: from 0 W, as the device was never seen at rest, to 400 W
    low, high = partly.energy(3.0, 8.0).ends()
    assert low == pytest.approx([0.25 * 250 * 5], rel=0.01)
    assert high == pytest.approx([(0.25 * 250 + 0.75 * 400) * 5], rel=0.01)


def test_a_witness_that_says_idle_is_believed_while_power_stands_still():
    t = np.arange(0.1, 20, 0.1)
    idle = Witness.of_percent(t, np.zeros(len(t)))
    assert not unwitnessed(idle, np.full(len(t), 60.0))
    assert unwitnessed(idle, np.where(t < 9, 60.0, 70.0))


def test_an_edge_is_worst_in_the_middle_of_a_changing_cell():
    t = np.arange(1.0, 11.0)
    y = np.where(t <= 5, 100.0, 300.0)
    curve = GaugeCurve(t, y, period_s=1.0, witness=WORKING)
    at_end, inside, calm = curve.edge_half_width([5.0, 4.5, 2.5])
    assert at_end == pytest.approx(0.0, abs=1e-9)
    # a device that is busy may draw power with an sd of 0.4 of its mean, about once a cell
    busy = 0.4 / np.sqrt(12)
    assert calm == pytest.approx(1.7 * busy * 100)
    # one change of 200 W at an unknown place: sd (2/√3) × 100 W × 1 s × ¼, and 95 % of a bounded error within 1.7 sd
    assert inside == pytest.approx(1.7 * 2 / np.sqrt(3) * 100 / 4)


def test_a_gap_is_not_bridged():
    curve = GaugeCurve([1.0, 2.0, 10.0, 11.0], [100.0, 100.0, 100.0, 100.0], period_s=1.0)
    found = curve.energy(0.0, 11.0)
    assert found.joules == pytest.approx([400.0])


def test_half_seen_cells_lean_on_both_readings():
    curve = GaugeCurve([1.0, 2.0, 3.0], [100.0, 100.0, 200.0], period_s=1.0, window_s=0.5)
    # half a second seen at 200 W, half a second somewhere between 100 and 200 W
    assert curve.energy(2.0, 3.0).joules == pytest.approx([0.5 * 200 + 0.5 * 150])
    assert curve.energy(2.0, 3.0).inner_j[0] > 20


def test_a_beat_is_seen_through_utilisation():
    """A quarter-seeing sensor reads only the upper level of a load that is on half of the time."""
    t = np.arange(0.1, 30, 0.1)
    phase = (t * 0.3) % 1.0  # the beat takes 3.3 s
    y = np.where(phase < 0.5, 200.0, 60.0)
    busy = Witness.of_percent(t, np.where(t < 2, 0, 50))
    y = np.where(t < 2, 60.0, y)
    found = GaugeCurve(t, y, period_s=0.1, window_s=0.025, witness=busy).energy(10.1, 11.1)
    assert found.joules == pytest.approx([130.0], rel=0.03)
    assert 3 < found.half_width_j[0] < 15


@pytest.mark.parametrize("percent", [0.0, 100.0])
def test_utilisation_that_never_moves_is_no_witness(percent):
    t = np.arange(0.1, 5, 0.1)
    assert toggling(Witness.of_percent(t, np.full(len(t), percent)), t) is None


def test_utilisation_between_busy_and_idle_is_a_witness_also_where_it_never_moves():
    t = np.arange(0.1, 5, 0.1)
    state = toggling(Witness.of_percent(t, np.full(len(t), 50.0)), t)
    assert state is not None
    assert state.sure.all()


def test_a_moving_average_is_undone():
    at = np.arange(0.1, 12, 0.1)
    energy = lambda t: 100 * t + 200 * np.clip(t - 5.0, 0, 3)  # noqa: E731 - a step up at 5 s and down at 8 s
    y = (energy(at) - energy(at - 1.0)) / 1.0
    curve = GaugeCurve(at, y, period_s=0.1, window_s=1.0)
    a = np.array([4.0, 5.0, 6.5, 4.5])
    b = np.array([5.0, 5.5, 7.5, 9.5])
    found = curve.energy(a, b)
    assert found.joules == pytest.approx(energy(b) - energy(a), rel=0.01)


def test_a_counter_is_exact_at_its_publications():
    curve = CounterCurve([0.0, 1.0, 2.0, 3.0], [0.0, 100.0, 400.0, 500.0])
    found = curve.energy([0.0, 1.0, 0.5], [3.0, 2.0, 1.0])
    assert found.joules == pytest.approx([500.0, 300.0, 50.0])
    assert found.half_width_j[:2] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert found.half_width_j[2] > 10


def test_late_publications_cost_a_counter_power_times_time():
    t = np.arange(0.0, 10.0)
    curve = CounterCurve(t, 100 * t, early_s=t - 0.01, late_s=t)
    sd = 100 * 0.01 / np.sqrt(12)
    assert curve.energy(2.0, 4.0).left_j == pytest.approx([1.7 * sd])


def test_adjacent_windows_share_an_edge():
    t = np.arange(0.1, 5, 0.1)
    curve = GaugeCurve(t, 100 + 50 * np.sin(7 * t), period_s=0.1)
    found = curve.energy([1.03, 2.27], [2.27, 3.01])
    assert found.right_j[0] == found.left_j[1]


def test_swings():
    assert own_swing(np.array([1.0, 1.0, 5.0, 5.0])).tolist() == [0.0, 4.0, 4.0, 0.0]
    step = np.concatenate((np.full(20, 100.0), np.full(20, 300.0)))
    assert restlessness(step).max() == 0.0
    noise = np.random.default_rng(0).normal(0, 3, 4000)
    assert np.mean(restlessness(noise)) == pytest.approx(3.0, rel=0.1)


def test_too_little_for_a_curve():
    with pytest.raises(ValueError, match="at least one"):
        GaugeCurve([], [], period_s=0.1)
    with pytest.raises(ValueError, match="at least two"):
        CounterCurve([1.0], [5.0])
    assert GaugeCurve([1.0], [50.0], period_s=1.0).energy(0.5, 1.0).joules == pytest.approx([25.0])


def test_a_step_is_placed_inside_its_cell():
    energy = lambda t: 100 * t + 200 * np.clip(t - 5.03, 0, None)  # noqa: E731 - a step of 200 W at 5.03 s
    at = np.arange(0.1, 10, 0.1)
    a, b = np.array([5.0, 4.5]), np.array([5.02, 5.05])
    gauge = GaugeCurve(at, (energy(at) - energy(at - 0.1)) / 0.1, period_s=0.1).energy(a, b)
    counter = CounterCurve(at, energy(at)).energy(a, b)
    assert gauge.joules == pytest.approx(energy(b) - energy(a), rel=1e-3)
    assert counter.joules == pytest.approx(energy(b) - energy(a), rel=1e-3)
