"""Simulated machines in which everywatt and its peers measure the same windows, each in a process of its own.

One machine for each kind of sensor has one device for each load, so that a minute of real time gives windows of every
load. All tools run at once: together they need less than a third of one core, and windows are compared with the truth
between the very instants at which each tool was called.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.sim.machine import Lab, SimMachine

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "energy" / "data"
# ZeusMonitor goes by the card's generation, asks for the counter all the same, and fails: its column is empty.
NO_COUNTER = "unsupported=nvmlDeviceGetTotalEnergyConsumption+field:83"

# Replayed traces: the external meter beside an A100 and an RTX 3090, 4.8 kHz; JimZeyuYang/GPU_Power_Benchmark (MIT).
LOADS: dict[str, str] = {
    "constant": "constant:150W",
    "step": "step:100W,300W,22s,43s",
    "ramp": "ramp:100W,300W,60s",
    "square 0.3 s": "square:100W,300W,0.3s",
    "square 1.3 s": "square:100W,300W,1.3s",
    "square 7 s": "square:100W,300W,7s",
    "telegraph": "telegraph:100W,300W,0.4s,7",
    "meter A100": f"replay:{DATA / 'A100_square' / 'meter.csv.gz'}",
    "meter 3090": f"replay:{DATA / 'RTX3090_square' / 'meter.csv.gz'}",
}
PEERS = {
    "ZeusMonitor": "zeus_monitor.py",
    "PowerMonitor": "zeus_power.py",
    "CodeCarbon": "codecarbon_tasks.py",
    "pyJoules": "pyjoules_meter.py",
    "nvidia-smi": "smi_polling.py",
}


@dataclass(frozen=True)
class Sensor:
    """One kind of sensor: what the machine is told, what the bound needs to know, and which peers can read it."""

    title: str
    kind: str
    period_s: float
    window_s: float
    options: str
    peers: tuple[str, ...]
    read_s: float = 0.1
    counter: bool = True

    @property
    def prefix(self) -> str:
        """How everywatt calls the devices."""
        return "gpu" if self.kind == "gpu" else "cpu"


COUNTER_PEERS = ("ZeusMonitor", "PowerMonitor", "CodeCarbon", "pyJoules", "nvidia-smi")
GAUGE_PEERS = ("ZeusMonitor", "PowerMonitor", "CodeCarbon", "nvidia-smi")
SENSORS: dict[str, Sensor] = {
    "rapl": Sensor("RAPL counter, 1 ms", "cpu", 0.001, 0.0, "package.period=1ms", ("ZeusMonitor", "pyJoules")),
    "nvml20": Sensor("NVML counter, 20 ms", "gpu", 0.02, 0.02, "period=20ms", COUNTER_PEERS, read_s=0.02),
    "nvml100": Sensor("NVML counter, 100 ms", "gpu", 0.1, 0.1, "period=100ms", COUNTER_PEERS),
    "gauge100": Sensor(
        "gauge, 100 of 100 ms",
        "gpu",
        0.1,
        0.1,
        f"name=NVIDIA GeForce RTX 3090,window=100ms,{NO_COUNTER}",
        GAUGE_PEERS,
        counter=False,
    ),
    "gauge25": Sensor(
        "gauge, 25 of 100 ms",
        "gpu",
        0.1,
        0.025,
        f"name=NVIDIA A100-SXM4-40GB,window=25ms,{NO_COUNTER}",
        GAUGE_PEERS,
        counter=False,
    ),
    "gauge1s": Sensor(
        "gauge, moving average of 1 s",
        "gpu",
        0.1,
        1.0,
        f"name=NVIDIA GeForce RTX 3090,window=1s,{NO_COUNTER}+field:186",
        GAUGE_PEERS,
        counter=False,
    ),
}


# What must not matter: a counter that wraps every three seconds, one that starts again, publications that are lost.
FAULT_LOADS: dict[str, str] = {
    "constant, wrap": LOADS["constant"],
    "square 1.3 s, wrap": LOADS["square 1.3 s"],
    "constant, reset": LOADS["constant"],
    "square 1.3 s, reset": LOADS["square 1.3 s"],
    "constant, lost": LOADS["constant"],
    "ramp, lost": LOADS["ramp"],
    "square 1.3 s, lost": LOADS["square 1.3 s"],
}
_WRAP = "package.0.wrap=450J,package.1.wrap=450J,package.2.reset_at=14s,package.3.reset_at=14s"
FAULTS: dict[str, tuple[Sensor, tuple[str, ...]]] = {
    "rapl-faults": (
        replace(SENSORS["rapl"], title="RAPL counter that wraps or starts again", options=_WRAP),
        tuple(name for name in FAULT_LOADS if not name.endswith("lost")),
    ),
    "nvml-faults": (
        replace(SENSORS["nvml100"], title="NVML counter, 100 ms, one publication in ten lost", options="drop=10%"),
        tuple(name for name in FAULT_LOADS if name.endswith("lost")),
    ),
}


@dataclass(frozen=True)
class Window:
    """What one tool said of one window of one device: joules (None: refused), and the truths that it may have meant.

    A tool reads somewhere inside its calls, which take 0.1 to 20 ms: `truths_j` are those between the beginnings of
    both calls, a quarter into them, and so on to their ends. One that says where a window starts and ends has one.
    """

    device: int
    length_s: float
    edges_ns: tuple[int, int]
    joules: float | None
    truths_j: tuple[float, ...]
    interval: tuple[float, float] | None = None

    def errors_pct(self) -> list[float]:
        """|error| in percent of each truth; a figure that was refused counts as 100 %."""
        said = 0.0 if self.joules is None else self.joules
        return [100 * abs(said - truth) / truth for truth in self.truths_j]


def machine(sensor: Sensor, loads: Sequence[str], seed: int) -> tuple[SimMachine, list[float]]:
    """A machine with one device for each load, and the phase of each device's publications."""
    chance = random.Random(seed)
    phases = [chance.random() * sensor.period_s for _ in loads]
    curves = [(LOADS | FAULT_LOADS)[load] for load in loads]
    if sensor.kind == "cpu":
        options = [f"package.{i}.phase={phase!r}" for i, phase in enumerate(phases)]
        return SimMachine.of(packages=curves, sensor=[sensor.options, *options]), phases
    options = [f"gpu.{i}.phase={phase!r},gpu.{i}.counter_phase={phase!r}" for i, phase in enumerate(phases)]
    return SimMachine.of(gpus=curves, sensor=[sensor.options, *options]), phases


def plan(seconds: Mapping[float, int], seed: int, gap_s: float = 0.12) -> list[list[float]]:
    """Windows one after the other in random order: [offset, length] in seconds; `seconds` says how many of each."""
    chance = random.Random(seed)
    lengths = [length for length, count in seconds.items() for _ in range(count)]
    chance.shuffle(lengths)
    offset, found = 0.2, []
    for length in lengths:
        offset += gap_s + chance.random() * 0.1
        found.append([offset, length])
        offset += length
    return found


@dataclass
class Driver:
    """One tool that runs in a machine."""

    name: str
    child: subprocess.Popen[str]
    out: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str], config: Mapping[str, Any], lab: Lab, folder: Path) -> Driver:
        """Start it; it is ready when it has said so."""
        out = folder / f"{name}.json"
        file = folder / f"{name}.config.json"
        file.write_text(json.dumps({**config, "out": str(out)}))
        child = subprocess.Popen(
            [*command, str(file)],
            env=lab.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"{name}.log").open("w"),
            text=True,
            cwd=folder,
        )
        return cls(name, child, out)

    def ready(self) -> bool:
        """Wait until it is set up; False where it could not be."""
        assert self.child.stdout is not None
        return any(line.strip() == "ready" for line in self.child.stdout)

    def go(self, start_ns: int) -> None:
        """Tell it when to start."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{start_ns}\n")
        self.child.stdin.flush()

    def result(self, timeout_s: float) -> list[dict[str, Any]]:
        """Its windows; none where it failed (its log is beside)."""
        try:
            self.child.wait(timeout_s)
            return list(json.loads(self.out.read_text()))
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self.child.kill()
            self.child.wait()
            return []


def measure(
    sensor: Sensor,
    lab: Lab,
    devices: int,
    lanes: list[list[list[float]]],
    folder: Path,
    bench_python: str | None,
) -> dict[str, list[Window]]:
    """Every tool's windows, by the tool's name. Peers need `bench_python`, the Python of their environment."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "devices": devices,
        "kind": sensor.kind,
        "prefix": sensor.prefix,
        "period_s": sensor.read_s,
        "home": str(folder / "runs"),
        "sensors": ["nvml"] if sensor.kind == "gpu" else ["rapl"],
        "lanes": lanes,
    }
    commands = {"everywatt": [sys.executable, str(HERE / "everywatt_spans.py")]}
    if bench_python:
        commands |= {name: [bench_python, str(HERE / "peer_drivers" / PEERS[name])] for name in sensor.peers}
    drivers = []
    for name, command in commands.items():
        for _ in range(2):  # Zeus gives up where its processes take longer than 10 s to start
            driver = Driver.start(name, command, config, lab, folder)
            if driver.ready():
                drivers.append(driver)
                break
    start_ns = time.monotonic_ns() + 300_000_000
    for driver in drivers:
        driver.go(start_ns)
    longest = max(offset + length for lane in lanes for offset, length in lane)
    results = {driver.name: driver.result(longest + 240) for driver in drivers}
    return {name: _windows(rows, lab, sensor, devices) for name, rows in results.items()}


def _windows(rows: list[dict[str, Any]], lab: Lab, sensor: Sensor, devices: int) -> list[Window]:
    found = []
    for row in rows:
        for device in range(devices):
            said = row["joules"].get(str(device))
            figure = said if isinstance(said, dict) else {"joules": said, "open": row["open"], "close": row["close"]}
            found.append(_window(figure, row["length_s"], device, lab, f"{sensor.prefix}.{device}"))
    return found


def _window(figure: dict[str, Any], length_s: float, device: int, lab: Lab, name: str) -> Window:
    interval = (figure["low"], figure["high"]) if figure.get("low") is not None else None
    (a0, a1), (b0, b1) = figure["open"], figure["close"]
    if "span" in figure:
        edges = [tuple(figure["span"])]
    else:
        edges = [(round(a0 + f * (a1 - a0)), round(b0 + f * (b1 - b0))) for f in (0.0, 0.25, 0.5, 0.75, 1.0)]
    truths = tuple(lab.truth(name, a, b) for a, b in edges)
    return Window(device, length_s, edges[0], figure["joules"], truths, interval)


def bench_python() -> str | None:
    """The Python of the peers' environment: BENCH_PYTHON, or `.venv-bench`."""
    given = os.environ.get("BENCH_PYTHON")
    usual = HERE.parent / ".venv-bench" / "bin" / "python"
    return given or (str(usual) if usual.exists() else None)
