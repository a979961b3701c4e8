"""What an agent costs: CPU share and memory at 1 Hz, on a node with 200 processes and 20 containers.

    python -m benchmarks agent_cost [--quick]

Two simulated cards and a package; 200 real processes, of which ten work a little every second, in 20 cgroups where this
machine lets cgroups be made. The whole process is counted: reading, sharing, tape, HTTP and remote write. Aims: 0.5 %
of a core and 60 MB; 35 MB in the small profile.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.common import OUT, cpu_s, environment, rss_bytes, say, verdict
from everywatt.sim.machine import SimMachine

PROCESSES, CONTAINERS, WORKERS = 200, 20, 10
WARM_S = 10.0
TURNS, TURN_S = 3, 30.0
MOST_SHARE, MOST_BYTES, MOST_SMALL_BYTES = 0.005, 60e6, 35e6
WORK = """
import time
while True:
    end = time.thread_time() + 0.002
    while time.thread_time() < end:
        pass
    time.sleep(1)
"""


@contextmanager
def containers() -> Iterator[list[Path]]:
    """Cgroups named like containers of docker; none where they cannot be made."""
    roots = [Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup")]
    roots = [root for root in roots if root.is_dir()]
    made: list[Path] = []
    for number in range(CONTAINERS):
        with suppress(OSError, IndexError):
            folder = roots[0] / f"docker-{number:064x}.scope"
            folder.mkdir()
            made.append(folder)
    try:
        yield made
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def load() -> Iterator[int]:
    """The processes, in containers where there are some. Gives how many containers there are."""
    with containers() as groups:
        words = [[sys.executable, "-c", WORK] if n < WORKERS else ["sleep", "3600"] for n in range(PROCESSES)]
        running = [subprocess.Popen(one) for one in words]
        try:
            for number, process in enumerate(running):
                if groups:
                    with suppress(OSError):
                        (groups[number % len(groups)] / "cgroup.procs").write_text(str(process.pid))
            yield len(groups)
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.wait()


@contextmanager
def receiver() -> Iterator[str]:
    """Takes whatever is sent."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api/v1/write"
    finally:
        server.shutdown()
        server.server_close()


def measure(words: list[str], env: dict[str, str], seconds: float) -> tuple[float, int]:
    """CPU share and resident bytes of an agent, after it has found its pace."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "everywatt", "agent", "--quiet", "--state", folder, *words]
        process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        try:
            time.sleep(WARM_S)
            before, began_s = cpu_s(process.pid), time.monotonic()
            time.sleep(seconds)
            used_s = cpu_s(process.pid) - before
            if process.poll() is not None:
                raise RuntimeError(f"the agent ended with {process.returncode}")
            return used_s / (time.monotonic() - began_s), rss_bytes(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def main(quick: bool = False) -> None:
    """Print the table."""
    turns, turn_s = (1, 5.0) if quick else (TURNS, TURN_S)
    machine = SimMachine.of(gpus=["sine:150W,50W,20s"], packages=["constant:40W"], replicate=2)
    with machine.start() as lab, load() as groups, receiver() as url:
        if not groups:
            say("cgroups cannot be made here: the processes are in none.")
        env = environment(lab.environment())
        subjects = {
            "agent": (["--listen", "127.0.0.1:0", "--remote-write", url], MOST_BYTES),
            "agent, small": (["--profile", "small", "--remote-write", url], MOST_SMALL_BYTES),
        }
        rows = []
        for name, (words, most_bytes) in subjects.items():
            found = [measure(words, env, turn_s) for _ in range(turns)]
            share = statistics.median(one for one, _ in found)
            memory = max(size for _, size in found)
            rows.append(
                [name, f"{share:.2%}", verdict(share, MOST_SHARE), f"{memory / 1e6:.1f}", verdict(memory, most_bytes)]
            )
    OUT.text(f"{PROCESSES} processes, {groups} containers, 2 cards, 1 Hz, remote write")
    OUT.table(["what", "of one core", "≤ 0.5 %", "MB", "aim"], rows, right=(1, 3))


if __name__ == "__main__":
    main("--quick" in sys.argv)
