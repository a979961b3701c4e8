"""Whether a recording can be started and kept: nothing is made or started to find out."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from everywatt.core.machine import Machine
from everywatt.doctor.diagnose import Verdict, check_home, check_recorder, check_up
from everywatt.recorder.wire import SOCKET


def test_a_folder_that_is_not_there_yet(tmp_path) -> None:
    check = check_recorder({"EVERYWATT_RUNTIME_DIR": str(tmp_path / "a" / "b")})
    assert check.verdict is Verdict.PASS and "not running" in check.seen
    assert list(tmp_path.iterdir()) == []


def test_a_runtime_folder_that_is_a_file(tmp_path) -> None:
    (tmp_path / "rt").write_text("")
    check = check_recorder({"EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt")})
    assert check.verdict is Verdict.FAIL and "EVERYWATT_RUNTIME_DIR" in check.cure
    below = check_recorder({"EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt" / "deeper")})
    assert below.verdict is Verdict.FAIL


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_runtime_folder_of_somebody_else(tmp_path) -> None:
    os.chown(tmp_path, 65534, 65534)
    assert check_recorder({"EVERYWATT_RUNTIME_DIR": str(tmp_path)}).verdict is Verdict.FAIL


def test_sockets_alive_dead_and_odd(tmp_path) -> None:
    environ = {"EVERYWATT_RUNTIME_DIR": str(tmp_path)}
    path = tmp_path / SOCKET
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert "running" in check_recorder(environ).seen
    assert "dead" in check_recorder(environ).seen and check_recorder(environ).verdict is Verdict.PASS
    path.unlink()
    path.mkdir()
    assert check_recorder(environ).verdict is Verdict.FAIL


def test_runs_go_to_the_state_folder_where_home_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "runs"
    warned = check_home(home, {"XDG_STATE_HOME": str(tmp_path / "state")})[0]
    assert warned.verdict is Verdict.WARN and str(tmp_path / "state") in warned.seen
    failed = check_home(home, {"XDG_STATE_HOME": str(tmp_path / "file")})[0]
    assert failed.verdict is Verdict.FAIL


def test_little_space_is_a_warning(tmp_path, monkeypatch) -> None:
    usage = type("Usage", (), {"free": 10 << 20})
    monkeypatch.setattr("everywatt.doctor.diagnose.shutil.disk_usage", lambda path: usage)
    assert check_home(tmp_path / "runs", {})[1].verdict is Verdict.WARN


def test_the_checks_come_in_order_and_leave_no_recorder_behind(tmp_path) -> None:
    environ = {"PATH": "", "EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt"), "EVERYWATT_PLUGINS": "nvml=none:None"}
    machine = Machine(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev", environ=environ)
    found = check_up(machine, cwd=tmp_path, clock_synchronised=lambda: True)
    names = [check.name for check in found.checks]
    assert names[0] == "machine" and names[-4:] == ["clock", "recorder", "run directory", "disk space"]
    assert list(tmp_path.iterdir()) == []
    assert found.failed, "nothing measures and nothing can be modelled here"


def test_a_running_recorder_is_seen(tmp_path) -> None:
    environ = {**os.environ, "EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt"), "EVERYWATT_HOME": str(tmp_path / "runs")}
    code = "import everywatt, time; m = everywatt.Meter().start(); print('go', flush=True); input(); m.stop()"
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout.readline() == "go\n"
        check = check_recorder(environ)
        child.communicate("\n", timeout=240)
    assert check.verdict is Verdict.PASS and check.seen.startswith("running")
    assert Path(tmp_path / "rt").is_dir()


def test_a_shared_folder_that_is_closed_to_the_user_is_named(tmp_path, monkeypatch) -> None:
    """/tmp without write permission for others: there is no place for the recorder's socket."""
    closed = tmp_path / "tmp"
    closed.mkdir()
    monkeypatch.setattr("everywatt.doctor.diagnose.os.access", lambda path, mode: Path(path) != closed)
    check = check_recorder({"EVERYWATT_RUNTIME_DIR": str(closed / "everywatt-1000")})
    assert check.verdict is Verdict.FAIL and "EVERYWATT_RUNTIME_DIR" in check.cure
    assert f"{closed} is not writable" in check.seen
