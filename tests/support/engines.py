"""Real time-series engines for tests: Prometheus and VictoriaMetrics on loopback, each a process of the test's own."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from ports import free_port

NEEDED = ("prometheus", "victoria-metrics")
MISSING = [name for name in (*NEEDED, "promtool") if shutil.which(name) is None]
if MISSING and os.environ.get("CI") == "true":
    raise RuntimeError(f"{MISSING} must be there in CI (make system-packages)")
MARKS = [
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed (make system-packages)"),
    pytest.mark.timeout(300),
]


class Engine:
    """A time-series engine as a process."""

    def __init__(self, words: list[str], port: int, ready: str, log) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while True:
            try:
                if urllib.request.urlopen(f"{self.base}{ready}", timeout=2).status == 200:
                    return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, words
                time.sleep(0.1)

    def ask(self, path: str, **query: object) -> list[dict]:
        url = f"{self.base}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]["result"]

    def post(self, path: str, body: str) -> None:
        urllib.request.urlopen(f"{self.base}{path}", body.encode(), timeout=240).close()

    def raw(self, selector: str) -> dict[tuple, dict[int, float]]:
        """Every stored sample: labels → {UTC ms: value}."""
        found = self.ask("/api/v1/query", query=f"{selector}[10m]")
        return {
            tuple(sorted(one["metric"].items())): {
                round(float(at) * 1000): float(value) for at, value in one["values"] if not math.isnan(float(value))
            }
            for one in found
        }

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(240)


def prometheus(folder: Path, log, config: str, *words: str) -> Engine:
    """Prometheus with this configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver", *words]
    return Engine(command, port, "/-/ready", log)


def victoria(folder: Path, log) -> Engine:
    """VictoriaMetrics with its data in a folder."""
    port = free_port()
    command = ["victoria-metrics", f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder}"]
    return Engine([*command, "-retentionPeriod=100y", "-search.latencyOffset=0s"], port, "/health", log)
