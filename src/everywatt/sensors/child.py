"""Programs that print what they measure: run once, or as a child whose lines are read while it runs; and how any child
is ended.

A child writes into a pipe. If its parent is killed, the pipe breaks and the next line it writes ends it; so a looping
child lives at most one period longer than we do, and no code has to run between fork and exec.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from everywatt.core.clocks import NS, Clock
from everywatt.core.foreign import text_lines

BACKOFF_S = 1.0  # from the end of a child that failed to the start of the next
POLL_S = 5.0  # how long a single poll may take
_CHUNK = 1 << 16
Parsed = TypeVar("Parsed")


class Child(subprocess.Popen[bytes]):
    """A program in a process group of its own, with one pipe for what it prints and complains.

    `lines` gives what has arrived; `finished` says that no more will.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(
            list(command),
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )
        self.finished = False
        self._rest = b""

    def lines(self) -> list[str]:
        """Whole lines that have arrived since the last call."""
        assert self.stdout is not None
        if not self.finished:
            os.set_blocking(self.stdout.fileno(), False)
        while not self.finished and (chunk := self.stdout.read(_CHUNK)) is not None:
            self._rest += chunk or b"\n"  # a last line may lack its end
            self.finished = not chunk
        whole, newline, self._rest = self._rest.rpartition(b"\n")
        return text_lines(whole.decode(errors="replace")) if newline else []

    def end(self) -> None:
        """Kill it and what it started. A program that is stuck in the driver cannot be waited for, and is not."""
        self.finished = True
        try:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(timeout=0.2)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            self.poll()  # it has ended already, or is stuck
        if self.stdout is not None:
            self.stdout.close()


def run_once(command: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> tuple[list[str], int | None]:
    """Output lines and exit code of a short program; the code is None where it hung and was killed."""
    child = Child(command, environ)
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.end()
        return [], None
    return text_lines(output.decode(errors="replace")), child.returncode


def send_line(child: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
    """Write a JSON line to a worker. One that has ended shows on its output."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.write(json.dumps(message).encode() + b"\n")
        child.stdin.flush()


def let_go(child: subprocess.Popen[Any], grace_s: float) -> None:
    """Close the pipes of a process and wait for its end; it is killed if it does not end within so many seconds."""
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def end_group(child: subprocess.Popen[Any], grace_s: float) -> None:
    """Ask the process group that a child leads to end, wait for the child, and kill what is left after so long."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@dataclass(slots=True)
class LoopingChild:
    """A program that prints rows for as long as it lives, started again when it exits or goes silent.

    `command` gives its command line at each start. With the option `loop` it repeats itself; where that fails, single
    polls replace it, and `trouble` says so. It may be silent for `silence_s`. `failure` is why no row can come now.
    """

    name: str
    command: Callable[[], Sequence[str]]
    environ: Mapping[str, str]
    clock: Clock
    period_s: float
    silence_s: float
    loop: str = ""
    failure: str | None = None
    trouble: str | None = None
    _child: Child | None = None
    _start_ns: int = 0  # no child is started before
    _heard_ns: int = 0  # when the last row came, or the child was started
    _spoke: bool = False  # whether this child has printed a row

    def rows(self, parse: Callable[[str], Parsed | None]) -> list[Parsed]:
        """What `parse` makes of the lines that have arrived since the last call, without None."""
        now_ns = self.clock.monotonic_ns()
        if self._child is None and now_ns >= self._start_ns:
            self._launch(now_ns)
        child = self._child
        if child is None:
            return []
        found = [row for row in map(parse, child.lines()) if row is not None]
        if found:
            self._heard_ns, self._spoke, self.failure = now_ns, True, None
        if self._child is child:  # else `parse` has ended it
            self._watch(child, now_ns)
        return found

    def end(self, again_ns: int = 0) -> None:
        """End the child; another one is not started before `again_ns`."""
        self._start_ns = max(self._start_ns, again_ns)
        if self._child is not None:
            self._child.end()
            self._child = None

    def _launch(self, now_ns: int) -> None:
        self._start_ns, self._heard_ns, self._spoke = now_ns + round(self.period_s * NS), now_ns, False
        looping = [self.loop] if self.loop and self.trouble is None else []
        try:
            self._child = Child([*self.command(), *looping], self.environ)
        except OSError as error:
            self.failure = f"{self.name} cannot be run: {error.strerror}."
            self.end(now_ns + round(BACKOFF_S * NS))

    def _watch(self, child: Child, now_ns: int) -> None:
        """Replace a child that has exited or prints nothing; one that was to loop, by single polls."""
        exited, silent_s = child.finished, (now_ns - self._heard_ns) / NS
        if exited and self._spoke and self.loop:
            self.end()
        elif exited or silent_s > self.silence_s:
            why = "exited" if exited else f"printed no line for {silent_s:.1f} s"
            self.failure = self.failure or f"{self.name} {why}."
            if self.loop and self.trouble is None:
                self.trouble = (
                    f"{self.name} {self.loop}, requested to print every {self.period_s:g} s, {why}; "
                    "single polls are used instead."
                )
                self.silence_s = max(self.silence_s, POLL_S)
                self.end()
            else:
                self.end(now_ns + round(BACKOFF_S * NS))
