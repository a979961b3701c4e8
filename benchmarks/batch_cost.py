"""What the runner of `everywatt batch` costs for short items, and what its joules an item are worth.

Cost: many items of 5 ms beside GNU parallel and a pool of `concurrent.futures`, all starting the same command.
Energy: four simulated cards whose power follows what items do, each item against the truth; beside it, for the same
kind of items, power read once before and once after.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import everywatt
from benchmarks.common import OUT, environment, say
from everywatt.sim.machine import Lab, SimMachine

WORKERS = 2
NAP = ["sleep", "0.005"]
GPUS = 4
ITEM = """
import os, sys
from everywatt.sim.loads import gpu_work
gpu_work(float(sys.argv[1]), share=float(sys.argv[2]), gpu=int(os.environ["CUDA_VISIBLE_DEVICES"]))
"""
BEFORE_AND_AFTER = """
import json, os, subprocess, sys, threading, time
import pynvml
pynvml.nvmlInit()
items, script = json.loads(sys.argv[1]), sys.argv[2]
found, lock = [], threading.Lock()

def work(gpu):
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    while True:
        with lock:
            if not items:
                return
            words = items.pop()
        before = pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        start = time.monotonic_ns()
        subprocess.run([sys.executable, script, *words], env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)})
        end = time.monotonic_ns()
        after = pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        found.append([gpu, start, end, (before + after) / 2 * (end - start) / 1e9])

threads = [threading.Thread(target=work, args=(gpu,)) for gpu in range(int(sys.argv[3]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(found))
"""


def main(quick: bool = False) -> None:
    """Both tables."""
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as folder:
        _cost(Path(folder), 40 if quick else 10_000)
        _energy(Path(folder), 4 if quick else 48)


def _cost(folder: Path, count: int) -> None:
    items = folder / "items.txt"
    items.write_text("".join(f"{n}\n" for n in range(count)))
    env = environment() | {"EVERYWATT_HOME": str(folder / "runs")}
    words = [sys.executable, "-m", "everywatt", "batch", "--quiet"]
    words += ["--gpus", "none", "--cpu-workers", str(WORKERS), str(items), "--", *NAP]
    rows = [["everywatt batch, journal, spans and figures", *_timed(lambda: _run(words, env), count)]]
    if shutil.which("parallel"):
        parallel = ["parallel", "--will-cite", "-j", str(WORKERS), "-a", str(items), " ".join(NAP), "#", "{}"]
        rows.append(["GNU parallel", *_timed(lambda: _run(parallel, env), count)])
    else:
        say("GNU parallel is not installed and is left out.")
    rows.append(["concurrent.futures, subprocess", *_timed(lambda: _pool(count), count)])
    OUT.table(
        ("runner", "seconds", "ms an item", "above 5 ms"),
        rows,
        right=(1, 2, 3),
        title=f"{count:,} items of 5 ms on {WORKERS} workers",
    )


def _timed(work: Any, count: int) -> list[str]:
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    each_ms = seconds * WORKERS / count * 1e3
    return [f"{seconds:.1f}", f"{each_ms:.2f}", f"{each_ms - 5:.2f}"]


def _run(words: list[str], env: dict[str, str]) -> None:
    subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)


def _pool(count: int) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda _: subprocess.run(NAP, check=True), range(count)))


def _energy(folder: Path, count: int) -> None:
    script = folder / "item.py"
    script.write_text(ITEM)
    items = [[f"{0.6 + 0.1 * (n % 5):.1f}", f"{0.4 + 0.2 * (n % 4):.1f}"] for n in range(count)]
    rows = []
    for name, measure in (("everywatt batch", _ours), ("power before and after", _before_and_after)):
        machine = SimMachine.of(gpus=["load:60W,300W"], replicate=GPUS, sensor=["counter_period=20ms", "period=20ms"])
        with machine.start() as lab:
            errors, held = measure(lab, folder, script, items)
        spread = [abs(error) for error in errors]
        rows.append(
            [
                name,
                str(len(errors)),
                f"{statistics.fmean(errors):+.2%}",
                f"{statistics.median(spread):.2%}",
                f"{max(spread):.2%}",
                "-" if held is None else f"{held:.0%}",
            ]
        )
    OUT.table(
        ("method", "items", "mean error", "median", "worst", "truth in the interval"),
        rows,
        right=(1, 2, 3, 4, 5),
        title=f"Joules an item on {GPUS} simulated cards, against the truth",
    )


def _ours(lab: Lab, folder: Path, script: Path, items: list[list[str]]) -> tuple[list[float], float | None]:
    manifest = folder / "work.csv"
    lines = [f"i{n},{seconds},{share}" for n, (seconds, share) in enumerate(items)]
    manifest.write_text("\n".join(["id,seconds,share", *lines]) + "\n")
    env = environment(lab.environment()) | {"EVERYWATT_HOME": str(folder / "sim-runs")}
    words = [sys.executable, "-m", "everywatt", "batch", "--quiet", f"--json={folder / 'sim.json'}", str(manifest)]
    _run([*words, "--", sys.executable, str(script), "{seconds}", "{share}"], env)
    found = json.loads((folder / "sim.json").read_text())
    spans = {span.id: span for span in everywatt.load(folder / "sim-runs" / found["run"]).spans}
    errors, held = [], 0
    for item in found["items"]:
        span = spans[item["tries"][0]["span"]]
        assert span.end_ns is not None
        truth = lab.truth(item["device"], span.start_ns, span.end_ns)
        energy = item["energy"]["parts"][item["device"]]
        errors.append(energy["joules"] / truth - 1)
        held += energy["low"] <= truth <= energy["high"]
    return errors, held / len(errors)


def _before_and_after(lab: Lab, folder: Path, script: Path, items: list[list[str]]) -> tuple[list[float], None]:
    words = [sys.executable, "-c", BEFORE_AND_AFTER, json.dumps(items), str(script), str(GPUS)]
    done = subprocess.run(words, env=environment(lab.environment()), check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return [joules / lab.truth(f"gpu.{gpu}", start, end) - 1 for gpu, start, end, joules in found], None


if __name__ == "__main__":
    main("--quick" in sys.argv or os.environ.get("QUICK") == "1")
