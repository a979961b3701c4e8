"""Meters beside a run, from the settings to the joules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from webserver import Bmc, Server, certificate

from everywatt.api.run import load

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
CHASSIS = "/redfish/v1/Chassis"


@pytest.fixture
def place(tmp_path):
    """A user with settings of their own, on a machine without sensors."""
    (tmp_path / "sys").mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERYWATT_")}
    return kept | {
        "PYTHONPATH": SOURCE,
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "EVERYWATT_SYS": str(tmp_path / "sys"),
        "EVERYWATT_HOME": str(tmp_path / "runs"),
        "EVERYWATT_RUNTIME_DIR": str(tmp_path / "r"),
        "EVERYWATT_RECORDER_IDLE_S": "1",
    }


def run(place, tmp_path, text, seconds=2.5, *words):
    file = tmp_path / "config" / "everywatt" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    line = [sys.executable, "-m", "everywatt", "run", "--no-estimate", *words, "--", "sleep", str(seconds)]
    done = subprocess.run(line, env=place, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    return load(folder), done.stderr


def test_a_plug_and_a_command(place, tmp_path):
    status = {"switch:0": {"apower": 100.0, "aenergy": {"total": 1.0}}}
    with Server({"/shelly": {"gen": 2}, "/rpc/Shelly.GetStatus": status}) as server:
        text = f'[sensor.shelly]\nurl = "{server.url}"\nperiod_s = 0.5\ngain_pct = 1\noffset_w = 0.1\n'
        text += '[sensor.exec]\ncommand = "echo 60"\nunit = "W"\nperiod_s = 0.3\ndevice = "wall.second"\n'
        found, _ = run(place, tmp_path, text)
    energy = found.energy(span="run")
    (span,) = [span for span in found.spans if span.name == "run"]
    seconds = (span.end_ns - span.start_ns) / 1e9
    assert energy.scope == "wall"
    assert {name: part.joules for name, part in energy.parts} == pytest.approx(
        {"wall.shelly": 100.0 * seconds, "wall.second": 60.0 * seconds}, rel=1e-6
    )
    assert energy.coverage == pytest.approx(1.0)


def test_a_bmc_over_tls_and_nothing_secret_on_the_tape(place, tmp_path):
    tls = certificate(tmp_path)
    one = f"{CHASSIS}/1"
    objects = {
        CHASSIS: {"Members": [{"@odata.id": one}]},
        one: {"Power": {"@odata.id": f"{one}/Power"}},
        f"{one}/Power": {"PowerControl": [{"PowerConsumedWatts": 429}]},
    }
    (tmp_path / "bmc.pass").write_text("s3cret-pass\n")
    bmc = Bmc(objects)
    with Server(bmc.answer, tls) as server:
        text = f'[sensor.redfish]\nurl = "{server.url}"\nuser = "reader"\npassword_file = "{tmp_path}/bmc.pass"\n'
        found, said = run(place, tmp_path, f'{text}ca_file = "{tls[0]}"\nperiod_s = 0.8\n')
    energy = found.energy(span="run")
    (span,) = [span for span in found.spans if span.name == "run"]
    assert energy.scope == "psu"
    assert energy.joules == pytest.approx(429.0 * (span.end_ns - span.start_ns) / 1e9, rel=1e-6)
    assert "s3cret" not in said
    (tape,) = found.path.glob("*.tape")
    assert b"s3cret" not in tape.read_bytes()
