"""One hour out of archives of 1, 7 and 30 days of a box at 100 Hz: the time and the memory it takes as they grow.

The days are whole (8.64 million rows each), of few plugs: what is not asked for is not read, so more of them would only
take longer to make. Each reading is a process of its own; the hour is in the middle of the archive.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.common import OUT, environment, say, verdict
from everywatt.core.clocks import NS
from everywatt.meters.archive import file_name
from everywatt.meters.block import TenthsBlock
from everywatt.meters.parquet import write_parquet

ORIGIN_NS = 1_794_700_800 * NS
PLUGS = 2
HOUR_ROWS = 360_000
AIM_S = 0.2
MOST_GROWTH = 1.25
READ = """
import sys, time, re
from pathlib import Path
import pyarrow.parquet
from everywatt.meters.archive import read_archive
from everywatt.meters.stats import stats
began, cpu = time.perf_counter(), time.process_time()
start = int(sys.argv[2])
found = stats(read_archive(Path(sys.argv[1]), "box", start, start + 3600 * 10**9, [1, 2]), total="1+2")
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
print(seconds, cpu, found.rows, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def day(start_ns: int, hours: int) -> Iterator[TenthsBlock]:
    """Hours of a box whose loads wander and of which every second row repeats."""
    rng = np.random.default_rng(start_ns // NS)
    base = rng.integers(800, 4000, (3 + 2 * PLUGS, 1))
    noise = rng.integers(-20, 20, (3 + 2 * PLUGS, HOUR_ROWS // 2)).repeat(2, axis=1)
    values = (base + noise).astype(np.int32)
    for hour in range(hours):
        times = start_ns + hour * 3600 * NS + np.arange(HOUR_ROWS, dtype=np.int64) * 10_000_000
        yield TenthsBlock(times, np.ones(HOUR_ROWS, dtype=np.bool_), values)


def read_hour(archive: Path, start_ns: int) -> tuple[float, float, float]:
    """Seconds, megabytes and CPU seconds of a process that reads one hour of two plugs."""
    command = [sys.executable, "-c", READ, str(archive), str(start_ns)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    seconds, cpu_s, rows, kilobytes = done.stdout.split()
    if int(rows) != HOUR_ROWS:
        raise RuntimeError(f"an hour of {rows} rows")
    return float(seconds), float(kilobytes) / 1024, float(cpu_s)


def main(quick: bool = False) -> None:
    """The table."""
    lengths, hours = ((1, 3), 2) if quick else ((1, 7, 30), 24)
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as name:
        archive = Path(name)
        (archive / "raw").mkdir()
        rows, found = [], []
        made = 0
        for days in lengths:
            for number in range(made, days):
                start_ns = ORIGIN_NS + number * 86_400 * NS
                write_parquet(archive / "raw" / file_name("box", start_ns), day(start_ns, hours))
            made = days
            middle_ns = ORIGIN_NS + (days // 2) * 86_400 * NS + (hours // 2) * 3600 * NS
            seconds, megabytes, cpu_s = (
                min(each) for each in zip(*(read_hour(archive, middle_ns) for _ in range(5)), strict=True)
            )
            size = sum(path.stat().st_size for path in (archive / "raw").iterdir()) / 1e6
            found.append((seconds, cpu_s, megabytes))
            rows.append([days, f"{size:.0f} MB", f"{seconds:.3f} s", f"{cpu_s:.3f} s", f"{megabytes:.0f} MB"])
        OUT.table(["DAYS", "ARCHIVE", "AN HOUR", "CPU", "MEMORY"], rows, right=range(5))
        slowest = max(each[0] for each in found)
        busiest = max(each[1] for each in found)
        grown = [last / first for first, last in zip(found[0], found[-1], strict=True)]
        targets = [
            ["an hour, seconds", f"{slowest:.3f}", f"{AIM_S}", verdict(slowest, AIM_S)],
            ["an hour, CPU seconds", f"{busiest:.3f}", f"{AIM_S}", verdict(busiest, AIM_S)],
            ["CPU time, longest over shortest", f"{grown[1]:.2f}", f"{MOST_GROWTH}", verdict(grown[1], MOST_GROWTH)],
            ["memory, longest over shortest", f"{grown[2]:.2f}", f"{MOST_GROWTH}", verdict(grown[2], MOST_GROWTH)],
        ]
        OUT.table(["FIGURE", "IS", "TARGET", "VERDICT"], targets, right=(1, 2))
        say(f"{lengths[-1]} days of {PLUGS} plugs, {hours} hours a day.")
