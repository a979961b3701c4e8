"""Workers of a batch in virtual time: they speak as real ones do, and their commands are programs of the test."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from virtual_time import Process
from virtual_world import VirtualWorld

from everywatt.batch.devices import Lane
from everywatt.batch.journal import Device
from everywatt.core.clocks import NS

NO_PID = 1 << 23  # above every process id that Linux gives


class Ran(NamedTuple):
    """What a command does: it takes so long, ends with that code and has said so much."""

    seconds: float
    exit_code: int = 0
    stderr: str = ""


Command = Callable[[list[str]], Ran]


def lanes(world: VirtualWorld, command: Command) -> Callable[[int, Device, Mapping[str, str]], VirtualLane]:
    """For `work_off(lane=…)`: workers whose commands do what `command(words)` says."""

    def lane(number: int, device: Device, environ: Mapping[str, str]) -> VirtualLane:
        return VirtualLane(world, command, number, device, environ)

    return lane


class VirtualLane(Lane):
    """A lane whose worker is a program of the world; `worker` is the process, to be killed."""

    worker: Process | None = None

    def __init__(self, world: VirtualWorld, command: Command, *more: Any) -> None:
        super().__init__(*more)
        self._world, self._command = world, command
        self._ours: socket.socket | None = None

    @property
    def alive(self) -> bool:
        return self._ours is not None

    @property
    def worker_pid(self) -> int:
        return NO_PID + self.number

    def fileno(self) -> int:
        assert self._ours is not None
        return self._ours.fileno()

    def start(self) -> None:
        self._rest = b""
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.worker = self._world.process(f"worker-{self.number}")
        self.worker.on_kill.append(theirs.close)
        self._world.time.start(self.worker, lambda: _serve(self._world, theirs, self._command))

    def bury(self) -> None:
        self.close()

    def close(self) -> None:
        if self._ours is not None:
            self._ours.close()
            self._ours = None

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._ours is not None
        try:
            self._ours.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            pass


def _serve(world: VirtualWorld, parent: socket.socket, command: Command) -> None:
    """As `batch.worker`."""

    def tell(**message: Any) -> None:
        parent.sendall(json.dumps(message).encode() + b"\n")

    def heard(timeout_s: float | None) -> list[dict[str, Any]] | None:
        """Messages; None where the parent is gone."""
        if not world.time.select([parent], [], [], timeout_s)[0]:
            return []
        data = parent.recv(1 << 16)
        return [json.loads(line) for line in data.split(b"\n") if line] if data else None

    tell(ready=True)
    while (messages := heard(None)) is not None:
        for message in messages:
            if "run" not in message:
                continue
            job = message["run"]
            ran = command(job["words"])
            began_ns = world.now_ns
            tell(started=NO_PID, file=None, at_ns=began_ns)
            limit_s = job.get("timeout_s")
            lasts_s = ran.seconds if limit_s is None else min(ran.seconds, limit_s)
            said = heard(lasts_s)
            if said is None:
                return
            killed = any(one.get("kill") for one in said)
            timed_out = not killed and limit_s is not None and ran.seconds > limit_s
            ended = {
                "exit_code": 128 + signal.SIGTERM if killed or timed_out else ran.exit_code,
                "runtime_s": (world.now_ns - began_ns) / NS,
                "ended_ns": world.now_ns,
                "cpu_s": 0.0,
                "max_rss_bytes": None,
                "stdout": "",
                "stderr": ran.stderr,
                **({"killed": True} if killed else {}),
                **({"timed_out": True} if timed_out else {}),
            }
            tell(ended=ended)
