"""Joules of windows on tapes whose truth is written down."""

from __future__ import annotations

import pytest
from tapes import at, counter_group, gauge_group, rows, write_tape

from everywatt.api.run import Run, load
from everywatt.core.channels import Cadence, Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.errors import ScopeError, UsageError


def run_of(path) -> Run:
    return load(path)


def test_constant_power_is_not_zero(tmp_path):
    """100 W for 20 s is 2,000 J, however often the reading repeats."""
    ticks = rows(lambda t: 100.0, 0, 21, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(gauge_group(), 0.1, ticks)], [("run", 0.5, 20.5, None, {})]))
    energy = run.energy()
    assert energy.joules == pytest.approx(2000.0, rel=1e-9)
    assert energy.low - 1e-6 <= 2000.0 <= energy.high + 1e-6
    assert energy.half_width < 1.0
    assert (energy.scope, energy.pedigree, energy.coverage) == ("gpu", "integrated", 1.0)


def test_counter_is_interpolated_at_the_edges(tmp_path):
    ticks = rows(lambda t: 50.0 * t, 0, 10, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)]))
    assert run.energy(between=(1.234, 1.484)).joules == pytest.approx(12.5, rel=1e-6)
    assert run.energy(between=(1.234, 1.484)).pedigree == "counter"


def test_ramp_within_a_tenth_of_a_percent(tmp_path):
    """Power 10 t W: energy 5 t² J; the window lies between ticks."""
    ticks = rows(lambda t: 5.0 * t * t, 0, 10, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)]))
    energy = run.energy(between=(2.05, 7.33))
    truth = 5 * (7.33**2 - 2.05**2)
    assert energy.joules == pytest.approx(truth, rel=1e-3)
    assert energy.low <= truth <= energy.high


def test_wrap_adds_the_right_joules_and_a_reset_never_invents_any(tmp_path):
    wrap = 262_143.328850
    wrapped = rows(lambda t: (262_140.0 + t) % wrap, 0, 20, 0.1)
    run = run_of(write_tape(tmp_path / "w.tape", [(counter_group(wrap=wrap, max_w=200.0), 0.1, wrapped)]))
    assert run.energy(between=(0, 20)).joules == pytest.approx(20.0, rel=1e-6)
    reset = rows(lambda t: 1000.0 + 10 * t if t < 5 else 10 * (t - 5), 0, 10, 0.1)
    run = run_of(write_tape(tmp_path / "r.tape", [(counter_group(wrap=wrap, max_w=200.0), 0.1, reset)]))
    energy = run.energy(between=(0, 10))
    assert 95 <= energy.joules <= 100.0 + 1e-6
    assert energy.coverage < 1.0 or any("was reset" in note for note in energy.notes)


def test_a_gap_of_a_gauge_is_never_bridged(tmp_path):
    """40 of 100 s are missing: the figure is of the observed part and says so."""
    ticks = rows(lambda t: 100.0, 0, 30, 0.1) + rows(lambda t: 100.0, 70, 100, 0.1)
    path = write_tape(tmp_path / "a.tape", [(gauge_group(max_w=300.0), 0.1, ticks)], [("run", 0, 100, None, {})])
    energy = run_of(path).energy()
    assert energy.coverage == pytest.approx(0.6, abs=0.01)
    assert energy.joules == pytest.approx(6000, rel=0.01)
    assert energy.low <= 10_000 <= energy.high
    assert any("were not observed" in note for note in energy.notes)


def test_a_counter_counts_across_a_gap(tmp_path):
    ticks = rows(lambda t: 100.0 * t, 0, 30, 0.1) + rows(lambda t: 100.0 * t, 70, 100, 0.1)
    path = write_tape(tmp_path / "a.tape", [(counter_group(max_w=300.0), 0.1, ticks)], [("run", 0, 100, None, {})])
    energy = run_of(path).energy()
    assert energy.joules == pytest.approx(10_000, rel=1e-6)
    assert energy.coverage == 1.0


def test_nothing_is_counted_twice(tmp_path):
    """Package holds core; psys holds the package; two packages and DRAM are added once each."""
    groups = [
        (counter_group("cpu.0"), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1)),
        (counter_group("cpu.1"), 0.1, rows(lambda t: 30 * t, 0, 10, 0.1)),
        (counter_group("cpu.0", Domain.CORE), 0.1, rows(lambda t: 25 * t, 0, 10, 0.1)),
        (counter_group("dram.0", Domain.DRAM), 0.1, rows(lambda t: 5 * t, 0, 10, 0.1)),
        (counter_group("psys", Domain.NODE), 0.1, rows(lambda t: 120 * t, 0, 10, 0.1)),
    ]
    run = run_of(write_tape(tmp_path / "a.tape", groups, [("run", 1, 9, None, {})]))
    energy = run.energy()
    assert energy.joules == pytest.approx(8 * 75)
    assert energy.scope == "cpu+dram"
    assert dict(energy.parts).keys() == {"cpu.0", "cpu.1", "dram.0"}
    assert run.energy(device="psys").joules == pytest.approx(8 * 120)


def test_counter_and_power_that_disagree_are_named(tmp_path):
    mirror = Channel("gpu.0.power", "W", Kind.GAUGE, "gpu.0", Domain.GPU, mirror_of="gpu.0.gpu.energy")
    info = counter_group("gpu.0", Domain.GPU, mirror=mirror)
    ticks = [Row(at(i / 10), at(i / 10), at(i / 10), (6.0 * i, 100.0)) for i in range(101)]
    energy = run_of(write_tape(tmp_path / "a.tape", [(info, 0.1, ticks)], [("run", 1, 9, None, {})])).energy()
    assert energy.joules == pytest.approx(480)
    assert any("480" in note and "800" in note and "disagree by 40.0 %" in note for note in energy.notes)


@pytest.mark.parametrize(("modelled_w", "times"), [(50.0, "2.00"), (91.0, "1.10")])
@pytest.mark.parametrize(("file", "word"), [(None, ""), ("/a/my model.json", " '/a/my model.json'")])
def test_a_model_that_has_drifted_is_named_with_its_cure(modelled_w, times, file, word, tmp_path):
    watts = Channel("cpu.0.package.power", "W", Kind.GAUGE, "cpu.0", Domain.PACKAGE, pedigree=Pedigree.MODELLED)
    beside = [
        Channel(f"model.{name}", "", Kind.GAUGE, "cpu.0", pedigree=Pedigree.MODELLED) for name in ("ratio", "drift")
    ]
    info = GroupInfo("model.power", "model", "cpu.0", (watts, *beside), Cadence.SLOW)
    modelled = [
        Row(at(i / 10), at(i / 10), at(i / 10), (modelled_w, 100 / modelled_w, float(i > 60))) for i in range(101)
    ]
    measured = (counter_group("cpu.0"), 0.1, rows(lambda t: 100.0 * t, 0, 10, 0.1))
    path = write_tape(
        tmp_path / "a.tape", [measured, (info, 0.1, modelled)], [("run", 1, 9, None, {})], model_file=file
    )
    run = run_of(path)
    said = (
        f"cpu.0: the model has drifted: measured power is {times} times what it says; to adapt it: "
        f"everywatt model install{word} --against {run.reference}"
    )
    assert [note for note in run.energy().notes if "drifted" in note] == [said]
    assert said in run.energy(device="cpu.0").notes
    assert any("(modelled) reports 400.0 J" in note for note in run.energy().notes) == (modelled_w == 50.0)
    assert not [note for note in run.energy(between=(0, 5)).notes if "drifted" in note]


def test_inline_reads_make_edges_exact_and_cover_the_start(tmp_path):
    """A load that starts at 0.303 s, on a tape whose own first tick is at 1 s."""
    level = lambda t: 200.0 * max(0.0, t - 0.303)  # noqa: E731
    info = counter_group(inline=True, period_s=0.001)
    edge = lambda t: Row(at(t), at(t), at(t), (level(t),))  # noqa: E731
    path = write_tape(
        tmp_path / "a.tape",
        [(info, 0.1, rows(level, 1.0, 3.0, 0.1))],
        [("run", 0.3, 2.55, None, {})],
        [(0, edge(0.3)), (0, edge(2.55))],
    )
    energy = run_of(path).energy()
    assert energy.joules == pytest.approx(level(2.55), rel=1e-9)
    assert energy.coverage == 1.0
    assert energy.half_width < 0.5


def test_edges_alone_give_a_figure_where_no_recorder_ran(tmp_path):
    info = counter_group(inline=True, period_s=0.001)
    edge = lambda t: Row(at(t), at(t), at(t), (70.0 * t,))  # noqa: E731
    path = write_tape(
        tmp_path / "a.tape", [(info, 0.1, [])], [("run", 1.0, 4.0, None, {})], [(0, edge(1)), (0, edge(4))]
    )
    assert run_of(path).energy().joules == pytest.approx(210.0)


def test_adjacent_windows_add_up_and_share_their_edge(tmp_path):
    ticks = rows(lambda t: 5.0 * t * t, 0, 10, 0.1)
    run = run_of(
        write_tape(
            tmp_path / "a.tape",
            [(counter_group(gain_pct=3.0), 0.1, ticks)],
            [("a", 1.0, 4.03, None, {}), ("b", 4.03, 9.0, None, {})],
        )
    )
    both = run.energy(span="a") + run.energy(span="b")
    whole = run.energy()
    assert both.joules == pytest.approx(whole.joules)
    assert both.half_width == pytest.approx(whole.half_width, rel=1e-6)


def test_net_energy_cancels_the_offset_and_keeps_the_gain(tmp_path):
    level = lambda t: 40.0 * min(t, 10) + 100.0 * max(0.0, t - 10)  # noqa: E731
    info = counter_group(gain_pct=5.0, offset_w=6.0)
    path = write_tape(
        tmp_path / "a.tape",
        [(info, 0.1, rows(level, 0, 21, 0.1))],
        [("idle", 0.5, 9.5, None, {"role": "idle"}), ("run", 11, 20, None, {})],
    )
    run = run_of(path)
    gross, net = run.energy(), run.energy_net()
    assert gross.joules == pytest.approx(900)
    assert net.joules == pytest.approx(540)
    assert gross.budget.by_source()["offset"] == pytest.approx(54)
    assert net.budget.by_source().get("offset", 0.0) == pytest.approx(0, abs=1e-9)
    assert net.budget.by_source()["gain"] == pytest.approx(0.05 * 540)


def test_modelled_is_labelled_and_never_added_to_measured(tmp_path):
    modelled = gauge_group("host", Domain.NODE, Pedigree.MODELLED, gain_pct=40.0)
    ticks = rows(lambda t: 60.0, 0, 10, 0.1)
    energy = run_of(write_tape(tmp_path / "m.tape", [(modelled, 0.1, ticks)], [("run", 1, 9, None, {})])).energy()
    assert energy.joules == pytest.approx(480)
    assert (energy.pedigree, energy.scope) == ("modelled", "machine")
    assert energy.half_width == pytest.approx(192)
    both = [(modelled, 0.1, ticks), (counter_group(), 0.1, rows(lambda t: 10 * t, 0, 10, 0.1))]
    energy = run_of(write_tape(tmp_path / "b.tape", both, [("run", 1, 9, None, {})])).energy()
    assert (energy.joules, energy.pedigree) == (pytest.approx(80), "counter")


def test_scopes_do_not_mix(tmp_path):
    cpu = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, rows(lambda t: t, 0, 5, 0.1))])).energy()
    gpu = run_of(write_tape(tmp_path / "b.tape", [(gauge_group(), 0.1, rows(lambda t: 9.0, 0, 5, 0.1))])).energy()
    with pytest.raises(ScopeError):
        cpu + gpu


def test_spans_of_one_name_are_taken_together_once(tmp_path):
    ticks = rows(lambda t: 10 * t, 0, 10, 0.1)
    spans = [("q", 1, 3, None, {}), ("q", 2, 4, None, {}), ("q", 6, 7, None, {})]
    run = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)], spans))
    assert run.energy(span="q").joules == pytest.approx(40)
    with pytest.raises(UsageError, match="no span 'x'"):
        run.energy(span="x")


def test_a_span_that_never_closed_ends_with_the_tape(tmp_path):
    ticks = rows(lambda t: 10 * t, 0, 10, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)], [("run", 2, None, None, {})]))
    assert run.energy().joules == pytest.approx(80, abs=1.0)


def test_appended_segments_leave_out_the_gap(tmp_path):
    folder = tmp_path / "runs" / "20260101-000000-x"
    first = rows(lambda t: 10 * t, 0, 5, 0.1)
    second = rows(lambda t: 20 * t, 100, 105, 0.1)
    write_tape(folder / "box-0001.tape", [(counter_group(), 0.1, first)], [("run", 1, 4, None, {})])
    write_tape(folder / "box-0002.tape", [(counter_group(), 0.1, second)], [("run", 101, 104, None, {})])
    run = run_of(folder)
    assert run.energy().joules == pytest.approx(30 + 60)
    assert run.duration_s == pytest.approx(6)


def test_two_hosts_are_two_parts(tmp_path):
    folder = tmp_path / "20260101-000000-x"
    ticks = rows(lambda t: 10 * t, 0, 5, 0.1)
    write_tape(folder / "a-0001.tape", [(counter_group(), 0.1, ticks)], [("run", 1, 4, None, {})], host="a")
    write_tape(folder / "b-0001.tape", [(counter_group(), 0.1, ticks)], [("run", 1, 4, None, {})], host="b")
    energy = run_of(folder).energy()
    assert energy.joules == pytest.approx(60)
    assert set(dict(energy.parts)) == {"a", "b"}


def test_a_shorter_publish_period_narrows_a_short_window(tmp_path):
    """An interval that is a fixed percentage is not one."""
    import math

    widths = {}
    for period_s in (0.1, 0.01):
        level = lambda t: 100 * t + 30 * math.sin(9 * t)  # noqa: E731
        path = write_tape(tmp_path / f"{period_s}.tape", [(counter_group(), period_s, rows(level, 0, 10, period_s))])
        energy = run_of(path).energy(between=(4.023, 4.276))
        truth = level(4.276) - level(4.023)
        assert energy.low <= truth <= energy.high
        widths[period_s] = energy.half_width
    assert widths[0.1] > 4 * widths[0.01]


def test_json_has_the_documented_fields(tmp_path):
    ticks = rows(lambda t: 10 * t, 0, 10, 0.1)
    data = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)], [("run", 2, 8, None, {})])).to_dict()
    assert data["schema"] == "everywatt/1" and data["kind"] == "run"
    assert {"energy", "energy_net", "duration_s", "spans", "devices", "quality"} <= data.keys()
    assert {"joules", "low", "high", "scope", "pedigree", "coverage", "parts", "notes"} <= data["energy"].keys()
    power = data["devices"]["cpu.0"]["power"]
    assert power["mean"] == pytest.approx(10) and power["samples"] >= 59
    assert set(power) == {"mean", "sd", "min", "median", "max", "samples"}


def test_refused_is_null_with_a_reason(tmp_path):
    info = GroupInfo("use.host", "use", "host", (Channel("host.cpu_time", "s", Kind.COUNTER, "host", facts=Facts()),))
    run = run_of(write_tape(tmp_path / "a.tape", [(info, 0.1, rows(lambda t: t, 0, 5, 0.1))]))
    energy = run.energy()
    assert energy.joules is None and "no sensor" in energy.refused
    assert energy.to_dict()["joules"] is None and "refused" in energy.to_dict()


def test_ten_thousand_spans_are_one_query(tmp_path):
    """Every other millisecond of 20 s at 50 W: 500 J, and edges add up in quadrature, not linearly."""
    ticks = rows(lambda t: 50.0 * t, 0, 22, 0.1)
    spans = [("s", 1 + i * 0.002, 1 + i * 0.002 + 0.001, None, {}) for i in range(10_000)]
    run = run_of(write_tape(tmp_path / "a.tape", [(counter_group(offset_w=1.0), 0.1, ticks)], spans))
    energy = run.energy(span="s")
    assert energy.joules == pytest.approx(500, rel=1e-6)
    assert energy.budget.by_source()["offset"] == pytest.approx(10, rel=1e-6)


def test_spans_of_a_name_of_which_one_lies_outside_of_all_readings(tmp_path):
    """What was seen has a figure; what was not is missing from it, and it says so."""
    ticks = rows(lambda t: 50.0 * t, 0, 10, 0.1)
    spans = [("epoch", 2.0, 4.0, None, {}), ("epoch", 20.0, 22.0, None, {})]
    energy = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)], spans)).energy(span="epoch")
    assert energy.joules == pytest.approx(100.0, rel=1e-6)
    assert energy.coverage == pytest.approx(0.5)
    assert any("1 of 2 windows have no energy" in note for note in energy.notes)


HALF_SEEN = rows(lambda t: 100.0, 0, 5, 0.1) + rows(lambda t: 100.0, 7, 12, 0.1)  # 1.9 s of 12 s are not observed


@pytest.mark.parametrize(
    ("count", "length_s", "unseen_s"),
    [
        (3, 3.0, 1.9),
        (24, 0.25, 1.0),
    ],
)
def test_coverage_of_spans_is_the_share_of_their_time(tmp_path, count, length_s, unseen_s):
    """Nothing was observed between 5.0 and 6.9 s, whether 3 spans or 24 share the 12 s."""
    starts = [12 * i / count for i in range(count)]
    spans = [("epoch", start, start + length_s, None, {}) for start in starts]
    run = run_of(write_tape(tmp_path / "a.tape", [(gauge_group(max_w=150.0), 0.1, HALF_SEEN)], spans))
    whole, alone = run.energy(span="epoch"), run.energy(span="epoch", device="gpu.0")
    for energy in (whole, whole.part("gpu.0"), alone):
        assert energy.coverage == pytest.approx(1 - unseen_s / (count * length_s), abs=1e-6)


def test_coverage_of_segments_is_the_share_of_their_time(tmp_path):
    """12 s of which 10.1 were observed, then 8 s that all were; a second host that was observed throughout."""
    last = rows(lambda t: 100.0, 20, 28, 0.1)
    write_tape(tmp_path / "h-0001.tape", [(gauge_group(), 0.1, HALF_SEEN)], [("run", 0, 12, None, {})])
    write_tape(tmp_path / "h-0002.tape", [(gauge_group(), 0.1, last)], [("run", 20, 28, None, {})])
    for energy in (run_of(tmp_path).energy(), run_of(tmp_path).energy(device="gpu.0")):
        assert energy.coverage == pytest.approx(18.1 / 20, abs=1e-6)
    write_tape(tmp_path / "i-0001.tape", [(gauge_group(), 0.1, last)], [("run", 20, 28, None, {})], host="other")
    assert run_of(tmp_path).energy().coverage == pytest.approx(18.1 / 20, abs=1e-6), "the least of the hosts"


@pytest.mark.parametrize("busy", [0.95, 0.05])
def test_net_energy_needs_a_machine_that_was_idle(tmp_path, busy):
    """Net of a machine that was at work all the time would be about nothing, which is not what it used."""
    host = GroupInfo(
        "use.host",
        "use",
        "host",
        tuple(Channel(name, "s", Kind.COUNTER, "host") for name in ("host.cpu_time", "host.idle_time")),
    )
    seconds = [
        Row(at(t), at(t), at(t), (busy * 2 * t, (1 - busy) * 2 * t))  # two CPUs
        for t in range(31)
    ]
    ticks = rows(lambda t: 50.0 * t, 0, 30, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks), (host, 1.0, seconds)]))
    if busy > 0.1:
        assert run.baseline is None and "never idle" in run.energy_net().refused
    else:
        assert run.baseline.busy == pytest.approx(busy, abs=0.01)
        assert run.energy_net().joules is not None


def test_a_gauge_that_is_read_less_often_than_it_publishes(tmp_path):
    """Two reads find the publication, then a second passes: its mean counts for that second, not for 0.1 s of it."""
    times = [t + late for t in range(40) for late in (0.0, 0.1)]
    ticks = [Row(at(t) + 2_000_000, at(t), at(t), (100.0,)) for t in times]
    run = run_of(write_tape(tmp_path / "a.tape", [(gauge_group(), 1.0, ticks)]))
    energy = run.energy(between=(5.0, 35.0))
    assert energy.joules == pytest.approx(3000.0, rel=0.01)
    assert energy.coverage == 1.0


def test_such_a_gauge_is_not_held_against_a_counter(tmp_path):
    counter = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU)
    gauge = Channel("gpu.0.power", "W", Kind.GAUGE, "gpu.0", Domain.GPU, mirror_of="gpu.0.energy")
    group = GroupInfo("test.gpu.0", "test", "gpu.0", (counter, gauge))

    def power(t: float) -> float:
        return 250.0 if t % 1.0 < 0.15 else 50.0  # always high where it is looked at

    def counted(t: float) -> float:
        whole = int(t)
        return whole * (0.15 * 250 + 0.85 * 50) + min(t - whole, 0.15) * 250 + max(t - whole - 0.15, 0.0) * 50

    times = [t + late for t in range(40) for late in (0.0, 0.1)]
    ticks = [Row(at(t) + 2_000_000, at(t), at(t), (counted(t), power(t))) for t in times]
    energy = run_of(write_tape(tmp_path / "a.tape", [(group, 1.0, ticks)])).energy(between=(5.0, 35.0))
    assert energy.joules == pytest.approx(2400.0, rel=0.01)
    assert not any("disagree" in note for note in energy.notes)


def test_an_instantaneous_gauge_is_filled_between_its_readings(tmp_path):
    """Power 100 + 20 t W, read every 0.1 s: trapezoids are exact on a ramp, also where a window lies between reads."""
    group = gauge_group(period_s=0.1, window_s=0.0)
    run = run_of(write_tape(tmp_path / "a.tape", [(group, 0.1, rows(lambda t: 100 + 20 * t, 0, 10.1, 0.1))]))
    assert run.energy(between=(0, 10)).joules == pytest.approx(2000.0, rel=1e-9)
    truth = 100 * 3.274 + 10 * (4.287**2 - 1.013**2)
    assert run.energy(between=(1.013, 4.287)).joules == pytest.approx(truth, rel=1e-3)


def test_a_gauge_of_an_unknown_window_may_be_half_a_period_beside_its_time(tmp_path):
    """Of the same ramp, means of each period are 2,000 J and readings at its end 2,010 J: both are in the interval."""
    group = gauge_group(period_s=0.1, window_s=None)
    run = run_of(write_tape(tmp_path / "a.tape", [(group, 0.1, rows(lambda t: 100 + 20 * t, 0, 10.1, 0.1))]))
    energy = run.energy(between=(0, 10))
    assert energy.joules == pytest.approx(2010.0) and energy.low <= 2000.0 + 1e-6


def test_values_that_are_missing_are_no_joules_and_no_watts(tmp_path):
    """Every fifth reading of 100 W failed: 8 s of 10 s were observed, and nobody ever read 0 W."""
    ticks = rows(lambda t: float("nan") if round(t * 10) % 5 == 2 else 100.0, 0, 10, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(gauge_group(max_w=150.0), 0.1, ticks)]))
    energy = run.energy(between=(0, 10))
    assert (energy.coverage, energy.joules) == (pytest.approx(0.8), pytest.approx(800.0))
    assert energy.low <= 1000.0 <= energy.high
    power = run.devices()["gpu.0"]["power"]
    assert (power["min"], power["samples"]) == (100.0, 80) and power["mean"] == pytest.approx(100.0, rel=1e-12)


def test_a_stretch_that_nobody_read_is_not_idle(tmp_path):
    """100 W throughout, 40 of 100 s not read: idle is 100 W and not 0."""
    ticks = rows(lambda t: 100.0, 0, 30, 0.1) + rows(lambda t: 100.0, 70, 100, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(gauge_group(max_w=150.0), 0.1, ticks)]))
    assert run.ledger(between=(0, 100)).idle["gpu.0"]["watts"] == pytest.approx(100.0)


def test_the_end_of_a_gap_is_no_reading_of_zero_watts(tmp_path):
    """A card of 100 W that answered now and then: joules, power and what is idle are of what was seen."""
    seen_s = [*range(1, 11), 15, 20, 26, 31, 37, *range(40, 61)]
    ticks = [Row(at(t), at(t), at(t), (100.0,)) for t in seen_s]
    path = write_tape(tmp_path / "a.tape", [(gauge_group(), 1.0, ticks)], [("run", 2, 58, None, {})])
    run = run_of(path)
    energy, power = run.energy(), run.devices()["gpu.0"]["power"]
    assert energy.joules == pytest.approx(100.0 * 56 * energy.coverage, rel=1e-6)
    assert energy.coverage == pytest.approx((56 - 22) / 56), "five gaps, of which a reading covers the last second"
    assert (power["min"], power["mean"], power["max"]) == (100.0, 100.0, 100.0)
    assert energy.low <= 5600 <= energy.high
    assert run.ledger().idle["gpu.0"]["watts"] == pytest.approx(100.0)


def test_values_that_are_missing_are_not_bridged(tmp_path):
    """Two rows without a number leave 2 s unseen, though the rows themselves are there."""
    watts = {3: float("nan"), 4: float("nan")}
    ticks = rows(lambda t: watts.get(round(t), 100.0), 0, 10, 1.0)
    run = run_of(write_tape(tmp_path / "a.tape", [(gauge_group(), 1.0, ticks)]))
    energy = run.energy(between=(0, 10))
    assert (energy.joules, energy.coverage) == (pytest.approx(800.0), pytest.approx(0.8))
    assert energy.low <= 1000.0 <= energy.high


def test_a_sliver_that_was_not_seen_is_in_the_interval(tmp_path):
    """2 ms of 10 s: no word of it, but the truth is in the interval all the same."""
    ticks = rows(lambda t: 100.0, 0, 9.9, 0.1)
    path = write_tape(tmp_path / "a.tape", [(gauge_group(), 0.1, ticks)], [("run", 0.002, 10.002, None, {})])
    energy = run_of(path).energy()
    assert 0.999 < energy.coverage < 1.0
    assert energy.low <= 1000.0 <= energy.high
    assert not any("not observed" in note for note in energy.notes)


def test_a_counter_that_starts_again_was_not_at_zero_watts(tmp_path):
    ticks = rows(lambda t: 1000.0 + 100 * t if t < 20 else 100 * (t - 20), 0, 40, 0.1)
    run = run_of(write_tape(tmp_path / "a.tape", [(counter_group(max_w=200.0), 0.1, ticks)]))
    power = run.devices()["cpu.0"]["power"]
    assert power["min"] == pytest.approx(100.0) and power["mean"] == pytest.approx(100.0)
    assert run.ledger().idle["cpu.0"]["watts"] == pytest.approx(100.0)


@pytest.mark.parametrize("between", [(float("nan"), 2.0), (0.0, float("inf"))])
def test_a_window_without_an_end_is_a_mistake_of_the_caller(tmp_path, between):
    run = run_of(write_tape(tmp_path / "a.tape", [(gauge_group(), 0.1, rows(lambda t: 1.0, 0, 2, 0.1))]))
    with pytest.raises(UsageError, match="two times in seconds"):
        run.energy(between=between)
