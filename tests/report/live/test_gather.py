"""From rows to devices: power, joules and state of tapes whose truth is written down."""

import math
from dataclasses import replace

import pytest
from tapes import at, counter_group, gauge_group, rows, starved_rows, write_tape

from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Row
from everywatt.core.clocks import NS
from everywatt.report.live.gather import Gatherer, left_out, sum_of
from everywatt.tape.following import Follower
from everywatt.tape.reader import Tape


def gathered(path, *, interval_s=1.0, back_s=None):
    """A gatherer that has read a tape, and the instant of its last row."""
    tape = Tape.open(path)
    gatherer = Gatherer(interval_s)
    gatherer.adopt(tape)
    gatherer.feed(Follower(tape, back_ns=None if back_s is None else round(back_s * NS)).look())
    return gatherer


def test_a_counters_slope_is_the_power_and_its_rise_the_energy(tmp_path):
    path = write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, rows(lambda t: 500 + 30 * t, 0, 20, 0.1))])
    (device,) = gathered(path).devices(at(20))
    assert device.name == "cpu.0" and device.in_total
    assert device.power_w == pytest.approx(30.0)
    assert device.energy.joules == pytest.approx(600.0)
    assert device.energy.coverage == pytest.approx(1.0)
    assert device.averages_w == pytest.approx((30.0, 30.0, 30.0))
    assert len(device.history_w) >= 18 and device.history_w == pytest.approx([30.0] * len(device.history_w))


def test_the_averages_follow_a_step_by_the_formula(tmp_path):
    path = write_tape(
        tmp_path / "a.tape", [(counter_group(), 1.0, rows(lambda t: max(0.0, 100 * (t - 60)), 0, 70, 1.0))]
    )
    (device,) = gathered(path).devices(at(70))
    expected = [100 * (1 - math.exp(-10 / tau)) for tau in (1, 5, 15)]
    assert device.averages_w == pytest.approx(expected, rel=1e-9)


def test_a_gauge_is_held_backwards_and_a_gap_is_not_counted(tmp_path):
    ticks = [*rows(lambda t: 80.0, 0, 10, 0.1), *rows(lambda t: 80.0, 20, 30, 0.1)]
    path = write_tape(tmp_path / "a.tape", [(gauge_group(period_s=0.1, window_s=0.1), 0.1, ticks)])
    (device,) = gathered(path).devices(at(30))
    assert device.power_w == pytest.approx(80.0)
    assert device.energy.joules == pytest.approx(80 * 20.1)  # 10 s, 10 s, and one period before the second
    assert device.energy.coverage == pytest.approx(20.1 / 30, abs=1e-6)


def test_looking_back_a_little_counts_the_whole_tape(tmp_path):
    """`cum` of a frame says what came before it, so joining late costs nothing and loses nothing."""
    ticks = rows(lambda t: 7 * t, 0, 3000, 0.1)
    path = write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)])
    gatherer = gathered(path, back_s=30)
    (device,) = gatherer.devices(at(3000))
    assert device.energy.joules == pytest.approx(21_000.0)
    assert gatherer.elapsed_ns == 3000 * NS
    assert len(device.history_w) > 10


def test_a_silent_device_has_no_power_but_keeps_its_energy(tmp_path):
    path = write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, rows(lambda t: 30 * t, 0, 10, 0.1))])
    (device,) = gathered(path).devices(at(60))
    assert device.power_w is None
    assert device.age_s == pytest.approx(50.0)
    assert device.energy.joules == pytest.approx(300.0)


def test_a_total_waits_for_a_device_that_was_not_read_yet(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 30 * t, 0, 3, 0.1))
    card = (gauge_group(period_s=0.1, window_s=0.1), 0.1, [])
    devices = gathered(write_tape(tmp_path / "a.tape", [package, card])).devices(at(3))
    assert {device.name: (device.power_w, device.settling) for device in devices} == {
        "cpu.0": (pytest.approx(30.0), False),
        "gpu.0": (None, True),
    }
    assert sum_of(devices)[0] is None and left_out(devices) == []


def test_a_total_without_a_device_that_fell_silent_says_so(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 30 * t, 0, 60, 0.1))
    card = (gauge_group(period_s=0.1, window_s=0.1), 0.1, rows(lambda t: 80.0, 0, 20, 0.1))
    devices = gathered(write_tape(tmp_path / "a.tape", [package, card])).devices(at(60))
    assert sum_of(devices)[0] == pytest.approx(30.0)
    assert left_out(devices) == ["gpu.0: no reading for 40 s; power is that of the others"]


def test_what_is_inside_another_is_not_in_the_total(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 30 * t, 0, 10, 0.1))
    core = (counter_group(domain=Domain.CORE), 0.1, rows(lambda t: 20 * t, 0, 10, 0.1))
    path = write_tape(tmp_path / "a.tape", [package, core])
    gatherer = gathered(path)
    devices = gatherer.devices(at(10))
    assert [(device.name, device.in_total) for device in devices] == [("cpu.0", True), ("cpu.0 core", False)]
    assert sum_of(devices)[0] == pytest.approx(30.0)
    assert gatherer.total(devices).joules == pytest.approx(300.0)


def test_two_overlapping_tapes_of_one_recorder_count_every_row_once(tmp_path):
    first = write_tape(tmp_path / "1.tape", [(counter_group(), 0.1, rows(lambda t: 30 * t, 0, 20, 0.1))])
    second = write_tape(tmp_path / "2.tape", [(counter_group(), 0.1, rows(lambda t: 30 * t, 15, 40, 0.1))])
    gatherer = gathered(first)
    tape = Tape.open(second)
    gatherer.adopt(tape, continues=True)
    gatherer.feed(Follower(tape).look())
    (device,) = gatherer.devices(at(40))
    assert device.energy.joules == pytest.approx(1200.0)
    assert gatherer.elapsed_ns == 40 * NS


def test_the_gap_before_an_appended_segment_is_not_counted(tmp_path):
    first = write_tape(tmp_path / "1.tape", [(counter_group(), 0.1, rows(lambda t: 30 * t, 0, 20, 0.1))])
    second = write_tape(tmp_path / "2.tape", [(counter_group(), 0.1, rows(lambda t: 30 * t, 100, 110, 0.1))])
    gatherer = gathered(first)
    tape = Tape.open(second)
    gatherer.adopt(tape)
    gatherer.feed(Follower(tape).look())
    (device,) = gatherer.devices(at(110))
    assert device.energy.joules == pytest.approx(900.0)
    assert gatherer.elapsed_ns == 30 * NS
    assert device.power_w == pytest.approx(30.0)


def test_state_and_host(tmp_path):
    names = ("gpu.0.utilisation", "gpu.0.memory", "gpu.0.temperature", "gpu.0.clock_sm", "gpu.0.throttle")
    units = ("%", "B", "°C", "MHz", "mask")
    channels = tuple(Channel(name, unit, Kind.GAUGE, "gpu.0") for name, unit in zip(names, units, strict=True))
    state = GroupInfo("nvml.gpu.0.state", "nvml", "gpu.0", channels)
    told = [Row(at(t), at(t), at(t), (50.0 + t, 2**30, 40.0, 1410.0, 4.0)) for t in range(10)]
    told.append(Row(at(10), at(10), at(10), (math.nan, math.nan, 60.0, math.nan, 4.0)))
    host = GroupInfo(
        "use.host",
        "use",
        "host",
        tuple(
            Channel(name, unit, kind, "host")
            for name, unit, kind in (
                ("host.cpu_time", "s", Kind.COUNTER),
                ("host.idle_time", "s", Kind.COUNTER),
                ("host.memory", "B", Kind.GAUGE),
            )
        ),
    )
    use = [Row(at(t), at(t), at(t), (0.5 * t, 1.5 * t, 3e9)) for t in range(11)]
    power = (gauge_group(period_s=0.1, window_s=0.1), 0.1, rows(lambda t: 80.0, 0, 10, 0.1))
    path = write_tape(tmp_path / "a.tape", [power, (state, 1.0, told), (host, 1.0, use)])
    gatherer = gathered(path)
    gatherer.feed([])
    (device,) = gatherer.devices(at(10))
    assert device.utilisation_pct == 59.0  # the last that was told
    assert (device.memory_bytes, device.temperature_c, device.clock_mhz) == (2**30, 60.0, 1410.0)
    assert device.throttled is True
    assert gatherer.host("box").memory_bytes == 3e9


def test_the_interval_comes_from_the_budget_and_narrows_with_time(tmp_path):
    facts = {"gain_pct": 2.0, "offset_w": 0.0, "quantum": 1e-3, "period_s": 0.001}
    path = write_tape(tmp_path / "a.tape", [(counter_group(**facts), 0.1, rows(lambda t: 30 * t, 0, 60, 0.1))])
    gatherer = gathered(path)
    gatherer.bounds.update(60.0)
    (device,) = gatherer.devices(at(60))
    amount = device.energy
    assert amount.low is not None and amount.high is not None
    assert amount.low < 1800 < amount.high
    half = (amount.high - amount.low) / 2
    assert 0.02 * 1800 * 0.99 < half < 0.03 * 1800
    standing = gatherer.bounds.of("cpu.0", 18_000.0)[0]
    assert standing is not None and 0.02 * 18_000 <= standing < half * 10


def test_what_was_not_read_yet_when_the_budget_was_worked_out_does_not_grow(tmp_path):
    facts = {"gain_pct": 2.0, "offset_w": 0.0, "quantum": 1e-3, "max_w": 100.0}
    package = (counter_group(**facts), 1.0, rows(lambda t: 30 * t, 0.9, 1.9, 1.0))
    memory = (counter_group("dram.0", Domain.DRAM, **facts), 1.0, rows(lambda t: 10 * t, 0, 3, 1.0))
    gatherer = gathered(write_tape(tmp_path / "a.tape", [package, memory]))
    gatherer.bounds.update(3.0)
    for label in ("cpu.0", "dram.0", ""):
        young_j, old_j = (max(gatherer.bounds.of(label, joules)) for joules in (30.0, 3000.0))
        assert old_j <= young_j + 1.1 * 0.02 * 3000


def card_rows(widths_ms, period_s=0.1, watts=200.0):
    """Counts of a card; each is known to have been published within so many ms, and is taken for the middle of that."""
    found = []
    for number, width in enumerate(widths_ms, 1):
        middle, half = at(number * period_s), round(width * 1e6 / 2)
        found.append(Row(middle + half, middle - half, middle + half, (watts * number * period_s,)))
    return found


@pytest.mark.parametrize("half_s", [2.0, 10.0])
@pytest.mark.parametrize("seed", range(20))
def test_a_recorder_that_is_held_up_gives_no_power_that_never_was(tmp_path, seed, half_s):
    group = replace(counter_group(), tracked=True)
    path = write_tape(tmp_path / "a.tape", [(group, 0.1, starved_rows(seed, half_s=half_s))])
    (device,) = gathered(path).devices(at(120))
    assert len(device.history_w) >= 10
    assert min(device.history_w) > 100 * 0.92 and max(device.history_w) < 300 * 1.08
    assert device.energy.joules == pytest.approx(200 * 120, rel=0.05)


def told(path, upto):
    gatherer = gathered(path)
    (device,) = gatherer.devices(at(upto))
    return device, sum_of([device])[0]


def test_a_card_has_no_power_until_it_is_known_when_it_publishes(tmp_path):
    group = replace(counter_group(), tracked=True)
    blunt = write_tape(tmp_path / "blunt.tape", [(group, 0.1, card_rows([1000.0] * 15))])
    device, total_w = told(blunt, 1.5)
    assert (device.power_w, device.settling, total_w) == (None, True, None)
    assert device.energy.joules == pytest.approx(200 * 1.4), "joules are counted all the same"
    sharp = write_tape(tmp_path / "sharp.tape", [(group, 0.1, card_rows([1000.0] * 5 + [2.0] * 15))])
    device, total_w = told(sharp, 2.0)
    assert device.power_w == pytest.approx(200.0) and total_w == device.power_w and not device.settling
    # One that never gets sharp is shown after three seconds, and other sensors at once.
    never = write_tape(tmp_path / "never.tape", [(group, 0.1, card_rows([1000.0] * 50))])
    assert told(never, 5.0)[0].power_w == pytest.approx(200.0)
    plain = write_tape(tmp_path / "plain.tape", [(counter_group(), 0.1, card_rows([1000.0] * 15))])
    assert told(plain, 1.5)[0].power_w == pytest.approx(200.0)
