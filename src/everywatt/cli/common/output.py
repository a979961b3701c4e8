"""What a person or a program reads: one printer of results, messages. stdout is data, stderr the rest.

A verb parses its options, calls, and prints what it got once, by `Output.result`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.files import replace_text, usable
from everywatt.core.format import in_ascii
from everywatt.core.jsonio import document, dumps
from everywatt.core.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rich.console import Console

    from everywatt.core.tables import Table

STDOUT = "-"
ADVICE = ("FIX", "TRY")  # columns with commands to type
MEASURED = ("  command ", "  owner ")  # lines with what was measured: commands in them are no advice
PROGRESS_EVERY_S = 10.0
MOST_WORD = 48  # characters of a word (a path, a UUID) that is kept whole in a cell
NARROW = 100  # columns of a terminal below which a table that does not fit becomes cards
MOST_WORDS = 72  # characters of a cell of words in one line: longer ones are hard to read, however wide the terminal
MOST_CARDS = 12  # rows that are cards on a wide terminal where they do not fit into one line
MOST_STACKED = 40  # a longer table is not cut in two: the other half of a row would be off the screen
_CONTROLS = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}


class Result(Protocol):
    """What a verb found: plain data for programs, tables for people. It lives in the room that computes it."""

    def to_dict(self) -> Mapping[str, Any]:
        """Plain data for JSON; figures in SI units."""
        ...

    def tables(self) -> Sequence[Table]:
        """What is printed, in this order; lines of text are `Table.lines(…)`."""
        ...


@dataclass(frozen=True, slots=True)
class Style:
    """What a stream can show."""

    rich: bool
    colour: bool
    encoding: str


def style_of(stream: TextIO, environ: Mapping[str, str] | None = None) -> Style:
    """Rich tables on a terminal that is not dumb, colour unless NO_COLOR is set, plain text everywhere else."""
    env = os.environ if environ is None else environ
    terminal = _is_terminal(stream) and env.get("TERM", "") not in ("", "dumb")
    return Style(terminal, terminal and not env.get("NO_COLOR"), getattr(stream, "encoding", None) or "utf-8")


def program() -> str:
    """How this program is called from the user's shell: `everywatt` where that is the one on the PATH, else longer."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py" and called.parent.name == "everywatt":
        return f"{Path(sys.executable).name if _on_path(sys.executable) else sys.executable} -m everywatt"
    if called.name != "everywatt" or _on_path(str(called)):
        return "everywatt"
    return str(called)


def as_called(text: str) -> str:
    """The text with this program's commands as the user's shell finds them; what was measured is left as it was."""
    if "everywatt " not in text or text.startswith(MEASURED):
        return text
    import re

    from everywatt.cli.main import COMMANDS

    return re.sub(rf"(?<![\w/.-])(?<!-m )everywatt(?= (?:{'|'.join(COMMANDS)})\b)", program(), text)


def _on_path(path: str) -> bool:
    import shutil  # see child.cannot_start

    found = shutil.which(Path(path).name)
    return found is not None and Path(found).absolute() == Path(path).absolute()


def fitting(text: str, encoding: str) -> str:
    """The text without control characters (names from files may hold any), in ASCII where the encoding lacks a sign."""
    text = text.translate(_CONTROLS)
    return text if _encodes(text, encoding) else in_ascii(text)


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how one command prints.

    json_to     None: for people; "-": one object on stdout; else the file that gets the object
    quiet       no messages on stderr except errors
    verbose     details and progress on stderr
    ascii_only  no other signs, whatever the streams can show
    """

    quiet: bool = False
    verbose: bool = False
    json_to: str | None = None
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ascii_only: bool = False
    _open: list[str] = field(default_factory=list)  # the line of progress that is on the terminal
    _above: list[str] = field(default_factory=list)  # "text", or "free": a free line is due before the next text

    def text(self, *lines: str) -> None:
        """Lines of data on stdout; nothing where stdout belongs to the JSON object."""
        for line in lines if self.json_to != STDOUT else ():
            self._print(line, self.stdout)

    def document(self, text: str) -> None:
        """A whole text on stdout that a program or a file takes, as it is: CSV, Markdown, JSON, a script."""
        if self.json_to != STDOUT:
            self.clear()
            print(fitting(text.rstrip("\n"), self._style(self.stdout).encoding), file=self.stdout)

    def result(self, kind: str, found: Result, **more: Any) -> None:
        """Print what a verb found: its tables, or one JSON object of this kind where `--json` asked for it.

        `more` goes into the JSON object, too.
        """
        if self.json_to is not None:
            self.json(kind, {**found.to_dict(), **more})
        if self.json_to != STDOUT:
            self.table(*found.tables())

    def facts(self, kind: str, facts: Mapping[str, Any], *lines: str) -> None:
        """Print a result that is a few facts: the JSON object where `--json` asked for it, else sentences."""
        self.json(kind, facts)
        self.text(*lines)

    def table(self, *tables: Table) -> None:
        """Tables on stdout, one below the other."""
        if self.json_to == STDOUT:
            return
        style = self._style(self.stdout)
        self.clear()
        for table in tables:
            fitted = _fitted(table, style.encoding)
            if not style.rich:
                print(fitted.text(), file=self.stdout)
                continue
            if table.rows:  # heads alone say nothing to a person
                self._print("", self.stdout)
                self._free_line()
                fitted = _rich_table(fitted, self.stdout, style)
                self._print("", self.stdout)
            for note in fitted.notes:
                self._print(note, self.stdout)

    def _style(self, stream: TextIO) -> Style:
        style = style_of(stream, self.environ)
        return replace(style, encoding="ascii") if self.ascii_only else style

    def _free_line(self) -> None:
        """Print the free line that was asked for, now that something follows it; two are never wanted."""
        if self._above == ["free"]:
            print(file=self.stdout)
        self._above[:] = ["text"]

    def json(self, kind: str, data: Mapping[str, Any]) -> None:
        """The command's JSON object, where `--json` asked for it; else nothing."""
        if self.json_to is not None:
            emit_json(document(kind, data), self.json_to, self.stdout)

    def say(self, *texts: str) -> None:
        """Messages for the person, on stderr."""
        for text in texts if not self.quiet else ():
            self._err(text)

    def detail(self, text: str) -> None:
        """A message on stderr where --verbose asked for it."""
        if self.verbose and not self.quiet:
            self._err(text)

    def warn(self, *texts: str) -> None:
        """Warnings on stderr; --quiet hides them, the record keeps them."""
        self.say(*(f"Warning: {text}" for text in texts))

    def error(self, error: EverywattError | str) -> None:
        """What happened and what to try, on stderr, always."""
        if isinstance(error, str):
            self._err(f"Error: {error}")
            return
        self._err(f"Error: {error.message}")
        if error.cure:
            self._err(f"Try:   {error.cure}")

    def progress(
        self, clock: Callable[[], float] = time.monotonic, *, log_every_s: float | None = None
    ) -> Callable[[str], None]:
        """A function that shows how far things are.

        On a terminal it rewrites one line. Elsewhere --verbose gives one plain line every ten seconds; `log_every_s`
        gives one so often without it too, for what takes many minutes.
        """
        from everywatt.core.tables import display_width

        live = self._style(self.stderr).rich
        every_s = PROGRESS_EVERY_S if self.verbose else log_every_s
        last: list[float] = [] if self.verbose else [clock()]

        def show(text: str) -> None:
            if self.quiet or not (live or every_s is not None):
                return
            now = clock()
            if not live and every_s is not None and last and now - last[0] < every_s:
                return
            last[:] = [now]
            if live:
                line = fitting(text, self._style(self.stderr).encoding)
                columns = _columns(self.stderr, self.environ)
                while columns is not None and display_width(line) >= columns:  # a folded line could not be cleared
                    line = line[:-1]
                self._open[:] = [line]
                self.stderr.write(f"\r\x1b[K{self._open[0]}")
                self.stderr.flush()
            else:
                self._err(text)

        return show

    def clear(self) -> None:
        """Take the line of progress from the terminal, so that what follows stands in its place."""
        if self._open:
            self._open.clear()
            self.stderr.write("\r\x1b[K")
            self.stderr.flush()

    def _err(self, text: str) -> None:
        self._print(text, self.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        self.clear()
        style = self._style(stream)
        shown = fitting(as_called(text), style.encoding)
        if not style.rich:
            print(shown, file=stream)
        elif shown:
            self._free_line()
            print(_wrapped(shown, _columns(stream, self.environ)), file=stream)
        elif self._above:
            self._above[:] = ["free"]


def emit_json(data: Mapping[str, Any], target: str = STDOUT, stdout: TextIO | None = None) -> None:
    """One JSON object: on stdout, or into a file that is replaced as a whole."""
    if target == STDOUT:
        stream = stdout or sys.stdout
        if stream is None:  # closed by the caller (>&-)
            return
        text = dumps(data, indent=2)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        # JSON has its own escapes for what the stream's encoding lacks.
        stream.write((text if _encodes(text, encoding) else _escaped(text)) + "\n")
        return
    write_text(Path(target), dumps(data, indent=2) + "\n")


def check_folder(path: Path) -> None:
    """UsageError where a file cannot be written because its folder is missing: better before the work than after it."""
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}.")


def write_text(path: Path, text: str) -> None:
    """Write a derived file: readers see the old one or the new one, never half. UsageError where it cannot be."""
    with usable(path, "written"):
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # /dev/stderr, a pipe: nothing to replace
        else:
            replace_text(path, text)


def open_in_browser(url: str, output: Output, *, shown: str) -> None:
    """Show an address or a file; without a screen xdg-open would only list the browsers that it did not find."""
    from click import launch

    screen = any(output.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if (sys.platform == "linux" and not screen) or launch(url) != 0:
        output.warn(f"no browser could be started; open {shown} in one.")


def _columns(stream: TextIO, environ: Mapping[str, str]) -> int | None:
    """The width of a terminal; None if it is not known."""
    try:
        return int(environ.get("COLUMNS", "")) or None
    except ValueError:
        pass
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _wrapped(line: str, columns: int | None) -> str:
    """A line broken between words, below where its text starts. Commands stay whole, so that they can be copied, and
    so do figures.

    Text of several lines (a file, CSV) is left as it is.
    """
    if columns is None or "\n" in line or line.startswith("  command "):
        return line
    from everywatt.core.tables import JOINT, display_width, keep_together

    if display_width(line) <= columns:
        return line
    import re
    import textwrap

    from everywatt.cli.main import COMMANDS

    command = rf"(?:sudo|(?:\S+ -m )?\S*everywatt (?:{'|'.join(COMMANDS)}))\b[^,;()]*"
    label = re.match(r"\s*(?:\S+:? {2,}|! )?", line)
    indent = " " * (len(label[0]) if label and len(label[0]) <= columns // 2 else 2)
    whole = keep_together(line, columns - len(indent))
    if not line.startswith(MEASURED):
        whole = re.sub(command, lambda one: one[0].rstrip().replace(" ", JOINT) + " " * one[0].endswith(" "), whole)
    as_wide = "".join(sign + "\1" * (display_width(sign) - 1) for sign in whole)  # textwrap counts characters
    wrap = textwrap.wrap(as_wide, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap).replace(JOINT, " ").replace("\1", "")


def _encodes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _escaped(text: str) -> str:
    import json

    return json.dumps(json.loads(text), indent=2)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # closed, or not quite a stream
        return False


def _fitted(table: Table, encoding: str) -> Table:
    """The table as words that the encoding has."""
    advice = [column.name in ADVICE for column in table.columns]
    rows = tuple(
        tuple(
            None if cell is None else fitting(as_called(text) if advised else text, encoding)
            for cell, text, advised in zip(*both, advice, strict=True)
        )
        for both in zip(table.rows, table.cells(), strict=True)
    )
    notes = tuple(fitting(as_called(note), encoding) for note in table.notes)
    return replace(table, rows=rows, title=fitting(table.title, encoding), notes=notes)


def _said(table: Table) -> Table:
    """The table without columns that say nothing in any row: they only take room from the others."""
    from everywatt.core.tables import MISSING

    rows = table.cells()
    kept = [0, *(n for n in range(1, len(table.columns)) if any(row[n] not in ("", MISSING) for row in rows))]
    columns = tuple(table.columns[place] for place in kept)
    return replace(table, columns=columns, rows=tuple(tuple(row[place] for place in kept) for row in table.rows))


def _least(table: Table, taken: Sequence[int]) -> list[int]:
    """The width of each column below which a number or a word would be broken; names and very long words may be."""
    from everywatt.core.tables import LEAST_WORDS, display_width, keep_together

    least = []
    for place, column in enumerate(table.columns):
        words = (word for row in table.cells() for word in (column.name, *keep_together(row[place], MOST_WORD).split()))
        longest = max(map(display_width, words))
        fold = place == 0 or longest > MOST_WORD
        least.append(taken[place] if column.unbroken else min(taken[place], LEAST_WORDS) if fold else longest)
    return least


def _most(table: Table, taken: Sequence[int]) -> list[int]:
    """The width that each column has at most: lines of words get hard to read."""
    return [
        each if place == 0 or column.right else min(each, MOST_WORDS)
        for place, (each, column) in enumerate(zip(taken, table.columns, strict=True))
    ]


def _given(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """The width of each column where `room` is shared, the narrowest first; none where the least do not fit."""
    given, left = list(least), room - sum(least)
    while left > 0 and (wanting := [n for n, width in enumerate(given) if width < most[n]]):
        given[min(wanting, key=given.__getitem__)] += 1
        left -= 1
    return given if left >= 0 else []


def _cards(table: Table, console: Console) -> None:
    """Each row as a block under its first cell: a table that is cut in two loses the names of its rows."""
    from rich.text import Text

    for line in replace(table, notes=()).cards(console.width).split("\n"):
        heading = bool(line) and not line.startswith(" ")
        console.print(Text(line, "bold cyan" if heading and line != table.title else ""), soft_wrap=True)


def _rich_table(table: Table, stream: TextIO, style: Style) -> Table:
    """Print a table without its notes; gives what there was room for."""
    from rich import box
    from rich import table as rich_table
    from rich.console import Console
    from rich.text import Text

    from everywatt.core.tables import GAP, JOINT, column_groups, keep_together, widths, without_spare

    ruled = (
        box.SIMPLE_HEAD if _encodes("─", style.encoding) else box.Box("    \n    \n -- \n" + "    \n" * 5, ascii=True)
    )
    colours: Literal["standard"] | None = "standard" if style.colour else None
    console = Console(file=stream, force_terminal=True, color_system=colours, highlight=False)
    whole = _said(table)
    table = without_spare(whole, console.width)
    headers, rows, right = table.headers, table.cells(), table.right
    taken = widths(headers, rows)
    groups = column_groups(taken, table.unbroken, console.width)
    given = _given(_least(table, taken), _most(table, taken), console.width - GAP * (len(taken) - 1))
    most = MOST_STACKED if console.width < NARROW else MOST_CARDS
    if (len(groups) > 1 or not (given or console.width >= NARROW)) and len(rows) <= most:
        _cards(whole, console)
        return whole
    given, title = given if len(groups) == 1 else [], table.title
    for columns in groups if len(rows) <= MOST_STACKED else [range(len(headers))]:
        shown = rich_table.Table(
            title=title or None,
            title_justify="left",
            box=ruled,
            show_edge=False,
            show_header=any(headers),
            pad_edge=False,
            collapse_padding=True,
            header_style="bold cyan",
        )
        for column in columns:
            numeric = column in right
            shown.add_column(
                headers[column],
                justify="right" if numeric else "left",
                overflow="fold",
                width=given[column] if given else None,
                max_width=None if numeric or column == 0 else MOST_WORDS,
            )
        for row in rows:
            shown.add_row(*(Text(keep_together(row[n], given[n] if given else MOST_WORDS)) for n in columns))
        with console.capture() as captured:
            console.print(shown)
        stream.write(captured.get().replace(JOINT, " "))
        title = ""
    return table
