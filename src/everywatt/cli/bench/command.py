"""`everywatt bench WHAT`: the benchmarks, each a module that is imported when it is called."""

from __future__ import annotations

from everywatt.cli.common.parts import parts

BENCHMARKS: dict[str, tuple[str, str]] = {
    "precision": ("everywatt.cli.bench.precision", "Measure a model at several precisions."),
    "train": ("everywatt.cli.bench.train", "Measure a training, epoch by epoch."),
    "llm": ("everywatt.cli.bench.llm", "Ask a language model: joules, accuracy and speed, each with an interval."),
    "agents": ("everywatt.cli.bench.agents", "What turns, model calls and tool calls of an agent cost."),
    "leaderboard": ("everywatt.cli.bench.leaderboard", "Runs of `bench llm` in one table, best first."),
}


command = parts("bench", "Benchmarks of models: energy beside speed and quality.", BENCHMARKS)
