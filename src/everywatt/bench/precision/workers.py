"""The parent's side of a worker: start it, ask it, and say in words how it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from everywatt.bench.precision.endings import cure, died, explained

MODULE = "everywatt.bench.precision.worker"
GRACE_S = 5.0


class WorkerFailed(Exception):
    """A step could not be done. `gone` is the exit status where the process ended with it, else None."""

    def __init__(self, reason: str, *, cure: str | None = None, gone: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cure = cure
        self.gone = gone


class Worker:
    """A process for one precision. Ctrl-C does not reach it: the parent ends it, or its own death does."""

    def __init__(self, environ: Mapping[str, str] | None = None, module: str = MODULE) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=dict(os.environ if environ is None else environ),
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Have one step done and give its answer. WorkerFailed where it raised, or where the process died of it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps({"do": do, **more}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise WorkerFailed(died(code, self._last_words()), cure=cure(code), gone=code)
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise WorkerFailed(explained(answer["kind"], answer["message"]), cure=answer.get("cure"))
        return answer

    def close(self) -> None:
        """Let it go; a second call does nothing."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def _last_words(self) -> str:
        """The last line that it printed, which is often the reason."""
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 4096))
        return self._said.read().decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
