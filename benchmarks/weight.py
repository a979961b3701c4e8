"""What measuring costs: CPU, driver calls, memory, start-up, installed size and bytes written, beside other tools.

Every tool watches the same simulated machine: 8 GPUs whose NVML calls burn as much CPU as real ones do (50 µs, 500 µs
for process lists) and 2 processor packages. Its cards publish power and energy at one instant, as in the accuracy
tables; everywatt is also measured on cards that publish them apart, of which every publication has to be read.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common import (
    HERE,
    MIB,
    OUT,
    bench_python,
    cpu_s,
    environment,
    rss_bytes,
    say,
    subject,
    tree,
    verdict,
    written_bytes,
)
from everywatt.sim.machine import Lab, SimMachine

SENSOR = "call_cost=50us,process_cost=500us"
SETTLE_S = 20.0  # in its first seconds the recorder learns when cards publish, and looks more often who is there
WINDOW_S = 30.0  # what is buffered is written in full every 30 s: a shorter window would flatter the bytes
PHASES_MS = (13, 91, 37, 4, 68, 52, 83, 25)
OURS, APART = "everywatt (host + recorder) 10 Hz", "the same, power and energy published apart"
PEERS = {
    "codecarbon": "CodeCarbon 10 Hz, its defaults",
    "codecarbon_quiet": "CodeCarbon 10 Hz, log_level=error",
    "nvitop_collector": "nvitop ResourceMetricCollector 10 Hz",
    "nvitop_snapshots": "nvitop device snapshots 10 Hz",
    "zeus": "Zeus PowerMonitor 10 Hz",
    "pynvml_loop": "thread + pynvml, energy only, 10 Hz",
    "sleep_loop": "thread that only sleeps, 10 Hz",
}


@dataclass(frozen=True)
class Load:
    """What one tool cost while nothing else happened."""

    name: str
    cpu_share: float
    calls_per_s: float
    processes: int
    rss_bytes: int
    recorder_rss_bytes: int = 0
    written_per_hour: float = 0.0


def watch(lab: Lab, name: str, python: str, title: str, seconds: float, settle_s: float = SETTLE_S) -> Load:
    """The cost of one tool over `seconds`, after it has settled."""
    ours = name == "everywatt"
    env = environment(lab.environment(), ours=ours) | {"EVERYWATT_RECORDER_IDLE_S": "1"}
    with subject([python, str(HERE / "_subjects.py"), name], env) as (pid, words):
        time.sleep(settle_s)
        extra = [int(words[0])] if ours else []
        pids = list(dict.fromkeys([*tree(pid), *extra]))
        began, before, calls = time.monotonic(), {p: cpu_s(p) for p in pids}, sum(lab.calls().values())
        wrote = written_bytes(extra[0]) if ours else 0
        time.sleep(seconds)
        took = time.monotonic() - began
        used = sum(cpu_s(p) - before[p] for p in pids)
        called = sum(lab.calls().values()) - calls
        rss = {p: rss_bytes(p) for p in pids}
        hourly = 3600 / took
        wrote = (written_bytes(extra[0]) - wrote) * hourly if ours else 0
    return Load(title, used / took, called / took, len(pids), sum(rss.values()), rss[extra[0]] if ours else 0, wrote)


def machine(together: bool = True) -> SimMachine:
    """8 GPUs with varying loads and 2 packages.

    `together`: a card publishes its power when it publishes its counter, as in the accuracy tables; else anywhere.
    """
    phases = [f"gpu.{i}.phase={p}ms,gpu.{i}.counter_phase={p}ms" for i, p in enumerate(PHASES_MS)] if together else []
    return SimMachine.of(
        gpus=["square:100W,300W,1.3s", "sine:200W,80W,3s"], replicate=8,
        packages=["constant:50W", "square:40W,90W,2s"], sensor=[SENSOR, *phases],
    )  # fmt: skip


def shares(seconds: float, settle_s: float = SETTLE_S) -> list[Load]:
    """The cost of every tool, one after the other on one simulated machine."""
    loads = []
    peers = bench_python()
    if peers is None:
        say("BENCH_PYTHON is not set: CodeCarbon, nvitop and Zeus are left out.")
    with machine().start() as lab:
        loads.append(watch(lab, "everywatt", sys.executable, OURS, seconds, settle_s))
        for name, title in PEERS.items():
            own = name in ("pynvml_loop", "sleep_loop")
            if not own and peers is None:
                continue
            try:
                loads.append(watch(lab, name, sys.executable if own else str(peers), title, seconds, settle_s))
            except Exception as error:
                say(f"{title}: {error}")
    with machine(together=False).start() as lab:
        loads.append(watch(lab, "everywatt", sys.executable, APART, seconds, settle_s))
    return loads


def show_shares(loads: Sequence[Load]) -> None:
    """CPU share, calls and memory of each tool, and the targets."""
    ours = loads[0]
    rows = [
        [load.name, f"{load.cpu_share:.2%}", f"{ours.cpu_share / load.cpu_share:.2f}", f"{load.calls_per_s:.0f}",
         load.processes, f"{load.rss_bytes / MIB:.0f}"]
        for load in loads
    ]  # fmt: skip
    heads = ["8 GPUs, 2 packages", "CPU of one core", "everywatt is ×", "NVML calls/s", "processes", "RSS MiB"]
    OUT.table(heads, rows, right=(1, 2, 3, 4, 5), title="CPU, driver calls and memory while the program sleeps")
    by_name = {load.name: load for load in loads}
    targets = [["recorder RSS", f"{ours.recorder_rss_bytes / 1e6:.1f} MB", "≤ 25 MB"]]
    results = [verdict(ours.recorder_rss_bytes, 25e6)]
    for key, most in (("codecarbon", 0.25), ("nvitop_collector", 0.05)):
        peer = by_name.get(PEERS[key])
        if peer is not None:
            ratio = ours.cpu_share / peer.cpu_share
            targets.append([f"CPU beside {PEERS[key]}", f"{ratio:.3f}×", f"≤ {most}×"])
            results.append(verdict(ratio, most))
    written = ours.written_per_hour
    targets.append(["written per hour, 10 Hz × 40 channels", f"{written / 1e6:.1f} MB", "≤ 60 MB"])
    results.append(verdict(written, 60e6))
    OUT.text()
    OUT.table(
        ["figure", "measured", "target", ""], [[*row, result] for row, result in zip(targets, results, strict=True)]
    )
    floor = 8 * 10 * 50e-6
    OUT.text(f"(8 cards × 10 Hz × 50 µs: one NVML call for each tick alone costs {floor:.2%} of a core.)\n")


def start_ms(command: Sequence[str], ours: bool) -> float:
    """Milliseconds that a command takes from start to end."""
    began = time.perf_counter()
    subprocess.run(
        command, env=environment(ours=ours), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return (time.perf_counter() - began) * 1e3


def starts(trials: int) -> None:
    """Import times and `--help`, interleaved, medians."""
    mine = sys.executable
    commands: dict[str, tuple[list[str], bool]] = {
        "python, nothing imported": ([mine, "-c", "pass"], True),
        "import everywatt": ([mine, "-c", "import everywatt"], True),
        "everywatt --help": ([mine, "-m", "everywatt", "--help"], True),
        "from everywatt import measure": ([mine, "-c", "from everywatt import measure"], True),
    }
    peers = bench_python()
    if peers is not None:
        for text in ("import pyJoules", "import nvitop", "import codecarbon", "from zeus.monitor import ZeusMonitor"):
            commands[text] = ([peers, "-c", text], False)
    times: dict[str, list[float]] = {name: [] for name in commands}
    for trial in range(trials + 1):
        for name, (command, ours) in commands.items():
            took = start_ms(command, ours)
            if trial:  # the first one warms the file cache
                times[name].append(took)
    medians = {name: statistics.median(values) for name, values in times.items()}
    bare = medians["python, nothing imported"]
    most = {"import everywatt": 1.5, "everywatt --help": 5.0}
    rows = [
        [name, f"{median:.1f}", f"{median / bare:.2f}", f"≤ {most[name]}" if name in most else "",
         verdict(median / bare, most[name]) if name in most else ""]
        for name, median in medians.items()
    ]  # fmt: skip
    OUT.table(["start", "ms", "× bare", "target", ""], rows, right=(1, 2), title=f"Start-up, median of {trials}")
    OUT.text()


def sizes() -> None:
    """Distributions and bytes that an installation adds."""
    rows = _sizes(sys.executable, ["everywatt"])
    peers = bench_python()
    if peers is not None:
        rows += _sizes(peers, ["codecarbon", "zeus", "nvitop", "pyJoules"])
    heads = ["install", "distributions", "MiB", "of it its own MiB"]
    table = [[r["name"], r["distributions"], f"{r['bytes'] / MIB:.1f}", f"{r['own'] / MIB:.1f}"] for r in rows]
    OUT.table(heads, table, right=(1, 2, 3), title="Installed size, with all that is required")
    for row in rows:
        if row["name"] == "everywatt":
            beyond = row["distributions"] - 1
            OUT.text(f"everywatt: {beyond} distributions beyond itself (≤ 8), {row['bytes'] / MIB:.1f} MiB (≤ 95)")


def _sizes(python: str, names: list[str]) -> list[dict[str, object]]:
    done = subprocess.run(
        [python, str(HERE / "_sizes.py"), *names],
        env=environment(ours=python == sys.executable),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))


def main(quick: bool = False) -> None:
    """All tables."""
    os.environ.setdefault("EVERYWATT_RECORDER_IDLE_S", "1")
    show_shares(shares(1.0, 1.0) if quick else shares(WINDOW_S))
    starts(1 if quick else 7)
    sizes()
