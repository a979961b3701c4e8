"""What knowing who used what costs at 1 Hz: 10 to 10,000 processes in 50 cgroups, beside other ways to know it.

Real processes, which sleep; one in ten wakes up once a second. All methods take turns, so that all see the same
machine, everywatt's in a process of its own (`_use_reader.py`); what counts is the CPU time of the reading, the
kernel's part included. The published methods of other tools are done again in Python, with the same file reading and
parsing as everywatt's, so that what differs is the method:

everywatt          the `use` sensor: host, all processes (their CPU clocks; files of those that ran), all cgroups
its recorder       the recorder process as a whole while it does that, with its schedule, compression and tape
psutil             process_iter with cpu_times and memory_info
Scaphandre's way   /proc/stat and the stat of every process, each time
Kepler's way       the same, and the cgroup file of every process
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from benchmarks.common import OUT, cpu_s, environment, say, subject, verdict
from benchmarks.use_cost import Reader
from everywatt.sensors import procfs
from everywatt.sensors.usage import cgroups

DRIVES_COMMANDS = True  # see _against.py
GROUPS = 50
QUICK_SIZE, QUICK_READS, QUICK_PERIOD_S = 100, 60, 0.05
SIZES = (10, 100, 1_000, 10_000)
RECORDER_S = 12.0  # in 3 s, with a flush and a compression more or less, it varied by a factor of five
TARGET_SIZE = 1_000
TARGET_SHARE = 0.006
ROOT = Path("/sys/fs/cgroup")
# Forks N children that end with their parent; every tenth wakes up once a second, the others only wait.
CROWD = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        libc.prctl(1, signal.SIGKILL)
        while number % 10 == 0:
            time.sleep(1)
        signal.pause()
        os._exit(0)
print("ready", flush=True)
os.read(0, 1)
"""


@contextmanager
def crowd(count: int) -> Iterator[list[int]]:
    """`count` sleeping processes; gives their pids."""
    parent = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CROWD, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None and parent.stdin is not None
    pids: list[int] = []
    try:
        if parent.stdout.readline().strip() != b"ready":
            raise RuntimeError(f"{count} processes could not be started")
        pids = [int(pid) for pid in procfs.slurp(f"/proc/{parent.pid}/task/{parent.pid}/children").split()]
        yield pids
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.stdin.close()
        parent.stdout.close()
        parent.wait()


@contextmanager
def in_groups(pids: list[int]) -> Iterator[int]:
    """The processes spread over cgroups of their own, where some can be made; gives how many were."""
    base = next((place for place in (ROOT / "cpuacct", ROOT / "cpu,cpuacct", ROOT) if os.access(place, os.W_OK)), None)
    folders: list[Path] = []
    try:
        if base is not None:
            with suppress(OSError):
                for number in range(min(GROUPS, len(pids))):
                    folder = base / f"everywatt-bench-{os.getpid()}-{number}"
                    folder.mkdir()
                    folders.append(folder)
                for number, pid in enumerate(pids):
                    (folders[number % len(folders)] / "cgroup.procs").write_text(str(pid))
        yield len(folders)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in folders:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Processes that were killed take a moment to leave their group."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)
    say(f"{folder} could not be removed")


def psutil_reads() -> int:
    """A pass of psutil's iterator."""
    import psutil

    return sum(1 for _ in psutil.process_iter(["pid", "name", "cpu_times", "memory_info"]))


def scaphandre_reads() -> int:
    """The whole of /proc: times of the host and the stat of every process."""
    procfs.parse_host_times(procfs.slurp("/proc/stat", 512))
    return sum(_stat(pid) for pid in _pids())


def kepler_reads() -> int:
    """The same, and in which cgroup each process is."""
    procfs.parse_host_times(procfs.slurp("/proc/stat", 512))
    found = 0
    for pid in _pids():
        found += _stat(pid)
        with suppress(OSError):
            cgroups.parse_place(procfs.slurp(f"/proc/{pid}/cgroup"))
    return found


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: str) -> bool:
    try:
        procfs.parse_process_stat(procfs.slurp(f"/proc/{pid}/stat", 2048))
    except (OSError, ValueError):
        return False
    return True


def costs(size: int, reads: int, period_s: float) -> tuple[dict[str, float], int]:
    """CPU seconds of one read of each method, taken once in a period in turns, and the number of cgroups."""
    with crowd(size) as pids, in_groups(pids) as groups, closing(Reader()) as reader:
        reader.open("sensor")
        methods = {
            "everywatt": reader.read,
            "psutil": _timed(psutil_reads),
            "Scaphandre's way": _timed(scaphandre_reads),
            "Kepler's way": _timed(kepler_reads),
        }
        spent = _in_turns(methods, size, reads, period_s)
        found = {name: statistics.median(times) for name, times in spent.items()}
        return {"everywatt": found.pop("everywatt"), "its recorder": recorder_cost(RECORDER_S), **found}, groups


def _timed(read: Callable[[], int]) -> Callable[[], tuple[float, int]]:
    def timed() -> tuple[float, int]:
        began = time.process_time()
        found = read()
        return time.process_time() - began, found

    return timed


# Records all processes, power left out, and says the recorder's pid.
RECORD = """
import sys
from everywatt.recorder.client import record
with_all = record(sys.argv[1], meta={}, period_s=1.0, sensors=["use"], everything=True, estimate=False)
print("ready", with_all.status()["pid"], flush=True)
sys.stdin.read()
with_all.close(linger=False)
"""


def recorder_cost(seconds: float) -> float:
    """CPU seconds a second of a recorder that tells of all processes, power left out."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment() | {"EVERYWATT_RUNTIME_DIR": folder, "EVERYWATT_RECORDER_IDLE_S": "0.5"}
        with subject([sys.executable, "-c", RECORD, f"{folder}/a.tape"], env) as (_, words):
            pid = int(words[0])
            time.sleep(6.0)  # the first reads learn who is there
            began, before = time.monotonic(), cpu_s(pid)
            time.sleep(seconds)
            found = (cpu_s(pid) - before) / (time.monotonic() - began)
        deadline = time.monotonic() + 10  # it has left when its folder goes
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def _in_turns(
    methods: dict[str, Callable[[], tuple[float, int]]], size: int, reads: int, period_s: float
) -> dict[str, list[float]]:
    settle = 4  # the first reads learn who is there
    spent: dict[str, list[float]] = {name: [] for name in methods}
    due = time.monotonic()
    for turn in range(settle + reads):
        for name, read in methods.items():
            took, found = read()
            if found < size:
                raise RuntimeError(f"{name} saw {found} of {size} processes")
            if turn >= settle:
                spent[name].append(took)
        due += period_s
        time.sleep(max(0.0, due - time.monotonic()))
    return spent


def main(quick: bool) -> None:
    """Print the table: CPU of one core at 1 Hz for each number of processes."""
    sizes = (QUICK_SIZE,) if quick else SIZES
    found, groups = {}, 0
    for size in sizes:
        found[size], groups = costs(size, *((QUICK_READS, QUICK_PERIOD_S) if quick else (12, 1.0)))
    if groups < GROUPS:
        say(f"{groups} cgroups could be made, not {GROUPS}: the processes share fewer.")
    names = list(found[sizes[0]])
    most = found[sizes[-1]]
    rows = [
        [name, *(f"{found[size][name]:.3%}" for size in sizes), f"{most[name] / most['everywatt']:.1f}×"]
        for name in names
    ]
    heads = [f"at 1 Hz, {groups} cgroups", *(f"{size:,} processes" for size in sizes), "of everywatt's"]
    OUT.table(heads, rows, right=tuple(range(1, len(sizes) + 2)), title="Who used what: CPU of one core")
    if TARGET_SIZE in found:
        share = found[TARGET_SIZE]["everywatt"]
        result = verdict(share, TARGET_SHARE)
        OUT.text(f"everywatt with {TARGET_SIZE:,} processes: {share:.2%} of one core (≤ {TARGET_SHARE:.1%}): {result}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
