"""What tests of the agent use: an agent as a process, a receiver of remote write, segments of made-up samples."""

from __future__ import annotations

import json
import os
import signal
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fake_clock import FakeClock

from everywatt.core.clocks import NS
from everywatt.fleet.exporting import SAMPLES
from everywatt.tape.writer import TapeWriter

SRC = Path(__file__).resolve().parents[2] / "src"


class AgentProcess:
    """`everywatt agent` on a simulated machine; `url` is where its metrics are."""

    def __init__(self, env: Mapping[str, str], *words: str, listen: bool = True) -> None:
        env = {**env, "PYTHONPATH": f"{SRC}{os.pathsep}{Path(__file__).parent}"}
        ports = ["--listen", "127.0.0.1:0"] if listen else []
        command = [sys.executable, "-m", "everywatt", "agent", *ports, *words]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if listen:
            self.until(lambda: self.url, "check the agent's address")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            if line.rstrip().endswith("/metrics"):
                self.url = line.strip()

    def until(self, ready, what: str, seconds: float = 240.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = ready()
            if found:
                return found
            assert self.process.poll() is None, (what, self.log)
            time.sleep(0.05)
        raise AssertionError(f"waited for {what}: {self.log}")

    def text(self, accept: str = "text/plain") -> str:
        request = urllib.request.Request(self.url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def values(self) -> dict[str, tuple[float, int | None]]:
        return parse(self.text())

    def wait_for(self, head: str, seconds: float = 240.0) -> dict[str, tuple[float, int | None]]:
        """Values, once a series that begins like this is told."""

        def look():
            try:
                values = self.values()
            except OSError:
                return None
            return values if any(key.startswith(head) for key in values) else None

        return self.until(look, head, seconds)

    def end(self, number: int = signal.SIGTERM, seconds: float = 240.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._reader.join(60)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)


def parse(text: str) -> dict[str, tuple[float, int | None]]:
    """`name{labels}` with value and time, of Prometheus' text; label values here have no blanks."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            head, _, rest = line.rpartition("}")
            head, rest = (f"{head}}}", rest) if head else line.split(" ", 1)
            value, *at = rest.split()
            found[head] = (float(value), int(at[0]) if at else None)
    return found


def microjoules(values: Mapping[str, tuple[float, int | None]], head: str) -> int:
    """The sum of series that begin like this, in whole microjoules."""
    return sum(round(value * 1e6) for key, (value, _) in values.items() if key.startswith(head))


# Remote write.


def decode(body: bytes) -> list[tuple[dict[str, str], list[tuple[int, float]]]]:
    """The series of a WriteRequest, read by the letter of protobuf and not by the code that wrote it."""

    def fields(data: bytes):
        at = 0
        while at < len(data):
            key, at = number(data, at)
            kind = key & 7
            if kind == 0:
                value, at = number(data, at)
            elif kind == 1:
                value, at = struct.unpack_from("<d", data, at)[0], at + 8
            else:
                size, at = number(data, at)
                value, at = data[at : at + size], at + size
            yield key >> 3, value

    def number(data: bytes, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
            shift += 7

    series = []
    for _, one in fields(body):
        labels, samples = {}, []
        for place, part in fields(one):
            pair = dict(fields(part))
            if place == 1:
                labels[pair[1].decode()] = pair[2].decode()
            else:
                at = pair.get(2, 0)
                samples.append((at - (1 << 64) if at >> 63 else at, pair.get(1, 0.0)))
        series.append((labels, samples))
    return series


class Receiver:
    """Takes remote writes. `answer(series)` may refuse: status, headers, text."""

    def __init__(self, answer=None, *, port: int = 0, tls: tuple[Path, Path] | None = None) -> None:
        import cramjam

        self.samples: dict[tuple[tuple[str, str], ...], list[tuple[int, float]]] = {}
        self.posts: list[tuple[int, int]] = []
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are sent apart: else every answer takes 40 ms

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Encoding"] == "snappy"
                assert self.headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
                series = decode(bytes(cramjam.snappy.decompress_raw(body)))
                status, headers, text = (204, {}, "") if outer.answer is None else outer.answer(series)
                outer.posts.append((status, sum(len(samples) for _, samples in series)))
                if status < 300:
                    for labels, samples in series:
                        outer.samples.setdefault(tuple(sorted(labels.items())), []).extend(samples)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *words) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}/api/v1/write"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return sum(map(len, self.samples.values()))


def write_segment(folder: Path, number: int, ticks: int, series: int, *, start: int = 0, seal: bool = True) -> Path:
    """A segment with `ticks` seconds of `series` counters: series i has the value i + tick / 1000 at second `tick`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"host-{number:04d}.tape"
    writer = TapeWriter(path, {}, clock=FakeClock())
    group = writer.add_group(SAMPLES, 1.0, prompt=True)
    for tick in range(start, start + ticks):
        rows = []
        if tick == start:
            rows = [{"i": i, "n": "everywatt_x_total", "l": {"device": f"d{i}"}} for i in range(series)]
        flat = [item for i in range(series) for item in (i, 0, i + tick / 1000)]
        rows.append({"t": 1_700_000_000_000 + tick * 1000, "c": series, "s": json.dumps(flat)})
        writer.append_table(group, 1000 * NS + tick * NS, rows)
        if tick % 50 == 0:
            writer.flush()
    writer.flush()
    if seal:
        writer.seal()
    else:
        writer.abandon()
    return path


def told_on(paths: Sequence[Path]) -> dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, float]]:
    """Every sample on segments: (name, labels) → {UTC ms: value}."""
    from everywatt.fleet.state import sample_rows

    found: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, float]] = {}
    for path in paths:
        names = {}
        for row in sample_rows(path):
            if "i" in row:
                names[row["i"]] = (row["n"], tuple(sorted(row["l"].items())))
                continue
            flat = json.loads(row["s"])
            for place in range(0, len(flat), 3):
                if flat[place + 2] is not None:
                    found.setdefault(names[flat[place]], {})[row["t"] + flat[place + 1]] = flat[place + 2]
    return found


def home_of(tmp_path: Path, env: Mapping[str, str]) -> dict[str, str]:
    """An environment with folders of its own."""
    return {**os.environ, **env, "EVERYWATT_HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "xdg")}
