"""What watching costs: CPU time of `everywatt monitor`, recorder included, beside nvitop's, both on a terminal.

    python -m benchmarks monitor_cost [--quick]

Eight simulated cards, one process on each, power that changes all the time, one refresh a second, 140 × 40 characters.
The two take turns, so that what else the machine does weighs on both alike; the figure is the median of the turns.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.common import OUT, bench_python, cpu_s, environment, say, tree, verdict
from everywatt.sim.machine import Lab, SimMachine

CARDS = 8
COLUMNS, LINES = 140, 40
WARM_S = 8.0
TURNS, TURN_S = 3, 20.0


@contextmanager
def machine() -> Iterator[Lab]:
    """Eight cards with one process each, and a package."""
    sleepers = [subprocess.Popen(["sleep", "3600"]) for _ in range(CARDS)]
    sensor = [f"gpu.{card}.processes={sleeper.pid}:4GiB:0.8" for card, sleeper in enumerate(sleepers)]
    try:
        made = SimMachine.of(gpus=["sine:150W,50W,20s"], packages=["constant:40W"], replicate=CARDS, sensor=sensor)
        with made.start() as lab:
            yield lab
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def recorders(runtime: str) -> list[int]:
    """The recorder of a machine: it is nobody's child, and its runtime folder is the machine's."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
                if b"recorder" in words and runtime.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
    return found


def drain(terminal: int, seconds: float) -> int:
    """Read what is drawn, as a terminal does, for so long. Gives the bytes."""
    count, end_s = 0, time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            try:
                count += len(os.read(terminal, 1 << 16))
            except OSError:
                return count
    return count


def share(command: Sequence[str], env: dict[str, str], seconds: float, *, ours: bool) -> tuple[float, float]:
    """CPU share of a full-screen programme and all it started, and the bytes a second that it drew."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], list(command), {**env, "TERM": "xterm-256color"})
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        if drain(terminal, WARM_S) < 500:
            raise RuntimeError(f"{command[0]} drew nothing")
        watched = {*tree(pid), *(recorders(env["EVERYWATT_RUNTIME_DIR"]) if ours else ())}
        before = {one: cpu_s(one) for one in watched}
        began_s = time.monotonic()
        drawn = drain(terminal, seconds)
        lasted_s = time.monotonic() - began_s
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise RuntimeError(f"{command[0]} ended while it was watched")
        used_s = sum(cpu_s(one) - before[one] for one in watched)
        return used_s / lasted_s, drawn / lasted_s
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        drain(terminal, 3.0)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        os.close(terminal)


def main(quick: bool = False) -> None:
    """Print the table."""
    python = bench_python()
    peer = str(Path(python).parent / "nvitop") if python else None
    subjects = {"everywatt monitor": [sys.executable, "-m", "everywatt", "monitor", "--interval", "1s"]}
    if peer is not None and os.access(peer, os.X_OK):
        subjects["nvitop"] = [peer, "--interval", "1"]
    else:
        say("nvitop is not measured: BENCH_PYTHON has none.")
    shares: dict[str, list[float]] = {name: [] for name in subjects}
    drawn: dict[str, float] = {}
    turns, turn_s = (1, 5.0) if quick else (TURNS, TURN_S)
    with machine() as lab:
        for _ in range(turns):
            for name, command in subjects.items():
                ours = name != "nvitop"
                env = environment(lab.environment(), ours=ours) | {"EVERYWATT_RECORDER_IDLE_S": "1"}
                one, drawn[name] = share(command, env, turn_s, ours=ours)
                shares[name].append(one)
    rows = []
    own = statistics.median(shares["everywatt monitor"])
    for name, found in shares.items():
        middle = statistics.median(found)
        spread = f"{min(found):.2%} … {max(found):.2%}"
        ratio = f"{own / middle:.2f}" if name != "everywatt monitor" else "1"
        rows.append([name, f"{middle:.2%}", spread, f"{drawn[name] / 1024:.1f}", ratio])
    OUT.table(["what", "of one core", "turns", "KiB/s drawn", "everywatt / this"], rows, right=(1, 2, 3, 4))
    if "nvitop" in shares:
        OUT.text(f"not above nvitop: {verdict(own, statistics.median(shares['nvitop']))}")


if __name__ == "__main__":
    main("--quick" in sys.argv)
