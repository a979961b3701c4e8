"""Which sensors a run loads: none whose program, library, files or settings are not there."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scripts import play, request_with

from everywatt.core.errors import UsageError
from everywatt.core.plugins import SENSORS, load, registered
from everywatt.sensors.base import Request, State
from everywatt.sensors.registry import BEHIND, NEEDS, choose, known, odd_tables, probe

BUILT_IN = registered(SENSORS)


def test_what_cannot_be_here_is_not_loaded(tree):
    code = (
        "import sys\n"
        "from everywatt.core.machine import Machine\n"
        "from everywatt.sensors.base import Request\n"
        "from everywatt.core.plugins import SENSORS, registered\n"
        "from everywatt.sensors.registry import NEEDS, choose\n"
        "BUILT_IN = registered(SENSORS)\n"
        "request = Request(machine=Machine(environ={'PATH': '/nonexistent'}), estimate=False)\n"
        "choice = choose({name: BUILT_IN[name] for name in NEEDS}, request)\n"
        "assert {r.state for r in choice.reports} == {'absent'}, choice.reports\n"
        "loaded = [m for m in sys.modules if m.startswith('everywatt.sensors.')]\n"
        "print(*sorted(loaded))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["everywatt.sensors.base", "everywatt.sensors.registry"]


def test_every_need_is_of_a_sensor():
    assert set(NEEDS) <= set(BUILT_IN)


def test_settings_or_a_name_have_it_asked(tmp_path, tree):
    play(tmp_path / "bin", "ipmitool", "Instantaneous power reading: 215 Watts\n")
    targets = {"ipmi": BUILT_IN["ipmi"]}
    assert choose(targets, request_with(tmp_path / "bin", "ipmi")).reports[0].state is State.ABSENT
    choice = choose(targets, request_with(tmp_path / "bin", "ipmi", {"local": True}))
    assert choice.reports[0].usable and len(choice.groups) == 1
    assert choose(targets, request_with(tmp_path / "bin", "ipmi"), ["ipmi"]).reports[0].usable
    request = request_with(tmp_path / "bin", "rocm-smi", machine=tree.machine)
    assert probe("rocm-smi", BUILT_IN["rocm-smi"], request)[1].why == "rocm-smi was not found on the PATH."


def test_jetson_stands_before_tegrastats(tmp_path, tree):
    play(tmp_path / "bin", "tegrastats", "RAM 1/2MB VDD_IN 4000/4000\n")
    for name, text in {"name": "ina3221", "in1_label": "VDD_IN", "in1_input": 5000, "curr1_input": 900}.items():
        tree.write(f"sys/class/hwmon/hwmon1/{name}", text)
    targets = {name: BUILT_IN[name] for name in ("jetson", "tegrastats", "hwmon")}
    request = request_with(tmp_path / "bin", "jetson", machine=tree.machine)
    choice = choose(targets, request)
    assert [group.info.sensor for group in choice.groups] == ["jetson"]
    assert choice.reports[1].why == "not tried: jetson is used"


def test_a_table_of_settings_that_no_sensor_reads_is_named():
    assert odd_tables({"shelly": {}, "exec": {}}) == []
    assert odd_tables({"shely": {}}) == [
        "[sensor.shely] in your settings: there is no such sensor, did you mean 'shelly'?"
    ]
    assert odd_tables({"mine": {}}, {"EVERYWATT_PLUGINS": "mine=a:B"}) == []
    with pytest.raises(UsageError, match="no sensor 'nvlm', did you mean 'nvml'"):
        choose(known({}), Request(), ["nvlm"])


def test_what_stands_behind_others_is_known_without_loading_it():
    after = {name: tuple(load(target).after) for name, target in BUILT_IN.items()}
    assert {name: names for name, names in after.items() if names} == BEHIND


def test_a_measured_machine_does_not_load_its_fallbacks(tree):
    tree.zone("intel-rapl:0", "package-0", watts=50.0)
    choice = choose({name: BUILT_IN[name] for name in ("rapl", "perf", "modelled")}, tree.request())
    assert [group.info.sensor for group in choice.groups] == ["rapl"]
    assert [report.why for report in choice.reports[1:]] == [
        "not tried: rapl is used",
        "not tried: another sensor delivers power",
    ]


def test_amds_library_brings_no_http_client():
    """The recorder of a machine with AMD cards stays as small as the others'."""
    code = "import sys, everywatt.sensors.amd.amdsmi\nprint('everywatt.net.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
