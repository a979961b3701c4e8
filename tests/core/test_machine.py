"""Roots that stand in for /sys, /proc and /dev."""

from pathlib import Path

from everywatt.core.machine import Machine


def test_relative_roots_mean_the_same_for_the_recorder_which_works_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Machine.here({"EVERYWATT_SYS": "sys", "EVERYWATT_PROC": "./proc", "EVERYWATT_DEV": "/dev"})
    assert (found.sys, found.proc, found.dev) == (tmp_path / "sys", tmp_path / "proc", Path("/dev"))
