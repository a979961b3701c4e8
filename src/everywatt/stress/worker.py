"""`python -m everywatt.stress.worker`: one small process that plays one resource's part of a load program.

It speaks JSON lines. On stdin comes the plan ({"role", "steps": [[start_ns, end_ns, level, kind]], "options"}), then
{"start_ns"}; on stdout go {"ready"} and one report for each step. It ends when stdin is closed, and with its parent.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from everywatt.core.errors import EverywattError
from everywatt.stress.pacing import Role, Stretch

_PR_SET_PDEATHSIG = 1

ROLES = {
    "cpu": "everywatt.stress.cpu:CpuWork",
    "stress-ng": "everywatt.stress.cpu:StressNg",
    "ram": "everywatt.stress.ram_disk_network:RamWork",
    "disk": "everywatt.stress.ram_disk_network:DiskWork",
    "network": "everywatt.stress.ram_disk_network:NetworkWork",
    "gpu": "everywatt.stress.gpu:GpuWork",
    "gpu-sim": "everywatt.stress.gpu:SimulatedGpuWork",
}


class Left(Exception):
    """The parent has closed stdin: no process waits for the result."""


class Pipe:
    """stdin, line by line, and as a way to sleep that ends when the parent does."""

    def __init__(self) -> None:
        self._rest = b""

    def line(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            self._fill()
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def wait(self, until_ns: int) -> None:
        """Sleep until this instant (monotonic)."""
        while True:
            left_ns = until_ns - time.monotonic_ns()
            if select.select([0], [], [], max(0.0, left_ns / 1e9))[0]:
                self._fill()
            elif left_ns <= 0 or time.monotonic_ns() >= until_ns:
                return

    def _fill(self) -> None:
        data = os.read(0, 65536)
        if not data:
            raise Left
        self._rest += data


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, even by a kill."""
    ask_for_the_end()
    if os.getppid() != parent:
        raise Left


def ask_for_the_end() -> None:
    """SIGKILL for this process when its parent ends. Not on every system: the pipe says so too."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        pass


def first_to_go() -> None:
    """If memory runs out, the kernel ends this process before all others."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - pathlib is not needed here
            file.write("1000")
    except OSError:
        pass


def stretches(steps: Sequence[Sequence[Any]], start_ns: int) -> list[Stretch]:
    return [
        Stretch(index, start_ns + begin_ns, start_ns + end_ns, level, kind)
        for index, (begin_ns, end_ns, level, kind) in enumerate(steps)
    ]


def make(plan: Mapping[str, Any]) -> Role:
    """The role of a plan, prepared: what takes time before the start is done here."""
    module, _, name = ROLES[plan["role"]].partition(":")
    role: Role = getattr(import_module(module), name)(plan["steps"], plan["options"])
    return role


def serve(pipe: Pipe, say: Callable[[dict[str, Any]], None]) -> None:
    """Read the plan, prepare, wait for the start signal, report each step."""
    plan = pipe.line()
    end_with_parent(plan["parent"])
    first_to_go()
    role = make(plan)
    say({"ready": os.getpid(), "about": role.about})
    start_ns = pipe.line()["start_ns"]
    try:
        for stretch in stretches(plan["steps"], start_ns):
            pipe.wait(stretch.start_ns)
            began = time.process_time_ns()
            role.begin(stretch)
            try:
                role.play(stretch, pipe.wait)
            finally:  # where the parent has ended the program, it still hears what was reached until then
                spent_s = (time.process_time_ns() - began) / 1e9
                reached = {name: value for name, value in asdict(role.report()).items() if value is not None}
                say({"step": stretch.index, "cpu_s": spent_s, **reached})
    finally:
        role.close()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, who then ends us

    def say(message: dict[str, Any]) -> None:
        os.write(1, json.dumps(message).encode() + b"\n")

    try:
        serve(Pipe(), say)
    except (Left, BrokenPipeError):
        return 0
    except Exception as error:  # noqa: BLE001 - drivers and libraries may do anything; the parent reports it
        say({"error": str(error) if isinstance(error, EverywattError) else f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
