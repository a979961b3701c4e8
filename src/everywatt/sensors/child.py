"""One nvidia-smi child: started, read without ever blocking, ended by its process group.

The child writes into a pipe. If its parent is killed, the pipe breaks and the next line it writes ends it; so a looping
child lives at most one period longer than we do, and no code has to run between fork and exec.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

from everywatt.core.foreign import text_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CHUNK = 1 << 16


def _start(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A child in a process group of its own, with one pipe for what it prints and complains."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        start_new_session=True,
    )


class Child:
    """A running nvidia-smi. `lines` gives what has arrived; `finished` says that no more will."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], started_ns: int) -> None:
        self.started_ns = started_ns
        self.finished = False
        self._rest = b""
        self._process = _start(command, environ)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)

    @property
    def pid(self) -> int:
        """The child's process id, which is its process group's too."""
        return self._process.pid

    def lines(self) -> list[str]:
        """Whole lines that have arrived since the last call."""
        chunks = []
        while not self.finished:
            try:
                chunk = os.read(self._pipe, _CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.finished = True
            chunks.append(chunk)
        whole, newline, self._rest = (self._rest + b"".join(chunks)).rpartition(b"\n")
        if self.finished and self._rest:
            whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
        return text_lines(whole.decode(errors="replace")) if newline else []

    def end(self) -> None:
        """Kill the child and what it started. A child stuck in the driver cannot be waited for, and is not."""
        self.finished = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended already
        try:
            self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            pass  # stuck in the driver
        if self._process.stdout is not None:
            self._process.stdout.close()


def run_once(command: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> tuple[list[str], int | None]:
    """Output lines and exit code of one short nvidia-smi; the code is None where it hung and was killed."""
    process = _start(command, environ)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            pass  # stuck in the driver: it cannot be killed, and must not hold us
        return [], None
    return text_lines(output.decode(errors="replace")), process.returncode
