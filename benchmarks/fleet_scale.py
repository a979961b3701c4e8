"""What an engine takes of a fleet: agents played faster than they are, by remote write, into VictoriaMetrics.

Measured are samples a second, bytes a sample on the wire and on disk (after the engine has merged its parts), CPU time
of the engine a sample, and its memory. From those it is computed what 1,000 and 10,000 nodes of 60 channels at 1 Hz
would need. Generator and engine share this machine, so the rate is a lower bound of the engine's.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.common import OUT, cpu_s, say
from everywatt.fleet.loadgen import Figures, play

CHANNELS = 60
FLEETS = (1_000, 10_000)


def main(quick: bool) -> None:
    """Start an engine, play, and say what it took."""
    program = shutil.which("victoria-metrics")
    if program is None:
        say("fleet_scale is left out: victoria-metrics is not installed (make system-packages).")
        return
    nodes, seconds = (20, 60) if quick else (500, 300)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        url = f"http://127.0.0.1:{port}"
        words = [program, f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder}", "-retentionPeriod=100y"]
        engine = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait_for(f"{url}/health")
            idle_bytes = rss_bytes(engine.pid)
            figures = play(url, nodes=nodes, channels=CHANNELS, seconds=seconds)
            fetched(f"{url}/internal/force_flush")
            busy_s = cpu_s(engine.pid)
            memory_bytes = rss_bytes(engine.pid) - idle_bytes
            fetched(f"{url}/internal/force_merge")
            time.sleep(5)
        finally:
            engine.terminate()
            engine.wait(60)
        disk = sum(path.stat().st_size for path in Path(folder, "data").rglob("*") if path.is_file())
    tell(figures, disk, busy_s, memory_bytes)


def tell(figures: Figures, disk_bytes: int, engine_cpu_s: float, memory_bytes: int) -> None:
    """The measured figures, and what they mean for larger fleets."""
    series = figures.nodes * figures.channels
    sample_bytes, sample_cpu_s = disk_bytes / figures.samples, engine_cpu_s / figures.samples
    OUT.text(
        f"{figures.nodes} nodes × {figures.channels} channels, {figures.simulated_s:.0f} s of theirs in "
        f"{figures.wall_s:.1f} s ({figures.speed:.1f}×): {figures.samples_per_s:,.0f} samples/s, "
        f"{figures.bytes_sent / figures.samples:.1f} B/sample sent, {sample_bytes:.2f} B/sample on disk, "
        f"engine {1e6 * sample_cpu_s:.2f} µs CPU/sample and {memory_bytes / series / 1000:.1f} kB/series; "
        f"{figures.rejected} rejected"
    )
    rows = []
    for nodes in FLEETS:
        rate = nodes * CHANNELS
        rows.append(
            [
                f"{nodes:,}",
                f"{rate:,}",
                f"{rate * sample_cpu_s:.2f}",
                f"{rate * figures.bytes_sent / figures.samples / 1e6:.2f}",
                f"{rate * memory_bytes / series / 1e9:.1f}",
                f"{rate * 86_400 * sample_bytes / 1e9:.1f}",
                f"{rate * 86_400 * 30 * sample_bytes / 1e12:.2f}",
            ]
        )
    head = ["NODES", "SAMPLES/S", "CORES", "MB/S IN", "MEMORY GB", "DISK GB/DAY", "DISK TB/30 DAYS"]
    OUT.table(head, rows)


def wait_for(url: str) -> None:
    """Until somebody answers there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            fetched(url)
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")


def fetched(url: str) -> None:
    urllib.request.urlopen(url, timeout=60).read()


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
