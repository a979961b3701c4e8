"""The workers of a load program, from the parent's side: started, signalled to go, read, and always ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.core.errors import EverywattError, UsageError
from everywatt.sensors.child import let_go, send_line
from everywatt.stress.pacing import StepReport

READY_S = 60.0
LEAD_NS = 60_000_000
LEAVE_S = 1.0
HALT_S = 0.5
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Plan:
    """What one worker is to do: steps are (start and end after the start in ns, level in the role's unit, kind)."""

    role: str
    steps: Sequence[tuple[int, int, float, str]]
    options: Mapping[str, Any] = field(default_factory=dict)
    cure: str | None = None


@dataclass
class Worker:
    """A worker process, with its reports by step."""

    plan: Plan
    process: subprocess.Popen[bytes]
    reports: dict[int, StepReport] = field(default_factory=dict)
    ready: bool = False
    about: str = ""
    ended: str | None = None
    rest: bytes = b""

    @property
    def stream(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()


class Crew:
    """Workers that end with this block, and with this process."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self.workers: list[Worker] = []

    def __enter__(self) -> Crew:
        try:
            for plan in self._plans:
                self.workers.append(_started(plan))
            for worker in self.workers:
                send_line(worker.process, _message(worker.plan))
            self._gather()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def go(self) -> int:
        """Let all of them start at one instant, a moment from now; gives it (monotonic ns)."""
        start_ns = time.monotonic_ns() + LEAD_NS
        for worker in self.workers:
            send_line(worker.process, {"start_ns": start_ns})
        return start_ns

    @property
    def working(self) -> bool:
        """Whether any worker may still say something."""
        return any(worker.ended is None for worker in self.workers)

    def hear(self, timeout_s: float) -> None:
        """Take in what workers say, for at most this long; returns earlier where something was said."""
        streams = {worker.stream: worker for worker in self.workers if worker.ended is None}
        if not streams:
            time.sleep(max(0.0, timeout_s))
            return
        for stream in select.select(list(streams), [], [], max(0.0, timeout_s))[0]:
            _take(streams[stream])

    def failures(self) -> list[str]:
        """A sentence for each worker that ended before its last report."""
        return [
            f"a {worker.plan.role} worker ended: {worker.ended}"
            for worker in self.workers
            if worker.ended is not None and len(worker.reports) < len(worker.plan.steps)
        ]

    def halt(self) -> None:
        """Ask all of them to leave, and hear what they reached until now: for half a second at most."""
        self._leave()
        deadline = time.monotonic() + HALT_S
        while self.working and time.monotonic() < deadline:
            self.hear(deadline - time.monotonic())

    def _leave(self) -> None:
        for worker in self.workers:
            assert worker.process.stdin is not None
            with suppress(OSError):
                worker.process.stdin.close()

    def close(self) -> None:
        """End all of them: by closing their stdin, and by a kill for who has not left in a second."""
        self._leave()
        deadline = time.monotonic() + LEAVE_S
        for worker in self.workers:
            let_go(worker.process, max(0.0, deadline - time.monotonic()))

    def _gather(self) -> None:
        deadline = time.monotonic() + READY_S
        while not all(worker.ready for worker in self.workers):
            self.hear(min(1.0, max(0.0, deadline - time.monotonic())))
            for worker in self.workers:
                if worker.ended is not None:
                    raise UsageError(
                        f"The {worker.plan.role} load cannot be generated: {worker.ended}", cure=worker.plan.cure
                    )
            if time.monotonic() > deadline:
                raise EverywattError(f"A load worker was not ready after {READY_S:g} s.", cure="fewer workers")


def _started(plan: Plan) -> Worker:
    if not sys.executable:
        raise UsageError("This process does not know its Python interpreter, so load workers cannot be started.")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "everywatt.stress.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        process_group=0,  # Ctrl-C at the terminal is for us alone
    )
    return Worker(plan, process)


def _message(plan: Plan) -> dict[str, Any]:
    steps = [list(step) for step in plan.steps]
    return {"role": plan.role, "steps": steps, "options": dict(plan.options), "parent": os.getpid()}


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a worker: everywatt importable, and one thread for libraries that would take all cores."""
    env = dict(os.environ if base is None else base)
    source = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (source, env.get("PYTHONPATH"))))
    return env | dict.fromkeys(_ONE_THREAD, "1")


def _take(worker: Worker) -> None:
    data = os.read(worker.stream, 65536)
    if not data:
        code = worker.process.wait()
        worker.ended = worker.ended or _ending(code)
        return
    *lines, worker.rest = (worker.rest + data).split(b"\n")
    for line in lines:
        message = json.loads(line)
        if "step" in message:
            step = message.pop("step")
            worker.reports[step] = StepReport(**message)
        elif "error" in message:
            worker.ended = message["error"]
        else:
            worker.ready, worker.about = True, message["about"]


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
