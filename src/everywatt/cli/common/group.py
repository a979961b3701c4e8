"""Groups whose verbs are imported when they are called, and the border where errors become messages and exit codes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Abort, ClickException, Exit, NoArgsIsHelpError

from everywatt.cli.common.options import Verb
from everywatt.cli.common.output import Output
from everywatt.cli.main import COMMANDS, INTERRUPTED, PROGRAM, help_text
from everywatt.core import plugins
from everywatt.core.errors import EverywattError

if TYPE_CHECKING:
    from everywatt.doctor.preflight import CpuLoad

COMPLETE_VARIABLE = "_EVERYWATT_COMPLETE"
HELP_NAMES = ("-h", "--help")


def _command(target: str) -> click.Command:
    """The click command of a module: `command`, or what `module:name` names."""
    found: click.Command = plugins.load(target if ":" in target else f"{target}:command")
    return found


class LazyGroup(click.Group):
    """A group whose members are a table of name → (module, help). The click command is `command`, or module:name."""

    def __init__(self, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        return _command(self.table[cmd_name][0])

    def get_help(self, ctx: click.Context) -> str:
        return help_text()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            ctx.fail(f"There is no command '{name}'.{_meant(name, self.table)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Names from the table, so that pressing Tab imports no verb."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(n, help=text) for n, (_, text) in self.table.items() if n.startswith(incomplete)]


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


class Members(click.Group):
    """A group that says the whole first sentence of each member's help: click cuts it to one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_members(formatter, dict(sorted(self.commands.items())))


def write_members(formatter: click.HelpFormatter, members: Mapping[str, click.Command]) -> None:
    """Names with the first sentence of their help."""
    with formatter.section("Commands"):
        formatter.write_dl([(name, one.get_short_help_str(160)) for name, one in members.items()])


class WithMembers(Verb):
    """A verb whose first word may name a member: name → module (its `command`) or module:name, imported when called."""

    def __init__(self, name: str | None, *, modules: Mapping[str, str], **settings: Any) -> None:
        super().__init__(name, **settings)
        self.modules = modules

    @property
    def members(self) -> dict[str, click.Command]:
        return {name: _command(target) for name, target in self.modules.items()}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The members, with the first line of their help."""
        super().format_epilog(ctx, formatter)
        write_members(formatter, self.members)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.modules:
            return _command(self.modules[args[0]]).make_context(
                f"{info_name} {args[0]}", args[1:], parent=parent, **extra
            )
        return super().make_context(info_name, args, parent=parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return ctx.command.invoke(ctx) if ctx.command is not self else super().invoke(ctx)


def cli() -> LazyGroup:
    """The whole command line as click sees it."""
    from everywatt import __version__

    group = LazyGroup(COMMANDS, name=PROGRAM, context_settings={"help_option_names": HELP_NAMES})
    return click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")(group)


def dispatch(args: Sequence[str], group: click.Group | None = None, *, load: CpuLoad | None = None) -> int:
    """Parse, call the verb, and return the exit code. What a verb returns is its exit code, None is 0.

    `load` watches other programs since the call; the verb finds it in click's context.
    """
    group = group or cli()
    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, PROGRAM, COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])
    try:
        with group.make_context(PROGRAM, list(args), obj=load) as ctx:
            code = group.invoke(ctx)
            return code if isinstance(code, int) else 0
    except Exit as ending:
        return ending.exit_code
    except Abort:
        return INTERRUPTED
    except NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except ClickException as error:
        wrong: click.Context | None = getattr(error, "ctx", None)
        if wrong is not None:
            click.echo(f"{wrong.get_usage()}\nTry '{wrong.command_path} --help' for help.\n", err=True)
        Output().error(error.format_message())
        return error.exit_code
    except EverywattError as error:
        Output().error(error)
        return error.exit_code


def _meant(word: str, known: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
