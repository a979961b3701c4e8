"""Strangers who hold as many connections as they can, and an honest client beside them.

    python tests/support/strangers.py KIND URL COUNT SECONDS      # holds connections; prints what it reached
    python tests/support/strangers.py honest URL 0 SECONDS [TOKEN]  # asks every second; prints the times it took

A connection that the server closes is opened again, so the pressure stays.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

AGAIN_S = 0.25  # until a connection that was closed is opened again
AHEAD_S = 2.0  # strangers have this long to open their connections before the first honest request
AFTER_S = 1.0  # and stay so much longer than honest requests are made, whose program takes a while to start
HELLO = b"\x16\x03\x01\x02\x00\x01"  # the beginning of a TLS handshake
KINDS = ("mute", "half-hello", "half-head", "idle", "scrapes")


async def _hold(kind: str, url: str, until_s: float, told: dict[str, int]) -> None:
    """One stranger, who connects again and again."""
    parts = urlsplit(url)
    tls = ssl._create_unverified_context() if parts.scheme == "https" and kind not in ("mute", "half-hello") else None
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    first = {"mute": b"", "half-hello": HELLO, "half-head": request[:-2]}.get(kind, request)
    while time.monotonic() < until_s:
        writer = None
        try:
            left_s = max(0.1, until_s - time.monotonic())  # a call that a full backlog dropped is repeated for a minute
            opening = asyncio.open_connection(
                parts.hostname, parts.port, ssl=tls, ssl_handshake_timeout=left_s if tls else None
            )
            reader, writer = await asyncio.wait_for(opening, left_s)
            told["opened"] += 1
            told["held"] += 1
            told["most held"] = max(told["most held"], told["held"])
            try:
                writer.write(first)
                while time.monotonic() < until_s:  # a server that answers at once would be asked for ever
                    data = await asyncio.wait_for(reader.read(65536), max(0.1, until_s - time.monotonic()))
                    if not data:
                        break
                    if data.startswith(b"HTTP/1.1 "):
                        told[data[9:12].decode()] = told.get(data[9:12].decode(), 0) + 1
                        if kind == "scrapes":
                            writer.write(request)
            finally:
                told["held"] -= 1
        except (OSError, ssl.SSLError, TimeoutError, asyncio.IncompleteReadError):
            told["failed"] += 1
        finally:
            if writer is not None:
                writer.transport.abort()
        await asyncio.sleep(AGAIN_S)


async def _all(kind: str, url: str, count: int, seconds: float) -> dict[str, int]:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    told = {"opened": 0, "held": 0, "most held": 0, "failed": 0}
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(_hold(kind, url, until_s, told) for _ in range(count)))
    return told


def _ask(url: str, seconds: float, token: str | None) -> list[float]:
    """How long each of the honest requests took, a new connection for each; a failure is infinite."""
    import urllib.request

    context = ssl._create_unverified_context()
    took = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                answer.read()
            took.append(time.monotonic() - began_s)
        except OSError as error:
            print(f"honest: {error!r} after {time.monotonic() - began_s:.2f} s", file=sys.stderr)
            took.append(float("inf"))
        time.sleep(max(0.0, began_s + 1.0 - time.monotonic()))
    return took


@dataclass(frozen=True)
class Siege:
    """Seconds of each honest request, bytes that the server grew by, its log lines, and what strangers reached."""

    took_s: list[float]
    grown_bytes: int
    lines: int
    strangers: dict[str, int]

    def __str__(self) -> str:
        return (
            f"slowest of {len(self.took_s)} honest requests {max(self.took_s):.3f} s, "
            f"RSS +{self.grown_bytes / 1e6:.1f} MB, {self.lines} log lines; strangers: {self.strangers}"
        )


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def besiege(
    kind: str, url: str, pid: int, log: Callable[[], int], *, count: int, seconds: float, token: str | None = None
) -> Siege:
    """Let `count` strangers at a server (`pid`) for a while, and ask it honestly every second."""
    me = [sys.executable, __file__]
    _ask(url, 0.1, token)  # what the first request loads is no fault of strangers
    before, lines, most = rss_bytes(pid), log(), 0
    strangers = subprocess.Popen(
        [*me, kind, url, str(count), str(AHEAD_S + seconds + AFTER_S)], stdout=subprocess.PIPE, text=True
    )
    time.sleep(AHEAD_S)
    words = [*me, "honest", url, "0", str(seconds), *([token] if token else [])]
    honest = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while honest.poll() is None:
        most = max(most, rss_bytes(pid))
        time.sleep(0.05)
    took = json.loads(honest.communicate()[0].replace("inf", "1e999"))
    told = json.loads(strangers.communicate()[0])
    return Siege(took, most - before, log() - lines, told)


def main(argv: Sequence[str]) -> None:
    kind, url, count, seconds, *token = argv
    if kind == "honest":
        print(json.dumps(_ask(url, float(seconds), token[0] if token else None)).replace("Infinity", "inf"))
    else:
        print(json.dumps(asyncio.run(_all(kind, url, int(count), float(seconds)))))


if __name__ == "__main__":
    main(sys.argv[1:])
