"""One precision while it is worked on, the process that holds its model, and the journal of what is finished."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everywatt.bench.lines import Lines, read_lines
from everywatt.bench.precision.computed import Computed
from everywatt.bench.precision.workers import Worker
from everywatt.bench.trials import Trial
from everywatt.core.errors import UsageError

SPARE = 1.5
"""Free memory required for another worker, as a multiple of the largest worker so far."""


@dataclass(slots=True)
class Arm:
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
    times: list[dict[str, Any]] = field(default_factory=list)
    pass_s: float = 0.0

    @property
    def batch_s(self) -> float:
        """Seconds of a batch to which layers are held: the loop's mean, or a hooked pass where that was shorter."""
        each_s = [seconds for loop in self.loops for seconds in loop]
        return min(math.fsum(each_s) / len(each_s), self.pass_s)

    @property
    def usable(self) -> bool:
        """Whether it can be measured."""
        return self.failure is None and not self.stopped and (self.known or self.worker is not None)

    def has(self, block: int) -> bool:
        """Whether its trial of that block is done."""
        return any(trial.block == block for trial in self.trials)

    def loops_in(self, blocks: range) -> list[tuple[float, ...]]:
        """Seconds of the batches of each trial of some blocks."""
        return [loop for trial, loop in zip(self.trials, self.loops, strict=True) if trial.block in blocks]

    def add(self, trial: Trial, told: dict[str, Any]) -> None:
        """Add a timed loop: the worker's report, and its trial."""
        self.loops.append(tuple(ns / 1e9 for ns in told["latency_ns"]))
        self.peak_bytes = max(self.peak_bytes or 0, told["peak_bytes"])
        self.hooks = max(self.hooks, told["hooks"])
        self.trials.append(trial)

    def rest(self) -> None:
        """Let the worker go, and its memory with it."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None


def available_bytes(proc: Path = Path("/proc")) -> int | None:
    """Memory that programs can still get; None where the kernel does not say."""
    try:
        text = (proc / "meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.split("\n"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def crowded(arms: list[Arm], available: int | None) -> bool:
    """Whether another worker might not fit beside those that are awake.

    >>> crowded([Arm("fp32", 0, memory_bytes=10)], 14)
    True
    >>> crowded([Arm("fp32", 0, memory_bytes=10)], 15)
    False
    """
    largest = max((arm.memory_bytes for arm in arms), default=0)
    return available is not None and largest > 0 and available < SPARE * largest


FILE, ANSWERS = "precision.jsonl", "precision"


class Journal:
    """Writes lines; without a folder (no recording) it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._lines = None if folder is None else Lines(folder / FILE)

    def request(self, job: Mapping[str, Any], conduct: Any) -> None:
        """What is asked for."""
        self._write("request", job=dict(job), conduct=asdict(conduct))

    def checked(self, arm: Arm, told: Mapping[str, Any]) -> None:
        """A precision was set up, looked at and scored; `told` is what its worker said was computed."""
        self._write(
            "checked",
            precision=arm.precision,
            told=dict(told),
            seq_length=arm.seq_length,
            notes=list(arm.notes),
            memory_bytes=arm.memory_bytes,
        )

    def timed(self, arm: Arm, trial: Trial, told: Mapping[str, Any]) -> None:
        """A timed loop ended."""
        self._write(
            "timed",
            precision=arm.precision,
            block=trial.block,
            place=trial.place,
            span=trial.span,
            seconds=trial.seconds,
            told={name: told[name] for name in ("latency_ns", "cpu_s", "peak_bytes", "hooks")},
        )

    def layers(self, arm: Arm) -> None:
        """Where the time of a precision goes."""
        self._write("layers", precision=arm.precision, times=arm.times, pass_s=arm.pass_s)

    def sensitivity(self, layers: Sequence[Any], plan: Sequence[str], first_block: int) -> None:
        """What each layer alone does, the plan from it, and the block with which its trials begin."""
        self._write("sensitivity", layers=[asdict(one) for one in layers], plan=list(plan), first_block=first_block)

    def close(self) -> str:
        """Close the file; gives a sentence where something could not be written."""
        lines, self._lines = self._lines, None
        return "" if lines is None else lines.close()

    def _write(self, kind: str, **data: Any) -> None:
        if self._lines is not None:
            self._lines.write({"kind": kind, **data})


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """The lines, the request first; UsageError where it is no such run."""
    found = [line for line in read_lines(folder / FILE) if "kind" in line]
    if not found or found[0]["kind"] != "request":
        raise UsageError(f"{folder.name} is not a run of `bench precision`.", cure="everywatt list")
    return found


def trial_of(arm: Arm, line: Mapping[str, Any]) -> Trial:
    """The trial that a line describes."""
    told = line["told"]
    return Trial(
        arm.index,
        int(line["block"]),
        int(line["place"]),
        line["span"],
        0,
        float(line["seconds"]),
        told["cpu_s"],
        told["peak_bytes"],
    )
