"""What a question costs: many windows and one cold window on large tapes, beside Parquet and CSV with other tools.

The machine on the tapes has 8 GPUs, 2 packages and the host: 40 channels, ten rows a second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks._tapes import START_NS, build
from benchmarks.common import MIB, OUT, environment, say, verdict

COLD = """
import json, sys, time
import everywatt.api.run, everywatt.energy.window, everywatt.tape.columns
from everywatt import load
start, end = float(sys.argv[2]), float(sys.argv[3])
wall, cpu = time.perf_counter(), time.process_time()
energy = load(sys.argv[1]).energy(between=(start, end))
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_bytes": peak, "joules": energy.joules}))
"""


def random_windows(number: int, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of windows of 0.05 to 60 s."""
    random = np.random.default_rng(7)
    lengths = np.exp(random.uniform(np.log(0.05), np.log(60.0), number))
    starts = random.uniform(0.0, seconds - 61.0, number)
    return starts, starts + lengths


def timed(function) -> tuple[float, float, object]:
    """Wall seconds, CPU seconds and the result."""
    time.sleep(0.2)  # numpy's threads of what ran before spin for a while, which would count as ours
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def many(folder: Path, rows: int, number: int) -> list[list[str]]:
    """`number` windows: everywatt, and the same from Parquet and CSV."""
    import everywatt

    tape = folder / "many.tape"
    ticks = build(tape, rows)
    starts, ends = random_windows(number, rows / 10)
    opened, _, run = timed(lambda: everywatt.load(tape))
    cold, cpu, joules = timed(lambda: run.energies(starts, ends))
    warm, _, _ = timed(lambda: run.energies(starts, ends))
    title = f"{number:,} windows, {ticks / 1e6:g} M ticks"
    table = [
        ["everywatt Run.energies, first time", title, f"{cold:.3f} s", f"{cpu:.3f} s", "≤ 0.5 s", verdict(cold, 0.5)],
        ["everywatt Run.energies, again", title, f"{warm:.3f} s", "", "", ""],
        ["everywatt load() with every row verified", "", f"{opened:.3f} s", "", "", ""],
    ]
    return table + _peers(folder, run, starts, ends, joules, title)


def _peers(folder: Path, run, starts, ends, joules, title: str) -> list[list[str]]:
    """pandas over CSV and duckdb over Parquet, for the ten counters that everywatt added up."""
    from everywatt.energy.sources import addable, sources
    from everywatt.tape.columns import load_columns

    tape, rows = run.tapes[0], []
    long: dict[str, list[np.ndarray]] = {"t": [], "channel": [], "j": []}
    for index, source in enumerate(addable(sources(tape))):
        columns = load_columns(tape, source.group.id, [source.channel.name])
        long["t"].append((columns.published - START_NS) / 1e9)
        long["channel"].append(np.full(len(columns), index, np.int32))
        long["j"].append(columns.values[source.channel.name] * source.channel.scale)
    data = {name: np.concatenate(parts) for name, parts in long.items()}
    try:
        import pandas as pd

        csv = folder / "many.csv"
        pd.DataFrame(data).to_csv(csv, index=False)
        wall, cpu, found = timed(lambda: _with_pandas(pd, csv, starts, ends))
        rows.append(["pandas over CSV, numpy.interp", title, f"{wall:.3f} s", f"{cpu:.3f} s", "", _same(found, joules)])
        csv.unlink()
    except ImportError:
        say("pandas is not installed: left out.")
    try:
        import duckdb
        import pyarrow as pa
        import pyarrow.parquet as pq

        parquet = folder / "many.parquet"
        pq.write_table(pa.table(data), parquet, compression="zstd")
        wall, cpu, found = timed(lambda: _with_duckdb(duckdb, pa, parquet, starts, ends))
        rows.append(
            ["duckdb over Parquet, ASOF joins", title, f"{wall:.3f} s", f"{cpu:.3f} s", "", _same(found, joules)]
        )
        parquet.unlink()
    except ImportError:
        say("duckdb or pyarrow is not installed: left out.")
    return rows


def _same(found: np.ndarray, joules: np.ndarray) -> str:
    """How far a peer's joules are from ours: they should agree where nothing went wrong."""
    return f"joules within {np.nanmax(np.abs(found - joules) / np.abs(joules)):.1e}"


def _with_pandas(pd, csv: Path, starts, ends) -> np.ndarray:
    frame = pd.read_csv(csv)
    total = np.zeros(len(starts))
    for _, part in frame.groupby("channel"):
        t, j = part["t"].to_numpy(), part["j"].to_numpy()
        total += np.interp(ends, t, j) - np.interp(starts, t, j)
    return total


def _with_duckdb(duckdb, pa, parquet: Path, starts, ends) -> np.ndarray:
    """Each edge looks up the counter before it and the one after it, and lies on the line between."""
    db = duckdb.connect()
    channels = db.execute(f"SELECT count(DISTINCT channel) FROM '{parquet}'").fetchall()[0][0]
    edges = pa.table({"w": np.arange(len(starts)).repeat(2), "sign": np.tile([-1.0, 1.0], len(starts)),
                      "t": np.stack([starts, ends], axis=1).ravel()})  # fmt: skip
    db.register("edges", edges)
    result = db.execute(
        f"""
        WITH ticks AS (SELECT channel, t, j, lead(t) OVER w AS t2, lead(j) OVER w AS j2 FROM '{parquet}'
                       WINDOW w AS (PARTITION BY channel ORDER BY t)),
             asked AS (SELECT w, sign, edges.t, c.channel FROM edges, range({channels}) c(channel))
        SELECT w, sum(sign * (j + coalesce((asked.t - ticks.t) / (t2 - ticks.t) * (j2 - j), 0))) AS joules
        FROM asked ASOF JOIN ticks ON asked.channel = ticks.channel AND asked.t >= ticks.t
        GROUP BY w ORDER BY w
        """
    ).fetchnumpy()
    return result["joules"]


def cold(folder: Path, size_bytes: float, trials: int) -> list[list[str]]:
    """One window of a tape that no process has touched: opening it by path and asking, in a fresh process.

    The file is out of the kernel's cache. numpy and everywatt are imported before the clock starts (a program that asks
    has them), nothing has been called yet.
    """
    tape = folder / "cold.tape"
    rows = round(size_bytes / 363)
    took, _, _ = timed(lambda: build(tape, rows, noisy=True))
    size = tape.stat().st_size
    say(f"(a tape of {size / 1e9:.2f} GB was made in {took:.0f} s)")
    table = []
    for length in (1.0, 60.0):
        results = []
        for trial in range(trials):
            _forget(tape)
            start = rows / 10 * (trial + 0.5) / trials
            command = [sys.executable, "-c", COLD, str(tape), str(start), str(start + length)]
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout))
        wall, cpu = (statistics.median(r[key] for r in results) for key in ("wall_s", "cpu_s"))
        peak = max(r["peak_bytes"] for r in results)
        what = f"one cold window of {length:g} s, {size / 1e9:.2f} GB tape"
        table.append([what, "median of " + str(trials), f"{wall * 1e3:.1f} ms", f"{cpu * 1e3:.1f} ms", "≤ 30 ms",
                      verdict(wall, 0.030)])  # fmt: skip
        table.append([what, "most memory", f"{peak / MIB:.1f} MiB", "", "≤ 60 MB", verdict(peak, 60e6)])
    tape.unlink()
    return table


def _forget(path: Path) -> None:
    """Ask the kernel to drop the file from its cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def flat(folder: Path, sizes: list[int]) -> list[list[str]]:
    """Time of one window with its interval, on tapes of growing length.

    Of a tape of less than about half an hour all ticks are kept once they were looked at, so its first window costs
    more than the later ones: both are told.
    """
    import everywatt

    table: list[list[str]] = []
    shortest: dict[str, float] = {}
    for rows in sizes:
        tape = folder / f"flat-{rows}.tape"
        ticks = build(tape, rows)
        run = everywatt.load(tape)
        starts, ends = random_windows(21, rows / 10)
        times = [
            timed(lambda a=a, b=b: run.energy(between=(float(a), float(b))))[:2]
            for a, b in zip(starts, ends, strict=True)
        ]
        later = tuple(statistics.median(time[which] for time in times[1:]) for which in (0, 1))
        for which, (wall, cpu) in (("the first", times[0]), ("later ones, median of 20", later)):
            ratio = wall / shortest.setdefault(which, wall)
            title = f"one window with its interval, {ticks:,} ticks"
            walls = [f"{wall * 1e3:.1f} ms", f"{cpu * 1e3:.1f} ms"]
            table.append([title, which, *walls, "nearly flat", f"{ratio:.2f}× that of the shortest tape"])
        tape.unlink()
    return table


def main(quick: bool = False) -> None:
    """All tables."""
    heads = ["question", "", "wall", "CPU", "target", ""]
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as name:
        folder = Path(name)
        rows = many(folder, 5_000 if quick else 250_000, 1_000 if quick else 100_000)
        OUT.table(heads, rows, right=(2, 3), title="Many windows at once")
        OUT.text()
        rows = cold(folder, 20e6 if quick else 1e9, 2 if quick else 7)
        OUT.table(heads, rows, right=(2, 3), title="One cold window: load() and energy() after the imports")
        OUT.text()
        rows = flat(folder, [2_500, 10_000] if quick else [2_500, 25_000, 250_000])
        OUT.table(heads, rows, right=(2, 3), title="Time of a window against the length of the tape")
