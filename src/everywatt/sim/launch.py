"""Running a command inside a simulated machine: its own stdio, signals and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    if lab.follows_loads:
        _adopt_orphans()
    relay = _Relay()
    before = {number: signal.signal(number, relay.receive) for number in _FORWARDED}
    start_ns = time.monotonic_ns()
    try:
        child = subprocess.Popen(list(command), env=lab.environment())
        lab.adopt(child.pid)
        relay.connect(child)
        code = child.wait()
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        return Outcome(start_ns, time.monotonic_ns(), code, f"{command[0]}: {error.strerror}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Outcome(start_ns, time.monotonic_ns(), code if code >= 0 else 128 - code)


class _Relay:
    """Passes signals on; those that come before the command has started are kept for it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def connect(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        for number in self._early:
            child.send_signal(number)

    def receive(self, number: int, frame: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and _at_terminal():
            return  # the terminal has sent it to the command already
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)


def _adopt_orphans() -> None:
    """Keep processes that leave their parents below this one, so that their CPU time still counts."""
    import ctypes

    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _at_terminal() -> bool:
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
