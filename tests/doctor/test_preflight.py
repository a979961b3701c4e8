"""Whether a machine is quiet: what is said of what was seen."""

import os
import subprocess
import sys

import pytest

from everywatt.core.machine import Machine
from everywatt.doctor import preflight
from everywatt.doctor.preflight import Preflight, sentences


def test_a_quiet_machine_has_nothing_to_say():
    assert sentences(0.05, [], {"gpu.0.throttle": 0.0, "gpu.0.power": 300.0}) == ()
    assert sentences(None, [{"pid": os.getpid(), "gpu": 0}, {"pid": 5, "gpu": 0, "gone": True}], {}) == ()
    assert Preflight().refusal is None


def test_each_disturbance_is_named():
    rows = [{"pid": pid, "gpu": 1} for pid in range(10, 16)]
    said = sentences(0.31, rows, {"gpu.1.throttle": float(0x48), "gpu.0.throttle": None}, hot=True)
    assert said[0] == "Other programs kept 31.0 % of the CPUs busy just before the start."
    assert "process 10 on gpu.1" in said[1] and "2 more" in said[1]
    assert "gpu.1 is throttled: hardware slowdown, thermal throttling (hardware)" in said[2]
    assert "temperature" in said[3]
    assert Preflight(said).refusal.startswith("The machine is not quiet: Other programs kept 31.0 %")
    assert "measures power" in Preflight(said, power=False).refusal


def test_a_busy_card_whose_processes_are_not_shown_is_a_disturbance():
    samples = {
        "gpu.0.utilisation": 50.0,
        "gpu.1.utilisation": 3.0,
        "gpu.2.utilisation": None,
        "gpu.3.utilisation": 90.0,
    }
    said = sentences(0.0, [{"pid": os.getpid(), "gpu": 3}], samples)
    assert said == ("gpu.0 was 50.0 % busy just before the start; the driver does not report by whom.",)
    both = sentences(0.0, [], {"gpu.0.utilisation": 50.0, "gpu.1.utilisation": 100.0})
    assert len(both) == 1 and both[0].startswith("gpu.0, gpu.1 were 50.0 % to 100 % busy just before")


def stat(folder, busy, idle=0):
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n")


def test_the_share_of_others(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(preflight.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(preflight.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(preflight.os, "times", lambda: (0.0, 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(preflight.time, "process_time", lambda: 0.0)
    stat(tmp_path / "proc", 1000)
    load = preflight.CpuLoad(Machine(proc=tmp_path / "proc", environ={}))
    now[0] += 0.02
    assert load.others() is None  # too short for ticks
    now[0] += 0.98
    stat(tmp_path / "proc", 1202)  # 2.02 s in 1 s of four CPUs, of which two ticks may be rounding
    assert load.others() == pytest.approx(0.5)
    (tmp_path / "proc" / "stat").unlink()
    assert load.others() is None


def test_a_simulated_machine_in_use_is_refused(sim_machine):
    code = """
import subprocess, sys, time
from everywatt.doctor import preflight
quiet = preflight.look()
preflight.BUSY_SHARE = 0.02
burner = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
try:
    end = time.monotonic() + 200
    while (busy := preflight.look(seconds=1.0)).refusal is None and time.monotonic() < end:
        pass  # a busy host may leave the burner little or nothing of a second
finally:
    burner.kill()
print(quiet.power, quiet.refusal, "|", busy.refusal)
"""
    lab = sim_machine(packages=["load:10W,60W"])
    done = subprocess.run(
        [sys.executable, "-c", code], env=lab.environment(), capture_output=True, text=True, check=True
    )
    quiet, busy = done.stdout.split("|")
    assert quiet.strip() == "True None"
    assert "Other programs kept" in busy
