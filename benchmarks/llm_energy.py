"""How far the joules of single queries are from the truth, beside the method "counter before minus counter after".

    python -m benchmarks llm_energy [--quick]

In a simulated machine whose power follows the CPU time of what runs in it, a scripted server burns a known CPU time for
each token of a query, so each query's energy above idle is known: tokens × CPU seconds × watts. Queries have 5 to 40
tokens. `everywatt` is the net joules of `bench llm`. `before−after` reads the package's counter where a query starts
and where it ends, as other tools do, and takes idle power × time off; it charges a query with all that ran beside it.
Errors are of each query's energy, relative to the truth: mean of their sizes, and of the sum of all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import OUT, say
from everywatt.api.run import Run, load
from everywatt.bench.llm.energy import bill
from everywatt.bench.llm.records import read_records
from everywatt.sim.machine import SimMachine

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
IDLE_W, MAX_W = 5.0, 60.0
BURN_S = 0.004


def before_minus_after(run: Run, spans: list[str]) -> np.ndarray:
    """Joules of the whole package from the start to the end of each span, above idle."""
    tape = run.tapes[0]
    zero = tape.extent_ns()[0]
    known = {span.id: span for span in run.spans}
    starts = np.array([(known[name].start_ns - zero) / 1e9 for name in spans])
    ends = np.array([((known[name].end_ns or 0) - zero) / 1e9 for name in spans])
    return run.energies(starts, ends) - IDLE_W * (ends - starts)


def measure(concurrency: int, queries: int, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The truth, what everywatt says and what the counter says of each query."""
    from sse_server import running

    with SimMachine.of(packages=[f"load:{IDLE_W:g}W,{MAX_W:g}W"]).start() as lab:
        env = lab.environment() | {"HOME": str(folder), "EVERYWATT_HOME": str(folder / "runs")}
        data = folder / "items.jsonl"
        tokens = [5 + 7 * n % 36 for n in range(queries)]
        data.write_text(
            "".join(json.dumps({"prompt": json.dumps({"tokens": n, "n": k})}) + "\n" for k, n in enumerate(tokens))
        )
        with running(folder, env, burn_ms=BURN_S * 1000, gap_ms=2, first_ms=1) as server:
            words = [sys.executable, "-m", "everywatt", "bench", "llm", "--base-url", server.url, "--model", "scripted"]
            words += ["--dataset", str(data), "--concurrency", str(concurrency), "--quiet"]
            subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL, timeout=600)
        (path,) = (folder / "runs").iterdir()
        run = load(path)
        records = [record for record in read_records(path) if record.ok]
        owed = bill(run, records)
        watts = (MAX_W - IDLE_W) / (os.cpu_count() or 1)
        truth = np.array([(record.answer.output_tokens or 0) * BURN_S * watts for record in records])
        ours = np.array([owed.queries[record.span or ""].net_j for record in records])
        return truth, ours, before_minus_after(run, [record.span or "" for record in records])


def main(quick: bool = False) -> None:
    """Print one row for each concurrency and method."""
    sys.path.insert(0, str(SUPPORT))
    rows = []
    for concurrency in (8,) if quick else (1, 8, 64):
        with tempfile.TemporaryDirectory() as name:
            truth, ours, counter = measure(concurrency, 24 if quick else 192, Path(name))
        for method, found in (("everywatt", ours), ("before−after", counter)):
            error = np.abs(found - truth) / truth
            rows.append(
                (
                    str(concurrency),
                    method,
                    f"{error.mean():.1%}",
                    f"{np.percentile(error, 95):.1%}",
                    f"{found.sum() / truth.sum() - 1:+.1%}",
                )
            )
    OUT.table(("concurrency", "method", "mean error", "p95", "of the sum"), rows, right=(0, 2, 3, 4))
    say("the server's own work of sending (a few percent of a token's CPU time) is not in the truth")
