"""`everywatt bench WHAT`: the benchmarks, each a module that is imported when it is called."""

from __future__ import annotations

from everywatt.cli.common.group import parts

BENCHMARKS: dict[str, tuple[str, str]] = {
    "precision": ("everywatt.cli.bench.precision", "Measure a model at several precisions."),
    "train": ("everywatt.cli.bench.train", "Measure a training run, epoch by epoch."),
    "llm": ("everywatt.cli.bench.llm", "Query a language model: joules, accuracy and speed, each with an interval."),
    "agents": (
        "everywatt.cli.bench.llm_runs:agents_command",
        "Show the energy of an agent's turns, model calls and tool calls.",
    ),
    "leaderboard": ("everywatt.cli.bench.llm_runs:leaderboard_command", "Rank runs of `bench llm` in one table."),
}


command = parts("bench", "Benchmark models: energy beside speed and quality.", BENCHMARKS)
