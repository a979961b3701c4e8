"""Runs of language models whose every item has known joules, tokens and verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from everywatt.api.run import Run, load
from everywatt.tape.importing import import_files

N = 60


def llm_run(
    folder: Path,
    name: str,
    joules: Callable[[int], float],
    right: Callable[[int], bool],
    *,
    tokens: int = 10,
    problem: str = "q",
    part: str = "per_query_joules",
) -> Run:
    """A run whose item n costs joules(n), takes half a second for each 10 J, and is right where right(n) is."""
    source = folder / f"{name}-profile"
    source.mkdir()
    rows = []
    for n in range(N):
        metrics = {
            "energy_metrics": {part: joules(n)},
            "latency_metrics": {"total_query_seconds": joules(n) / 20, "time_to_first_token_seconds": 0.1},
            "token_metrics": {"input": 5, "output": tokens, "total": tokens + 5},
            "lm_correctness": right(n),
            "lm_response": "yes" if right(n) else "no",
        }
        rows.append(
            {"problem": f"{problem}{n}", "answer": "yes", "subject": f"s{n % 6}", "model_metrics": {name: metrics}}
        )
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(source / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as to,
    ):
        to.write_table(table)
    about = {"model": name, "dataset": "own", "generated_at": "2026-09-01T10:00:00", "versions": {"ipw": "1"}}
    (source / "summary.json").write_text(json.dumps(about))
    (folder / name).mkdir()
    import_files("ipw", [source], folder / name / "import-0001.tape")
    return load(folder / name)
