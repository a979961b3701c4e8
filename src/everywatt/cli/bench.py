"""`everywatt bench WHAT`: the benchmarks, each a module that is imported when it is called."""

from __future__ import annotations

import click

from everywatt.cli.group import HELP_NAMES, LazyGroup

BENCHMARKS: dict[str, tuple[str, str]] = {
    "precision": ("everywatt.cli.bench_precision", "Measure a model at several precisions."),
    "train": ("everywatt.cli.bench_train", "Measure a training, epoch by epoch."),
    "llm": ("everywatt.cli.bench_llm", "Ask a language model: joules, accuracy and speed, each with an interval."),
    "agents": ("everywatt.cli.bench_agents", "What turns, model calls and tool calls of an agent cost."),
    "leaderboard": ("everywatt.cli.bench_leaderboard", "Runs of `bench llm` in one table, best first."),
}


class Benchmarks(LazyGroup):
    """The group, with a help text of its own that imports none of its members."""

    def get_help(self, ctx: click.Context) -> str:
        return click.Group.get_help(self, ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


command = Benchmarks(
    BENCHMARKS,
    name="bench",
    help="Benchmarks of models: energy beside speed and quality.",
    context_settings={"help_option_names": list(HELP_NAMES)},
)
