"""Recordings of other tools become runs whose totals are sums that a reader can do by hand; all texts are ours."""

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tapes import rows, write_tape

from everywatt.api.run import load
from everywatt.cli.common.group import dispatch
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Pedigree
from everywatt.core.errors import UsageError
from everywatt.formats import aipowermeter, sage
from everywatt.formats import ipmi as ipmi_log
from everywatt.formats import nvidia_smi as smi_monitor
from everywatt.formats.aipowermeter import export_aipowermeter
from everywatt.sensors.calibrations import Stored, save
from everywatt.sensors.nvidia.gpu_known import facts_for
from everywatt.tape.importing import import_files

FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
END = json.dumps("END OF RECORDING SEGMENT")


def line(second, cpu, gpu=None):
    metrics = {"cpu": cpu, **({"gpu": gpu} if gpu else {})}
    return json.dumps({"date": f"2026-11-15 10:{second // 60:02d}:{second % 60:02d}.000000", "metrics": metrics})


def cpu(watts, **more):
    return {"intel_power": watts, "psys_power": -1, "total_dram_power": 2.0, "per_process_cpu_uses": {"1": 1.0}, **more}


def test_aipowermeter_processes_are_owners(tmp_path):
    """Shares of CPU use, as they were written: a half and a quarter of what is above idle, the rest of others."""
    uses = [{}] * 10 + [{"11": 0.5, "12": 0.25}] * 40
    lines = [line(second, cpu(10 if second < 10 else 50, per_process_cpu_uses=use)) for second, use in enumerate(uses)]
    (tmp_path / "power_metrics.json").write_text("\n".join([*lines, END]))
    run = load(import_files("aipowermeter", [tmp_path], tmp_path / "x.tape", {}))
    ledger = run.ledger()
    owned = {entry.owner.label: entry.energy.value for entry in ledger.entries}
    above_j = 40 * (50 - 10)
    mine, yours, others = (next(v for k, v in owned.items() if k.startswith(n)) for n in ("pid 11", "pid 12", "other"))
    assert mine == pytest.approx(above_j / 2, rel=0.05) and yours == pytest.approx(above_j / 4, rel=0.05)
    assert others == pytest.approx(above_j / 4, rel=0.05)
    assert sum(entry.microjoules for entry in ledger.entries) == ledger.microjoules
    # Written again, they are the shares that they were.
    export_aipowermeter(run, tmp_path / "again")
    written = [json.loads(text) for text in (tmp_path / "again" / "power_metrics.json").read_text().splitlines()]
    late = [entry["metrics"]["cpu"]["per_process_cpu_uses"] for entry in written[20:45]]
    assert all(one["11"] == pytest.approx(0.5, abs=0.02) and one["12"] == pytest.approx(0.25, abs=0.02) for one in late)
    assert written[30]["metrics"]["cpu"]["rel_intel_power"]["11"] == pytest.approx(25, rel=0.05)


def test_aipowermeter_memory_of_processes_is_kept_and_written(tmp_path):
    more = {"per_process_cpu_uses": {"11": 0.5}, "per_process_mem_use_abs": {"11": 3 << 30}}
    (tmp_path / "power_metrics.json").write_text("\n".join([*(line(n, cpu(50, **more)) for n in range(20)), END]))
    run = load(import_files("aipowermeter", [tmp_path], tmp_path / "x.tape", {}))
    assert next(e for e in run.ledger().entries if "pid 11" in e.owner.label).use["rss_bytes"] == 3 << 30
    export_aipowermeter(run, tmp_path / "again")
    again = load(import_files("aipowermeter", [tmp_path / "again"], tmp_path / "y.tape", {}))
    assert next(e for e in again.ledger().entries if "pid 11" in e.owner.label).use["rss_bytes"] == 3 << 30


def test_aipowermeter_processes_on_cards_are_owners(tmp_path):
    """What a card draws above idle, 3600 J, is shared by use: two thirds and one third."""
    uses = [{}] * 10 + [{"11": 0.6, "12": 0.3}] * 90 + [{"11": 0.0}] * 10

    def card(use):
        held = {"11": 1 << 30} if use else {}
        beside = {"per_gpu_per_pid_utilization_absolute": {"1": use}, "per_gpu_attributable_mem_use": {"1": held}}
        whole = {"per_gpu_absolute_percent_usage": {"1": sum(use.values())}}
        return {"per_gpu_nvidia_power": {"1": 60 if sum(use.values()) else 20}, **whole, **beside}

    known = cpu(10, per_process_cpu_uses={"11": 0.1, "12": 0.1})
    lines = [line(second, known, card(use)) for second, use in enumerate(uses)]
    (tmp_path / "power_metrics.json").write_text("\n".join([*lines, END]))
    for folder in (tmp_path, tmp_path / "again"):
        run = load(import_files("aipowermeter", [folder], folder / "x.tape", {}))
        owned = {entry.owner.label: entry for entry in run.ledger().entries}
        mine, yours = (next(v for k, v in owned.items() if k.startswith(n)) for n in ("pid 11", "pid 12"))
        assert mine.energy.value == pytest.approx(2400, rel=0.05) and yours.energy.value == pytest.approx(
            1200, rel=0.05
        )
        assert mine.use["gpu_s"] == pytest.approx(0.6 * 90, rel=0.05)
        if folder == tmp_path:
            export_aipowermeter(run, tmp_path / "again")
    written = [json.loads(text) for text in (tmp_path / "again" / "power_metrics.json").read_text().splitlines()[:-1]]
    gpu = written[25]["metrics"]["gpu"]
    assert gpu["per_gpu_per_pid_utilization_absolute"]["1"] == pytest.approx({"11": 0.6, "12": 0.3})
    assert gpu["per_gpu_attributable_mem_use"] == {"1": {"11": 1 << 30}}
    assert written[5]["metrics"]["gpu"]["per_gpu_per_pid_utilization_absolute"] == {"1": {}}


def test_aipowermeter_keeps_memory_that_is_a_processs_alone(tmp_path):
    more = {"per_process_cpu_uses": {"11": 0.5}, "per_process_mem_use_uss": {"11": 2 << 30}}
    (tmp_path / "power_metrics.json").write_text("\n".join([*(line(n, cpu(50, **more)) for n in range(20)), END]))
    for folder in (tmp_path, tmp_path / "again"):
        run = load(import_files("aipowermeter", [folder], folder / "x.tape", {}))
        assert next(e for e in run.ledger().entries if "pid 11" in e.owner.label).use["uss_bytes"] == 2 << 30
        if folder == tmp_path:
            export_aipowermeter(run, tmp_path / "again")


def smi_card(watts):
    return {
        "nvidia_draw_absolute": watts + 20,
        "per_gpu_power_draw": {"0": 20, "1": watts},
        "per_gpu_absolute_percent_usage": {"1": 0.5},
    }


def nvml_card(watts):
    """The generation of 2026, built from its description."""
    return {
        "nvidia_power": watts,
        "nvidia_memory": 1000,
        "nvidia_use_rate": 50,
        "per_gpu_nvidia_power": {"0": watts},
        "per_gpu_nvidia_use_rate": {"0": 50},
        "per_gpu_nvidia_memory": {"0": 1000},
    }


@pytest.fixture
def make(tmp_path):
    def write(kind, text, name="power_metrics.json", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return load(import_files(kind, [path], path.parent / f"{kind}.tape", options))

    return write


def test_a_cpu_recording_with_a_segment_and_a_torn_tail(make):
    lines = [line(t, cpu(10.0 + t, uncore_power=[0.5])) for t in range(4)] + [END]
    lines += [line(100 + t, cpu(50.0)) for t in range(3)]
    run = make("aipowermeter", "\n".join(lines) + '\n{"date": "2026-11-15 10:01')
    assert run.energy(device="cpu.0").joules == pytest.approx(11 + 12 + 13 + 50 + 50)
    assert run.energy(device="dram.0").joules == pytest.approx(2.0 * 5)
    assert run.energy(device="cpu.0 uncore").joules == pytest.approx(1.5)
    assert [span.name for span in run.spans] == ["segment 1", "segment 2"]
    assert run.duration_s == pytest.approx(5.0) and run.meta["torn_lines"] == 1
    assert "psys" not in run.devices(), "-1 is absent, not negative joules"


def test_the_generation_that_asked_nvidia_smi(make):
    run = make("aipowermeter", "\n".join(line(t, cpu(10.0), smi_card(100.0)) for t in range(11)))
    assert run.energy(device="gpu.1").joules == pytest.approx(1000.0)
    assert run.energy().joules == pytest.approx(100 + 20 + 1000 + 200)


def test_the_generation_of_nvml_counters_and_swapped_fields(make):
    lines = [line(t, cpu(10.0), nvml_card(100.0 + t)) for t in range(5)]
    swapped = nvml_card(100.0)
    swapped["per_gpu_nvidia_use_rate"], swapped["per_gpu_nvidia_memory"] = {"0": 2**30}, {"0": 40}
    run = make("aipowermeter", "\n".join([*lines, line(5, cpu(10.0), swapped)]))
    assert run.energy(device="gpu.0").joules == pytest.approx(101 + 102 + 103 + 104 + 100)
    assert run.energy(device="gpu.0").pedigree == "counter" and run.meta["swapped_fields"] == 1
    use = run.frame(["gpu.0.utilisation"])["value"].to_pylist()
    assert use == [50.0] * 5 + [40.0]


def test_a_tree_of_jobs(tmp_path):
    for job, node, watts in (("101", "n51", 10.0), ("102", "n52", 20.0), ("103", "n51", None)):
        folder = tmp_path / "2026_11" / "alice" / job
        folder.mkdir(parents=True)
        text = "" if watts is None else "\n".join(line(t, cpu(watts)) for t in range(11))
        (folder / "power_metrics.json").write_text(text, encoding="utf-8")
        (folder / "meta_data.json").write_text(json.dumps({"node_id": node, "jobid": job}), encoding="utf-8")
    out = tmp_path / "run"
    assert dispatch(["import", "labia", str(tmp_path / "2026_11"), "--out", str(out)]) == 0
    run = load(out)
    assert len(run.tapes) == 2 and run.energy("job 102").joules == pytest.approx(200 + 20)
    assert run.energy().joules == pytest.approx(300 + 40)
    assert run.spans[0].attributes["user"] == "alice"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A stored calibration: watts = 1.1 × reading + 5."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    save(Stored("GPU-1", 1.1, 5.0, 1.0, 0.5, time.time(), host="another", name="card"))


def test_a_card_of_aipowermeter_uses_its_calibration(make, kept):
    """0 stays at 20 W, 1 at 100 W: ten seconds of each."""
    lines = [line(t, cpu(10.0), smi_card(100.0)) for t in range(11)]
    plain = make("aipowermeter", "\n".join(lines))
    run = make("aipowermeter", "\n".join(lines), "b/power_metrics.json", **{"uuid.1": "GPU-1"})
    assert plain.energy(device="gpu.1").joules == pytest.approx(1000)
    assert run.energy(device="gpu.1").joules == pytest.approx(1000 * 1.1 + 50)
    assert run.energy(device="gpu.0").joules == pytest.approx(200), "nothing is known of this one"
    other = make("aipowermeter", "\n".join(lines), "c/power_metrics.json", uuid="GPU-1")
    assert other.energy(device="gpu.1").joules == pytest.approx(1000), "of two cards, one UUID says nothing"


def test_the_one_card_of_a_recording_needs_no_number(make, kept):
    lines = "\n".join(line(t, cpu(10.0), nvml_card(100.0)) for t in range(11))
    run = make("aipowermeter", lines, uuid="GPU-1")
    assert run.energy(device="gpu.0").joules == pytest.approx(1000 * 1.1 + 50), "its counter is calibrated too"
    assert run.energy(device="cpu.0").joules == pytest.approx(100)


def test_an_expired_calibration_is_not_used_and_said(make, kept):
    save(Stored("GPU-1", 1.1, 5.0, 1.0, 0.5, time.time() - 400 * 86_400))
    run = make("aipowermeter", "\n".join(line(t, cpu(10.0), nvml_card(100.0)) for t in range(11)), uuid="GPU-1")
    assert run.energy(device="gpu.0").joules == pytest.approx(1000)
    assert any("more than a year old" in group.info.label for tape in run.tapes for group in tape.groups)


def test_written_for_aipowermeter_and_read_again(make, tmp_path, capsys):
    (tmp_path / "metadata.json").write_text(json.dumps({"description": "résumé of a try", "date": "2026"}))
    make("aipowermeter", "\n".join(line(t, cpu(10.0 + t), nvml_card(100.0 + t)) for t in range(21)))
    folder = tmp_path / "theirs"
    words = ["export", str(tmp_path / "aipowermeter.tape"), "--to", "aipowermeter", "--out", str(folder)]
    assert dispatch(words) == 0 and dispatch(words) == 2, "theirs are not overwritten either"
    capsys.readouterr()
    again = load(import_files("aipowermeter", [folder], tmp_path / "again.tape"))
    first = json.loads((folder / "power_metrics.json").read_text().splitlines()[1])
    assert json.loads((folder / "metadata.json").read_text())["description"] == "résumé of a try"
    assert set(first["metrics"]["gpu"]) == set(nvml_card(0.0)), "their names, all of them"
    assert first["metrics"]["gpu"]["per_gpu_nvidia_use_rate"] == {"0": 50.0}
    assert first["metrics"]["cpu"]["psys_power"] == -1 and first["metrics"]["gpu"]["nvidia_power"] == pytest.approx(101)
    assert again.energy(device="cpu.0").joules == pytest.approx(sum(10 + t for t in range(1, 21)))
    assert again.energy(device="gpu.0").joules == pytest.approx(sum(100 + t for t in range(1, 21)))


def test_an_estimate_comes_back_as_one(tmp_path):
    """The format has no word for it, so the description beside it has."""
    host = Channel("host.power", "W", Kind.GAUGE, "host", Domain.NODE, pedigree=Pedigree.MODELLED)
    group = GroupInfo("modelled", "modelled", "host", (host,))
    tape = write_tape(tmp_path / "box-0001.tape", [(group, 0.1, rows(lambda t: 5.0, 0, 20, 0.1))], [])
    export_aipowermeter(load(tape), tmp_path / "theirs")
    figure = load(import_files("aipowermeter", [tmp_path / "theirs"], tmp_path / "again.tape")).energy()
    assert figure.joules == pytest.approx(load(tape).energy().joules, rel=0.02)
    assert figure.pedigree == "modelled" and not figure.sampling_only and figure.low < 10 and figure.high > 180


def test_time_that_was_not_observed_is_not_written_as_zero(make, tmp_path):
    segments = [[line(t, cpu(10.0)) for t in range(first, first + 21)] for first in (0, 60)]
    run = make("aipowermeter", "\n".join([*segments[0], END, *segments[1], END]))
    export_aipowermeter(run, tmp_path / "theirs")
    written = [json.loads(text) for text in (tmp_path / "theirs" / "power_metrics.json").read_text().splitlines()]
    powers = [entry["metrics"]["cpu"]["intel_power"] for entry in written if isinstance(entry, dict)]
    assert written.count(json.loads(END)) == 2 and powers == pytest.approx([10.0] * 42)
    again = load(import_files("aipowermeter", [tmp_path / "theirs"], tmp_path / "again.tape"))
    assert again.duration_s == run.duration_s == 40
    assert again.energy(device="cpu.0").joules == pytest.approx(400)


DMON = """# gpu    pwr  gtemp     sm
# Idx      W      C      %
    0    100     60     90
    1     50      -      0
    0    110     61     90
    1      -      -      0
    0    120     62     90
    1     50      -      0
"""


def test_dmon_without_times(make):
    run = make("dmon", DMON, "dmon.txt", period_s=2)
    assert run.energy(device="gpu.0").joules == pytest.approx((110 + 120) * 2)
    assert run.meta["times"] == "counted, not logged"
    assert run.energy(device="gpu.1").coverage < 1


def test_dmon_with_times_and_columns_in_another_order(make):
    text = "#Date       Time        gpu     sm    pwr\n#YYYYMMDD   HH:MM:SS    Idx      %      W\n"
    text += "".join(f" 20261115   10:00:{t:02d}      0     50    {100 + t}\n" for t in range(4))
    run = make("dmon", text, "dmon.txt")
    assert run.energy().joules == pytest.approx(101 + 102 + 103)
    assert run.started.isoformat().startswith("2026-11-15T10:00:00")


def test_pmon_has_shares_and_no_energy(make):
    text = (
        "# gpu pid type sm mem command\n# Idx # C/G % % name\n"
        + " 0 11 C 60 1 a\n 0 12 C 30 1 b\n" * 3
        + " 0 - - - - -\n"
    )
    run = make("pmon", text, "pmon.txt")
    assert run.energy().joules is None
    assert run.frame(["gpu.0.utilisation"])["value"].to_pylist()[:3] == [90.0] * 3


def test_codecarbon(make, tmp_path, capsys):
    text = "timestamp,project_name,run_id,duration,cpu_energy,gpu_energy,ram_energy\n"
    text += "2026-11-15T10:00:05,p,r1,5,0.0005,0.001,0.0001\n2026-11-15T10:00:10,p,r1,10,0.001,0.002,0.0002\n"
    run = make("codecarbon", text, "emissions.csv")
    assert run.energy(device="gpu.all").joules == pytest.approx(0.002 * 3.6e6)
    assert run.energy(device="cpu.0").joules == pytest.approx(0.001 * 3.6e6)
    assert run.spans[0].name == "p" and run.duration_s == pytest.approx(10.0)


def test_a_line_that_was_cut_off_is_told(tmp_path, capsys):
    (tmp_path / "power_metrics.json").write_text("\n".join(line(t, cpu(10.0)) for t in range(5)) + '\n{"date": "2026-1')
    assert dispatch(["import", "aipowermeter", str(tmp_path), "--out", str(tmp_path / "a.tape"), "--json"]) == 0
    told = capsys.readouterr()
    assert "1 line could not be read" in told.err
    assert json.loads(told.out)["oddities"] == ["1 line could not be read and gave no readings"]


def test_sage_and_its_rails(make):
    records = [
        {
            "timestamp": f"2026-11-15T10:00:{t:02d}.000000001Z",
            "name": name,
            "value": value,
            "meta": {"vsn": "W0", **more},
        }
        for t in range(5)
        for name, value, more in (
            ("perf.sys.bus.i2c.vdd_in", 8.0, {}),
            ("tegra_wattage_current_milliwatts", 2000, {"sensor": "vdd_soc"}),
            ("env.temperature", 21.5, {"sensor": "bme680"}),
            ("upload", "https://example.org/a.jpg", {}),
        )
    ]
    run = make("sage", "\n".join(map(json.dumps, records)) + "\nnot json\n", "data.ndjson")
    assert run.energy().joules == pytest.approx(32.0) and run.energy(device="soc vdd_soc").joules == pytest.approx(8.0)
    assert run.meta["odd_lines"] == 1 and run.meta["host"]["name"] == "W0"


def reading(watts, stamp="Thu Jan  1 00:00:00 1970", state="activated"):
    return (
        f"    Instantaneous power reading:                   {watts} Watts\n"
        f"    Average power reading over sample period:      999 Watts\n"
        f"    IPMI timestamp:                           {stamp}    Sampling period: 00000000 Seconds.\n"
        f"    Power reading state is:                   {state}\n"
    )


def test_ipmi_by_the_times_of_a_loop(make):
    text = "".join(f"2026-11-15T10:00:{10 * t:02d}+00:00\n" + reading(200 + t, state="deactivated") for t in range(4))
    run = make("ipmi", text, "ipmi.log")
    assert run.energy().joules == pytest.approx(10 * (201 + 202 + 203))


def test_ipmi_by_the_bmc_and_by_counting(make, tmp_path):
    run = make("ipmi", "".join(reading(100, f"Wed Feb 15 12:49:{t:02d} 2017") for t in range(5)), "bmc.log")
    assert run.energy().joules == pytest.approx(400.0) and run.started.year == 2017
    with pytest.raises(UsageError, match="contains no times"):
        make("ipmi", reading(100) * 3, "no.log")


def test_zero_of_a_reading_that_is_not_active_is_not_available():
    first, second = ipmi_log.parse_log((reading(0, state="deactivated") + reading(5, state="deactivated")).splitlines())
    assert not first.active and second.watts == 5


@pytest.mark.parametrize("kind", ["aipowermeter", "labia", "dmon", "pmon", "codecarbon", "sage", "ipmi", "omegawatt"])
def test_other_files_are_refused(kind, tmp_path):
    path = tmp_path / "other.txt"
    path.write_text("to be or not to be,\nthat is the question\n", encoding="utf-8")
    with pytest.raises(UsageError):
        import_files(kind, [path], tmp_path / "x.tape")
    assert not (tmp_path / "x.tape").exists()


JSON = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(max_size=4) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cpu", "gpu", "0", "all", "intel_power", "uncore_power", "per_gpu_power_draw", "nvidia_power"]
            ),
            inner,
        )
    ),
    max_leaves=10,
)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 59), JSON, st.text(max_size=3)), max_size=4))
def test_any_metrics_are_read_without_a_crash(entries):
    texts = [
        json.dumps({"date": f"2026-11-15 10:00:{second:02d}.5", "metrics": metrics}) + tail
        for second, metrics, tail in entries
    ]
    for table in aipowermeter.tables_of(aipowermeter.read_log(iter(texts))):
        assert all(value != value or abs(value) < float("inf") for _, values in table.rows for value in values)


@FUZZ
@given(st.text(alphabet="# gpuidxpwrsm-0123456789\n:,", max_size=120), st.booleans())
def test_any_monitor_log_is_read_without_a_crash(text, timed):
    head = "# date time gpu pwr\n" if timed else "# gpu pwr sm\n"
    lines = smi_monitor.parse_lines((head + text).splitlines())
    for table in smi_monitor._devices(lines, {}) if lines else []:
        assert table.rows


@FUZZ
@given(
    st.binary(max_size=80)
    | JSON.map(lambda value: json.dumps({"timestamp": "2026-11-15T10:00:00Z", "name": "a", "value": value}).encode())
)
def test_any_record_is_read_without_a_crash(data):
    series = {}
    sage.take_record(data, series, "")
    assert len(series) <= 1


@FUZZ
@given(
    st.lists(
        st.sampled_from([reading(5), "2026-11-15T10:00:00\n", "IPMI timestamp: x\n", "99999999999999\n"])
        | st.text(max_size=30),
        max_size=6,
    )
)
def test_any_ipmi_log_is_read_without_a_crash(texts):
    assert all(reading.watts >= 0 for reading in ipmi_log.parse_log("".join(texts).splitlines()))


@pytest.mark.parametrize("kind", ["dmon", "aipowermeter"])
def test_cards_of_a_log_have_the_errors_of_live_cards(make, kind):
    """Half-widths of few cards are Student's, gain and offset are correlated, cards of a model share a part."""
    text = DMON if kind == "dmon" else "\n".join(line(t, cpu(10.0), smi_card(100.0)) for t in range(11))
    live = facts_for("NVIDIA A100", "535", None, "draw")
    run = make(kind, text, card="NVIDIA A100", driver="535")
    channels = [one for group in run.tapes[0].groups for one in group.info.channels if one.domain == "gpu"]
    assert len(channels) == 2
    for name in ("gain_pct", "offset_w", "correlation", "freedom", "cards", "gain_alike", "offset_alike"):
        assert {getattr(one.facts, name) for one in channels} == {getattr(live, name)}, name
