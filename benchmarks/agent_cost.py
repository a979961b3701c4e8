"""What an agent costs: CPU share and memory at 1 Hz, on a node with 200 processes and 20 containers.

    python -m benchmarks agent_cost [--quick]

Two simulated cards and a package; 200 real processes, of which ten work a little every second, in 20 cgroups where this
machine lets cgroups be made, in a PID namespace of their own where it lets one be made: there the 200 are all, else the
machine's own processes are read as well. The whole process is counted, by the kernel's clock of it: reading, sharing,
tape, HTTP (a scrape every 15 s) and remote write, from 40 s after the start, when the cards' phases are known. Aims:
0.5 % of a core and 60 MB; 35 MB in the small profile.

Beside it node-exporter (Debian's, where it is installed), which reads when it is scraped: every 15 s, and every second
as the agent does; and what others have published of Kepler and Scaphandre, on other machines.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.common import HERE, OUT, cpu_s, environment, rss_bytes, say, verdict
from everywatt.sim.machine import SimMachine

PROCESSES, CONTAINERS, WORKERS = 200, 20, 10
WARM_S = 40.0
TURNS, TURN_S = 2, 45.0
# In short: earlier than this, phases are often still searched for, with up to 100 reads a second and for as long as
# chance has it. A window has one flush of the small agent and one saved state, whenever it begins.
QUICK_WARM_S, QUICK_S = 25.0, 10.0
DRIVES_COMMANDS = True  # see _against.py
SCRAPE_S = 15.0
NAMESPACE = "EVERYWATT_BENCHMARK_NAMESPACE"
PUBLISHED = (
    (
        "Kepler 0.7.11",
        "about 100 %",
        "",
        "a user's 4-core cloud nodes, github.com/sustainable-computing-io/kepler/issues/2032",
    ),
    (
        "Scaphandre 0.11",
        "not told",
        "11.9",
        "386 processes, its own metrics in github.com/hubblo-org/scaphandre/issues/44",
    ),
)
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


@contextmanager
def scraped(url: str, every_s: float) -> Iterator[None]:
    """Somebody who asks for /metrics every so many seconds."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(every_s):
            with suppress(OSError):
                urllib.request.urlopen(url, timeout=10).read()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure(command: list[str], env: dict[str, str], url: str | None, every_s: float, warm_s: float, seconds: float):
    """CPU share of a core and resident bytes of a program that goes on, after it has found its pace."""
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        with scraped(url, every_s) if url else suppress():
            time.sleep(warm_s)
            before, began_s = cpu_s(process.pid), time.monotonic()
            time.sleep(seconds)
            used_s, took_s = cpu_s(process.pid) - before, time.monotonic() - began_s
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}")
        return used_s / took_s, rss_bytes(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def subjects(
    receiver_url: str, folder: str, peers: bool
) -> Iterator[tuple[str, list[str], str | None, float, float | None]]:
    """Name, command, what is scraped and how often, most bytes (None: not ours)."""
    port = free_port()
    agent = [sys.executable, "-m", "everywatt", "agent", "--quiet", "--remote-write", receiver_url]
    normal = [*agent, "--state", f"{folder}/normal", "--listen", f"127.0.0.1:{port}"]
    yield "agent", normal, f"http://127.0.0.1:{port}/metrics", SCRAPE_S, MOST_BYTES
    yield "agent, small", [*agent, "--state", f"{folder}/small", "--profile", "small"], None, 0, MOST_SMALL_BYTES
    program = shutil.which("prometheus-node-exporter") if peers else None
    if program is None and peers:
        say("node-exporter is left out: prometheus-node-exporter is not installed.")
    for every_s in (SCRAPE_S, 1.0) if program else ():
        port = free_port()
        words = [program, f"--web.listen-address=127.0.0.1:{port}"]
        yield f"node-exporter, every {every_s:g} s", words, f"http://127.0.0.1:{port}/metrics", every_s, None


def in_namespace(quick: bool) -> list[Any] | None:
    """What `measured` gives in a PID namespace of its own; None where none can be made."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which(words[0]) is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        return None
    again = [*words, sys.executable, "-m", "benchmarks.agent_cost", "--measure", *(["--quick"] if quick else [])]
    done = subprocess.run(again, env={**os.environ, NAMESPACE: "1"}, cwd=HERE.parent, stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"the benchmark ended with {done.returncode} in its namespace")
    return list(json.loads(done.stdout))


def measured(quick: bool) -> tuple[str, list[tuple[str, float | None, list[tuple[float, int]]]]]:
    """A sentence about the machine; and of each subject its name, the most bytes it may have, shares and bytes."""
    turns, warm_s, turn_s = (1, QUICK_WARM_S, QUICK_S) if quick else (TURNS, WARM_S, TURN_S)
    machine = SimMachine.of(gpus=["sine:150W,50W,20s"], packages=["constant:40W"], replicate=2)
    found: dict[str, tuple[float | None, list[tuple[float, int]]]] = {}
    with machine.start() as lab, load() as groups, receiver() as url:
        if not groups:
            say("cgroups cannot be made here: the processes are in none.")
        env = environment(lab.environment())
        there = sum(name.isdigit() for name in os.listdir("/proc"))
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
                # In short, both agents at a time: what counts is their CPU time.
                run = pool.map if quick else map
                each = list(subjects(url, folder, peers=not quick))
                figures = run(lambda one: measure(one[1], env, one[2], one[3], warm_s, turn_s), each)
                for (name, _, _, _, most_bytes), figure in zip(each, figures, strict=True):
                    found.setdefault(name, (most_bytes, []))[1].append(figure)
        load_1 = os.getloadavg()[0]
    whole = "in all" if os.environ.get(NAMESPACE) else "with the machine's own"
    about = (
        f"{PROCESSES} processes of ours ({there} {whole}), {groups} containers, 2 cards, 1 Hz, remote write, a scrape "
        f"every {SCRAPE_S:g} s; load average {load_1:.1f} on {os.cpu_count()} CPUs"
    )
    return about, [(name, *rest) for name, rest in found.items()]


def main(quick: bool = False) -> None:
    """Print the table."""
    about, rows = in_namespace(quick) or measured(quick)
    OUT.text(about)
    OUT.table(["what", "of one core", "≤ 0.5 %", "MB", "aim"], [row(*one) for one in rows], right=(1, 3))
    OUT.text("Published, on other machines:")
    OUT.table(["what", "of one core", "MB", "where"], [list(one) for one in PUBLISHED], right=(2,))


def row(name: str, most_bytes: float | None, found: list[tuple[float, int]]) -> list[str]:
    """A line of the table: the median share, and the most memory."""
    share = statistics.median(one for one, _ in found)
    memory = max(size for _, size in found)
    aims = ("", "") if most_bytes is None else (verdict(share, MOST_SHARE), verdict(memory, most_bytes))
    return [name, f"{share:.2%}", aims[0], f"{memory / 1e6:.1f}", aims[1]]


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measured("--quick" in sys.argv)))
    else:
        main("--quick" in sys.argv)
