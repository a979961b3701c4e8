"""CPU time of the processes in a simulated machine: of those that live, and of those that came and went unseen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TICK_NS = 1_000_000_000 // _TICKS_PER_S


@dataclass(slots=True)
class One:
    """A process: nanoseconds it used, those of its children before it was seen, and those known since then."""

    pid: int
    name: str = ""
    start: int | None = None
    ppid: int = 0
    seen_ns: int = 0
    waited_ns: int = 0
    base_ns: int = 0
    known_ns: int = 0

    @property
    def unseen_ns(self) -> int:
        """What children used that were never seen; the kernel gives it in whole ticks of user and system time."""
        more = self.waited_ns - self.base_ns - self.known_ns
        return more if more > 2 * _TICK_NS else 0


@dataclass
class Tree:
    """A process and its descendants without `skip`, from the kernel's per-process CPU clocks."""

    root: int
    skip: int
    live: dict[int, One] = field(default_factory=dict)

    def scan(self) -> dict[int, int]:
        """Find the processes that there are now. Gives what unseen children of each used, in nanoseconds."""
        for one in self.live.values():  # before looking who is left: a child that ends in between is not counted twice
            _read(one)
        found = [pid for pid in _descendants(self.root) if pid != self.skip]
        # Later ones first: a child that went with its parent is the parent's, and with it the grandparent's.
        for pid in sorted(
            set(self.live).difference(found), key=lambda pid: (self.live[pid].start or 0, pid), reverse=True
        ):
            gone = self.live.pop(pid)
            parent = self.live.get(gone.ppid)
            if parent is not None:
                parent.known_ns += gone.seen_ns + gone.base_ns + gone.known_ns
        for pid in found:
            if pid not in self.live:
                self.live[pid] = one = One(pid)
                _read(one)
                if pid == self.root:  # what it used before the machine was started is not the machine's
                    one.base_ns = one.waited_ns
                    one.seen_ns = _clock_ns(pid) or 0
        unseen = {pid: one.unseen_ns for pid, one in self.live.items() if one.unseen_ns}
        for pid, spent in unseen.items():
            self.live[pid].known_ns += spent
        return unseen

    def used_ns(self) -> dict[int, int]:
        """CPU nanoseconds of each process since the last call."""
        used = {}
        for pid, one in self.live.items():
            now = _clock_ns(pid)
            if now is not None:
                used[pid] = now - one.seen_ns
                one.seen_ns = now
        return used


def _clock_ns(pid: int) -> int | None:
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's name for another process's CPU clock
    except OSError:
        return None


def _read(one: One) -> None:
    try:
        data = Path(f"/proc/{one.pid}/stat").read_text(errors="replace")
    except OSError:
        return
    words = data[data.rindex(")") + 2 :].split()
    one.name = data[data.index("(") + 1 : data.rindex(")")]
    one.ppid, one.start = int(words[1]), int(words[19])
    one.waited_ns = (int(words[13]) + int(words[14])) * _TICK_NS


def _descendants(root: int) -> Iterator[int]:
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue


class HostStat:
    """The /proc/stat that programs in the machine see: the CPU time of the machine's own processes, idle otherwise.

    `t0_ns` is the machine's start.
    """

    def __init__(self, path: Path, t0_ns: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._cpus = os.cpu_count() or 1
        self._began = t0_ns / 1e9
        self._boot = int(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
        self.put(0.0)

    def put(self, busy_s: float) -> None:
        """These seconds were used since the start. Every text is as long as the last: readers keep the file open."""
        busy = int(busy_s * _TICKS_PER_S)
        total = int((time.monotonic() - self._began) * self._cpus * _TICKS_PER_S)
        lines = [_line("cpu ", busy, total - busy)]
        lines += [_line(f"cpu{n}", busy // self._cpus, (total - busy) // self._cpus) for n in range(self._cpus)]
        lines += ["intr 0", "ctxt 0", f"btime {self._boot}", "processes 1", "procs_running 1", "procs_blocked 0"]
        os.pwrite(self._fd, ("\n".join(lines) + "\n").encode(), 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def _line(name: str, busy: int, idle: int) -> str:
    return f"{name} {busy:012d} 0 0 {max(idle, 0):012d} 0 0 0 0 0 0"
