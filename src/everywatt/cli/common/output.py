"""What a person or a program reads: one table printer, one JSON printer, messages. stdout is data, stderr the rest."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.jsonio import document, dumps

STDOUT = "-"
PROGRESS_EVERY_S = 10.0
GAP = 3  # between two columns of a table on a terminal
MOST_STACKED = 40  # a longer table is not cut in two: the other half of a row would be off the screen
LEAST_WORDS = 24  # a column of words may be folded to this width
_CONTROLS = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}
_ASCII = str.maketrans(
    {
        "±": "+/-",
        "−": "-",
        "–": "-",
        "—": "-",
        "µ": "u",
        "μ": "u",
        "·": "|",
        "°": "deg ",
        "×": "x",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "…": "...",
        "²": "2",
        "³": "3",
    }
)


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


def fitting(text: str, encoding: str) -> str:
    """The text without control characters (names from files may hold any), in ASCII where the encoding lacks a sign."""
    text = text.translate(_CONTROLS)
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Aligned text, columns two spaces apart; columns in `right` are aligned to the right."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


@dataclass(frozen=True, slots=True)
class Output:
    """How one command speaks.

    json_to   None: for people; "-": one object on stdout; else the file that gets the object
    quiet     no messages on stderr except errors
    verbose   details and progress on stderr
    """

    quiet: bool = False
    verbose: bool = False
    json_to: str | None = None
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def text(self, line: str = "") -> None:
        """A line of data on stdout; nothing where stdout belongs to the JSON object."""
        if self.json_to != STDOUT:
            print(fitting(line, style_of(self.stdout, self.environ).encoding), file=self.stdout)

    def table(
        self, headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = (), title: str = ""
    ) -> None:
        """A table on stdout; `right` are the columns with numbers. None is shown as `-`."""
        if self.json_to == STDOUT:
            return
        style = style_of(self.stdout, self.environ)
        cells = [[fitting("-" if cell is None else str(cell), style.encoding) for cell in row] for row in rows]
        cells = [[cell.replace("\n", " ") for cell in row] for row in cells]
        if style.rich:
            _rich_table(headers, cells, right, title, self.stdout, style)
            return
        if title:
            print(fitting(title, style.encoding), file=self.stdout)
        print(plain_table(headers, cells, right), file=self.stdout)

    def json(self, kind: str, data: Mapping[str, Any]) -> None:
        """The command's JSON object, where `--json` asked for it; else nothing."""
        if self.json_to is not None:
            emit_json(document(kind, data), self.json_to, self.stdout)

    def say(self, text: str) -> None:
        """A message for the person, on stderr."""
        if not self.quiet:
            self._err(text)

    def detail(self, text: str) -> None:
        """A message on stderr where --verbose asked for it."""
        if self.verbose and not self.quiet:
            self._err(text)

    def warn(self, text: str) -> None:
        """A warning on stderr; --quiet hides it, the record keeps it."""
        self.say(f"Warning: {text}")

    def error(self, error: EverywattError | str) -> None:
        """What happened and what to try, on stderr, always."""
        if isinstance(error, str):
            self._err(f"Error: {error}")
            return
        self._err(f"Error: {error.message}")
        if error.cure:
            self._err(f"Try:   {error.cure}")

    def progress(self, clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
        """A function that shows how far things are.

        On a terminal it rewrites one line. Elsewhere --verbose gives one plain line every ten seconds.
        """
        live = style_of(self.stderr, self.environ).rich
        last: list[float] = []

        def show(text: str) -> None:
            if self.quiet or not (live or self.verbose):
                return
            now = clock()
            if not live and last and now - last[0] < PROGRESS_EVERY_S:
                return
            last[:] = [now]
            if live:
                self.stderr.write(f"\r\x1b[K{fitting(text, style_of(self.stderr, self.environ).encoding)}")
                self.stderr.flush()
            else:
                self._err(text)

        return show

    def _err(self, text: str) -> None:
        print(fitting(text, style_of(self.stderr, self.environ).encoding), file=self.stderr)


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


def write_text(path: Path, text: str) -> None:
    """Write a derived file: readers see the old one or the new one, never half. UsageError where it cannot be."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # /dev/stderr, a pipe: nothing to replace
            return
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


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


def _rich_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int],
    title: str,
    stream: TextIO,
    style: Style,
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ascii_only = not _encodes("─", style.encoding)
    colours: Literal["standard"] | None = "standard" if style.colour else None
    console = Console(file=stream, force_terminal=True, color_system=colours, highlight=False)
    groups = column_groups(_widths(headers, rows), right, console.width - 2)
    for columns in groups if len(rows) <= MOST_STACKED else [range(len(headers))]:
        table = Table(
            title=title or None,
            title_justify="left",
            box=box.ASCII if ascii_only else box.SIMPLE_HEAD,
            pad_edge=False,
            header_style="bold cyan",
        )
        for column in columns:
            table.add_column(headers[column], justify="right" if column in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[column]) for column in columns))
        console.print(table)
        title = ""


def _widths(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(cell_len(line[column]) for line in (headers, *rows)) for column in range(len(headers))]


def column_groups(widths: Sequence[int], right: Sequence[int], width: int) -> list[list[int]]:
    """The columns of a table that is too wide, as several tables below one another, each with the first column.

    One table where all fit, or where folding the widest column of words is enough.
    """
    everything = list(range(len(widths)))
    words = max((widths[column] for column in everything if column not in right), default=0)
    spare = width - sum(each + GAP for each in widths) + GAP
    if spare + words >= min(words, LEAST_WORDS):
        return [everything]
    groups = [[0]]
    for column in everything[1:]:
        used = sum(widths[one] + GAP for one in groups[-1])
        if len(groups[-1]) > 1 and used + widths[column] > width:
            groups.append([0])
        groups[-1].append(column)
    return groups
