"""Write docs/reference from the code: the command line, the settings, the errors and the public names.

python scripts/make_reference.py           # writes the files
python scripts/make_reference.py --check   # ends with 1 where a committed file differs
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import everywatt
from everywatt.cli.common.group import cli
from everywatt.cli.main import COMMANDS, OPTIONS
from everywatt.core import errors
from everywatt.core.config import SETTINGS, VARIABLES, Setting

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
WRITTEN = "Written by `make reference` from the code; changes belong there.\n"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before their members, in the order of `everywatt --help`."""
    group = cli()
    context = click.Context(group, info_name="everywatt")
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        yield from _tree(f"everywatt {name}", command)


def _tree(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        found = {word: command.get_command(context, word) for word in command.list_commands(context)}
        members = {word: member for word, member in found.items() if member is not None}
    else:
        members = getattr(command, "members", {})
    for word, member in members.items():
        yield from _tree(f"{name} {word}", member)


def visible_options(command: click.Command) -> list[click.Option]:
    """The options that --help shows, without --help itself."""
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def cli_page() -> str:
    """docs/reference/cli.md"""
    parts = ["# Commands\n", WRITTEN, _rows(["option", "does"], [[f"`{k}`", v] for k, v in OPTIONS.items()])]
    for name, command in commands():
        context = click.Context(command, info_name=name, **command.context_settings)  # it keeps its first --help
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        parts.append(f"## {name}\n\n    {usage}\n\n{_doc(command.help)}\n")
        rows = [[f"`{_spelling(option)}`", option.help or ""] for option in visible_options(command)]
        if rows:
            parts.append(_rows(["option", "does"], rows))
    return "\n".join(parts)


def settings_page() -> str:
    """docs/reference/settings.md"""
    settings = [[f"`{s.name}`", f"`{s.variable}`", f"`{s.takes}`", _default(s), s.help] for s in SETTINGS]
    variables = [[f"`{name}`", text] for name, text in VARIABLES.items()]
    return "\n".join(
        [
            "# Settings\n",
            WRITTEN,
            "The strongest comes first: an option of the command line, the environment variable, the project file\n"
            "(`everywatt.toml`, or the table `[tool.everywatt]` of `pyproject.toml`: the nearest one from the working\n"
            "folder upwards to the root of the repository or your home folder), the user file\n"
            "(`$XDG_CONFIG_HOME/everywatt/config.toml`, usually `~/.config/everywatt/config.toml`), the default.\n"
            "`everywatt config show` says which one holds. A path in a file is relative to that file.\n",
            _rows(["setting", "variable", "takes", "default", "is"], settings),
            "## Other variables\n",
            _rows(["variable", "is"], variables),
        ]
    )


def errors_page() -> str:
    """docs/reference/errors.md"""
    rows = [[f"`{kind.__name__}`", str(kind.exit_code), _doc(kind.__doc__)] for kind in error_classes()]
    return "\n".join(
        [
            "# Errors\n",
            WRITTEN,
            "All are `everywatt.EverywattError`: `message` says what happened, `cure` what to try (or is None).\n",
            _rows(["error", "exit code", "means"], rows),
        ]
    )


def error_classes() -> list[type[errors.EverywattError]]:
    """Every error class, in the order of the source."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    return [kind for kind in kinds if issubclass(kind, errors.EverywattError)]


def api_page() -> str:
    """docs/reference/api.md"""
    parts = ["# Python\n", WRITTEN]
    error_names = {kind.__name__ for kind in error_classes()}
    for name in everywatt.__all__:
        if name.startswith("__") or name in error_names:
            continue
        value = getattr(everywatt, name)
        parts.append(f"## everywatt.{name}\n\n```python\n{name}{_signature(value)}\n```\n\n{_prose(value.__doc__)}\n")
        parts += _members(value)
    parts.append("The errors are in [errors.md](errors.md). `everywatt.__version__` is the version.\n")
    return "\n".join(parts)


def _members(value: object) -> list[str]:
    """Public methods and properties of a class that have a docstring."""
    if not inspect.isclass(value):
        return []
    rows = []
    for name, member in vars(value).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name.startswith("_") or not getattr(function, "__doc__", None):
            continue
        if isinstance(function, property):
            rows.append([f"`{name}`", _doc(function.__doc__)])
        elif inspect.isfunction(function):
            rows.append([f"`{name}{_signature(function)}`", _doc(function.__doc__)])
    return (
        [_rows(["name", "is"], [[left, right.split("\n\n")[0].replace("\n", " ")] for left, right in rows])]
        if rows
        else []
    )


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value)) if callable(value) else ""
    except ValueError:
        return "(…)"
    # Annotations are texts at run time; a reader wants them without quotes.
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _spelling(option: click.Option) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    metavar = option.metavar or option.make_metavar(click.Context(click.Command("x")))
    return names + (metavar if metavar.startswith("[=") else f" {metavar}")


def _default(setting: Setting) -> str:
    if setting.default in (None, {}):
        return "not set"
    return f"`{str(setting.default).lower()}`" + (" s" if setting.takes == "DURATION" else "")


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def _doc(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b", "")


def _prose(text: str | None) -> str:
    """A docstring as Markdown: examples become code, lists of options become lists."""
    return "\n\n".join(_paragraph(part) for part in _doc(text).split("\n\n"))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if text.startswith(">>>"):
        return "\n".join(["```pycon", *(re.sub(r"\s*# doctest: .*", "", line) for line in lines), "```"])
    if re.match(r"\w+ {2,}\S", text):
        return "\n".join(re.sub(r"^(\w+) {2,}", r"- `\1`: ", re.sub(r"^ {4,}", "  ", line)) for line in lines)
    return text


def _rows(headers: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    lines += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


PAGES = {"cli.md": cli_page, "settings.md": settings_page, "errors.md": errors_page, "api.md": api_page}


def stale() -> list[str]:
    """Names of committed pages that differ from what the code says."""
    found = []
    for name, page in PAGES.items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != page():
            found.append(name)
    return found


def main() -> int:
    if "--check" in sys.argv[1:]:
        old = stale()
        if old:
            print(f"Out of date: {', '.join(old)}. Try: make reference", file=sys.stderr)
        return 1 if old else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
