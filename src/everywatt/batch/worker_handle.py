"""A lane: one worker process on one device, seen from the batch. A worker that dies is replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from everywatt.batch import worker
from everywatt.batch.devices import Device
from everywatt.batch.items import Item
from everywatt.batch.journal import Attempt
from everywatt.core.errors import EverywattError

MOST_STILLBORN = 5  # workers in a row that die before they ran anything


class Lane:
    """Where one item runs at a time. `item` and `attempt` are what it is busy with."""

    def __init__(self, number: int, device: Device, environ: Mapping[str, str]) -> None:
        self.number, self.device = number, device
        self.item: Item | None = None
        self.attempt: Attempt | None = None
        self.command_pid: int | None = None
        self.file: Mapping[str, Any] | None = None
        self.began_ns = 0
        self._environ = {**environ, **device.environment()}
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._stillborn = 0

    @property
    def alive(self) -> bool:
        """Whether it has a worker."""
        return self._process is not None

    @property
    def worker_pid(self) -> int:
        """The worker's process id."""
        return self._process.pid if self._process is not None else 0

    def fileno(self) -> int:
        """Readable when the worker has said something, or has died."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(self) -> None:
        """Start a worker."""
        if self._stillborn >= MOST_STILLBORN:
            raise EverywattError(f"Workers for {self.device.name} die as soon as they are started.")
        self._stillborn += 1
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(worker.__file__))],
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the batch to decide on
        )
        os.set_blocking(self.fileno(), False)

    def give(self, item: Item, attempt: Attempt, job: Mapping[str, Any]) -> None:
        """Let the worker run a command. A worker that is dead shows on `fileno`."""
        self.item, self.attempt = item, attempt
        self.command_pid, self.file = None, None
        self._send({"run": job})

    def kill(self) -> None:
        """Ask the command to end; five seconds later it is ended."""
        self._send({"kill": True})

    def messages(self) -> list[dict[str, Any]] | None:
        """What the worker has said; None where it has died."""
        chunks, dead = [], False
        while True:
            try:
                chunk = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                dead = True
                break
            chunks.append(chunk)
        *lines, self._rest = (self._rest + b"".join(chunks)).split(b"\n")
        if dead and not lines:
            return None
        if lines:
            self._stillborn = 0
        return [json.loads(line) for line in lines]

    def bury(self) -> None:
        """The worker has died: end what it ran, and wait for it."""
        worker_pid = self.worker_pid
        self.close()
        worker.end_session(worker_pid)

    def free(self) -> None:
        """Busy no more."""
        self.item, self.attempt, self.command_pid, self.file = None, None, None, None

    def close(self) -> None:
        """Let the worker go; it ends by itself when its input does."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
