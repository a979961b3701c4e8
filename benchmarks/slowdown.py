"""How much slower a program gets when it is measured: interleaved trials, with an upper 95 % bound of the ratio.

The program times its own loop, so start-up is not in it; what `everywatt run` adds before and after is printed apart.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import OUT, bench_python, environment, say

TARGET = 0.01
FEWEST = 8  # with fewer pairs the extremes are no 95 % interval of the median
CHILD = """
import sys, time, json
kind, size = sys.argv[1], float(sys.argv[2])
began = time.time()
def cpu(n):
    x = 0
    for i in range(n):
        x += i * i
    return x
walls, useds = [], []
for _ in range(12):  # the median of short loops: another program on the machine disturbs some of them, a meter all
    wall, used = time.perf_counter(), time.process_time()
    if kind == "cpu":
        cpu(int(size))
    else:  # a program that waits for a GPU: polls, and a short burst for each step
        for _ in range(int(size)):
            for _ in range(5):
                time.sleep(0.002)
            cpu(8000)
    walls.append(time.perf_counter() - wall)
    useds.append(time.process_time() - used)
print(json.dumps({"wall_s": sorted(walls)[6], "cpu_s": sorted(useds)[6], "began": began, "ended": time.time()}))
"""
WITH_TRACKER = """
from codecarbon import OfflineEmissionsTracker
import sys
tracker = OfflineEmissionsTracker(measure_power_secs=0.1, country_iso_code="FRA", log_level="error", save_to_file=False,
                                  allow_multiple_runs=True)
tracker.start()
"""
SIZES = {"cpu": 1_200_000, "gpu-like": 8}


@dataclass
class Trials:
    """Pairs of log ratios, measured against bare, in the order in which they came."""

    name: str
    logs: list[float] = field(default_factory=list)
    cpu_logs: list[float] = field(default_factory=list)
    before_ms: list[float] = field(default_factory=list)
    after_ms: list[float] = field(default_factory=list)

    def bound(self) -> tuple[float, float, float]:
        """Median slow-down with its 95 % interval (of the median, by order statistics): −0.001 is 0.1 % faster."""
        ordered, n = sorted(self.logs), len(self.logs)
        half = 1.96 * math.sqrt(n) / 2
        low, high = max(0, math.floor(n / 2 - half)), min(n - 1, math.ceil(n / 2 + half))
        return tuple(math.expm1(value) for value in (ordered[low], statistics.median(ordered), ordered[high]))  # type: ignore[return-value]

    @property
    def decided(self) -> bool:
        """True where enough trials show that the bound is below the target."""
        return len(self.logs) >= FEWEST and self.bound()[2] <= TARGET


def bare(kind: str, env: dict[str, str], python: str) -> dict[str, float]:
    """One run of the child by itself."""
    return _child([python, "-c", CHILD, kind, str(SIZES[kind])], env)


def measured(kind: str, env: dict[str, str], python: str) -> dict[str, float]:
    """One run of the child under `everywatt run`."""
    command = [python, "-m", "everywatt", "run", "--quiet", "--", python, "-c", CHILD, kind, str(SIZES[kind])]
    return _child(command, env)


def tracked(kind: str, env: dict[str, str], python: str) -> dict[str, float]:
    """One run of the child with CodeCarbon's tracker in it, at 10 Hz."""
    return _child([python, "-c", WITH_TRACKER + CHILD + "\ntracker.stop()", kind, str(SIZES[kind])], env)


def _child(command: list[str], env: dict[str, str]) -> dict[str, float]:
    started = time.time()
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    ended = time.time()
    data = json.loads(done.stdout.strip().splitlines()[-1])
    return data | {"before_s": data["began"] - started, "after_s": ended - data["ended"]}


def run_pairs(
    kind: str, name: str, subject: Callable[..., dict[str, float]], env: dict[str, str], python: str, budget_s: float
) -> Trials:
    """Bare and measured in turns, each first as often as the other, until it is decided or the time is up."""
    trials = Trials(name)
    deadline = time.monotonic() + budget_s
    while time.monotonic() < deadline and not trials.decided:
        first = len(trials.logs) % 2
        order = (subject, bare) if first else (bare, subject)
        results = {one: one(kind, env, python) for one in order}
        plain, other = results[bare], results[subject]
        trials.logs.append(math.log(other["wall_s"] / plain["wall_s"]))
        trials.cpu_logs.append(math.log(other["cpu_s"] / plain["cpu_s"]))
        trials.before_ms.append((other["before_s"] - plain["before_s"]) * 1e3)
        trials.after_ms.append((other["after_s"] - plain["after_s"]) * 1e3)
    return trials


def row(kind: str, trials: Trials) -> list[object]:
    """One line of the table."""
    low, middle, high = trials.bound()
    reached = (
        "reached"
        if trials.decided
        else f"bound reached: {high:+.2%}"
        if len(trials.logs) >= FEWEST
        else "too few pairs"
    )
    before, after = (statistics.median(values) for values in (trials.before_ms, trials.after_ms))
    cpu = math.expm1(statistics.median(trials.cpu_logs))
    return [kind, trials.name, len(trials.logs), f"{middle:+.2%}", f"{low:+.2%} … {high:+.2%}", reached,
            f"{cpu:+.2%}", f"{before:.0f}", f"{after:.0f}"]  # fmt: skip


def main(quick: bool = False) -> None:
    """The table: CPU-bound and GPU-like children, under everywatt and with CodeCarbon in them."""
    peers = bench_python()
    if peers is None:
        say("BENCH_PYTHON is not set: CodeCarbon is left out.")
    budget = 1.0 if quick else 50.0
    rows = []
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as folder:
        home = {"EVERYWATT_HOME": str(Path(folder) / "runs"), "EVERYWATT_RECORDER_IDLE_S": "2"}
        for kind in SIZES:
            trials = run_pairs(
                kind, "everywatt run, 10 Hz", measured, environment(os.environ | home), sys.executable, budget
            )
            rows.append(row(kind, trials))
            if peers is not None:
                env = environment(ours=False) | home
                rows.append(
                    row(kind, run_pairs(kind, "CodeCarbon in the program, 10 Hz", tracked, env, peers, budget / 3))
                )
    heads = [
        "child",
        "measured by",
        "pairs",
        "slower by",
        "95 % interval",
        "upper bound ≤ 1 %",
        "CPU time",
        "ms before",
        "ms after",
    ]
    OUT.table(
        heads, rows, right=(2, 3, 6, 7, 8), title="Slow-down of a program (its own loop; median of interleaved pairs)"
    )
