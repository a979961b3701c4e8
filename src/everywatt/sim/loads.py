"""Devices whose power follows a load: real CPU time of the processes in the machine, or the GPU use they declare.

The truth stays exact and the same for everyone because it is causal: what was used in one stretch of about 10 ms sets
the power of the next one, from an instant just ahead of now. `python -m everywatt.sim.loads FOLDER PID` is the small
process that follows the CPU time; it ends when its stdin is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.device import Device, is_gpu
from everywatt.core.errors import UsageError
from everywatt.sim.curves import Curve, Load
from everywatt.sim.options import GpuProcess
from everywatt.sim.processes import ProcessTable
from everywatt.sim.truth import EventLog

if TYPE_CHECKING:
    from collections.abc import Mapping

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TICK_NS = 1_000_000_000 // _TICKS_PER_S
STEP_S = 0.010
AHEAD_S = 0.0005
SCAN_EVERY = 5
HOST_STAT = "proc-stat"
_CPUS = os.cpu_count() or 1
_LOADS = "loads.json"
_OWNERS = "owners.json"


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
        os.close(self._fd)


def _line(name: str, busy: int, idle: int) -> str:
    return f"{name} {busy:012d} 0 0 {max(idle, 0):012d} 0 0 0 0 0 0"


def write_loads(folder: Path, curves: Mapping[str, Curve], t0_ns: int) -> None:
    """Leave in the machine's folder what programs inside it need to know of load curves."""
    loads = {
        name: {"idle_w": curve.low_w, "max_w": curve.high_w, "exponent": curve.exponent}
        for name, curve in curves.items()
        if isinstance(curve, Load)
    }
    (folder / _LOADS).write_text(json.dumps({"t0_ns": t0_ns, "loads": loads}))


def read_loads(folder: Path) -> tuple[int, dict[str, Load]]:
    """The machine's t0 and its load curves by device."""
    data = json.loads((folder / _LOADS).read_text())
    loads = {name: Load("load", v["idle_w"], v["max_w"], v["exponent"]) for name, v in data["loads"].items()}
    return int(data["t0_ns"]), loads


class Follower:
    """The process that follows the CPU time of a process and all its descendants."""

    def __init__(self, folder: Path, root: int) -> None:
        self._folder = folder
        t0_ns, loads = read_loads(folder)
        if any(Device.parse(name).is_cpu for name in loads):
            HostStat(folder / HOST_STAT, t0_ns).close()  # before a program can open the real one
        source = str(Path(__file__).parents[2])
        env = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (source, env.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "everywatt.sim.loads", str(folder), str(root)], stdin=subprocess.PIPE, env=env
        )

    @property
    def pid(self) -> int:
        """The process, which uses CPU time without being part of the machine."""
        return self._process.pid

    def stop(self) -> list[dict[str, object]]:
        """End it. Gives the processes it saw, with CPU seconds and the active joules that they caused."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        try:
            rows: list[dict[str, object]] = json.loads((self._folder / _OWNERS).read_text())
        except (OSError, ValueError):
            return []
        return rows


@dataclass(slots=True)
class _Spent:
    """What one process used and caused."""

    command: str = ""
    cpu_s: float = 0.0
    active_j: float = 0.0
    gpu_j: float = 0.0


class Account:
    """What each process of the machine used and caused: CPU seconds, joules of the packages, joules of the cards."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int | None, bool], _Spent] = {}
        self._keys: dict[int, tuple[int, int | None, bool]] = {}
        self.busy_s = 0.0

    def name(self, tree: Tree) -> None:
        """Learn who is there."""
        for pid, one in tree.live.items():
            self._keys[pid] = (pid, one.start, False)
            self._row((pid, one.start, False)).command = one.name

    def _row(self, key: tuple[int, int | None, bool]) -> _Spent:
        return self._rows.setdefault(key, _Spent())

    def add(self, who: int, what: str, amount: float) -> None:
        """Charge a process; a negative number stands for the children of that process that were never seen."""
        pid, start, _ = self._keys.get(abs(who), (abs(who), None, False))
        row = self._row((pid, start, who < 0))
        setattr(row, what, getattr(row, what) + amount)
        if what == "cpu_s":
            self.busy_s += amount

    def rows(self) -> list[dict[str, object]]:
        """All of them: pid, start, name, exited (children of that process), CPU seconds and joules above idle."""
        return [
            {
                "pid": pid,
                "start": start,
                "name": self._rows.get((pid, start, False), row).command if exited else row.command,
                "exited": exited,
                **asdict(row),
                "joules": row.active_j + row.gpu_j,
            }
            for (pid, start, exited), row in self._rows.items()
            if row.cpu_s or row.gpu_j or not exited
        ]


class Following:
    """Sets the power of every load device, step by step."""

    def __init__(self, folder: Path, root: int) -> None:
        self._t0_ns, self._loads = read_loads(folder)
        self._logs = {name: EventLog(folder / f"events-{name}", curve) for name, curve in self._loads.items()}
        self._cards = {name: ProcessTable(folder / f"processes-{name}") for name in self._loads if is_gpu(name)}
        self._cpus = [name for name in self._loads if Device.parse(name).is_cpu]
        self._tree = Tree(root, os.getpid())
        self._stat = HostStat(folder / HOST_STAT, self._t0_ns) if self._cpus else None
        self._weights: dict[int, float] = {}
        self._shares = {name: _shares(table) for name, table in self._cards.items()}
        self._declared: dict[str, float] = {}
        self._late: dict[int, int] = {}
        self._joules: dict[str, float] = {}
        self._number = 0
        self._owed_s = self._share = self._at = 0.0
        self.last = time.monotonic()
        self.account = Account()
        self._tree.scan()
        self._tree.used_ns()

    def step(self) -> None:
        """What was used since the last step sets the power of the next one."""
        now = time.monotonic()
        if self._number % SCAN_EVERY == 0:
            for pid, spent in self._tree.scan().items():
                self._late[-pid] = self._late.get(-pid, 0) + spent
            self.account.name(self._tree)
        passed = now - self.last
        self._charge(now)
        used = self._used(passed) if self._cpus else {}
        at = time.monotonic() - self._t0_ns / 1e9 + AHEAD_S
        busy = sum(used.values()) / 1e9
        # Steps differ in length on a busy host: what the last one drew too little or too much is made up for.
        self._owed_s += busy - self._share * (at - self._at) * _CPUS
        self._share = min(max(self._owed_s / (passed * _CPUS), 0.0), 1.0)
        for name in self._cpus:
            _set(self._logs[name], at, self._loads[name].at_share_w(self._share))
        self._at = at
        for name, table in self._cards.items():
            gone, share = table.sweep(), table.share()
            # What a process declares it writes into the log itself, a moment after the table: only what stays is set.
            if gone or share == self._declared.get(name):
                _set(self._logs[name], at, self._loads[name].at_share_w(share))
            self._declared[name] = share
            self._shares[name] = _shares(table)
        if busy or not self._share:  # else this step draws what those of the one before are still owed
            self._weights = {pid: spent / 1e9 / busy for pid, spent in used.items() if busy and spent}
        if self._stat is not None:
            self._stat.put(self.account.busy_s)
        self._number, self.last = self._number + 1, now

    def _charge(self, now: float) -> None:
        """The joules above idle since the last step are those of the use before it."""
        active = {name: self._active(name, now) for name in self._loads}
        for pid, share in self._weights.items():
            self.account.add(pid, "active_j", share * sum(active[name] for name in self._cpus))
        for name, shares in self._shares.items():
            for pid, sm in shares.items():
                self.account.add(pid, "gpu_j", active[name] * sm / sum(shares.values()))

    def _active(self, name: str, now: float) -> float:
        joules = self._logs[name].joules(now - self._t0_ns / 1e9)
        before, self._joules[name] = self._joules.get(name, joules), joules
        return max(0.0, joules - before - self._loads[name].low_w * (now - self.last))

    def _used(self, passed: float) -> dict[int, int]:
        """Nanoseconds of each process, and of unseen children as far as the CPUs had room for them."""
        used = self._tree.used_ns()
        room = round(passed * _CPUS * 1e9) - sum(used.values())
        for pid in list(self._late):
            some = min(max(room, 0), self._late[pid])
            used[pid] = some
            room -= some
            self._late[pid] -= some
            if not self._late[pid]:
                del self._late[pid]
        for pid, spent in used.items():
            self.account.add(pid, "cpu_s", spent / 1e9)
        return used


def _shares(table: ProcessTable) -> dict[int, float]:
    return {row.pid: row.sm for _, row in table.rows() if row.sm > 0}


def follow(folder: Path, root: int) -> None:
    """Set the power of every load device every 10 ms, until stdin is closed; then write who used what."""
    with contextlib.suppress(OSError):  # a step that comes late would change what readers have seen already
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    following = Following(folder, root)
    while not select.select([sys.stdin], [], [], max(0.0, following.last + STEP_S - time.monotonic()))[0]:
        following.step()
    (folder / _OWNERS).write_text(json.dumps(following.account.rows()))


def _set(log: EventLog, at_s: float, raw_w: float) -> None:
    if abs(log[-1].raw_w - raw_w) > 1e-9:
        log.append(at_s, raw_w=raw_w)


def _inside() -> Path:
    folder = os.environ.get("EVERYWATT_SIM")
    if not folder:
        raise UsageError(
            "This process is not inside a simulated machine.", cure="everywatt sim --gpu load:50W,300W -- …"
        )
    return Path(folder)


@contextlib.contextmanager
def use_gpu(share: float = 1.0, *, memory_bytes: int = 512 * 2**20, gpu: int | None = None) -> Iterator[None]:
    """Be on a simulated card: this process uses that share of it (0 to 1) until the block ends.

    Without a number it is the first that CUDA_VISIBLE_DEVICES lets this process see.
    The card's process list shows it, and a card with a `load:` curve draws power for it.

    >>> with use_gpu(0.5):  # doctest: +SKIP
    ...     time.sleep(1)
    """
    if not 0 <= share <= 1:
        raise UsageError(f"{share} is not a share between 0 and 1.")
    gpu = first_visible() if gpu is None else gpu
    _declare(gpu, share, memory_bytes)
    try:
        yield
    finally:
        _declare(gpu, None, 0)


def first_visible() -> int:
    """The first card of the mask where that has numbers, else the first of all."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _declare(gpu: int, share: float | None, memory_bytes: int) -> None:
    folder = _inside()
    name = f"gpu.{gpu}"
    try:
        table = ProcessTable(folder / f"processes-{name}")
    except FileNotFoundError:
        raise UsageError(f"The simulated machine has no card {gpu}.") from None
    if share is None:
        table.drop(os.getpid())
    else:
        table.put(GpuProcess(os.getpid(), memory_bytes, share, share * 0.4, check=True))
    t0_ns, loads = read_loads(folder)
    if name in loads:
        log = EventLog(folder / f"events-{name}", loads[name])
        log.append((time.monotonic_ns() - t0_ns) / 1e9, raw_w=loads[name].at_share_w(table.share()))
        log.close()
    table.close()


def gpu_work(seconds: float, *, share: float = 1.0, gpu: int | None = None) -> float:
    """Do GPU work that takes `seconds` at full speed; under a power limit it takes longer. Gives the real seconds.

    Power above idle grows with the third power of the clock, so the speed is the cube root of what the limit leaves.
    """
    folder = _inside()
    gpu = first_visible() if gpu is None else gpu
    _, loads = read_loads(folder)
    curve = loads.get(f"gpu.{gpu}")
    start = last = time.monotonic()
    done = 0.0
    with use_gpu(share, gpu=gpu):
        log = EventLog(folder / f"events-gpu.{gpu}", curve) if curve else None
        while done < seconds:
            speed = _speed(log, curve) if log and curve else 1.0
            time.sleep(min(0.01, (seconds - done) / speed))
            now = time.monotonic()
            done += (now - last) * speed
            last = now
        if log:
            log.close()
    return time.monotonic() - start


def _speed(log: EventLog, curve: Load) -> float:
    event = log[-1]
    wanted = event.raw_w - curve.low_w
    if event.raw_w <= event.limit_w or wanted <= 0:
        return 1.0
    return float((max(event.limit_w - curve.low_w, 0.01 * wanted) / wanted) ** (1 / 3))


if __name__ == "__main__":
    follow(Path(sys.argv[1]), int(sys.argv[2]))
