"""Write a man page for every command, from the same click commands that `--help` prints.

python scripts/make_man_pages.py FOLDER    # writes FOLDER/man1/everywatt.1, everywatt-run.1, …
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from make_reference import commands, visible_options

import everywatt
from everywatt.cli.main import COMMANDS


def roff(text: str) -> str:
    """Plain text as roff: no line starts a request, backslashes and hyphens are literal."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in ".'" else line for line in text.splitlines())


def page(name: str, command: click.Command) -> str:
    """The man page of one command; `name` is all of it, as in `everywatt bench llm`."""
    text = inspect.cleandoc(command.help or "")
    first, _, rest = text.partition("\n\n")
    parts = [
        f'.TH "{name.replace(" ", "-").upper()}" 1 "" "everywatt {everywatt.__version__}" "everywatt"',
        f".SH NAME\n{roff(name.replace(' ', '-'))} \\- {roff(' '.join(first.split()).rstrip('.'))}",
        f".SH SYNOPSIS\n.B {roff(name)}\n{roff(usage(command))}",
    ]
    if rest:
        parts.append(".SH DESCRIPTION\n" + "\n.PP\n".join(roff(part) for part in re.split(r"\n\s*\n", rest)))
    options = [f".TP\n.B {roff(flags(option))}\n{roff(option.help or '')}" for option in visible_options(command)]
    if options:
        parts.append(".SH OPTIONS\n" + "\n".join(options))
    parts.append(".SH SEE ALSO\n" + roff(f"{'everywatt' if name != 'everywatt' else 'everywatt-run'}(1)"))
    return "\n".join(parts) + "\n"


def usage(command: click.Command) -> str:
    """Options and arguments as in the first line of --help."""
    with click.Context(command, **command.context_settings) as context:  # a command keeps its first --help
        return " ".join(command.collect_usage_pieces(context))


def flags(option: click.Option) -> str:
    """`--period, -p DURATION`"""
    spelled = ", ".join((*option.opts, *option.secondary_opts))
    return spelled if option.is_flag or option.count else f"{spelled} {option.metavar or option.type.name.upper()}"


def overview() -> str:
    """The page of `everywatt` itself: what there is, by command."""
    rows = [f".TP\n.B {roff(f'everywatt-{name}(1)')}\n{roff(about)}" for name, (_, about) in COMMANDS.items()]
    return (
        f'.TH "EVERYWATT" 1 "" "everywatt {everywatt.__version__}" "everywatt"\n'
        ".SH NAME\neverywatt \\- measure the energy of computing\n"
        ".SH SYNOPSIS\n.B everywatt\nCOMMAND [ARGUMENTS]\n.SH COMMANDS\n" + "\n".join(rows) + "\n"
    )


def pages() -> Iterator[tuple[str, str]]:
    """File name and content of every page."""
    yield "everywatt.1", overview()
    for name, command in commands():
        yield f"{name.replace(' ', '-')}.1", page(name, command)


def main(words: list[str]) -> int:
    """Write the pages into FOLDER/man1."""
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(words[0]) / "man1"
    folder.mkdir(parents=True, exist_ok=True)
    made = dict(pages())
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(made)} man pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
