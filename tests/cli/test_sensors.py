"""`everywatt sensors` with real sensors of a package that is made here: what works, what does not, and why."""

import json
import subprocess
import sys

import pytest

from everywatt.cli.main import main
from everywatt.core.errors import UsageError
from everywatt.doctor.coverage import Coverage, SensorList, probe_all
from everywatt.sensors.base import Report, Request, State

MODULE = """
from everywatt.sensors.base import Report, State


class Thermos:
    name = "thermos"
    after = ()

    def __init__(self, request):
        self.request = request

    def probe(self):
        missing = {"thermos.energy": "no counter"}
        return Report("thermos", State.USABLE, samples={"thermos.power": 12.5}, missing=missing)

    def groups(self):
        return []


class Clock(Thermos):
    def probe(self):
        return Report("clock", State.USABLE, samples={"clock.speed": 3.0}, power=False)


class Locked(Thermos):
    def probe(self):
        return Report("locked", State.UNUSABLE, why="readable by root only", cure="everywatt doctor --fix", power=False)


class Broken(Thermos):
    def probe(self):
        raise RuntimeError("the driver is gone")
"""
TARGETS = ",".join(f"{name}=thermos_sensor:{name.title()}" for name in ("thermos", "clock", "locked", "broken"))


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    (tmp_path / "thermos_sensor.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EVERYWATT_PLUGINS", TARGETS)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_json_says_what_works_and_why_the_rest_does_not(capsys):
    assert main(["sensors", "--json", "--sensors", "thermos,clock,locked,broken"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["kind"], data["power"]) == ("everywatt/1", "sensors", True)
    thermos, clock, locked, broken = data["sensors"]
    assert thermos["state"] == "usable" and thermos["samples"] == {"thermos.power": 12.5}
    assert thermos["missing"] == {"thermos.energy": "no counter"} and thermos["power"] is True
    assert clock["power"] is False
    assert (locked["state"], locked["why"], locked["cure"]) == (
        "unusable",
        "readable by root only",
        "everywatt doctor --fix",
    )
    assert (broken["state"], broken["why"]) == ("unusable", "RuntimeError: the driver is gone")


def test_text_shows_one_value_of_each_channel(capsys):
    assert main(["sensors", "--sensors", "thermos,locked"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["thermos", "thermos.power", "12.50", "W", "-"] for line in lines)
    assert any(line.split() == ["thermos", "thermos.energy", "-", "no", "counter"] for line in lines)
    assert any("readable by root only" in line and "everywatt doctor --fix" in line for line in lines)


@pytest.mark.parametrize(
    ("names", "flags", "code"),
    [
        ("clock", ["--no-estimate"], 4),
        ("clock,locked,broken", ["--no-estimate", "--json"], 4),
        ("clock", [], 0),
        ("thermos,clock", ["--no-estimate"], 0),
    ],
)
def test_no_power_and_no_estimate_ends_with_4(capsys, names, flags, code):
    assert main(["sensors", "--sensors", names, *flags]) == code
    assert ("No sensor on this machine delivers power" in capsys.readouterr().err) is (code == 4)


def test_everything_known_is_probed_except_replay(capsys):
    main(["sensors", "--json"])
    names = [row["sensor"] for row in json.loads(capsys.readouterr().out)["sensors"]]
    assert {"rapl", "nvml", "thermos", "modelled"} <= set(names) and "replay" not in names


def test_a_missing_module_is_unusable_and_says_so():
    ((report,), _) = probe_all({"gone": "no_such_module_here:Gone"}, Request())
    assert report.state is State.UNUSABLE and "no_such_module_here" in report.why
    with pytest.raises(UsageError):
        probe_all({}, Request(), ["gone"])


def test_it_leads_with_the_total_and_folds_what_is_absent(sim_machine):
    lab = sim_machine(gpus=["constant:100W"], packages=["constant:60W"])
    words = [sys.executable, "-m", "everywatt", "sensors"]
    text = subprocess.run(words, env=lab.environment(), capture_output=True, text=True, check=True).stdout
    lines = text.split("\n")
    assert lines[0] == "total   cpu+gpu: cpu.0 + gpu.0 (counter)"
    assert lines[1] == "beside  cpu.0 core (inside cpu.0)"
    (folded,) = [line for line in lines if line.startswith("absent")]
    assert "tegrastats" in folded and "everywatt sensors --all" in folded
    assert text.count("tegrastats") == 1 and "nvidia-smi  gpu.0" not in text
    document = subprocess.run([*words, "--json"], env=lab.environment(), capture_output=True, text=True, check=True)
    assert json.loads(document.stdout)["total"] == {"scope": "cpu+gpu", "parts": ["cpu.0", "gpu.0"]}
    text = subprocess.run([*words, "--all"], env=lab.environment(), capture_output=True, text=True, check=True).stdout
    assert "tegrastats was not found" in text and "nvidia-smi  gpu.0" in text


def test_cards_are_listed_with_what_a_mask_leaves_of_them(sim_machine):
    """Index, name, memory and UUID of every card, and whether a run would measure it."""
    lab = sim_machine(gpus=["constant:100W", "constant:50W"])
    words = [sys.executable, "-m", "everywatt", "sensors", "--sensors", "nvml"]
    done = subprocess.run(
        words, env={**lab.environment(), "CUDA_VISIBLE_DEVICES": "1,7"}, capture_output=True, text=True, check=True
    )
    cards = [line.split("  ") for line in done.stdout.splitlines() if "GPU-" in line]
    found = [[cell.strip() for cell in cells if cell.strip()] for cells in cards]
    assert [row[:4] for row in found] == [
        ["gpu.0", "everywatt Simulated Exact GPU", "16.0 GiB", "no: CUDA_VISIBLE_DEVICES"],
        ["gpu.1", "everywatt Simulated Exact GPU", "16.0 GiB", "yes"],
    ]
    assert "'7' is not a device here" in done.stdout
    assert "50.00 W" in done.stdout and "gpu.0.power" not in done.stdout


def test_channels_that_lack_a_value_for_one_reason_are_one_row():
    why = "this GPU has no GPM metrics"
    missing = {f"gpu.{card}.{word}": why for card in (0, 1) for word in ("sm_active", "dram_active")}
    report = Report("nvml", State.USABLE, samples={"gpu.0.power": 12.5}, missing=missing)
    table = SensorList([report], Coverage("gpu", ())).tables()[-1]
    assert [row[1] for row in table.rows] == ["gpu.0.power", "sm_active, dram_active of gpu.0, gpu.1"]
