import json

import numpy as np
import pytest
from machines import Process, write_machine
from reports import CPU_W, EVIL, HIGH_W, LOW_W, unpacked, write_other_scope, write_run
from tapes import UTC_NS, at, counter_group, rows

import everywatt
from everywatt.core.clocks import Anchor
from everywatt.core.format import format_watts
from everywatt.core.jsonio import dumps
from everywatt.core.spans import Span
from everywatt.footprint.carbon import Factors, Intensity
from everywatt.ledger.text import ledger_table
from everywatt.report.html.data import ledger_view, provenance, report_document, run_view
from everywatt.report.html.lines import lines_of, total_line
from everywatt.report.html.spans import overlap
from everywatt.report.text import summary
from everywatt.report.web.runs import sparkline
from everywatt.tape.writer import TapeWriter

TRUTH_J = 10 * CPU_W + 8 * LOW_W + 2 * HIGH_W


@pytest.fixture
def run(tmp_path):
    return everywatt.load(write_run(tmp_path / "small.tape"))


@pytest.fixture
def view(run):
    return report_document([run])["runs"][0]


def test_the_summary_has_the_figure_with_everything_that_belongs_to_it(view):
    energy = view["energy"]
    assert energy["joules"] == pytest.approx(TRUTH_J, rel=0.01)
    assert energy["low"] < TRUTH_J < energy["high"]
    assert (energy["scope"], energy["pedigree"]) == ("cpu+gpu", "counter+integrated")
    assert energy["big"]["unit"] in ("J", "kJ") and energy["big"]["spread"].startswith(("±", "−"))
    assert energy["coverage_shown"] == "100 %"
    assert [figure["label"] for figure in view["figures"]][:3] == ["Duration", "Mean power", "Highest reading"]
    assert view["figures"][2]["value"] == "250.0 W"
    assert [device["name"] for device in view["devices"]] == ["cpu.0", "gpu.0"]
    assert sum(device["share"] for device in view["devices"]) == pytest.approx(1.0)


def test_charts_hold_the_ticks_of_every_quantity(view):
    charts = {chart["id"]: chart for chart in view["charts"]}
    assert list(charts) == ["power", "utilisation", "temperature", "clocks", "memory", "logged"]
    gpu = next(line for line in charts["power"]["lines"] if line["label"] == "gpu.0")
    ticks = unpacked(gpu["data"])
    assert gpu["exact"] and gpu["in_total"]
    seconds = ticks["t"] / 1e6
    assert ticks["v"][(seconds > 4.05) & (seconds < 6.05)] == pytest.approx(np.full(20, HIGH_W))
    assert ticks["v"][(seconds < 3.95)] == pytest.approx(np.full(41, LOW_W))
    cpu = unpacked(next(line for line in charts["power"]["lines"] if line["label"] == "cpu.0")["data"])
    assert cpu["v"] == pytest.approx(np.full(len(cpu["v"]), CPU_W), rel=1e-4)
    temperature = unpacked(charts["temperature"]["lines"][0]["data"])
    assert temperature["v"].max() == 50.0
    assert unpacked(charts["memory"]["lines"][0]["data"])["v"].max() == pytest.approx(2.0)
    assert unpacked(charts["logged"]["lines"][0]["data"])["v"] == pytest.approx([0.5, 0.2, 0.125], abs=1e-6)


def test_the_sum_of_devices_is_a_line_too(run):
    total = total_line(lines_of(run))
    seconds = total.series.t_us / 1e6
    assert total.series.values[(seconds > 4.15) & (seconds < 5.95)] == pytest.approx(CPU_W + HIGH_W, rel=1e-3)
    assert not total.shown and not total.in_total


def test_phases_are_spans_by_name(view):
    rows = {row["name"]: row for row in view["phases"]["rows"]}
    assert list(rows) == ["run", EVIL, "epoch"]
    assert rows["epoch"]["count"] == 2
    assert rows["epoch"]["seconds"] == pytest.approx(4.0)
    assert rows["epoch"]["energy"]["joules"] == pytest.approx(4 * CPU_W + 2 * HIGH_W + 2 * LOW_W, rel=0.03)
    assert rows["epoch"]["each_shown"] and rows["run"]["each_shown"] is None
    bands = view["bands"]
    found = unpacked(bands["data"])
    assert [bands["names"][int(place)] for place in found["name"]] == ["run", EVIL, "epoch", "epoch"]
    assert (found["start"] / 1e6).tolist() == [0.0, 0.5, 4.0, 7.0]
    assert (found["length"] / 1e6).tolist() == [10.0, 3.0, 2.0, 2.0]
    assert found["depth"].tolist() == [0, 1, 1, 1]
    assert bands["kept"] == bands["count"] == 4


def test_of_very_many_spans_some_of_everywhere_are_kept(tmp_path, monkeypatch):
    from tapes import gauge_group, rows, write_tape

    from everywatt.report.html import spans

    monkeypatch.setattr(spans, "MOST_BANDS", 100)
    many = [("run", 0.0, 100.0, None, {}), *((f"q{i % 2}", i / 10, i / 10 + 0.08, "s0", {}) for i in range(990))]
    ticks = rows(lambda t: 100.0, 0, 100, 1.0)
    run = everywatt.load(write_tape(tmp_path / "many.tape", [(gauge_group(period_s=1.0), 1.0, ticks)], many))
    found = spans.bands_of(run)
    starts = unpacked(found["data"])["start"] / 1e6
    assert (found["kept"], found["count"]) == (100, 991)
    assert starts[0] == 0.0 and unpacked(found["data"])["depth"][0] == 0, "the longest is always there"
    assert np.histogram(starts[1:], bins=4, range=(0, 100))[0].min() >= 15


def test_a_gap_of_a_gauge_is_a_hole_and_not_a_line(tmp_path):
    from tapes import gauge_group, rows, write_tape

    ticks = [*rows(lambda t: 100.0, 0, 1, 0.1), *rows(lambda t: 100.0, 3, 4, 0.1)]
    run = everywatt.load(write_tape(tmp_path / "gap.tape", [(gauge_group(period_s=0.1, window_s=0.1), 0.1, ticks)]))
    (line,) = lines_of(run)
    hole = int(np.flatnonzero(np.isnan(line.series.values))[0])
    assert line.series.t_us[hole - 1] == pytest.approx(1e6, abs=2)
    assert line.series.t_us[hole] == pytest.approx(2.9e6, abs=2)
    assert len(line.watts) == 21


def test_a_counter_that_wraps_is_drawn_as_it_counted(tmp_path):
    from tapes import counter_group, rows, write_tape

    ticks = rows(lambda t: (90.0 + 20.0 * t) % 100.0, 0, 4, 0.1)
    group = counter_group(wrap=100.0, max_w=200.0)
    (line,) = lines_of(everywatt.load(write_tape(tmp_path / "wrap.tape", [(group, 0.1, ticks)])))
    assert line.series.values == pytest.approx(np.full(len(line.series), 20.0), rel=1e-6)


def test_ticks_before_a_cards_phase_was_found_draw_no_wild_slope(tmp_path):
    from dataclasses import replace

    from tapes import at, counter_group, rows, write_tape

    from everywatt.core.channels import Row

    # 100 W. What stood published at 0.03 s and at 0.1 s may have been published anywhere in the 100 ms before.
    first = [Row(at(t), at(t - 0.1), at(t), (joules,)) for t, joules in ((0.03, 50.0), (0.1, 60.0))]
    group = replace(counter_group("gpu.0", period_s=0.1), tracked=True)
    ticks = [*first, *rows(lambda t: 50.0 + 100.0 * t, 0.2, 4, 0.1)]
    (line,) = lines_of(everywatt.load(write_tape(tmp_path / "phase.tape", [(group, 0.1, ticks)])))
    assert len(line.series) >= 39 and line.series.values == pytest.approx(np.full(len(line.series), 100.0), rel=1e-6)
    assert line.watts.max() == pytest.approx(100.0)

    # Where the phase is never found any step may hold two publications: the mean of a longer stretch is drawn.
    blunt = [Row(at(k / 10), at(k / 10 - 0.1), at(k / 10), (10.0 * k,)) for k in range(12)]
    (line,) = lines_of(everywatt.load(write_tape(tmp_path / "never.tape", [(group, 0.1, blunt)])))
    assert len(line.series) == 2 and line.watts == pytest.approx([100.0])


def test_provenance_and_the_command_to_reproduce(view):
    pairs = dict(view["provenance"])
    assert pairs["Host"] == "box · Example CPU"
    assert pairs["Git"] == "0123456789abcdef main (changed)"
    assert "Example" in pairs["Host"] and pairs["Tags"] == "project=alpha"
    assert view["reproduce"] == (
        "cd '/home/someone/it'\"'\"'s here' && everywatt run --tag project=alpha -- "
        "python train.py --name '<script>window.evil = 1</script>'"
    )


def test_carbon_is_there_only_where_it_was_asked_for(run):
    assert report_document([run])["runs"][0]["carbon"] is None
    found = report_document([run], factors=Factors(intensity=Intensity(100.0, "given")))["runs"][0]["carbon"]
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["energy"]["label"] == "Energy", "chips alone are not what a plug sees"
    assert rows["carbon"]["value"] == pytest.approx(run.energy().joules / 3.6e6 * 100.0)
    assert "cost" not in rows


def test_runs_of_one_scope_are_compared_and_others_are_not(run, tmp_path):
    shorter = everywatt.load(write_run(tmp_path / "short.tape", seconds=5.0))
    other = everywatt.load(write_other_scope(tmp_path / "other.tape"))
    found = report_document([run, shorter, other])["comparison"]
    first, second, third = found["rows"]
    truth = (5 * CPU_W + 4 * LOW_W + HIGH_W) / TRUTH_J
    assert first["ratio"] is None
    assert second["ratio"]["low"] < truth < second["ratio"]["high"] and second["verdict"] == "less"
    assert third["ratio"] is None and third["why"] == "not compared: it covers cpu, the first run cpu+gpu"
    assert found["mixed_scopes"]
    assert not report_document([run, shorter])["comparison"]["mixed_scopes"]


def test_a_run_without_a_figure_says_why(tmp_path):
    from reports import state_group
    from tapes import at, write_tape

    from everywatt.core.channels import Row

    ticks = [Row(at(t), at(t), at(t), (40.0, 1500.0, 5.0, 1e9)) for t in range(5)]
    view = report_document([everywatt.load(write_tape(tmp_path / "no.tape", [(state_group(), 1.0, ticks)]))])["runs"][0]
    assert view["energy"]["joules"] is None and view["energy"]["refused"]
    assert view["ledger"] == {"refused": "processes were not recorded"}
    assert [chart["id"] for chart in view["charts"]] == ["utilisation", "temperature", "clocks", "memory"]


def test_segments_follow_one_another_with_a_hole(tmp_path):
    from tapes import gauge_group, rows, write_tape

    folder = tmp_path / "run"
    folder.mkdir()
    for number, (start, end) in enumerate([(0, 2), (5, 7)], 1):
        ticks = rows(lambda t: 100.0, start, end, 0.1)
        write_tape(folder / f"box-{number:04d}.tape", [(gauge_group(period_s=0.1, window_s=0.1), 0.1, ticks)])
    view = report_document([everywatt.load(folder)])["runs"][0]
    (line,) = view["charts"][0]["lines"]
    found = unpacked(line["data"])
    assert view["extent_s"][1] == pytest.approx(7.0, abs=0.01)
    assert np.isnan(found["v"]).sum() == 1
    assert found["t"][-1] / 1e6 == pytest.approx(7.0, abs=0.01)


def test_the_document_is_plain_json(run):
    data = report_document([run], command=["everywatt", "report", "last"])
    again = json.loads(dumps(data))
    assert again["schema"] == "everywatt/1" and again["kind"] == "report"
    assert again["command"] == "everywatt report last"


def test_phases_that_ran_at_the_same_time_are_told_of(view):
    spans = [Span("p", "batch", 0, 100), Span("a", "a", 0, 50, "p"), Span("b", "b", 50, 90, "p")]
    assert not view["phases"]["overlap"] and not overlap(spans)
    assert overlap([*spans, Span("c", "c", 60, 95, "p")])


@pytest.fixture
def spanned(tmp_path):
    """60 spans of 37 ms, whose ends read the counter too, over a package at a constant 50 W."""
    from virtual_world import VirtualWorld

    from everywatt.api.meter import Meter

    with VirtualWorld(tmp_path, cpu="constant:50W") as world:
        with Meter("work", sensors=["virtual"]) as meter:
            world.sleep(1.0)
            for number in range(60):
                with meter.span(f"s{number}"):
                    world.sleep(0.037)
                world.sleep(0.011)
            world.sleep(1.0)
        yield everywatt.load(meter.run.path)


def test_reads_at_the_ends_of_spans_draw_no_drops(spanned):
    (line,) = (line for line in lines_of(spanned) if line.chart == "power")
    assert line.series.values == pytest.approx(np.full(len(line.series), 50.0), rel=0.04)  # 2 × 1 ms in 50 ms


def test_a_device_has_one_mean_and_one_highest_reading(spanned):
    view = report_document([spanned])["runs"][0]
    (device,), (asked,) = view["devices"], spanned.devices().values()
    energy = spanned.energy()
    assert device["power"] == asked["power"]
    assert device["power"]["mean"] == pytest.approx(energy.joules / spanned.duration_s, rel=1e-9)
    drawn = unpacked(view["charts"][0]["lines"][0]["data"])["v"]
    assert device["power"]["max"] == pytest.approx(drawn.max(), rel=1e-5)
    shown = {figure["label"]: figure["value"] for figure in view["figures"]}
    assert shown["Highest reading"] == format_watts(device["power"]["max"])
    assert shown["Mean power"].startswith(f"{device['power']['mean']:.2f}")


def noisy_gauge(tmp_path, lost):
    """A card at about 100 W of which `lost` readings (2.0 to 4.0 s) are something else."""
    from tapes import gauge_group, rows, write_tape

    def watts(t):
        return lost if 2.0 < t <= 4.0 else 100.0 + 0.01 * (round(t * 7919) % 101)

    group = gauge_group(period_s=0.1, window_s=0.1, quantum=0.01, max_w=300.0)
    return everywatt.load(write_tape(tmp_path / "lost.tape", [(group, 0.1, rows(watts, 0, 10, 0.1))]))


@pytest.mark.parametrize("lost", [float("nan"), 100.33], ids=["no value", "stalled"])
def test_what_was_not_observed_is_a_hole(tmp_path, lost):
    run = noisy_gauge(tmp_path, lost)
    (line,) = lines_of(run)
    seconds, values = line.series.t_us / 1e6, line.series.values
    ends = np.flatnonzero(np.isnan(values))
    assert len(ends) == 1
    assert seconds[ends[0] - 1] == pytest.approx(2.0, abs=0.15) and seconds[ends[0]] == pytest.approx(4.0, abs=0.05)
    energy, (device,) = run.energy(), run.devices().values()
    assert energy.coverage == pytest.approx(0.8, abs=0.02)
    assert device["power"]["mean"] == pytest.approx(100.5, abs=0.1)
    mean = next(figure for figure in report_document([run])["runs"][0]["figures"] if figure["label"] == "Mean power")
    assert mean["value"].startswith("100.5")


def test_a_sparkline_and_the_summary_have_no_drop_where_nothing_was_observed(tmp_path):
    run = noisy_gauge(tmp_path, float("nan"))
    values = sparkline(run, run.duration_s)
    seen = [value for value in values if value is not None]
    assert 0.15 < 1 - len(seen) / len(values) < 0.3
    assert seen == pytest.approx(np.full(len(seen), 100.5), abs=1.0)
    (time,) = (line for line in summary(run) if line.startswith("  time"))
    assert time.endswith("mean 100.5 W of the observed time")


def test_the_window_of_the_run_is_not_that_of_the_recording(tmp_path):
    path = tmp_path / "idle.tape"
    writer = TapeWriter(path, {"host": {"name": "box"}, "period_s": 0.1})
    writer.anchor(Anchor(at(0), UTC_NS, at(0), 0))
    writer.append(writer.add_group(counter_group(quantum=6e-5, max_w=200.0), 0.1), rows(lambda t: 40 * t, 0, 10, 0.1))
    writer.span_open(Span("r", "work", at(3.0), None, None, {"role": "run"}))
    writer.span_close("r", at(9.5))
    writer.flush()
    writer.seal()
    view = report_document([everywatt.load(path)])["runs"][0]
    assert view["extent_s"] == pytest.approx([0.0, 10.0])
    assert view["run_s"] == pytest.approx([3.0, 9.5])
    assert view["duration_s"] == pytest.approx(6.5)


def test_a_batch_is_reproduced_by_its_own_command(tmp_path):
    path = tmp_path / "batch.tape"
    words = ["everywatt", "batch", "items.txt", "--gpus", "0", "--", "./work.sh", "{input}"]
    writer = TapeWriter(path, {"command": words, "cwd": "/data"})
    writer.anchor(Anchor(at(0), UTC_NS, at(0), 0))
    writer.append(writer.add_group(counter_group(), 0.1), rows(lambda t: 40 * t, 0, 1, 0.1))
    writer.seal()
    view = report_document([everywatt.load(path)])["runs"][0]
    assert view["reproduce"] == "cd /data && everywatt batch items.txt --gpus 0 -- ./work.sh '{input}'"


def test_the_command_to_reproduce_records_idle_power_where_the_run_did(tmp_path):
    path = tmp_path / "idle.tape"
    writer = TapeWriter(path, {"command": ["./work.sh"]})
    writer.anchor(Anchor(at(0), UTC_NS, at(0), 0))
    writer.append(writer.add_group(counter_group(), 0.1), rows(lambda t: 40 * t, 0, 4, 0.1))
    writer.span_open(Span("s0", "idle", at(0), None, None, {"role": "idle"}))
    writer.span_close("s0", at(2.01))
    writer.seal()
    assert report_document([everywatt.load(path)])["runs"][0]["reproduce"] == "everywatt run --idle 2.0s -- ./work.sh"


def test_every_owner_has_a_name(tmp_path):
    path = write_machine(tmp_path / "x.tape", {"cpu.0": [50.0] * 6}, [Process(7, [0.5] * 6, name=" ")], seconds=6)
    run = everywatt.load(path)
    assert "(blank)" in [row["owner"]["label"] for row in ledger_view(run.ledger())["owners"]]
    assert "(blank) [7]" in [row[0] for row in ledger_table(run.ledger()).cells()]


def test_the_environment_names_every_host(tmp_path):
    for host in ("node-a", "node-b"):
        write_machine(tmp_path / f"{host}-0001.tape", {"cpu.0": [80.0] * 4}, seconds=4, host=host)
    assert dict(provenance(everywatt.load(tmp_path)))["Host"] == "node-a, node-b"


def test_hosts_that_ran_at_the_same_time_took_that_time_once(tmp_path):
    for host in ("node-a", "node-b", "node-c"):
        write_machine(
            tmp_path / f"{host}-0001.tape", {"cpu.0": [80.0] * 20, "gpu.0": [145.0] * 20}, seconds=20, host=host
        )
    run = everywatt.load(tmp_path)
    assert run.duration_s == pytest.approx(20.0) and run.energy().joules == pytest.approx(3 * 20 * 225.0)
    view = run_view(run, Factors(), None, lambda share, text: None)
    shown = {one["label"]: one["value"] for one in view["figures"]}
    assert (shown["Duration"], shown["Mean power"]) == ("20.0 s", "675.0 W")
    assert [device["share"] for device in view["devices"]] == pytest.approx([80 / 675, 145 / 675] * 3)


def test_the_highest_reading_is_that_of_the_table_of_devices(tmp_path):
    """Its digits are those that the interval of the device's energy leaves, as `everywatt show` prints them."""
    from tapes import gauge_group, write_tape

    ticks = rows(lambda t: 99.5312, 0, 4, 0.1)
    tape = write_tape(tmp_path / "a.tape", [(gauge_group(period_s=0.1, window_s=0.1, gain_pct=5.0), 0.1, ticks)])
    view = run_view(everywatt.load(tape), Factors(), None, lambda share, text: None)
    (highest,) = [figure for figure in view["figures"] if figure["label"] == "Highest reading"]
    assert highest == {"label": "Highest reading", "value": view["devices"][0]["power_shown"][3], "about": "of gpu.0"}


def test_every_device_of_a_group_has_its_sensor(tmp_path):
    """The memory beside a package is a channel of the package's group."""
    from dataclasses import replace

    from tapes import write_tape

    from everywatt.core.channels import Channel, Domain, Facts, Kind, Row

    group = counter_group(quantum=6e-5)
    memory = Channel("dram.0.energy", "J", Kind.COUNTER, "dram.0", Domain.DRAM, facts=Facts(quantum=6e-5))
    group = replace(group, channels=(*group.channels, memory), label="package-0")
    ticks = [Row(at(n / 10), at(n / 10), at(n / 10), (5.0 * n, 1.0 * n)) for n in range(41)]
    run = everywatt.load(write_tape(tmp_path / "a.tape", [(group, 0.1, ticks)]))
    view = run_view(run, Factors(), None, lambda share, text: None)
    assert {row["name"]: (row["sensor"], row["label"]) for row in view["devices"]} == {
        "cpu.0": ("test", "package-0"),
        "dram.0": ("test", "package-0"),
    }


def test_rates_are_those_that_the_command_prints(view, run):
    from everywatt.report.text import RunReport

    lines = RunReport(run).tables()[0].notes
    assert view["quality"]["rates"]
    for rate in view["quality"]["rates"]:
        (line,) = [line for line in lines if line.startswith(f"  rate    {rate['name']}: ")]
        assert f"requested {rate['requested_shown']}, achieved {rate['achieved_shown']}" in line


def test_a_failed_command_is_a_caveat(tmp_path):
    from tapes import gauge_group, write_tape

    groups = [(gauge_group(period_s=0.1, window_s=0.1), 0.1, rows(lambda t: 100.0, 0, 2, 0.1))]
    spans = [("run", 0.0, 2.0, None, {"role": "run", "exit_code": 3})]
    run = everywatt.load(write_tape(tmp_path / "a.tape", groups, spans))
    words = "The command ended with exit code 3."
    assert words in run_view(run, Factors(), None, lambda share, text: None)["warnings"]
    assert f"  ! {words}" in summary(run)


def test_a_counter_that_was_read_once_more_before_it_published_drew_no_0_w(tmp_path):
    """100 W. The last read, before the next publication, shows the value of the one before."""
    from dataclasses import replace

    from tapes import write_tape

    from everywatt.core.channels import Row

    group = replace(counter_group("gpu.0", period_s=0.1), tracked=True)
    ticks = [Row(at(n / 10), at(n / 10 - 0.1), at(n / 10), (10.0 * min(n, 39),)) for n in range(41)]
    (line,) = lines_of(everywatt.load(write_tape(tmp_path / "a.tape", [(group, 0.1, ticks)])))
    assert line.watts.min() == pytest.approx(100.0) and line.series.values.min() == pytest.approx(100.0)


def test_powers_of_a_device_are_those_that_the_command_prints(tmp_path):
    from tapes import gauge_group, write_tape

    ticks = rows(lambda t: 60.0 if t % 1 < 0.5 else 240.0, 0, 4, 0.1)
    tape = write_tape(tmp_path / "a.tape", [(gauge_group(period_s=0.1, window_s=0.1, gain_pct=0.1), 0.1, ticks)])
    run = everywatt.load(tape)
    (device,) = run_view(run, Factors(), None, lambda share, text: None)["devices"]
    mean, low, _, high = device["power_shown"]
    (line,) = [line for line in summary(run) if line.startswith("  gpu.0 ")]
    assert f"{mean} mean, {low.removesuffix(' W')} … {high}" in line
