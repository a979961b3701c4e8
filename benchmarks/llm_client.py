"""What the client of `bench llm` costs, and how late it sees a token: 50 and 200 streams of 50 tokens a second each.

    python -m benchmarks llm_client [--quick]

The server is the scripted one of the tests, a process of its own that writes down when it sent every piece. `late` is
when the client had a piece, minus that; `cpu` is the client's CPU time over the wall time, of one core. The server is
one Python process as well: where it cannot keep up, `rate` tells what it really sent. Beside it, where BENCH_PYTHON has
it, the official OpenAI client does the same.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import HERE, OUT, bench_python, environment, say
from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.records import Ask

SUPPORT = HERE.parent / "tests" / "support"
TOKENS_PER_S = 50
FIRST_MS = 100
GAP_MS = 1000 / TOKENS_PER_S


@dataclass(frozen=True)
class Streams:
    """When the pieces of each stream arrived, the client's CPU seconds and the wall seconds."""

    pieces: Sequence[Sequence[int]]
    cpu_s: float
    wall_s: float


async def _ours(url: str, count: int, tokens: int) -> Streams:
    client = make("openai", Connection.of("scripted", url, {}, concurrency=count, environ={}))
    try:
        await client.health()
        began, cpu = time.monotonic(), time.process_time()
        script = {"tokens": tokens, "first_ms": FIRST_MS, "gap_ms": GAP_MS}
        asks = [Ask(json.dumps({**script, "n": number})) for number in range(count)]
        answers = await asyncio.gather(*(client.ask(ask) for ask in asks))
        return Streams([one.piece_ns for one in answers], time.process_time() - cpu, time.monotonic() - began)
    finally:
        await client.close()


def ours(url: str, count: int, tokens: int) -> Streams:
    """So many answers at once by the client of everywatt."""
    return asyncio.run(_ours(url, count, tokens))


def official(url: str, count: int, tokens: int) -> Streams | None:
    """The same by the official client; None where it is not installed."""
    python = bench_python()
    if python is None or subprocess.run([python, "-c", "import openai"], capture_output=True).returncode:
        return None
    numbers = map(str, (count, tokens, FIRST_MS, GAP_MS))
    words = [python, str(HERE / "peer_drivers" / "openai_streams.py"), url, *numbers]
    done = subprocess.run(words, env=environment(ours=False), capture_output=True, text=True, timeout=300)
    if done.returncode:
        say(f"openai failed: {done.stderr.strip().splitlines()[-1]}")
        return None
    return Streams(**json.loads(done.stdout))


CLIENTS: tuple[tuple[str, Callable[[str, int, int], Streams | None]], ...] = (
    ("everywatt", ours),
    ("openai", official),
)


def row(name: str, count: int, tokens: int, found: Streams, sent: dict[int, list[int]]) -> tuple[str, ...]:
    """One line of the table."""
    whole = [(np.array(one), np.array(sent[n])) for n, one in enumerate(found.pieces) if len(one) == tokens]
    late_ms = np.concatenate([got - gone for got, gone in whole]) / 1e6
    pieces = sum(len(one) for one in found.pieces)
    return (
        str(count),
        name,
        str(len(whole)),
        f"{pieces / found.wall_s / count:.1f}",
        f"{found.cpu_s / found.wall_s:.0%}",
        f"{found.cpu_s / pieces * 1e6:.0f}",
        f"{np.median(late_ms):.2f}",
        f"{np.percentile(late_ms, 99):.2f}",
    )


def main(quick: bool = False) -> None:
    """Print one row for each number of streams and client."""
    sys.path.insert(0, str(SUPPORT))
    from sse_server import running

    tokens = 50 if quick else 250
    rows, missing = [], set()
    for count in (10, 50) if quick else (50, 200):
        for name, ask in CLIENTS:
            with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as server:
                found = ask(server.url, count, tokens)
                sent = {json.loads(one["prompt"])["n"]: one["pieces"] for one in server.log}
            if found is None:
                missing.add(name)
            else:
                rows.append(row(name, count, tokens, found, sent))
    OUT.table(
        ("streams", "client", "whole", "rate 1/s", "cpu", "µs a piece", "late ms p50", "p99"), rows, right=range(8)
    )
    say("late: when the client had a piece, minus when the server had sent it")
    if missing:
        say(f"not installed in BENCH_PYTHON: {', '.join(sorted(missing))}")
