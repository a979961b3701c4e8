"""An hour of a 36-plug Omegawatt at 100 Hz, imported into an archive, beside pandas read_csv and to_parquet.

Each way runs in a process of its own: wall time with Python's start, the most memory it had (VmHWM), the size of what
it wrote. Ours also writes the copies by second and by minute; pandas does not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import OUT, environment, say, verdict
from everywatt.core.clocks import NS

PLUGS = 36
ORIGIN_S = 1_794_765_600
_MEMORY = """
import re, time
print("CPU", time.process_time())
print("MEMORY", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
PANDAS = f"""
import sys, pandas
frame = pandas.read_csv(sys.argv[1])
frame.to_parquet(sys.argv[2])
{_MEMORY}
"""
OURS = f"""
import sys
from pathlib import Path
from everywatt.meters.archive import store
from everywatt.meters.block import Oddities
from everywatt.meters.importing import blocks_of
store(Path(sys.argv[2]), "box", blocks_of(Path(sys.argv[1]), Oddities()))
{_MEMORY}
"""


def write_log(path: Path, rows: int, start_s: int = ORIGIN_S) -> None:
    """A log as `wattmetre-read` prints it: loads that wander, half of the rows repeated, some plugs empty."""
    rng = np.random.default_rng(start_s)
    names = ",".join(f"#current{n},#activepow{n}" for n in range(1, PLUGS + 1))
    with path.open("w", encoding="ascii") as file:
        file.write(f"#timestamp,#frame_is_ok,#U1,#U2,#U3,{names}\n")
        level = np.where(np.arange(PLUGS) % 3 == 2, 0.0, rng.uniform(80, 400, PLUGS))
        for first in range(0, rows, 2000):
            count = min(2000, rows - first)
            noise = rng.normal(0, 1.5, (count // 2 + 1, PLUGS)).repeat(2, axis=0)[:count]
            watts = np.where(level > 0, level * rng.uniform(0.9, 1.1, PLUGS) + noise, 0.0)
            volts = 230 + rng.normal(0, 0.5, (count // 2 + 1, 3)).repeat(2, axis=0)[:count]
            table = np.empty((count, 3 + 2 * PLUGS))
            table[:, :3], table[:, 3::2], table[:, 4::2] = volts, watts / 230, watts
            form = ",".join(["%.1f"] * table.shape[1])
            for row in range(count):
                at = start_s * NS + (first + row) * 10_000_000 + int(rng.integers(0, 300_000))
                file.write(f"{at // NS}.{at % NS:09d},true,{form % tuple(table[row])}\n")


def timed(code: str, *words: str) -> tuple[float, float, float]:
    """Seconds, megabytes, and seconds of CPU time of a process."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment(), capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - began
    told = dict(line.split() for line in done.stdout.splitlines())
    return seconds, float(told["MEMORY"]) / 1024, float(told["CPU"])


def size_mb(path: Path) -> float:
    files = [path] if path.is_file() else list(path.rglob("*.parquet"))
    return sum(file.stat().st_size for file in files) / 1e6


def main(quick: bool = False) -> None:
    """The table."""
    rows = 36_000 if quick else 360_000
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as name:
        folder = Path(name)
        log = folder / "log.csv"
        write_log(log, rows)
        # In turns: what else the machine does falls on both.
        pairs = [
            (
                timed(OURS, str(log), str(folder / f"archive{n}")),
                timed(PANDAS, str(log), str(folder / "pandas.parquet")),
            )
            for n in range(2 if quick else 4)
        ]
        # The least of each figure: what a busy machine adds to one run it does not take from another.
        ours, theirs = (tuple(map(min, zip(*way, strict=True))) for way in zip(*pairs, strict=True))
        stored = size_mb(folder / "archive0" / "raw")
        table = [
            [
                "everywatt meter import",
                f"{ours[0]:.2f} s",
                f"{ours[2]:.2f} s",
                f"{ours[1]:.0f} MB",
                f"{stored:.1f} MB raw",
            ],
            [
                "pandas",
                f"{theirs[0]:.2f} s",
                f"{theirs[2]:.2f} s",
                f"{theirs[1]:.0f} MB",
                f"{size_mb(folder / 'pandas.parquet'):.1f} MB",
            ],
        ]
        OUT.table(["WAY", "TIME", "CPU", "MEMORY", "SIZE"], table, right=(1, 2, 3, 4))
        say(f"{rows} rows of {PLUGS} plugs, {size_mb_of(log):.0f} MB of text.")
        faster, lighter, smaller = theirs[0] / ours[0], ours[1] / theirs[1], size_mb_of(log) / stored
        cheaper = theirs[2] / ours[2]
        targets = [
            ["times as fast as pandas", f"{faster:.2f}", "1.5", verdict(1.5 / faster, 1.0)],
            ["pandas' CPU time over ours", f"{cheaper:.2f}", "1.5", verdict(1.5 / cheaper, 1.0)],
            ["share of pandas' memory", f"{lighter:.2f}", "0.25", verdict(lighter, 0.25)],
            ["text over what is stored", f"{smaller:.1f}", "10", verdict(10 / smaller, 1.0)],
        ]
        OUT.table(["FIGURE", "IS", "TARGET", "VERDICT"], targets, right=(1, 2))


def size_mb_of(log: Path) -> float:
    return log.stat().st_size / 1e6
