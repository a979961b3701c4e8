"""Verbs that have parts: groups that are nothing but their members, and verbs whose first word may name another."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from everywatt.cli.common.group import HELP_NAMES, LazyGroup
from everywatt.cli.common.options import Verb


class Parts(LazyGroup):
    """A group with a help text of its own that imports none of its members."""

    def get_help(self, ctx: click.Context) -> str:
        return click.Group.get_help(self, ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


def parts(name: str, help_text: str, table: Mapping[str, tuple[str, str]]) -> Parts:
    """The group of these members: name → (module, help)."""
    return Parts(table, name=name, help=help_text, context_settings={"help_option_names": list(HELP_NAMES)})


class WithMembers(Verb):
    """A verb whose first word may name a member: name → module (its `command`) or module:name, imported when called."""

    def __init__(self, name: str | None, *, modules: Mapping[str, str], **settings: Any) -> None:
        super().__init__(name, **settings)
        self.modules = modules

    @property
    def members(self) -> dict[str, click.Command]:
        """The members, all imported."""
        return {name: self._member(name) for name in self.modules}

    def _member(self, name: str) -> click.Command:
        module, _, attribute = self.modules[name].partition(":")
        command: click.Command = getattr(import_module(module), attribute or "command")
        return command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The members, with the first line of their help."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(100)) for name, one in self.members.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.modules:
            return self._member(args[0]).make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return ctx.command.invoke(ctx) if ctx.command is not self else super().invoke(ctx)
