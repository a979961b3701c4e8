"""What one read of the `use` sensor costs in CPU time, with many other processes alive on the machine.

    python -m benchmarks use_cost [--quick] [--against base]

Trees of 1, 10 and 100 processes are followed, and all processes of the machine. `quiet`: nothing was started since the
last read. `forking`: something was, so it is looked for. Beside them, one pass over the whole of /proc, which is what a
sensor without clocks would do. The last row is what the whole sensor costs once a second with all processes, the
cgroups and exit records, as a share of one core; the target is 0.6 %. A process of its own reads (`_use_reader.py`).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common import HERE, OUT, environment, say
from everywatt.sensors import procfs

DRIVES_COMMANDS = True  # see _against.py
OTHERS, GROUPS = 1000, 50
READS, QUICK_READS = 200, 50
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


class Reader:
    """Reads the `use` sensor of the source that is measured (BENCH_SOURCE), in a process of its own."""

    def __init__(self) -> None:
        words = [sys.executable, str(HERE / "_use_reader.py")]
        self._process = subprocess.Popen(
            words, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._ask("")

    def open(self, what: str) -> None:
        """What is to be read from now on: `sensor` for all groups, `all` processes, `tree PID`, `host`."""
        self._ask(f"open {what}")

    def read(self) -> tuple[float, int]:
        """CPU seconds of one read, and how many processes it knows."""
        spent_s, known = self._ask("read").split()
        return float(spent_s), int(known)

    def median_us(self, reads: int, before: Callable[[], object] = lambda: None) -> float:
        """The median CPU time of a read in µs; `before` is not counted."""
        times = []
        for _ in range(reads):
            before()
            times.append(self.read()[0])
        return 1e6 * statistics.median(times)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        if line:
            self._process.stdin.write(f"{line}\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the reader ended with {self._process.wait()}")
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def reading(what: str) -> Iterator[Reader]:
    """A reader that has read a few times, so that it knows who is there."""
    with contextlib.closing(Reader()) as reader:
        reader.open(what)
        for _ in range(5):
            reader.read()
        yield reader


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


def scan_us(reads: int) -> float:
    """The median CPU time of a pass over all of /proc, in µs."""
    times = []
    for _ in range(reads):
        began = time.process_time()
        scan_all()
        times.append(time.process_time() - began)
    return 1e6 * statistics.median(times)


def measure(what: str, reads: int) -> list[str]:
    """Median µs of a read: quiet, forking."""
    with reading(what) as reader:
        return [f"{reader.median_us(reads):.1f}", f"{reader.median_us(reads, fork_once):.1f}"]


def measure_tree(size: int, reads: int) -> list[str]:
    """The same of a tree of `size` processes."""
    root = crowd(size - 1)
    try:
        return measure(f"tree {root.pid}", reads)
    finally:
        end(root)


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
        say(f"cgroups cannot be made: {error}")
    try:
        yield len(made)
    finally:
        for folders, process in made:
            process.kill()
            process.wait()
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def sensor_share(reads: int) -> float:
    """Of one core at 1 Hz, in percent: all groups with everything, while something is started now and then."""
    with reading("sensor") as reader:

        def fork_and_wait() -> None:
            fork_once()
            time.sleep(0.1)

        return reader.median_us(reads, fork_and_wait) / 1e4


def end(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin, which ends it and its children."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def main(quick: bool) -> None:
    """Print the tables."""
    reads = QUICK_READS if quick else READS
    others = crowd(OTHERS)
    try:
        alive = sum(name.isdigit() for name in os.listdir("/proc"))
        rows = [[f"tree of {size}", *measure_tree(size, reads)] for size in (1, 10, 100)]
        rows.append(["everything", *measure("all", reads)])
        with reading("host") as reader:
            rows.append(["the host", f"{reader.median_us(reads):.1f}"])
        rows.append(["(all of /proc)", f"{scan_us(max(5, reads // 20)):.1f}"])
        OUT.text(f"{alive} processes alive; medians of {reads} reads")
        OUT.table(["one read, µs of CPU", "quiet", "forking"], [(*row, "")[:3] for row in rows], right=(1, 2))
        with made_groups(GROUPS) as count:
            share = sensor_share(max(20, reads // 10))
        title = "the sensor at 1 Hz with all processes"
        OUT.table(
            ["what", "cgroups", "% of a core"], [["everywatt", str(count), f"{share:.3f}"]], right=(1, 2), title=title
        )
    finally:
        end(others)


if __name__ == "__main__":
    main("--quick" in sys.argv)
