"""What an engine takes of a fleet: 1,000 agents played for ten minutes, by remote write, into VictoriaMetrics.

They are played at their own speed (`--quick`: for one minute), then some of them as fast as the engine takes it.
Measured are samples a second, bytes a sample on the wire and on disk (after the engine has merged its parts), CPU time
of the engine a sample, its memory, and how long queries over the whole fleet take. From those it is computed what 1,000
and 10,000 nodes of 60 channels at 1 Hz would need. Generator and engine share this machine, so the highest rate is a
lower bound of the engine's.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from benchmarks.common import OUT, cpu_s, say
from everywatt.fleet.loadgen import Figures, play

CHANNELS = 60
FLEETS = (1_000, 10_000)
ENERGY = "everywatt_energy_joules_total"
QUERIES = {
    "series of energy": f"count(last_over_time({ENERGY}[1m]))",
    "watts of the fleet": f"sum(rate({ENERGY}[1m]))",
    "the ten nodes with the highest power": f"topk(10, sum by (instance) (rate({ENERGY}[1m])))",
}


def main(quick: bool) -> None:
    """Start an engine, play, and say what it took."""
    program = shutil.which("victoria-metrics")
    if program is None:
        say("fleet_scale is left out: victoria-metrics is not installed (make system-packages).")
        return
    nodes, seconds = 1_000, 60.0 if quick else 600.0
    with tempfile.TemporaryDirectory() as folder, socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        url = f"http://127.0.0.1:{port}"
        words = [program, f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder}", "-retentionPeriod=100y"]
        engine = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait_for(f"{url}/health")
            idle_bytes, until_s = rss_bytes(engine.pid), time.time()
            figures = play(url, nodes=nodes, channels=CHANNELS, seconds=seconds, speed=1.0)
            fetched(f"{url}/internal/force_flush")
            busy_s = cpu_s(engine.pid)
            memory_bytes = rss_bytes(engine.pid) - idle_bytes
            answers = [[name, *asked(url, query, until_s)] for name, query in QUERIES.items()]
            fetched(f"{url}/internal/force_merge")
            time.sleep(5)
            disk = sum(path.stat().st_size for path in Path(folder, "data").rglob("*") if path.is_file())
            fastest = play(url, nodes=nodes // 10, channels=CHANNELS, seconds=60.0)
        finally:
            engine.terminate()
            engine.wait(60)
    tell(figures, disk, busy_s, memory_bytes)
    OUT.text(f"{fastest.nodes} of these nodes as fast as they are taken: {fastest.samples_per_s:,.0f} samples/s")
    OUT.table(["QUERY", "SECONDS", "ANSWER"], answers, right=(1, 2))


def asked(url: str, query: str, at_s: float) -> tuple[str, str]:
    """How long a query takes, and the first value of its answer."""
    words = urllib.parse.urlencode({"query": query, "time": f"{at_s:.3f}", "nocache": "1"})
    began = time.perf_counter()
    answer = json.loads(fetched(f"{url}/api/v1/query?{words}"))
    took_s = time.perf_counter() - began
    return f"{took_s:.2f}", f"{float(answer['data']['result'][0]['value'][1]):,.0f}"


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


def fetched(url: str) -> bytes:
    return bytes(urllib.request.urlopen(url, timeout=60).read())


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
