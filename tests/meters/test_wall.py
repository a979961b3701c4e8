"""Wall and chips: clocks, overhead, calibration; on closed forms, and on a recorded card."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.api.run import load
from everywatt.cli.common.group import dispatch
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.doctor.calibration import compare_with_meter
from everywatt.meters.block import Block
from everywatt.meters.omegawatt_csv import write_csv
from everywatt.meters.series import Part, Table, write_part
from everywatt.meters.wall import EnergyLine, estimate, fit_overhead, from_saved
from everywatt.sensors.calibrations import Stored, calibrated, load_all, path_of, save
from everywatt.tape.importing import import_files

CARD = Path(__file__).resolve().parents[1] / "energy" / "data" / "A100_step"
ORIGIN_S = 1_760_000_000


def load_w(t):
    """Power of a load that comes and goes at uneven times."""
    edges = np.cumsum(np.random.default_rng(3).uniform(2, 9, 60))
    return np.where(np.searchsorted(edges, t) % 2 == 1, 300.0, 100.0)


def line(watts, t):
    return EnergyLine(t, np.concatenate(([0.0], np.cumsum(watts[1:] * np.diff(t)))))


@pytest.mark.parametrize("shift", [3.7, -3.7, 0.0, 12.34])
@pytest.mark.parametrize("period", [0.01, 0.1, 1.0])
def test_a_shift_of_clocks_is_found(shift, period):
    rng = np.random.default_rng(1)
    fine, coarse = np.arange(0, 200, 0.01), np.arange(0, 200, period)
    wall = line(60 + 1.1 * load_w(fine) + rng.normal(0, 3, len(fine)), fine)
    chips_t = np.arange(0, 200, 0.01)
    whole = line(load_w(chips_t), chips_t)
    chips = EnergyLine(coarse - shift, np.interp(coarse, whole.t_s, whole.joules))
    found = estimate(wall, chips)
    assert found.seconds == pytest.approx(shift, abs=0.1) and found.agreement > 0.9


def test_flat_strange_and_periodic_signals_are_refused():
    t = np.arange(0, 120, 0.02)
    rng = np.random.default_rng(2)
    moving = line(load_w(t), t)
    assert "flat" in estimate(moving, line(np.full(len(t), 100.0), t)).why
    assert estimate(line(100 + rng.normal(0, 1, len(t)), t), line(100 + rng.normal(0, 1, len(t)), t)).seconds is None
    square = line(np.where((t // 2) % 2 == 0, 100.0, 300.0), t)
    assert "periodic" in estimate(square, square).why
    assert "do not overlap in time" in estimate(moving, EnergyLine(t + 1e6, moving.joules)).why


def test_overhead_with_its_interval():
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(100):
        chips = rng.uniform(100, 400, 40)
        found = fit_overhead(chips, 80 + 1.12 * chips + rng.normal(0, 4, 40))
        held += abs(found.a_w - 80) <= found.a_within_w and abs(found.b - 1.12) <= found.b_within
    assert held >= 85
    assert fit_overhead([100.0] * 9, [200.0] * 9) is None


def gauge(device, domain):
    channel = Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=Pedigree.INTEGRATED, facts=Facts())
    return GroupInfo(device, "test", device, (channel,))


def tape(path, device, domain, watts, t):
    rows = [(round((ORIGIN_S + at) * NS), (float(w),)) for at, w in zip(t, watts, strict=True)]
    return load(write_part(path, Part([Table(gauge(device, domain), rows)]), [path], {}))


def test_the_command_finds_shift_and_overhead_and_saves_them(tmp_path, capsys):
    t = np.arange(0, 240, 0.1)
    tape(tmp_path / "chips.tape", "gpu.0", Domain.GPU, load_w(t), t)
    tape(tmp_path / "wall.tape", "wall.1", Domain.WALL, 50 + 1.1 * load_w(t), t + 3.7)
    out = tmp_path / "cells.json"
    words = ["--chips", str(tmp_path / "chips.tape"), "--wall", str(tmp_path / "wall.tape"), "--nodes", "n1"]
    assert dispatch(["meter", "compare", *words, "--every", "10s", "--out", str(out), "--json"]) == 0
    node = json.loads(capsys.readouterr().out)["nodes"][0]
    assert node["clock_offset_s"] == pytest.approx(-3.7, abs=0.1)
    assert node["overhead"]["b"] == pytest.approx(1.1, abs=0.02) and node["overhead"]["a_w"] == pytest.approx(50, abs=3)
    assert node["gap_pct"] == pytest.approx(100 * (1 - 1 / (1.1 + 50 / node["gpu_w"])), abs=0.5)
    cells = json.loads(out.read_text())["n1"]
    assert set(next(iter(cells.values()))) == {"rapl", "nvidia", "omegawatt_power_draw"}
    assert dispatch(["meter", "compare", "--from", str(out)]) == 0
    assert "× chips" in capsys.readouterr().out


def test_time_that_a_meter_did_not_see_takes_nothing_from_its_power(tmp_path, capsys):
    """250 W at the wall for 100 s, of which the meter has no rows for 7 s: each cell has 250 W, or no figure."""
    t = np.arange(0, 100, 0.02)
    tape(tmp_path / "chips.tape", "gpu.0", Domain.GPU, load_w(t), t)
    seen = t[(t < 42) | (t > 49)]
    count = len(seen)
    columns = (np.full((count, 3), 230.0), np.full((count, 1), 1.1), np.full((count, 1), 250.0))
    block = Block(np.rint((ORIGIN_S + seen) * NS).astype(np.int64), np.ones(count, dtype=bool), *columns)
    with (tmp_path / "wall.csv").open("w", encoding="ascii") as file:
        write_csv([block], file)
    words = ["--chips", str(tmp_path / "chips.tape"), str(tmp_path / "wall.csv"), "--nodes", "n1", "--every", "10s"]
    assert dispatch(["meter", "compare", *words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]["n1"]
    powers = [cell["omegawatt_power_draw"] for cell in cells.values()]
    known = [power for power in powers if power is not None]
    assert known == pytest.approx([250.0] * len(known)) and len(known) >= 8


@settings(max_examples=1000, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=3),
        st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.floats() | st.text(max_size=2), max_size=2),
        max_size=2,
    )
)
def test_any_saved_file_is_cells_or_an_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    try:
        from_saved(path)
    except UsageError:
        pass


@pytest.fixture(scope="module")
def a100(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a100")
    card = {"card": "NVIDIA A100-PCIE-40GB", "driver": "535.54.03", "zone_h": 1}
    meter = {
        "time": "unix_s",
        "time_format": "s",
        "values": ["watts"],
        "unit": "W",
        "device": "wall.0",
        "domain": "wall",
    }
    import_files("nvidia-smi", [CARD / "nvidia_smi.csv.gz"], folder / "card.tape", card)
    import_files("csv", [CARD / "meter.csv.gz"], folder / "meter.tape", meter)
    return folder


def test_the_gain_of_a_recorded_card(a100):
    (found,) = compare_with_meter(load(a100 / "card.tape"), load(a100 / "meter.tape"))
    assert found.gain == pytest.approx(0.958, abs=0.003) and found.offset_w == pytest.approx(-2.0, abs=0.7)
    assert found.gain_within < 0.015 and found.offset_within_w < 1.5


def test_what_is_found_is_kept_and_used(a100, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    words = ["calibrate", "--from", str(a100 / "card.tape"), "--meter", str(a100 / "meter.tape")]
    assert dispatch(words) == 0
    assert "UUID is unknown" in capsys.readouterr().err and load_all() == {}
    assert dispatch([*words, "--uuid", "GPU-1"]) == 0 and dispatch(["calibrate", "--list"]) == 0
    assert "GPU-1" in capsys.readouterr().out and path_of() == tmp_path / "everywatt" / "calibrations.json"
    facts, why = calibrated(Facts(gain_pct=8.0, offset_w=13.0, max_w=250.0), "GPU-1")
    assert why is None and facts.calibrated and facts.gain == pytest.approx(1 / 0.958, abs=0.004)
    assert facts.gain_pct < 2 and facts.max_w == 250.0
    assert calibrated(Facts(), "GPU-2") == (Facts(), None)
    assert dispatch(["calibrate", "--forget", "GPU-1"]) == 0 and load_all() == {}
    assert dispatch(["calibrate", "--forget", "GPU-1"]) == 2


def test_old_and_moved_devices_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    now = time.time()
    for uuid, made, host, slot in (
        ("old", now - 400 * 86400, "a", "00000000:65:00.0"),
        ("moved", now, "b", "00000000:65:00.0"),
        ("slot", now, "a", "00000000:17:00.0"),
        ("good", now, "a", "0000:65:00.0"),
    ):
        save(Stored(uuid, 1.04, 2.0, 1.0, 0.8, made, host, slot))
    told = {u: calibrated(Facts(), u, slot="00000000:65:00.0", host="a") for u in ("old", "moved", "slot", "good")}
    assert "year old" in told["old"][1] and "made in b" in told["moved"][1] and "slot" in told["slot"][1]
    assert [u for u, (facts, _) in told.items() if facts.calibrated] == ["good"]


@pytest.mark.parametrize("text", ["", "[]", '{"calibrations": [1, {"uuid": "x"}]}', "{" * 99])
def test_a_damaged_file_is_no_calibration(tmp_path, text):
    path = tmp_path / "calibrations.json"
    path.write_text(text, encoding="utf-8")
    assert load_all(path) == {}
    wild = Stored("x", 25.0, 0.0, 1.0, 1.0, 1.0)
    save(wild, path)
    assert load_all(path) == {}


def test_one_level_of_load_is_refused(tmp_path):
    t = np.arange(0, 60, 0.1)
    run = tape(tmp_path / "a.tape", "gpu.0", Domain.GPU, np.full(len(t), 100.0), t)
    meter = tape(tmp_path / "b.tape", "wall.0", Domain.WALL, np.full(len(t), 104.0), t)
    with pytest.raises(MeasurementRefused):
        compare_with_meter(run, meter)


@pytest.mark.long
def test_a_simulated_card_is_calibrated_against_an_exact_one_and_reads_true_ever_after(tmp_path):
    source = str(Path(__file__).resolve().parents[2] / "src")
    environ = {
        **os.environ,
        "PYTHONPATH": source,
        "EVERYWATT_HOME": str(tmp_path / "runs"),
        "XDG_STATE_HOME": str(tmp_path),
    }
    everywatt = [sys.executable, "-m", "everywatt"]
    off = "gpu.0.gain=0.95,gpu.0.offset=-2W"
    sim = [*everywatt, "sim", "--gpu", "load:100W,300W", "--gpus", "2", "--sensor", off, "--", *everywatt]
    words = ["calibrate", "--against", "gpu.1", "--device", "gpu.0", "--for", "20s", "--json"]
    done = subprocess.run([*sim, *words], env=environ, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["devices"][0]
    assert found["gain"] == pytest.approx(0.95, abs=0.005) and found["offset_w"] == pytest.approx(-2, abs=0.5)
    after = [*everywatt, "sim", "--gpu", "constant:200W", "--sensor", off, "--", *everywatt]
    subprocess.run([*after, "run", "--tag", "name=after", "--", "sleep", "3"], env=environ, check=True)
    (run,) = [load(path) for path in (tmp_path / "runs").glob("*after*")]
    assert run.energy(device="gpu.0").joules / run.duration_s == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize(
    ("column", "slot", "used"),
    [("GPU-9", "00000000:65:00.0", True), ("", "00000000:65:00.0", True), ("GPU-9", "00000000:17:00.0", False)],
    ids=["by its column", "by an option", "in another slot"],
)
def test_an_imported_log_is_corrected_too(tmp_path, monkeypatch, column, slot, used):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    save(Stored("GPU-9", 1.05, 2.0, 1.0, 0.8, time.time(), "a-host", "00000000:65:00.0"))
    lines = ["timestamp, index, uuid, pci.bus_id, power.draw [W]"]
    lines += [f"2026/11/15 10:00:{s:02d}.000, 0, {column}, {slot}, {100 + s % 2}.00 W" for s in range(40)]
    (tmp_path / "smi.csv").write_text("\n".join(lines) + "\n")
    options = {} if column else {"uuid": "GPU-9"}
    run = load(import_files("nvidia-smi", [tmp_path / "smi.csv"], tmp_path / "s.tape", options))
    (facts,) = [c.facts for g in run.tapes[0].groups for c in g.info.channels if c.name == "gpu.0.power"]
    assert facts.calibrated is used
    energy = run.energy(device="gpu.0")
    watts = energy.joules / (run.duration_s * energy.coverage)
    assert watts == pytest.approx(1.05 * 100.5 + 2 if used else 100.5, rel=0.01)
    assert used or any("made in slot" in group.info.label for group in run.tapes[0].groups)


def test_a_log_of_dmon_with_one_card_is_corrected(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    save(Stored("GPU-9", 1.05, 2.0, 1.0, 0.8, time.time()))
    rows = [f" 20261115 10:00:{s:02d} 0 {100 + s % 2}" for s in range(30)]
    (tmp_path / "dmon.txt").write_text("\n".join(["#Date Time gpu pwr", *rows]) + "\n")
    for uuid, factor, bias in (("GPU-9", 1.05, 2.0), ("GPU-8", 1.0, 0.0)):
        run = load(import_files("dmon", [tmp_path / "dmon.txt"], tmp_path / f"{uuid}.tape", {"uuid": uuid}))
        energy = run.energy(device="gpu.0")
        assert energy.joules / (run.duration_s * energy.coverage) == pytest.approx(factor * 100.5 + bias, rel=0.01)
