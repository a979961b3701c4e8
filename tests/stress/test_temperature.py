"""Temperatures of chips, zones and sensors; a stop that says what is too hot, and none where nobody tells."""

import subprocess
import sys

import pytest

from everywatt.core.errors import UsageError
from everywatt.core.machine import Machine
from everywatt.sim.machine import SimMachine
from everywatt.stress.playing import Thermometer, TooHot


def tree(folder, **files):
    for path, text in files.items():
        file = folder / "class" / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return Machine(sys=folder, proc=folder, dev=folder, environ={})


def chip(folder, **values):
    files = {"hwmon__hwmon0__name": "coretemp", "hwmon__hwmon0__temp1_label": "Package id 0"}
    return tree(folder, **files, **{f"hwmon__hwmon0__{key}": value for key, value in values.items()})


def test_chips_and_zones_are_read_by_their_names(tmp_path):
    here = chip(tmp_path, temp1_input=61000, temp2_input=-127000)
    tree(tmp_path, thermal__thermal_zone0__temp=45500, thermal__thermal_zone0__type="acpitz")
    thermometer = Thermometer(here)
    assert thermometer.read() == {"coretemp Package id 0": 61.0, "acpitz": 45.5}, "-127 is no chip's temperature"


def test_the_hotter_of_two_that_share_a_name(tmp_path):
    here = chip(tmp_path, temp1_input=61000)
    tree(tmp_path, hwmon__hwmon1__name="coretemp", hwmon__hwmon1__temp1_label="Package id 0")
    tree(tmp_path, hwmon__hwmon1__temp1_input=72000)
    assert Thermometer(here).read() == {"coretemp Package id 0": 72.0}


def test_it_stops_above_the_limit_and_looks_once_a_second(tmp_path):
    now = [0.0]
    here = chip(tmp_path, temp1_input=61000)
    hot = TooHot(80.0, Thermometer(here), clock=lambda: now[0])
    assert hot() is None
    chip(tmp_path, temp1_input=83000)
    assert hot() is None, "it was looked at just now"
    now[0] = 1.5
    assert hot() == "coretemp Package id 0 is at 83 °C, above 80 °C"
    (tmp_path / "class/hwmon/hwmon0/temp1_input").unlink()
    now[0] = 3.0
    assert hot() == "no sensor reports a temperature any more", "a limit that nobody watches is none"


def test_a_limit_that_nobody_could_keep_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No sensor on this machine reports a temperature"):
        TooHot(80.0, Thermometer(tree(tmp_path)))


def test_cards_tell_theirs_through_our_sensors():
    code = "from everywatt.stress.playing import Thermometer; print(Thermometer().read()['gpu.0.temperature'])"
    with SimMachine.of(gpus=["constant:100W"]).start() as lab:
        done = subprocess.run(
            [sys.executable, "-c", code], env=lab.environment(), capture_output=True, text=True, timeout=240
        )
    assert 0 < float(done.stdout) < 120, done.stderr
