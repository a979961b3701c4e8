"""Strangers who hold as many connections as they can, and an honest client beside them.

    python tests/support/strangers.py KIND URL COUNT                # holds connections until its input ends
    python tests/support/strangers.py honest URL SECONDS [TOKEN]    # asks again and again; prints the times it took

A connection that the server closes is opened again, so the pressure stays. Strangers print a line once all of them have
called, and what they reached when they are done.
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
AHEAD_S = 2.0  # honest requests begin so late at the latest: calls that a full backlog drops take a minute
ASK_S = 0.25  # between honest requests
HELLO = b"\x16\x03\x01\x02\x00\x01"  # the beginning of a TLS handshake
KINDS = ("mute", "half-hello", "half-head", "idle", "scrapes")


async def _hold(kind: str, url: str, told: dict[str, int]) -> None:
    """One stranger, who connects again and again, until it is cancelled."""
    parts = urlsplit(url)
    tls = ssl._create_unverified_context() if parts.scheme == "https" and kind not in ("mute", "half-hello") else None
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    first = {"mute": b"", "half-hello": HELLO, "half-head": request[:-2]}.get(kind, request)
    called = False
    while True:
        writer = None
        try:
            opening = asyncio.open_connection(
                parts.hostname, parts.port, ssl=tls, ssl_handshake_timeout=60.0 if tls else None
            )
            try:
                reader, writer = await opening
            finally:
                told["called"] += not called
                called = True
            told["opened"] += 1
            told["held"] += 1
            told["most held"] = max(told["most held"], told["held"])
            try:
                writer.write(first)
                while data := await reader.read(65536):
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


async def _all(kind: str, url: str, count: int) -> dict[str, int]:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    told = {"called": 0, "opened": 0, "held": 0, "most held": 0, "failed": 0}
    began_s = time.monotonic()
    strangers = [asyncio.create_task(_hold(kind, url, told)) for _ in range(count)]
    while told["called"] < count and time.monotonic() < began_s + AHEAD_S:
        await asyncio.sleep(0.02)
    print("all have called", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    reached = dict(told)
    for stranger in strangers:
        stranger.cancel()
    await asyncio.gather(*strangers, return_exceptions=True)
    return reached


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
        time.sleep(max(0.0, began_s + ASK_S - time.monotonic()))
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
    """Let `count` strangers at a server (`pid`), and ask it honestly for some seconds."""
    me = [sys.executable, __file__]
    _ask(url, 0.1, token)  # what the first request loads is no fault of strangers
    before, lines, most = rss_bytes(pid), log(), 0
    strangers = subprocess.Popen([*me, kind, url, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert strangers.stdout and strangers.stdout.readline(), "strangers did not start"
    words = [*me, "honest", url, str(seconds), *([token] if token else [])]
    honest = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while honest.poll() is None:
        most = max(most, rss_bytes(pid))
        time.sleep(0.05)
    took = json.loads(honest.communicate()[0].replace("inf", "1e999"))
    told = json.loads(strangers.communicate()[0])
    return Siege(took, most - before, log() - lines, told)


def main(argv: Sequence[str]) -> None:
    kind, url, count, *token = argv
    if kind == "honest":
        print(json.dumps(_ask(url, float(count), token[0] if token else None)).replace("Infinity", "inf"))
    else:
        print(json.dumps(asyncio.run(_all(kind, url, int(count)))))


if __name__ == "__main__":
    main(sys.argv[1:])
