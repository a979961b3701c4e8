"""A day of Slurm nodes, 20 jobs and 8 channels each, a tick every 10 s, booked as `slurm node` does.

everywatt     a tape a node (energy, processes in their jobs' cgroups, processes on cards) → each job's share of each
              device, hour by hour, in whole microjoules (`slurm.node.booking`); written to a store and compacted. At a
              site every node books its own day; here two processes book all of them.
Lab-IA's way  a JSON log of each job, read line by line into a pandas frame, trapezoids, a row a job; at a tenth of the
              size. Done again here as its scripts are described; no code of theirs.

Checked on the way: jobs + idle + system is what all channels drew, and both ways see the same joules at the plug.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import OUT, environment, say, verdict

DAY_S = 86_400
PERIOD_S = 10
TICKS = DAY_S // PERIOD_S
START_S = 1_794_700_800  # 2026-11-15T00:00Z
JOBS_A_NODE = 20
CPUS = 64
IDLE_W = {"cpu.0": 60.0, "cpu.1": 60.0, "dram.0": 10.0, "dram.1": 10.0} | {f"gpu.{n}": 55.0 for n in range(4)}
NAMES = tuple(IDLE_W)
TARGET_S, TARGET_MB = 86.4, 2000.0  # 0.1 % of one of the node's cores for a day
WORKERS = 2

WORK = """
import sys
from benchmarks.slurm_day import work
work(sys.argv[1], int(sys.argv[2]))
"""


def jobs_of(node: int) -> list[tuple[int, int, int, int]]:
    """Job number, first and last tick and GPU (-1: none) of each job of a node; they overlap."""
    rng = np.random.default_rng(node)
    lengths = np.clip(rng.exponential(5400 / PERIOD_S, JOBS_A_NODE).astype(int), 1, TICKS - 1)
    starts = (rng.uniform(0, 1, JOBS_A_NODE) * (TICKS - lengths)).astype(int)
    cards = rng.integers(-1, 4, JOBS_A_NODE)
    return [
        (node * JOBS_A_NODE + n + 1, int(starts[n]), int(starts[n] + lengths[n]), int(cards[n]))
        for n in range(JOBS_A_NODE)
    ]


def series_of(node: int) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    """Joules of each tick and channel, and the sparse use: tick, job (place), CPU seconds, GPU seconds and card."""
    rng = np.random.default_rng(10_000 + node)
    joules = rng.normal(0, 2.0, (TICKS, len(NAMES))) + np.array(list(IDLE_W.values())) * PERIOD_S
    ticks, owners, cpu_s, gpu_s, card = [], [], [], [], []
    for place, (_, first, last, gpu) in enumerate(jobs_of(node)):
        count = last - first
        used = rng.uniform(1, 8, count) * PERIOD_S / JOBS_A_NODE * 4
        joules[first:last, :2] += (used * 1.5)[:, None]
        joules[first:last, 2:4] += (used * 0.2)[:, None]
        busy = rng.uniform(0, PERIOD_S, count) if gpu >= 0 else np.zeros(count)
        if gpu >= 0:
            joules[first:last, 4 + gpu] += busy * 200.0
        ticks.append(np.arange(first, last))
        owners.append(np.full(count, place))
        cpu_s.append(used)
        gpu_s.append(busy)
        card.append(np.full(count, gpu))
    names = ("tick", "job", "cpu_s", "gpu_s", "card")
    columns: tuple[list[np.ndarray[Any, Any]], ...] = (ticks, owners, cpu_s, gpu_s, card)
    return joules, {name: np.concatenate(parts) for name, parts in zip(names, columns, strict=True)}


def write_node(folder: str, node: int) -> None:
    """A node's tape: counters of its devices, the host's CPU time, a process of each job, and those on cards."""
    from everywatt.core.channels import Cadence, Channel, Domain, GroupInfo, Kind, Row
    from everywatt.core.clocks import NS, Anchor
    from everywatt.tape.writer import TapeWriter

    domains = {"cpu": Domain.PACKAGE, "dram": Domain.DRAM, "gpu": Domain.GPU}
    joules, use = series_of(node)
    writer = TapeWriter(Path(folder) / f"n{node}.tape", {"host": {"name": f"n{node}", "cpus": CPUS}})
    writer.anchor(Anchor(0, START_S * NS, 0, 0))
    at = [tick * PERIOD_S * NS for tick in range(TICKS + 1)]

    def counters(info: GroupInfo, columns: np.ndarray[Any, Any]) -> None:
        number = writer.add_group(info, PERIOD_S)
        values = np.vstack((np.zeros(columns.shape[1]), np.cumsum(columns, axis=0))).tolist()
        rows = [Row(when, when, when, tuple(row)) for when, row in zip(at, values, strict=True)]
        for first in range(0, len(rows), 360):
            writer.append(number, rows[first : first + 360])

    for place, name in enumerate(NAMES):
        domain = domains[name.split(".")[0]]
        channel = Channel(f"{name}.{domain.value}.energy", "J", Kind.COUNTER, name, domain)
        counters(GroupInfo(f"sim.{name}", "sim", name, (channel,)), joules[:, place : place + 1])
    busy_s = np.bincount(use["tick"], use["cpu_s"], TICKS)
    times = ("host.cpu_time", "host.idle_time")
    host = GroupInfo("use.host", "use", "host", tuple(Channel(name, "s", Kind.COUNTER, "host") for name in times))
    counters(host, np.column_stack((busy_s, CPUS * PERIOD_S - busy_s)))
    processes = writer.add_group(GroupInfo("use.processes", "use", "host", (), Cadence.SLOW, table=True), PERIOD_S)
    cards = writer.add_group(GroupInfo("nvml.processes", "nvml", "gpu", (), Cadence.SLOW, table=True), PERIOD_S)
    writer.append_table(processes, 0, [{"pid": 0, "start": 0, "name": "host", "everything": True}])
    jobs, used_s = jobs_of(node), dict.fromkeys(range(JOBS_A_NODE), 0.0)
    rows_of = np.argsort(use["tick"], kind="stable")
    tick, place = use["tick"][rows_of], 0
    for now in range(TICKS):
        table: list[dict[str, Any]] = []
        on_cards: list[dict[str, Any]] = []
        while place < len(tick) and tick[place] == now:
            row = rows_of[place]
            place += 1
            job = int(use["job"][row])
            job_id, first, last, gpu = jobs[job]
            used_s[job] += float(use["cpu_s"][row])
            pid, start = 1000 + job, first * PERIOD_S * 100
            table.append(
                {"pid": pid, "start": start, "ppid": 1, "name": "work", "cpu_s": used_s[job], "children_cpu_s": 0.0,
                 "rss_bytes": 1 << 30, "threads": 4, "uid": 1000, "cgroup": f"/slurm/uid_1000/job_{job_id}/step_0"}
            )  # fmt: skip
            if gpu >= 0:
                sm = 100 * float(use["gpu_s"][row]) / PERIOD_S
                on_cards.append({"gpu": gpu, "pid": pid, "type": "C", "memory_bytes": 1 << 30, "sm": sm})
            if last == now + 1:
                table.append({"pid": pid, "start": start, "gone": True})
                on_cards += [{**on_cards[-1], "gone": True}] if gpu >= 0 else []
        if table:
            writer.append_table(processes, at[now + 1], table)
        if on_cards:
            writer.append_table(cards, at[now + 1], on_cards)
        if now % 360 == 359:
            writer.flush()
    writer.seal()


def book_nodes(folder: str, nodes: list[int]) -> tuple[int, int, int]:
    """Book some nodes into the store; gives what they drew, what was booked, and this process's peak kilobytes."""
    from everywatt.energy.sources import addable, sources
    from everywatt.slurm.node.booking import book, merge_hours, sensor_of
    from everywatt.slurm.node.node_jobs import NodeJob
    from everywatt.slurm.node.state import Account, record
    from everywatt.slurm.site.store import Store
    from everywatt.tape.reader import Tape

    store = Store(Path(folder) / "store")
    drawn_uj = booked_uj = 0
    for node in nodes:
        jobs = [
            NodeJob(
                job_id,
                0,
                START_S + first * PERIOD_S,
                START_S + last * PERIOD_S,
                node=f"n{node}",
                cluster="c",
                user=f"u{job_id % 300}",
                account=f"a{job_id % 40}",
                state="COMPLETED",
                cpus=4.0,
                gpus=[gpu] if gpu >= 0 else [],
                cards=[f"gpu.{gpu}"] if gpu >= 0 else [],
            )
            for job_id, first, last, gpu in jobs_of(node)
        ]
        accounts: dict[str, Account] = {}
        with Tape.open(Path(folder) / f"n{node}.tape", verify=False) as tape:
            booked = book(tape, f"n{node}", jobs, accounts, START_S, START_S + DAY_S, {})
            devices = {s.label: (s.domain.value, sensor_of(s)) for s in addable(sources(tape))}
        hours = merge_hours(booked)
        store.append([record(job, accounts.get(job.key), devices, "cpu+gpu") for job in jobs], f"n{node}")
        store.append_hours(hours, f"n{node}")
        drawn_uj += sum(round(value) for value in series_of(node)[0].sum(axis=0) * 1e6)
        booked_uj += sum(row.jobs_uj + row.idle_uj + row.system_uj for row in hours)
    return drawn_uj, booked_uj, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def work(folder: str, nodes: int) -> None:
    """Book a day with two processes, and compact it; prints seconds, peak megabytes, and how far the sum is off."""
    from datetime import date

    from everywatt.slurm.site.store import Store

    began = time.perf_counter()
    chunks = [list(range(nodes))[place::WORKERS] for place in range(WORKERS)]
    with ProcessPoolExecutor(WORKERS) as pool:
        done = list(pool.map(book_nodes, [folder] * WORKERS, chunks))
    for kind in ("jobs", "nodes"):
        Store(Path(folder) / "store").compact(date(2026, 11, 15), kind)
    seconds = time.perf_counter() - began
    own_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in spent)
    off = abs(sum(d[1] for d in done) - sum(d[0] for d in done)) / sum(d[0] for d in done)
    print(json.dumps({"s": seconds, "mb": (sum(d[2] for d in done) + own_kb) / 1024, "off": off, "cpu": cpu_s}))


def write_logs(folder: Path, nodes: int) -> int:
    """The same day as logs of each job, as Lab-IA has them; gives how many lines."""
    from datetime import UTC, datetime

    lines = 0
    for node in range(nodes):
        joules, _ = series_of(node)
        for job_id, first, last, gpu in jobs_of(node):
            path = folder / "logs" / f"u{job_id % 300}" / str(job_id)
            path.mkdir(parents=True)
            with (path / "power_metrics.json").open("w") as file:
                for tick in range(first, last):
                    at = datetime.fromtimestamp(START_S + tick * PERIOD_S, UTC)
                    watts = joules[tick] / PERIOD_S
                    card = {str(gpu): watts[4 + gpu]} if gpu >= 0 else {}
                    metrics = {
                        "cpu": {"intel_power": watts[:2].sum(), "total_dram_power": watts[2:4].sum()},
                        "gpu": {"per_gpu_power_draw": card},
                    }
                    file.write(json.dumps({"date": f"{at:%Y-%m-%d %H:%M:%S}.000000", "metrics": metrics}) + "\n")
                    lines += 1
    return lines


def labia_way(folder: str) -> None:
    """Each job's log into a frame, trapezoids, a row; then a table for each user. Prints seconds and megabytes."""
    import pandas as pd

    began = time.perf_counter()
    rows = []
    for path in sorted(Path(folder, "logs").rglob("power_metrics.json")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        frame = pd.json_normalize(records)
        frame["date"] = pd.to_datetime(frame["date"])
        at = (frame["date"] - frame["date"].iloc[0]).dt.total_seconds().to_numpy()
        powers = [name for name in frame.columns if name.startswith("metrics.")]
        sums = {name: float(np.trapezoid(frame[name].fillna(0.0).to_numpy(), at)) for name in powers}
        rows.append({"user": path.parent.parent.name, "job": path.parent.name, **sums})
    table = pd.DataFrame(rows)
    for user, part in table.groupby("user"):
        part.to_csv(Path(folder, f"{user}.csv"), index=False)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"s": time.perf_counter() - began, "mb": peak_kb / 1024, "cpu": time.process_time()}))


def timed(code: str, *words: str) -> dict[str, float]:
    """What a process of its own prints."""
    done = subprocess.run([sys.executable, "-c", code, *words], env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout))


def _environment() -> dict[str, str]:
    env = environment()
    root = str(Path(__file__).resolve().parent.parent)
    return {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], root])}


def main(quick: bool = False) -> None:
    """The tables."""
    sizes = (2, 10) if quick else (5, 50)
    rows, ours = [], []
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as name:
        for nodes in sizes:
            folder = Path(name) / str(nodes)
            folder.mkdir()
            with ProcessPoolExecutor(WORKERS) as pool:
                list(pool.map(write_node, [str(folder)] * nodes, range(nodes), chunksize=8))
            found = timed(WORK, str(folder), str(nodes))
            ours.append(found)
            rows.append(["everywatt", nodes, nodes * JOBS_A_NODE, *_cells(found), f"{found['off']:.1e}"])
        tenth = max(sizes[1] // 10, 1)
        lines = write_logs(Path(name), tenth)
        code = "import sys; from benchmarks.slurm_day import labia_way; labia_way(sys.argv[1])"
        theirs = timed(code, name)
        rows.append(["Lab-IA's way, pandas", tenth, tenth * JOBS_A_NODE, *_cells(theirs), None])
        OUT.table(["WAY", "NODES", "JOBS", "TIME", "CPU TIME", "MEMORY", "SUM OFF BY"], rows, right=range(1, 7))
        say(f"{len(NAMES)} channels a node, a tick every {PERIOD_S} s; {lines} lines of JSON for pandas.")
    growth = ours[1]["cpu"] / sizes[1] / (ours[0]["cpu"] / sizes[0])
    node_s = ours[1]["cpu"] / sizes[1]
    targets: list[list[object]] = [
        ["CPU seconds of a node for its day", f"{node_s:.2f}", f"{TARGET_S:g}", verdict(node_s, TARGET_S)],
        ["megabytes of two processes", f"{ours[1]['mb']:.0f}", f"{TARGET_MB:g}", verdict(ours[1]["mb"], TARGET_MB)],
        ["CPU time a node at ten times the nodes, relative", f"{growth:.2f}", "1.1", verdict(growth, 1.1)],
        ["CPU time a job, relative to pandas", f"{node_s / (theirs['cpu'] / tenth):.1f}", None, None],
    ]
    OUT.table(["FIGURE", "IS", "TARGET", "VERDICT"], targets, right=(1, 2))


def _cells(found: dict[str, float]) -> list[str]:
    return [f"{found['s']:.1f} s", f"{found['cpu']:.1f} s", f"{found['mb']:.0f} MB"]
