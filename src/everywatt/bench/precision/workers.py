"""The parent's side of a worker: start it, ask it, and say in words how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from everywatt.bench.precision.data import Dataset, load_data
from everywatt.core.errors import UsageError

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ISA_CURES = ("AVX512_CORE_FP16", "AVX2")
"""ISA limits for oneDNN if the CPU faults on an instruction that it reports as available: first without AMX, then
AVX2."""
MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "failed to allocate")


def died(returncode: int, last_words: str = "") -> str:
    """Why a process that answered no more is gone.

    >>> died(-4)
    'SIGILL: illegal instruction: the CPU does not have it, or reports it and faults on it'
    """
    if returncode >= 0:
        return f"ended with {returncode}" + (f": {last_words}" if last_words else "")
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    why = {
        "SIGILL": "illegal instruction: the CPU does not have it, or reports it and faults on it",
        "SIGKILL": "killed, most likely by the kernel because memory ran out",
        "SIGSEGV": "segmentation fault in a native library",
        "SIGABRT": "aborted by a native library",
        "SIGFPE": "arithmetic fault in a native library",
        "SIGBUS": "memory fault, perhaps because /dev/shm is full",
    }.get(name)
    said = f": {why}" if why else ""
    return f"{name}{said}" + (f" ({last_words})" if last_words and name == "SIGABRT" else "")


def cure(returncode: int) -> str | None:
    """What to try after that ending."""
    if returncode == -signal.SIGILL:
        return f"{ISA_VARIABLE}={ISA_CURES[0]} in the environment"
    if returncode == -signal.SIGKILL:
        return "use a smaller --batch-size, or stop other programs"
    return None


def next_isa(returncode: int, environ: Mapping[str, str]) -> str | None:
    """Another limit to try after an illegal instruction; None where that was not it, or all were tried."""
    if returncode != -signal.SIGILL:
        return None
    current = environ.get(ISA_VARIABLE)
    if current is None:
        return ISA_CURES[0]
    return ISA_CURES[ISA_CURES.index(current) + 1] if current in ISA_CURES[:-1] else None


def explained(kind: str, message: str) -> str:
    """An exception of a worker as one line of a table."""
    text = " ".join(message.split())
    if kind == "MemoryError" or "OutOfMemory" in kind or any(word in text.lower() for word in MEMORY_WORDS):
        return f"out of memory: {_short(text)}" if text else "out of memory"
    return f"{_short(text)}" if kind in ("UsageError", "Unsupported", "MissingExtra") else f"{kind}: {_short(text)}"


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


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


def load_data_without_torch(source: str) -> Dataset:
    """The data set. A folder of .pt files is read by a worker: to load torch here would take seconds and memory."""
    if not Path(source).is_dir():
        return load_data(source)
    with tempfile.TemporaryDirectory(prefix="everywatt-") as folder:
        file = Path(folder) / "data.npz"
        worker = Worker()
        try:
            told = worker.ask("arrays", data=source, file=str(file))
        except WorkerFailed as error:
            raise UsageError(error.reason, cure=error.cure) from None
        finally:
            worker.close()
        return replace(load_data(str(file)), name=told["name"], note=told["note"])
