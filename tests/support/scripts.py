"""Programs of a test's own on a path of its own: transcripts that are played back."""

from __future__ import annotations

from pathlib import Path

from everywatt.core.machine import Machine
from everywatt.sensors.base import Request


def play(folder: Path, name: str, text: str, *, code: int = 0, log: bool = False) -> Path:
    """A program that prints `text` whatever it is asked; with `log`, its arguments go to NAME.log."""
    folder.mkdir(exist_ok=True)
    transcript = folder / f"{name}.txt"
    transcript.write_text(text)
    file = folder / name
    note = f'echo "$@" >> {folder}/{name}.log; env | grep -c IPMI_PASSWORD >> {folder}/{name}.log\n' if log else ""
    file.write_text(f"#!/bin/sh\n{note}/bin/cat {transcript}\nexit {code}\n")
    file.chmod(0o755)
    return file


def request_with(folder: Path, sensor: str, options=None, sensors=None, machine=None) -> Request:
    """A request whose path is `folder` alone (and what sh itself needs)."""
    environ = {"PATH": f"{folder}:/usr/bin:/bin"}
    roots = {} if machine is None else {"sys": machine.sys, "proc": machine.proc}
    return Request(machine=Machine(**roots, environ=environ), options={sensor: options or {}}, sensors=sensors)
