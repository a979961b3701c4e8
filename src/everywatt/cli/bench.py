"""`everywatt bench`: a group whose members are imported when they are called."""

from __future__ import annotations

from importlib import import_module

import click

MEMBERS: dict[str, tuple[str, str]] = {
    "precision": ("everywatt.cli.bench_precision", "Measure a model at several precisions."),
    "train": ("everywatt.cli.bench_train", "Measure a training, epoch by epoch."),
}
"""Each member with the module that holds its `command`, and one line of help."""


class _Bench(click.Group):
    """A group that imports only the member that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MEMBERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MEMBERS:
            return None
        found: click.Command = import_module(MEMBERS[cmd_name][0]).command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in MEMBERS.items()])


@click.group(cls=_Bench, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Benchmarks of models: energy beside speed and quality."""
