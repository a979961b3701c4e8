"""A machine's sensors as a file without names, and the simulated machine that such a file describes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from everywatt.core.errors import UsageError
from everywatt.doctor.share import anonymised
from everywatt.sim.machine import SimMachine


def channel(name, device, domain, unit="W", **more):
    kind = "counter" if unit == "J" else "gauge"
    return {"name": name, "unit": unit, "kind": kind, "device": device, "domain": domain, **more}


# A GH200 beside an A100, as a user's file would describe them.
SHARED = {
    "schema": "everywatt/1",
    "kind": "shared-sensors",
    "groups": [
        {
            "name": "nvml.gpu.0.power",
            "sensor": "nvml",
            "device": "gpu.0",
            "label": "NVIDIA A100-SXM4-40GB",
            "channels": [
                channel("gpu.0.energy", "gpu.0", "gpu", "J"),
                channel("gpu.0.power", "gpu.0", "gpu", mirror_of="gpu.0.energy"),
            ],
        },
        {
            "name": "nvml.gpu.1.power",
            "sensor": "nvml",
            "device": "gpu.1",
            "label": "NVIDIA GH200 480GB",
            "channels": [
                channel("module.1.energy", "module.1", "module", "J"),
                channel("gpu.1.power", "gpu.1", "gpu"),
                channel("module.1.power", "module.1", "module", mirror_of="module.1.energy"),
            ],
        },
        {
            "name": "rapl.0",
            "sensor": "rapl",
            "device": "cpu.0",
            "channels": [
                channel("cpu.0.package.energy", "cpu.0", "package", "J"),
                channel("cpu.0.dram.energy", "dram.0", "dram", "J"),
            ],
        },
    ],
    "measured": {
        "gpu.0.energy": {"period_s": 0.1, "mean_w": 60.0, "quantum": 0.001},
        "gpu.0.power": {"period_s": 0.1, "window_s": 0.025, "mean_w": 61.0, "quantum": 0.01, "jitter_s": 0.002},
        "module.1.energy": {"period_s": 0.1, "mean_w": 240.0},
        "gpu.1.power": {"mean_w": 100.0},
        "module.1.power": {"mean_w": 240.0},
        "cpu.0.package.energy": {"period_s": 0.001, "mean_w": 80.0},
        "cpu.0.dram.energy": {"mean_w": 8.0},
    },
}


def test_a_shared_file_is_a_simulated_machine():
    machine = SimMachine.like(SHARED)
    first, second = machine.gpus
    assert (first.name, first.period_s, first.window_s, first.counter_period_s) == (
        *("NVIDIA A100-SXM4-40GB", 0.1, 0.025),
        0.1,
    )
    assert (first.jitter_s, first.power_quantum_w, first.unsupported) == (0.002, 0.01, ("field:185",))
    assert first.module_w is None
    assert (second.module_w, second.counter_module, second.curve.high_w) == (140.0, True, 100.0)
    (package,) = machine.packages
    assert (package.curve.high_w, package.core, package.dram) == (80.0, None, pytest.approx(0.1))


def test_its_sensors_are_those_of_the_file(tmp_path):
    (tmp_path / "shared.json").write_text(json.dumps(SHARED))
    words = [sys.executable, "-m", "everywatt"]
    inside = [*words, "sensors", "--json", "--sensors", "nvml,rapl"]
    done = subprocess.run(
        [*words, "sim", "--like", str(tmp_path / "shared.json"), "--", *inside],
        capture_output=True,
        text=True,
        check=True,
    )
    nvml, rapl = json.loads(done.stdout)["sensors"]
    described = {c["name"] for group in SHARED["groups"] for c in group["channels"]}
    assert described <= {*nvml["samples"], *rapl["samples"]}
    assert nvml["samples"]["module.1.power"] == pytest.approx(240.0)
    assert "gpu.0.power_average" not in nvml["samples"] and "gpu.1.energy" not in nvml["samples"]


def test_the_memory_of_a_card_draws_its_share():
    document = json.loads(json.dumps(SHARED))
    card = next(group for group in document["groups"] if group.get("device") == "gpu.1")
    card["channels"].append({"name": "gpu.1.memory.power", "device": "gpu.1", "domain": "gpu-memory"})
    document["measured"]["gpu.1.memory.power"] = {"mean_w": 25.0}
    first, second = SimMachine.like(document).gpus
    assert (first.memory_share, second.memory_share) == (None, pytest.approx(0.25))


@pytest.mark.parametrize("odd", [{}, {"groups": []}, {"groups": [{"sensor": "nvml", "channels": [{}]}]}, []])
def test_a_file_of_something_else_is_refused(odd):
    with pytest.raises(UsageError):
        SimMachine.like(odd)


def test_nothing_in_it_names_the_machine():
    document = {
        "why": "GPU-0e60bbed-6c06-5b44-8fa5-4ed8259723f9 at 0000:83:00.0 of node17 is /home/eve/x, not /sys/class",
        "gpu.0": {"186/1": "ok"},
    }
    assert anonymised(document, ("node17", "eve")) == {
        "why": "UUID at PCI of NAME is PATH not /sys/class",
        "gpu.0": {"186/1": "ok"},
    }


def test_doctor_writes_one_and_the_simulator_takes_it(tmp_path, sim_machine):
    lab = sim_machine(gpus=["square:100W,200W,0.7s"], packages=["constant:60W"], sensor=["period=50ms"])
    file = tmp_path / "mine.json"
    words = [sys.executable, "-m", "everywatt", "doctor", "--share", str(file), "--time", "1s"]
    subprocess.run(words, env=lab.environment(), capture_output=True, check=True)
    text = file.read_text()
    document = json.loads(text)
    assert document["total"] == "cpu+gpu"
    assert {"gpu.0.energy", "gpu.0.power", "cpu.0.package.energy"} <= set(document["measured"])
    assert {agreed["device"] for agreed in document["agreement"]} == {"gpu.0"}
    assert document["nvml_fields"]["gpu.0"]["186/0"] == "ok"
    assert not re.search(r"GPU-[0-9a-f]{8}|/tmp/", text) and str(Path.home()) not in text
    machine = SimMachine.like(document)
    assert [gpu.title for gpu in machine.gpus] == ["everywatt Simulated Exact GPU"] and len(machine.packages) == 1
    again = subprocess.run(words, env=lab.environment(), capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "already exists" in again.stderr


@pytest.mark.parametrize(
    ("watts", "line"),
    [(150, "mine.json: 1 channel of 1 device, without names."), (None, "no sensor here measures power")],
)
def test_a_machine_that_cannot_be_simulated_is_shared_without_that_advice(tmp_path, watts, line):
    """A card that hwmon reads, and a machine without any sensor."""
    chip = tmp_path / "sys/class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "name").write_text("amdgpu\n")
    if watts:
        (chip / "power1_label").write_text("PPT\n")
        (chip / "power1_average").write_text(f"{watts}000000\n")
    words = [sys.executable, "-m", "everywatt", "doctor", "--share", "mine.json", "--time", "1s"]
    environ = {**os.environ, "EVERYWATT_SYS": str(tmp_path / "sys"), "EVERYWATT_PLUGINS": "nvml=no_such_module:Nvml"}
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert line in done.stderr and "sim --like" not in done.stderr
