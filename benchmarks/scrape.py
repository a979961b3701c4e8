"""How long a scrape takes with 8 GPUs and 500 containers: the text alone, and over HTTP. Aim: 20 ms.

    python -m benchmarks scrape [--quick]

The books are filled by hand: 500 containers with energy on a package, DRAM and one card each.
"""

from __future__ import annotations

import statistics
import sys
import time
import urllib.request

from benchmarks.common import OUT, verdict
from everywatt.fleet.metrics import Registry
from everywatt.fleet.service import Http
from everywatt.net.guard import Access
from everywatt.net.listen import listen, parse_listen

CARDS, CONTAINERS, MOST_S = 8, 500, 0.020


class Told:
    """As much of an agent as HTTP asks for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def text(self, *, open_metrics: bool = False) -> str:
        return self._registry.text(open_metrics=open_metrics)

    def trouble(self, silent_s: float) -> str | None:
        return None


def registry() -> Registry:
    """A node's series."""
    made = Registry()
    for card in range(CARDS):
        device = ("device", f"gpu.{card}")
        labels = (device, ("domain", "gpu"), ("pedigree", "counter"))
        made.set("everywatt_energy_joules_total", 123456.789012 + card, *labels, at_ms=1_700_000_000_123)
        made.set("everywatt_power_watts", 312.345678, *labels, at_ms=1_700_000_000_123)
        for name in ("utilisation_ratio", "memory_bytes", "temperature_celsius", "power_limit_watts"):
            made.set(f"everywatt_{name}", 0.5, device, at_ms=1_700_000_000_123)
    for number in range(CONTAINERS):
        owner = (("kind", "container"), ("owner", f"namespace/pod-{number}/container"))
        for device in ("cpu.0", "dram.0", f"gpu.{number % CARDS}"):
            made.set(
                "everywatt_owner_energy_joules_total",
                12.345678 * number,
                *owner,
                ("device", device),
                at_ms=1_700_000_000_123,
            )
        made.set("everywatt_owner_cpu_seconds_total", 1.234567 * number, *owner, at_ms=1_700_000_000_123)
        made.set("everywatt_owner_memory_bytes", 4096.0 * number, *owner, at_ms=1_700_000_000_123)
    return made


def main(quick: bool = False) -> None:
    """Print the table."""
    told = Told(registry())
    turns = 5 if quick else 100
    place = parse_listen("127.0.0.1:0")
    sock = listen(place)
    port = int(sock.getsockname()[1])
    http = Http(sock, Access(frozenset({f"127.0.0.1:{port}"}), port, pages=False))
    http.start(told)  # type: ignore[arg-type]
    rows = []
    try:
        for name, accept in (("text", "text/plain"), ("OpenMetrics", "application/openmetrics-text")):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
            own, whole, size = [], [], 0
            for _ in range(turns):
                began = time.perf_counter()
                told.text(open_metrics=name != "text")
                own.append(time.perf_counter() - began)
                began = time.perf_counter()
                with urllib.request.urlopen(request, timeout=10) as answer:
                    size = len(answer.read())
                whole.append(time.perf_counter() - began)
            middle = statistics.median(whole)
            rows.append(
                [
                    name,
                    f"{statistics.median(own) * 1e3:.1f}",
                    f"{middle * 1e3:.1f}",
                    f"{size / 1e3:.0f}",
                    verdict(middle, MOST_S),
                ]
            )
    finally:
        http.close()
    OUT.table(["format", "text, ms", "scrape, ms", "kB", "≤ 20 ms"], rows, right=(1, 2, 3))


if __name__ == "__main__":
    main("--quick" in sys.argv)
