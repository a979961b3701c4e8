"""A year of a Slurm site: 20,000 jobs a day on 1,400 nodes, and the hours of 1,000 nodes with 4 devices.

Every page of `everywatt serve --slurm-store` is fetched over HTTP, and queries of the command line are called; both
have to answer within two seconds. A page is asked for once: the server keeps answers for half a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import OUT, cpu_s, environment, say, verdict

DAY_S = 86_400
JOBS_A_DAY, NODES, USERS, ACCOUNTS = 20_000, 1_400, 300, 40
HOUR_NODES, DEVICES = 1_000, ("cpu.0", "cpu.1", "gpu.0", "gpu.1")
TARGET_S = 2.0
WORKERS = 2
TOKEN = "a-token-of-the-benchmark"
PAGES = {
    "latest jobs of a year": "/slurm/jobs?period=365d",
    "jobs of a year by energy": "/slurm/jobs?period=365d&sort=energy",
    "jobs of a year by waste": "/slurm/jobs?period=365d&sort=waste",
    "latest jobs of a user": "/slurm/jobs?period=365d&user=u5",
    "a user's jobs by energy": "/slurm/jobs?period=365d&user=u5&sort=energy",
    "latest jobs of a node": "/slurm/jobs?period=365d&node=n7",
    "users of a year": "/slurm/users?period=365d",
    "accounts of a year": "/slurm/accounts?period=365d",
    "nodes of a year": "/slurm/nodes?period=365d",
    "months of a year": "/slurm/months",
    "users of a week": "/slurm/users",
    "one month": "/slurm/month/{month}",
    "one job by its number": "/slurm/job/{job}",
    "JSON: sums by state": "/api/slurm/sums?by=state&period=365d",
    "JSON: 1,000 jobs by energy": "/api/slurm/jobs?period=365d&sort=energy",
}


def main(quick: bool = False) -> None:
    """The tables."""
    days = 14 if quick else 365
    first_s = time.time() // DAY_S * DAY_S - (days - 1) * DAY_S
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as name:
        store = Path(name) / "store"
        with ProcessPoolExecutor(WORKERS) as pool:
            list(pool.map(write_day, [str(store)] * days, range(days), [first_s] * days, chunksize=4))
        size = sum(path.stat().st_size for path in store.rglob("*.parquet"))
        jobs, hours = days * JOBS_A_DAY, days * 24 * HOUR_NODES * len(DEVICES)
        say(f"{days} days: {jobs:,} jobs, {hours:,} hours of devices, {size / 1e6:.0f} MB.")
        rows = [*over_http(store, days, first_s), *by_command(store, days, first_s)]
    worst = max(float(str(row[1])) for row in rows)
    OUT.table(["QUERY", "SECONDS", "CPU SECONDS", "TARGET", "VERDICT"], rows, right=(1, 2, 3))
    OUT.text(f"the slowest took {worst:.2f} s")


def over_http(store: Path, days: int, first_s: float) -> list[list[Any]]:
    """Seconds of each page, as a browser waits for it, and the CPU seconds of the server."""
    words = [sys.executable, "-m", "everywatt", "serve", "--listen", "127.0.0.1:0", "--token", TOKEN, "--json"]
    env = {**environment(), "EVERYWATT_HOME": str(store.parent / "runs")}
    (store.parent / "runs").mkdir()
    words += ["--slurm-store", str(store)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True)
    rows = []
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "}\n")
        url = json.loads("".join([*lines, "}"]))["url"].rstrip("/")
        month = time.strftime("%Y-%m", time.gmtime(first_s + (days // 2) * DAY_S))
        fetched(f"{url}/slurm/job/1", missing=True)  # what the first answer of a server takes is to start it
        for name, path in PAGES.items():
            used_s, began = cpu_s(server.pid), time.perf_counter()
            text = fetched(url + path.format(month=month, job=days * JOBS_A_DAY // 2))
            took_s = time.perf_counter() - began
            assert len(text) > 300, name
            rows.append(row_of(f"page: {name}", took_s, cpu_s(server.pid) - used_s))
    finally:
        server.terminate()
        server.wait(30)
    return rows


def fetched(url: str, *, missing: bool = False) -> bytes:
    """The body of a page."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        return bytes(urllib.request.urlopen(request, timeout=120).read())
    except urllib.error.HTTPError:
        if not missing:
            raise
        return b""


def by_command(store: Path, days: int, first_s: float) -> list[list[Any]]:
    """What `slurm jobs` and `slurm report` ask for."""
    from everywatt.slurm.site.store import Store
    from everywatt.slurm.site.totals import GROUPS, Wanted, jobs, node_sums, sums

    opened, until_s = Store(store), first_s + (days + 1) * DAY_S
    wanted = Wanted(first_s, until_s)
    queries: dict[str, Callable[[], Any]] = {
        **{f"slurm jobs --by {by}": lambda by=by: sums(opened, wanted, by) for by in GROUPS},
        "slurm jobs --sort energy --limit 20": lambda: jobs(opened, wanted, "energy", 20),
        "slurm jobs --user u5, a week": lambda: jobs(opened, Wanted(until_s - 8 * DAY_S, until_s, user="u5")),
        "what all nodes drew": lambda: node_sums(opened, first_s, until_s),
    }
    rows = []
    for name, query in queries.items():
        used_s, began = time.process_time(), time.perf_counter()
        assert query(), name
        rows.append(row_of(name, time.perf_counter() - began, time.process_time() - used_s))
    return rows


def row_of(name: str, took_s: float, used_s: float) -> list[Any]:
    return [name, f"{took_s:.2f}", f"{used_s:.2f}", f"{TARGET_S:g}", verdict(took_s, TARGET_S)]


def write_day(folder: str, day: int, first_s: float) -> None:
    """A compacted day of the store: jobs and the hours of nodes."""
    import pyarrow as pa

    from everywatt.slurm.schema import KINDS
    from everywatt.slurm.site.store import replace_parquet, with_sums

    chance, start_s = np.random.default_rng(day), first_s + day * DAY_S
    made = {"jobs": job_columns(chance, day, start_s), "nodes": hour_columns(chance, start_s)}
    for kind, columns in made.items():
        schema, count = KINDS[kind].schema(), len(columns["node"])
        arrays = [
            pa.array(columns[field.name], type=field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in schema
        ]
        target = Path(folder) / kind / time.strftime("date=%Y-%m-%d", time.gmtime(start_s))
        target.mkdir(parents=True)
        table = pa.Table.from_arrays(arrays, schema=schema)
        replace_parquet(target / "compact.parquet", with_sums(table) if kind == "nodes" else table)


def job_columns(chance: np.random.Generator, day: int, start_s: float) -> dict[str, Any]:
    """The jobs that ended on a day, in the order of their ends."""
    count = JOBS_A_DAY
    ends = start_s + np.sort(chance.uniform(0, DAY_S, count))
    energy = (chance.lognormal(10, 2, count) * 1e6).astype(np.int64)
    part = [("device", "cpu.0"), ("domain", "package"), ("source", "rapl")]
    return {
        "job_id": 1 + day * count + np.arange(count),
        "node": np.char.add("n", chance.integers(0, NODES, count).astype(str)),
        "start_s": ends - chance.exponential(3000, count) - 1,
        "end_s": ends,
        "user": np.char.add("u", chance.integers(0, USERS, count).astype(str)),
        "account": np.char.add("a", chance.integers(0, ACCOUNTS, count).astype(str)),
        "partition": chance.choice(["short", "long"], count),
        "state": chance.choice(["COMPLETED", "FAILED", "TIMEOUT"], count),
        "energy_uj": energy,
        "low_uj": (energy * 0.9).astype(np.int64),
        "high_uj": (energy * 1.1).astype(np.int64),
        "idle_uj": energy // 3,
        "waste_uj": energy // 9,
        "cpus": np.full(count, 4.0),
        "cpu_s": chance.exponential(3000, count),
        "coverage": np.ones(count),
        "restart": np.zeros(count, dtype=np.int32),
        "nodes": np.ones(count, dtype=np.int32),
        "complete": np.ones(count, dtype=bool),
        "cluster": np.full(count, "c"),
        "devices": [[dict(part, energy_uj=uj, low_uj=uj, high_uj=uj, idle_uj=0)] for uj in energy.tolist()],
    }


def hour_columns(chance: np.random.Generator, start_s: float) -> dict[str, Any]:
    """The hours of nodes of a day."""
    shape = (24, HOUR_NODES, len(DEVICES))
    count = int(np.prod(shape))
    hour, node, device = (axis.ravel() for axis in np.indices(shape))
    total = chance.integers(10**11, 10**12, count)
    starts = (start_s + hour * 3600).astype(np.int64)
    return {
        "hour_s": starts,
        "node": np.char.add("n", node.astype(str)),
        "device": np.array(DEVICES)[device],
        "domain": np.array(["package", "package", "gpu", "gpu"])[device],
        "source": np.array(["rapl", "rapl", "nvml", "nvml"])[device],
        "total_uj": total,
        "jobs_uj": total // 2,
        "idle_uj": total // 4,
        "system_uj": total - total // 2 - total // 4,
        "coverage": np.ones(count),
        "from_s": starts.astype(float),
        "to_s": starts + 3600.0,
    }
