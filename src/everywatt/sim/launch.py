"""Running a command inside a simulated machine: its own stdio, signals and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from everywatt.sim.machine import Lab

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The command's life on CLOCK_MONOTONIC, and its exit code (126 or 127: not started; 128+n: ended by signal n)."""

    start_ns: int
    end_ns: int
    code: int
    why: str = ""


def run(lab: Lab, command: Sequence[str]) -> Outcome:
    """Run a command in the machine and wait for it. Signals to this process go to the command."""
    start_ns = time.monotonic_ns()
    try:
        child = subprocess.Popen(list(command), env=lab.environment())
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        return Outcome(start_ns, time.monotonic_ns(), code, f"{command[0]}: {error.strerror}")
    lab.adopt(child.pid)
    before = {number: signal.signal(number, _forward(child)) for number in _FORWARDED}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Outcome(start_ns, time.monotonic_ns(), code if code >= 0 else 128 - code)


def _forward(child: subprocess.Popen[bytes]):  # type: ignore[no-untyped-def]
    def handle(number: int, frame: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and _at_terminal():
            return  # the terminal has told the command already
        child.send_signal(number)

    return handle


def _at_terminal() -> bool:
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
