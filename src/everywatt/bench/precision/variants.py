"""One precision while it is worked on, and the process that holds its model."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.bench.precision.computed import Computed
from everywatt.bench.precision.workers import Worker
from everywatt.bench.trials import Trial

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
