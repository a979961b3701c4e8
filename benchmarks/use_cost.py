"""What one read of the `use` sensor costs, with many other processes alive on the machine.

    python benchmarks/use_cost.py [--others 1000] [--reads 200] [--groups 50]

Trees of 1, 10 and 100 processes are followed, and all processes of the machine. `quiet`: nothing was started since the
last read. `forking`: something was, so it is looked for. Beside them, one pass over the whole of /proc, which is what a
sensor without clocks would do. The last line is CPU time: what the whole sensor costs once a second with all processes,
the cgroups and exit records, as a share of one core; the target is 0.6 %.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.sensors import procfs
from everywatt.sensors.base import Request
from everywatt.sensors.usage.processes import Trees
from everywatt.sensors.usage.use import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Forks N children that wait until standard input is closed, and says when they are all there.
CROWD = """
import os, sys
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
print("ready", flush=True)
os.read(0, 1)
"""


def crowd(count: int) -> subprocess.Popen[bytes]:
    """A process with `count` sleeping children; all end when its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", CROWD, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def median_us(action: Callable[[], object], reads: int, before: Callable[[], object] = lambda: None) -> float:
    """The median time of `action` in µs; `before` is not counted."""
    times = []
    for _ in range(reads):
        before()
        start = time.perf_counter_ns()
        action()
        times.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(times)


def fork_once() -> None:
    """Start something, so that the machine's last pid moves."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def scan_all() -> None:
    """Read the stat of every process there is."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                procfs.parse_process_stat(procfs.slurp(f"/proc/{name}/stat", 2048))
            except OSError:
                continue


def measure_tree(size: int, reads: int) -> tuple[float, float]:
    """Median µs of a read of a tree of `size` processes: quiet, forking."""
    root = crowd(size - 1)
    trees = Trees(Path("/proc"), [root.pid])
    try:
        for _ in range(5):
            trees.read()
        assert len(trees) == size
        return median_us(trees.read, reads), median_us(trees.read, reads, fork_once)
    finally:
        trees.close()
        end(root)


def measure_everything(reads: int) -> tuple[float, float]:
    """Median µs of a read of all processes: quiet, forking."""
    trees = Trees(Path("/proc"), everything=True, exits=True)
    try:
        for _ in range(5):
            trees.read()
        return median_us(trees.read, reads), median_us(trees.read, reads, fork_once)
    finally:
        trees.close()


@contextlib.contextmanager
def made_groups(count: int) -> Iterator[int]:
    """So many cgroups with a sleeping process in each, where they can be made; gives how many there are."""
    parents = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")]
    mounts = [folder for folder in parents if (folder / "cgroup.procs").exists()]
    made: list[tuple[list[Path], subprocess.Popen[bytes]]] = []
    try:
        for number in range(count if os.getuid() == 0 else 0):
            folders = [mount / f"everywatt-bench-{os.getpid()}-{number}" for mount in mounts]
            made.append((folders, subprocess.Popen(["sleep", "600"])))
            for folder in folders:
                folder.mkdir()
                (folder / "cgroup.procs").write_text(str(made[-1][1].pid))
    except OSError as error:
        print(f"cgroups cannot be made: {error}", file=sys.stderr)
    try:
        yield len(made)
    finally:
        for folders, process in made:
            process.kill()
            process.wait()
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def cost_of_the_sensor(reads: int) -> float:
    """CPU milliseconds of one read of all its groups, with everything, while something is started now and then."""
    groups = Use(Request(everything=True)).groups()
    host, tables = groups[0], groups[1:]
    spent_ns = 0
    try:
        for number in range(reads + 5):
            fork_once()
            time.sleep(0.1)
            start = time.thread_time_ns()
            host.read()  # type: ignore[union-attr]
            for table in tables:
                table.read_table()  # type: ignore[union-attr]
            spent_ns += time.thread_time_ns() - start if number >= 5 else 0
    finally:
        for group in groups:
            group.close()
    return spent_ns / reads / 1e6


def end(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin, which ends it and its children."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def main(quick: bool | None = None) -> None:
    """Print the table. `quick` given: called by another program, no command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--others", type=int, default=1000)
    parser.add_argument("--reads", type=int, default=200)
    parser.add_argument("--groups", type=int, default=50)
    arguments = parser.parse_args(None if quick is None else ["--reads", "50"] * quick)
    others = crowd(arguments.others)
    try:
        alive = sum(name.isdigit() for name in os.listdir("/proc"))
        print(f"{alive} processes alive; median of {arguments.reads} reads, µs")
        print(f"{'what':28} {'quiet':>8} {'forking':>8}")
        for size in (1, 10, 100):
            quiet, forking = measure_tree(size, arguments.reads)
            print(f"use.processes, tree of {size:<5} {quiet:8.0f} {forking:8.0f}")
        quiet, forking = measure_everything(arguments.reads)
        print(f"{'use.processes, everything':28} {quiet:8.0f} {forking:8.0f}")
        host = Use(Request()).groups()[0]
        print(f"{'use.host':28} {median_us(host.read, arguments.reads):8.0f}")
        print(f"{'(all of /proc)':28} {median_us(scan_all, max(5, arguments.reads // 20)):8.0f}")
        host.close()
        with made_groups(arguments.groups) as count:
            spent_ms = cost_of_the_sensor(max(10, arguments.reads // 10))
            print(f"the sensor at 1 Hz with {alive} processes and {count} cgroups: {spent_ms / 10:.2f} % of a core")
    finally:
        end(others)


if __name__ == "__main__":
    main()
