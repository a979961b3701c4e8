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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.errors import UsageError
from everywatt.sim.curves import Curve, Load
from everywatt.sim.events import EventLog
from everywatt.sim.options import GpuProcess
from everywatt.sim.processes import ProcessTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STEP_S = 0.010
AHEAD_S = 0.0005
SCAN_EVERY = 5
_LOADS = "loads.json"
_OWNERS = "owners.json"


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
        source = str(Path(__file__).parents[2])
        env = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (source, env.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "everywatt.sim.loads", str(folder), str(root)], stdin=subprocess.PIPE, env=env
        )

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


@dataclass
class Tree:
    """CPU time of a process and its descendants, from the kernel's per-process CPU clocks."""

    root: int
    skip: int
    seen_ns: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    live: list[int] = field(default_factory=list)

    def scan(self) -> None:
        """Find the processes that there are now."""
        self.live = [pid for pid in _descendants(self.root) if pid != self.skip]
        for pid in self.live:
            if pid not in self.names:
                with contextlib.suppress(OSError):
                    self.names[pid] = Path(f"/proc/{pid}/comm").read_text().strip()

    def used_ns(self) -> dict[int, int]:
        """CPU nanoseconds of each process since the last call."""
        used = {}
        for pid in self.live:
            try:
                now = time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's name for another process's CPU clock
            except OSError:
                continue
            if pid not in self.seen_ns and pid == self.root:
                self.seen_ns[pid] = now  # what it used before the machine was started is not the machine's
            used[pid] = now - self.seen_ns.get(pid, 0)
            self.seen_ns[pid] = now
        return used


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


def follow(folder: Path, root: int) -> None:
    """Set the power of every load device every 10 ms, until stdin is closed; then write who used what."""
    t0_ns, loads = read_loads(folder)
    logs = {name: EventLog(folder / f"events-{name}", curve) for name, curve in loads.items()}
    cards = {name: ProcessTable(folder / f"processes-{name}") for name in loads if name.startswith("gpu.")}
    cpus = [name for name in loads if name.startswith("cpu.")]
    tree = Tree(root, os.getpid())
    totals: dict[int, list[float]] = {}
    weights: dict[int, float] = {}
    number, last = 0, time.monotonic()
    tree.scan()
    tree.used_ns()
    while not select.select([sys.stdin], [], [], max(0.0, last + STEP_S - time.monotonic()))[0]:
        now = time.monotonic()
        if number % SCAN_EVERY == 0:
            tree.scan()
        used = tree.used_ns() if cpus else {}
        busy = sum(used.values()) / 1e9
        active_w = sum(logs[name][-1].raw_w - loads[name].low_w for name in cpus)
        for pid, share in weights.items():
            totals.setdefault(pid, [0.0, 0.0])[1] += active_w * share * (now - last)
        for pid, spent in used.items():
            totals.setdefault(pid, [0.0, 0.0])[0] += spent / 1e9
        at = time.monotonic() - t0_ns / 1e9 + AHEAD_S
        share = busy / ((now - last) * (os.cpu_count() or 1))
        for name in cpus:
            _set(logs[name], at, loads[name].at_share_w(share))
        for name, table in cards.items():
            table.sweep()
            _set(logs[name], at, loads[name].at_share_w(table.share()))
        weights = {pid: spent / 1e9 / busy for pid, spent in used.items() if busy and spent}
        number, last = number + 1, now
    rows = [
        {"pid": pid, "command": tree.names.get(pid, ""), "cpu_s": cpu_s, "active_j": joules}
        for pid, (cpu_s, joules) in totals.items()
    ]
    (folder / _OWNERS).write_text(json.dumps(rows))


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
def use_gpu(share: float = 1.0, *, memory_bytes: int = 512 * 2**20, gpu: int = 0) -> Iterator[None]:
    """Be on a simulated card: this process uses that share of it (0 to 1) until the block ends.

    The card's process list shows it, and a card with a `load:` curve draws power for it.

    >>> with use_gpu(0.5):  # doctest: +SKIP
    ...     time.sleep(1)
    """
    if not 0 <= share <= 1:
        raise UsageError(f"{share} is not a share between 0 and 1.")
    _declare(gpu, share, memory_bytes)
    try:
        yield
    finally:
        _declare(gpu, None, 0)


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


def gpu_work(seconds: float, *, share: float = 1.0, gpu: int = 0) -> float:
    """Do GPU work that takes `seconds` at full speed; under a power limit it takes longer. Gives the real seconds.

    Power above idle grows with the third power of the clock, so the speed is the cube root of what the limit leaves.
    """
    folder = _inside()
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
