"""`everywatt doctor` in simulated machines and trees: verdicts, exit codes, JSON, and that it only looks."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everywatt.cli import doctor as module
from everywatt.cli.common.output import Output
from everywatt.core.machine import Machine
from everywatt.doctor.coverage import Coverage, Part
from everywatt.doctor.diagnose import Check, Diagnosis, Verdict
from everywatt.sensors.base import Report, State
from everywatt.sim.build import NVML, compile_library, compiler


def run(environ, *words):
    command = [sys.executable, "-m", "everywatt", "doctor", *words]
    environ = {**environ, "EVERYWATT_SLURM_SPOOL": "/none"}  # whether this machine is a node of Slurm is not asked here
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)


def doctor(environ, *words):
    done = run(environ, "--json", *words)
    document = json.loads(done.stdout)
    assert document["schema"] == "everywatt/1" and document["kind"] == "doctor"
    assert done.returncode == (0 if document["ok"] else 1)
    verdicts: dict[str, list] = {}
    for check in document["checks"]:
        verdicts.setdefault(check["name"], []).append(check)
    return document, verdicts


@pytest.fixture
def environ(tmp_path):
    """An empty machine: no sensor, no driver, no command on the path; folders of its own."""
    for name in ("sys", "proc", "dev"):
        (tmp_path / name).mkdir()
    kept = {key: os.environ[key] for key in ("PYTHONPATH", "HOME") if key in os.environ}
    return kept | {
        "PATH": str(Path(sys.executable).parent),
        "EVERYWATT_SYS": str(tmp_path / "sys"),
        "EVERYWATT_PROC": str(tmp_path / "proc"),
        "EVERYWATT_DEV": str(tmp_path / "dev"),
        "EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt"),
        "EVERYWATT_HOME": str(tmp_path / "runs"),
    }


def test_nothing_at_all_fails_and_says_so(environ, tmp_path) -> None:
    document, checks = doctor(environ)
    assert document["ok"] is False and checks["energy domains"][0]["verdict"] == "fail"
    assert document["sensors"]["rapl"]["state"] == "absent" and document["sensors"]["replay"]["why"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev", "proc", "sys"], "it only looks"


def test_two_gpus_with_one_lost(sim_machine, tmp_path) -> None:
    lab = sim_machine(gpus=["constant:100W", "constant:50W"], packages=["constant:30W"], sensor=["gpu.1.lost_at=1us"])
    document, checks = doctor(lab.environment())
    assert document["ok"] is False
    (lost,) = checks["NVIDIA GPU"]
    assert lost["verdict"] == "fail" and "GPU 1" in lost["seen"] and "lost" in lost["seen"] and lost["cure"]
    assert checks["NVIDIA (NVML)"][0]["verdict"] == "pass" and "gpu.0" in checks["NVIDIA (NVML)"][0]["seen"]
    assert "gpu.0: gpu" in document["domains"] and not any("gpu.1" in domain for domain in document["domains"])
    sample = document["sensors"]["nvml"]["samples"]
    assert sample["gpu.0.power"] == pytest.approx(100.0, rel=0.01)


def test_who_is_on_the_gpu(sim_machine) -> None:
    lab = sim_machine(gpus=["constant:100W"], sensor=["processes=4242:1GiB:0.5"])
    _, checks = doctor(lab.environment())
    tenants = checks["other GPU users"][0]
    assert tenants["verdict"] == "warn" and "process 4242 on gpu.0" in tenants["seen"]
    alone = sim_machine(gpus=["constant:100W"])
    assert doctor(alone.environment())[1]["other GPU users"][0]["verdict"] == "pass"


def test_a_jetson(sim_machine, tmp_path) -> None:
    """NVML loads and every call says Not Supported; the INA rail is what measures."""
    calls = "nvmlDeviceGetTotalEnergyConsumption+nvmlDeviceGetPowerUsage+field:83+field:185+field:186"
    lab = sim_machine(gpus=["constant:10W"], sensor=[f"unsupported={calls}"])
    tree = tmp_path / "proc" / "device-tree"
    tree.mkdir(parents=True)
    (tree / "model").write_bytes(b"NVIDIA Jetson Orin Nano Developer Kit\0")
    rail = tmp_path / "sys" / "class" / "hwmon" / "hwmon1"
    rail.mkdir(parents=True)
    for name, text in {"name": "ina3221", "power1_input": "4800000", "power1_label": "VDD_IN"}.items():
        (rail / name).write_text(f"{text}\n")
    environ = lab.environment() | {"EVERYWATT_PROC": str(tmp_path / "proc"), "EVERYWATT_SYS": str(tmp_path / "sys")}
    document, checks = doctor(environ)
    assert document["sensors"]["nvml"]["state"] == "unusable"
    assert "Not Supported" in document["sensors"]["nvml"]["why"]
    assert checks["Jetson"][0]["verdict"] == "pass" and "NVIDIA (NVML)" not in checks
    assert document["ok"] is True


def test_a_driver_that_does_not_match_its_library(environ, tmp_path) -> None:
    source = tmp_path / "mismatch.c"
    source.write_text(
        '#define API __attribute__((visibility("default")))\n'
        "API int nvmlInit_v2(void) { return 18; }\n"
        "API int nvmlInitWithFlags(unsigned flags) { (void)flags; return 18; }\n"
        'API const char *nvmlErrorString(int code) { (void)code; return "Driver/library version mismatch"; }\n'
    )
    library = tmp_path / "lib" / NVML
    library.parent.mkdir()
    compile_library(source, library, compiler())
    version = tmp_path / "proc" / "driver" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n")
    document, checks = doctor(environ | {"LD_LIBRARY_PATH": str(library.parent)})
    (nvml,) = checks["NVIDIA (NVML)"]
    assert nvml["verdict"] == "fail" and "version mismatch" in nvml["seen"] and "restart" in nvml["cure"]
    assert document["ok"] is False


def test_a_person_gets_two_tables(sim_machine) -> None:
    lab = sim_machine(packages=["constant:30W"])
    done = run(lab.environment())
    assert done.returncode == 0, "a library without any GPU is a warning"
    assert "CPU energy (RAPL)" in done.stdout and "SENSOR" in done.stdout and "replay" in done.stdout


def picture(root: Path):
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*")) if p.is_file()}


def test_without_fix_nothing_changes_and_with_it_only_what_it_says(environ, tmp_path, monkeypatch, capsys) -> None:
    zone = tmp_path / "sys" / "class" / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "energy_uj").write_text("1\n")
    before = picture(tmp_path)
    run(environ)
    assert picture(tmp_path) == before
    machine = Machine.here(environ)
    calls = []
    monkeypatch.setattr("everywatt.doctor.permissions._call", lambda words: calls.append(list(words)))
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    done = module._fix(machine, Output(), tmp_path / "etc")
    assert all(step["done"] for step in done) and ["groupadd", "--system", "--force", "everywatt"] in calls
    said = capsys.readouterr().err
    assert "70-everywatt.rules" in said and "for the group only" in said
    changed = {path for path in picture(tmp_path) if path not in before}
    assert changed == {
        str(tmp_path / "etc/udev/rules.d/70-everywatt.rules"),
        str(tmp_path / "etc/tmpfiles.d/everywatt.conf"),
    }


def test_who_is_not_root_gets_the_commands(environ, tmp_path, monkeypatch, capsys) -> None:
    zone = tmp_path / "sys" / "class" / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "energy_uj").write_text("1\n")
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    assert module._fix(Machine.here(environ), Output(), tmp_path / "etc") == []
    said = capsys.readouterr().err
    assert "nothing was changed" in said and "sudo groupadd" in said and not (tmp_path / "etc").exists()


def test_fix_without_counters_changes_nothing(environ) -> None:
    done = run(environ, "--fix")
    assert "nothing was changed" in done.stderr and done.returncode == 1


@pytest.mark.parametrize(
    "words", [["--marks", "x"], ["--column", "x"], ["--load"], ["--load", "--characterise", "--from", "x"]]
)
def test_options_that_go_with_others(environ, words) -> None:
    done = run(environ, *words)
    assert done.returncode == 2 and "require" in done.stderr


def test_a_load_that_cannot_be_made_is_said(environ) -> None:
    done = run(environ, "--characterise", "--load", "--time", "0.5s")
    assert done.returncode == 2 and "leave --load out" in done.stderr


def test_characterise_without_sensors_says_so(environ) -> None:
    done = run(environ, "--characterise", "--time", "0.5s", "--json")
    assert (
        done.returncode == 4 and json.loads(done.stdout)["sensors"] == [] and "nothing to characterise" in done.stderr
    )


def test_the_verdict_comes_first_and_absent_sensors_share_a_reason() -> None:
    checks = (
        Check("CPU energy (RAPL)", Verdict.FAIL, "denied", "sudo everywatt doctor --fix"),
        Check("clock", Verdict.PASS, "synchronised"),
    )
    core = Part("cpu.0 core", "cpu.0", "core", "counter", in_total=False, note="inside cpu.0")
    gpu = Part("gpu.0", "gpu.0", "gpu", "counter", in_total=True)
    model = Part("host", "host", "node", "modelled", in_total=True)
    found = Diagnosis(checks, (), Coverage("gpu", (core, gpu)))
    assert module.outlook(found) == [
        "You will get: gpu.0 counted.",
        "CPU energy (RAPL): fix with: sudo everywatt doctor --fix",
    ]
    assert "estimate" in module.outlook(Diagnosis((), (), Coverage("machine", (model,))))[0]
    assert "no energy" in module.outlook(Diagnosis((), (), Coverage("", ())))[0]
    reports = [Report(name, State.ABSENT, f"not configured: [sensor.{name}]") for name in ("ipmi", "snmp")]
    assert module.absent(reports) == [("ipmi, snmp", "not configured: [sensor.NAME]")]
    assert module.absent(reports[:1]) == [("ipmi", "not configured: [sensor.ipmi]")]


def test_the_first_line_is_what_a_run_will_measure(environ) -> None:
    assert run(environ).stdout.startswith("You will get")
