"""One precision while it is worked on: the process that holds its model, how that ended, and the journal of what is
finished."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, TypedDict, cast

from everywatt.bench.experiment import read_lines
from everywatt.bench.precision.computed import Computed, cpu_flags, emulated, int8_note, refusal, widened
from everywatt.bench.precision.data import Dataset, load_data
from everywatt.bench.precision.plan import LayerTime, LoopReport
from everywatt.bench.trials import Trial, last_line
from everywatt.core.errors import UsageError
from everywatt.sensors.child import let_go, send_line

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ISA_CURES = ("AVX512_CORE_FP16", "AVX2")
"""ISA limits for oneDNN if the CPU faults on an instruction that it reports as available: first without AMX, then
AVX2."""
MOST_WORDS = 200  # characters of what a worker says
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


def _short(text: str) -> str:
    return text if len(text) <= MOST_WORDS else text[: MOST_WORDS - 1] + "…"


MODULE = "everywatt.bench.precision.worker"
GRACE_S = 5.0  # from closing the pipe of a worker until it is killed


class WorkerFailed(Exception):
    """A step could not be done. `gone` is the exit status where the process ended with it, else None; `usage`: what was
    asked for is wrong, at this precision and at any other."""

    def __init__(self, reason: str, *, cure: str | None = None, gone: int | None = None, usage: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.cure, self.gone, self.usage = reason, cure, gone, usage


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
            start_new_session=True,
        )

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Have one step done and give its answer. WorkerFailed where it raised, or where the process died of it."""
        send_line(self._process, {"do": do, **more})
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise WorkerFailed(died(code, last_line(self._said, MOST_WORDS)), cure=cure(code), gone=code)
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            kind = answer["kind"]
            raise WorkerFailed(
                explained(kind, answer["message"]), cure=answer.get("cure"), usage=kind == UsageError.__name__
            )
        return answer

    def close(self) -> None:
        """Let it go; a second call does nothing."""
        let_go(self._process, GRACE_S)
        self._said.close()


def load_data_without_torch(source: str) -> Dataset:
    """The data set. A folder of .pt files is read by a worker: to load torch here would take seconds and memory."""
    if not Path(source).is_dir():
        return load_data(source)
    with tempfile.TemporaryDirectory(prefix="everywatt-") as folder:
        file = Path(folder) / "data.npz"
        worker = Worker()
        try:
            report = worker.ask("arrays", data=source, file=str(file))
        except WorkerFailed as error:
            raise UsageError(error.reason, cure=error.cure) from None
        finally:
            worker.close()
        return replace(load_data(str(file)), name=report["name"], note=report["note"])


class RequestLine(TypedDict):
    """The first line of a journal: what was asked for."""

    kind: Literal["request"]
    job: dict[str, Any]
    conduct: dict[str, Any]


class CheckedLine(TypedDict):
    """A precision that was set up, checked and scored; `told` is the worker's report of what it computed with."""

    kind: Literal["checked"]
    precision: str
    told: dict[str, Any]
    seq_length: int | None
    notes: list[str]
    memory_bytes: int


class TimedLine(TypedDict):
    """A finished trial: where it ran, its span and seconds, and the worker's report (`told`)."""

    kind: Literal["timed"]
    precision: str
    block: int
    place: int
    span: str | None
    seconds: float
    told: LoopReport


class LayersLine(TypedDict):
    """Where the time of a precision goes, and the seconds of a pass."""

    kind: Literal["layers"]
    precision: str
    times: list[LayerTime]
    pass_s: float


class SensitivityLine(TypedDict):
    """What each layer alone does (the fields of `Sensitivity`), the plan made from that, and its first block."""

    kind: Literal["sensitivity"]
    layers: list[dict[str, Any]]
    plan: list[str]
    first_block: int


JournalLine = RequestLine | CheckedLine | TimedLine | LayersLine | SensitivityLine
KINDS = ("request", "checked", "timed", "layers", "sensitivity")
SPARE = 1.5
"""Free memory required for another worker, as a multiple of the largest worker so far."""


@dataclass(slots=True)
class Variant:
    """What is known of one precision. `known`: its label was checked and its answers are there. `stopped`: no further
    trial can be made; what is finished counts.

    A precision that is known needs no worker until it is timed; `memory_bytes` is what its worker took at most.
    """

    precision: str
    index: int
    int8_layers: tuple[str, ...] | None = None
    worker: Worker | None = None
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    known: bool = False
    failure: str | None = None
    stopped: bool = False
    cure: str | None = None
    notes: list[str] = field(default_factory=list)
    computed: Computed | None = None
    emulated: str | None = None
    seq_length: int | None = None
    loops: list[tuple[float, ...]] = field(default_factory=list)  # seconds of the batches of each trial
    trials: list[Trial] = field(default_factory=list)
    peak_bytes: int | None = None
    memory_bytes: int = 0
    hooks: int = 0
    times: list[LayerTime] = field(default_factory=list)
    pass_s: float = 0.0

    @property
    def batch_s(self) -> float:
        """Seconds of a batch to which layers are held: the loop's mean, or a hooked pass where that was shorter."""
        each_s = [seconds for loop in self.loops for seconds in loop]
        return min(math.fsum(each_s) / len(each_s), self.pass_s)

    @property
    def usable(self) -> bool:
        return self.failure is None and not self.stopped and (self.known or self.worker is not None)

    def check(self, facts: Mapping[str, Any]) -> None:
        """Take in what a worker computed with. WorkerFailed where the label is not true; what is emulated is noted."""
        self.computed = Computed.of(facts)
        why = refusal(self.precision, self.computed)
        if why is not None:
            raise WorkerFailed(why)
        flags, card = cpu_flags(), self.computed.capability
        self.emulated = widened(self.precision, self.computed) or emulated(self.precision, flags=flags, capability=card)
        if self.precision.startswith("int8") and card is None and (note := int8_note(flags)) is not None:
            self.notes.append(note)
        if not self.computed.visible:
            self.notes.append("a plain callable: its precision is as declared by the caller")

    def has(self, block: int) -> bool:
        """Whether its trial of that block is done."""
        return any(trial.block == block for trial in self.trials)

    def loops_in(self, blocks: range) -> list[tuple[float, ...]]:
        """Seconds of the batches of each trial of some blocks."""
        return [loop for trial, loop in zip(self.trials, self.loops, strict=True) if trial.block in blocks]

    def add(self, line: TimedLine) -> None:
        """Add a timed loop from its journal entry."""
        loop = line["told"]
        self.loops.append(tuple(ns / 1e9 for ns in loop["latency_ns"]))
        self.peak_bytes = max(self.peak_bytes or 0, loop["peak_bytes"])
        self.hooks = max(self.hooks, loop["hooks"])
        where = self.index, line["block"], line["place"], line["span"]
        self.trials.append(Trial(*where, 0, line["seconds"], loop["cpu_s"], loop["peak_bytes"]))

    def rest(self) -> None:
        """Let the worker go, and its memory with it."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None


def crowded(variants: list[Variant], available: int | None) -> bool:
    """Whether another worker might not fit beside those that are awake.

    >>> crowded([Variant("fp32", 0, memory_bytes=10)], 14)
    True
    >>> crowded([Variant("fp32", 0, memory_bytes=10)], 15)
    False
    """
    largest = max((variant.memory_bytes for variant in variants), default=0)
    return available is not None and largest > 0 and available < SPARE * largest


FILE, ANSWERS = "precision.jsonl", "precision"


def read_journal(folder: Path) -> tuple[RequestLine, list[JournalLine]]:
    """What was asked for, and what is finished of it; UsageError where it is no such run."""
    lines = [cast(JournalLine, line) for line in read_lines(folder / FILE) if line.get("kind") in KINDS]
    if not lines or lines[0]["kind"] != "request":
        raise UsageError(f"{folder.name} is not a run of `bench precision`.", cure="everywatt list")
    return lines[0], lines[1:]
