"""`everywatt completion SHELL`: the script that makes a shell complete everywatt's words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from everywatt.cli.common.group import COMPLETE_VARIABLE, cli
from everywatt.cli.common.options import Verb
from everywatt.cli.main import PROGRAM

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script for a shell.

    For bash: eval "$(everywatt completion bash)" in ~/.bashrc; the same for zsh in ~/.zshrc. For fish: save it as
    ~/.config/fish/completions/everywatt.fish.
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """The text that the shell reads."""
    maker = get_completion_class(shell)
    assert maker is not None, f"completion is available for {SHELLS}"
    return maker(cli(), {}, PROGRAM, COMPLETE_VARIABLE).source()
