"""Real directory trees whose counters advance with the clock that the sensors are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock

from everywatt.core.clocks import NS
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request


@dataclass
class LiveClock(FakeClock):
    """A fake clock that moves counter files by their watts whenever somebody sleeps on it or advances it."""

    live: dict[Path, float] = field(default_factory=dict)
    counts: dict[Path, float] = field(default_factory=dict)
    ranges: dict[Path, int] = field(default_factory=dict)

    def sleep_until(self, deadline_ns: int) -> None:
        before = self.now_ns
        super().sleep_until(deadline_ns)
        self.move((self.now_ns - before) / NS)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.move(seconds)

    def move(self, seconds: float) -> None:
        for path, watts in self.live.items():
            self.counts[path] += watts * seconds * 1e6
            if path in self.ranges:
                self.counts[path] %= self.ranges[path]
            path.write_text(f"{round(self.counts[path])}\n")


class Tree:
    """A machine of files under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = LiveClock()
        (root / "sys").mkdir()
        (root / "proc").mkdir()
        self.machine = Machine(sys=root / "sys", proc=root / "proc", dev=root / "dev", environ={}, clock=self.clock)

    def request(self, sensors: tuple[str, ...] | None = None, **more: Any) -> Request:
        return Request(machine=self.machine, sensors=sensors, **more)

    def write(self, path: str, text: str | int) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")
        return target

    def count(self, path: str, start_uj: int, watts: float, top_uj: int | None = None) -> Path:
        """A counter file in microjoules that advances with `watts`."""
        target = self.write(path, start_uj)
        self.clock.live[target], self.clock.counts[target] = watts, float(start_uj)
        if top_uj:
            self.clock.ranges[target] = top_uj
        return target

    def zone(
        self,
        zone: str,
        name: str,
        *,
        watts: float,
        start_uj: int = 1_000_000,
        top_uj: int | None = 262_143_328_850,
        tdp_w: float | None = None,
        limits_w: tuple[float, ...] = (),
        nested: str = "",
    ) -> Path:
        """A powercap zone, in the class's folder or nested below `nested`; gives its energy_uj."""
        folder = f"sys/class/powercap/{nested}{zone}"
        self.write(f"{folder}/name", name)
        if top_uj is not None:
            self.write(f"{folder}/max_energy_range_uj", top_uj)
        if tdp_w is not None:
            self.write(f"{folder}/constraint_0_max_power_uw", round(tdp_w * 1e6))
        for index, limit in enumerate(limits_w):
            self.write(f"{folder}/constraint_{index}_power_limit_uw", round(limit * 1e6))
        return self.count(f"{folder}/energy_uj", start_uj, watts, top_uj)

    def cpuinfo(self, vendor: str, family: int, model: int, flags: str = "fpu") -> None:
        text = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nflags\t\t: {flags}"
        self.write("proc/cpuinfo", text)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty machine of files."""
    return Tree(tmp_path)
