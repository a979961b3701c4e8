"""What the client of `bench llm` costs, and how late it sees a token: 50 and 200 streams of 50 tokens a second each.

    python -m benchmarks llm_client [--quick]

The server is the scripted one of the tests, a process of its own that writes down when it sent every piece. `late` is
when the client had a piece, minus that; `cpu` is the client's CPU time over the wall time, of one core. The server is
one Python process as well: where it cannot keep up, `rate` tells what it really sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import OUT, say
from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.values import Answer, Ask

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
TOKENS_PER_S = 50


async def streams(url: str, count: int, tokens: int) -> tuple[list[Answer], float, float]:
    """So many answers at once, the client's CPU seconds and the wall seconds."""
    client = make("openai", Connection.of("scripted", url, {}, concurrency=count, environ={}))
    try:
        await client.health()
        began, cpu = time.monotonic(), time.process_time()
        script = {"tokens": tokens, "first_ms": 100, "gap_ms": 1000 / TOKENS_PER_S}
        asks = [Ask(json.dumps({**script, "n": number})) for number in range(count)]
        answers = await asyncio.gather(*(client.ask(ask) for ask in asks))
        return list(answers), time.process_time() - cpu, time.monotonic() - began
    finally:
        await client.close()


def main(quick: bool = False) -> None:
    """Print one row for each number of streams."""
    sys.path.insert(0, str(SUPPORT))
    from sse_server import running

    rows = []
    for count in (10, 50) if quick else (50, 200):
        with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as server:
            answers, cpu_s, wall_s = asyncio.run(streams(server.url, count, 50 if quick else 250))
            sent = {json.loads(one["prompt"])["n"]: one["pieces"] for one in server.log}
        late = [
            np.array(answer.piece_ns) - np.array(sent[n]) for n, answer in enumerate(answers) if answer.status == "ok"
        ]
        late_ms = np.concatenate(late) / 1e6
        pieces = sum(len(answer.piece_ns) for answer in answers)
        rows.append(
            (
                str(count),
                str(sum(answer.status == "ok" for answer in answers)),
                f"{pieces / wall_s / count:.1f}",
                f"{cpu_s / wall_s:.0%}",
                f"{cpu_s / pieces * 1e6:.0f}",
                f"{np.median(late_ms):.2f}",
                f"{np.percentile(late_ms, 99):.2f}",
            )
        )
    OUT.table(("streams", "whole", "rate 1/s", "cpu", "µs a piece", "late ms p50", "p99"), rows, right=range(7))
    say("late: when the client had a piece, minus when the server had sent it")
