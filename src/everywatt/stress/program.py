"""A load program as a value: a list of steps, each with what every resource is asked to do and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from everywatt.core.errors import UsageError

KINDS = ("integer", "float", "vector", "memory", "branchy")
"""Kinds of CPU work: watts differ between them at equal utilisation."""

RESOURCES = ("cpu", "ram", "disk", "network", "gpu")

SHORTEST_S = 0.02
LONGEST_S = 7 * 86400.0
MOST_CORES = 4096


@dataclass(frozen=True, slots=True)
class Cpu:
    """So many cores, each busy for `percent` of the time with work of one kind."""

    cores: int
    percent: float
    kind: str = "integer"

    def __post_init__(self) -> None:
        if not 1 <= self.cores <= MOST_CORES:
            raise UsageError(f"{self.cores} is not a valid number of cores.", cure=f"1 to {MOST_CORES} cores")
        _share(self.percent, "of a core")
        if self.kind not in KINDS:
            raise UsageError(f"There is no kind of work '{self.kind}'.", cure=f"one of: {', '.join(KINDS)}")


@dataclass(frozen=True, slots=True)
class Gpu:
    """Matrix products on these devices, each busy for `percent` of the time."""

    percent: float
    devices: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        _share(self.percent, "of a GPU")
        if not self.devices or min(self.devices) < 0 or len(set(self.devices)) < len(self.devices):
            raise UsageError(f"{list(self.devices)} is not a list of GPUs.", cure="distinct numbers from 0")


@dataclass(frozen=True, slots=True)
class Step:
    """What is asked of the machine for `duration_s` seconds. What is None or 0 is not asked."""

    duration_s: float
    cpu: Cpu | None = None
    memory_bytes: int = 0
    disk_bytes_per_s: float = 0.0
    network_bytes_per_s: float = 0.0
    gpu: Gpu | None = None

    def __post_init__(self) -> None:
        if not SHORTEST_S <= self.duration_s <= LONGEST_S:
            raise UsageError(f"A step of {self.duration_s:g} s is outside 20 ms … 7 days.")
        for amount, what in (
            (self.memory_bytes, "bytes of memory"),
            (self.disk_bytes_per_s, "bytes per second to disk"),
            (self.network_bytes_per_s, "bytes per second over the network"),
        ):
            if not 0 <= amount < math.inf:
                raise UsageError(f"{amount:g} {what} is not valid.")

    @property
    def asked(self) -> dict[str, float | int | str]:
        """What is asked, by the names under which a result says what was reached."""
        asked: dict[str, float | int | str] = {}
        if self.cpu is not None:
            asked |= {"cpu_percent": self.cpu.percent, "cpu_cores": self.cpu.cores, "cpu_kind": self.cpu.kind}
        if self.memory_bytes:
            asked["memory_bytes"] = self.memory_bytes
        if self.disk_bytes_per_s:
            asked["disk_bytes_per_s"] = self.disk_bytes_per_s
        if self.network_bytes_per_s:
            asked["network_bytes_per_s"] = self.network_bytes_per_s
        if self.gpu is not None:
            asked["gpu_percent"] = self.gpu.percent
        return asked


@dataclass(frozen=True, slots=True)
class Program:
    """Steps that are played one after another. Two programs added are played one after the other."""

    steps: tuple[Step, ...]
    name: str = "stress"

    def __post_init__(self) -> None:
        if not self.steps:
            raise UsageError("A load program needs at least one step.")

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the first step to the end of the last."""
        return math.fsum(step.duration_s for step in self.steps)

    @property
    def edges_ns(self) -> tuple[int, ...]:
        """When each step starts, and at last when the last one ends, after the start. Exact sums: nothing drifts."""
        sums = accumulate((Fraction(step.duration_s) for step in self.steps), initial=Fraction(0))
        return tuple(round(seconds * 10**9) for seconds in sums)

    @property
    def starts_s(self) -> tuple[float, ...]:
        """When each step starts, in seconds after the first."""
        return tuple(edge / 1e9 for edge in self.edges_ns[:-1])

    def __add__(self, other: Program) -> Program:
        return Program(self.steps + other.steps, self.name)


def _share(percent: float, of: str) -> None:
    if not 0 <= percent <= 100:
        raise UsageError(f"{percent:g} % {of} is not valid.", cure="0 to 100")
