"""A table as a value: columns with unit and alignment, rows of values, notes; as text, cards, Markdown and CSV.

Cells hold values, not text: numbers in the column's unit, energies, words. People see them as `core.format` prints
them, programs get the numbers.

>>> table = Table.of("DEVICE", Column("ENERGY", "J"), rows=[["gpu.0", 412.34], ["cpu.0", None]])
>>> print(table.text())
DEVICE   ENERGY
gpu.0   412.3 J
cpu.0         -
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from everywatt.core.energy import Energy, Ratio
from everywatt.core.format import (
    format_bytes,
    format_duration,
    format_energy,
    format_number,
    format_percent,
    format_quantity,
    format_ratio,
    print_quantity,
)
from everywatt.core.jsonio import as_data, declared
from everywatt.core.lazy_dataclass import dataclass

Cell: TypeAlias = "str | float | Energy | Ratio | Quantity | None"
MISSING = "-"
GAP = 2  # between two columns of a table on a terminal
MOST_HEADING = 3  # cells in the heading of a card
LEAST_WORDS = 24  # columns of words may be folded to this width
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# For a space at which no line may end. Of the private use area: the libraries that fold lines break at U+00A0, too.
JOINT = "\ue000"
_UNIT = r"(?:[GMkmµn]?(?:J|Wh?|s|g|V|A|VA|Hz|FLOP)|[KMGT]i?B|B|min|h|d|%|EUR|USD)(?!\w)"  # of the number before it
_WHOLE = re.compile(
    rf"(?<=[\d∞]) (?={_UNIT})|(?<=[±≈]) (?=[\d−])|(?<=[\w%]) (?=± ?\d|−[\d.]+/\+)|(?<=[\d∞]) (?=…)|(?<=…) (?=[−\d∞])"
    r"|(?<=coverage) (?=\d)|(?<=--idle) (?=\d)|(?<= d) (?=\d\d h)|(?<= h) (?=\d\d min)|(?<= min) (?=\d\d s)"
    r"|\((?=[^()]*\d)[^()]{1,30}\)|\[default: [^]]{1,24}\]"  # short brackets with a number, defaults in help
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with a unit and an interval of its own, for a cell; `like` is a size whose prefix the unit takes."""

    value: float
    unit: str
    below: float = 0.0
    above: float = 0.0
    like: float = 0.0

    def __str__(self) -> str:
        if self.like:
            return str(print_quantity(self.value, self.unit, self.below, self.above, like=self.like))
        return _shown(self.value, self.unit, self.below, self.above)


def in_one_unit(cells: Iterable[Cell]) -> list[Cell]:
    """The cells of a column whose energies, powers and the like all take the prefix of the largest value."""
    cells = list(cells)
    largest = max((abs(cell.value) for cell in cells if isinstance(cell, Quantity)), default=0.0)
    return [
        Quantity(cell.value, cell.unit, cell.below, cell.above, largest) if isinstance(cell, Quantity) else cell
        for cell in cells
    ]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Numbers in it are in `unit`: `J`, `W`, `s`, `B`, `B/s`, `%` (a share of 1), `J/item`, …

    The unit is empty for plain numbers and None for words. A column with a unit is aligned to the right unless `align`
    says otherwise. Where a terminal has no room for all columns, those with a `spare` are left out, the smallest first.
    Cells of a `whole` column are never broken: names to copy.
    """

    name: str
    unit: str | None = None
    align: Literal["left", "right", ""] = ""
    spare: int = 0
    whole: bool = False

    @property
    def right(self) -> bool:
        return self.align == "right" or (not self.align and self.unit is not None)

    @property
    def unbroken(self) -> bool:
        """Whether its cells stay on one line."""
        return self.whole or self.right


def columns_of(text: str) -> tuple[Column, ...]:
    """Columns in one line: `node, hours [], energy [J]`; empty brackets are the unit of plain numbers.

    >>> [column.unit for column in columns_of("node, hours [], energy [J]")]
    [None, '', 'J']
    """
    found = (part.strip().partition(" [") for part in text.split(","))
    return tuple(Column(name, unit.removesuffix("]") if bracket else None) for name, bracket, unit in found)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title above and notes below."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        odd = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if odd is not None:
            raise ValueError(f"a row of {len(odd)} cells in a table of {len(self.columns)} columns: {odd}")

    @classmethod
    def of(
        cls,
        *columns: str | Column,
        rows: Iterable[Sequence[Cell]],
        title: str = "",
        notes: Iterable[str] = (),
        right: Iterable[int] = (),
    ) -> Table:
        """A table from names and rows; `right` are the places of columns of numbers whose cells are text already."""
        places = set(right)
        made = tuple(
            column if isinstance(column, Column) else Column(column, align="right" if place in places else "")
            for place, column in enumerate(columns)
        )
        return cls(made, tuple(tuple(row) for row in rows), title, tuple(notes))

    @classmethod
    def lines(cls, *lines: str) -> Table:
        """Lines of text between tables: a table without columns."""
        return cls((), (), notes=lines)

    @property
    def headers(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def right(self) -> list[int]:
        return [place for place, column in enumerate(self.columns) if column.right]

    @property
    def unbroken(self) -> list[int]:
        """The places of the columns whose cells stay on one line."""
        return [place for place, column in enumerate(self.columns) if column.unbroken]

    def cells(self, missing: str = MISSING) -> list[list[str]]:
        """The rows as people read them, each cell on one line; `missing` for None."""
        return [
            [cell_text(cell, column.unit or "", missing) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def text(self) -> str:
        """Aligned text, two spaces between columns."""
        headers, cells, right = self.headers, self.cells(), self.right
        taken = widths(headers, cells)
        lines = [
            "  ".join(_pad(cell, taken[place], right=place in right) for place, cell in enumerate(row)).rstrip()
            for row in ((headers, *cells) if headers else ())
        ]
        return "\n".join([*([self.title] if self.title else []), *lines, *self.notes])

    def cards(self, width: int | None = None) -> str:
        """For narrow terminals: each row a block, its first cell as the heading, the others below it by name.

        Where rows begin alike, the next cells that tell them apart are in the heading too. Cells without a value are
        left out; words longer than `width` are folded.
        """
        rows = self.cells(missing="")
        different = (
            place for place in range(1, MOST_HEADING + 1) if len({tuple(row[:place]) for row in rows}) == len(rows)
        )
        heads = next(different, 1)
        names = [column.name for column in self.columns[heads:]]
        indent = max((display_width(name) for name in names), default=0) + 4
        blocks = []
        for row in rows:
            named = [
                f"{one.name} {cell}" if one.right else cell
                for one, cell in zip(self.columns, row[:heads], strict=False)
            ]
            lines = [" · ".join(cell or MISSING for cell in (row[0], *named[1:]))]
            for name, cell in zip(names, row[heads:], strict=True):
                folded = _folded(cell, max(width - indent, 8) if width is not None else None)
                labels = [_pad(f"  {name}", indent), *[" " * indent] * (len(folded) - 1)]
                lines += [label + line for label, line in zip(labels, folded, strict=True) if cell]
            blocks.append("\n".join(lines))
        body = ["\n\n".join(blocks)] if self.columns else []
        return "\n".join([*([self.title] if self.title else []), *body, *self.notes])

    def markdown(self) -> str:
        """A Markdown table with its title as a heading above and its notes as a list below; ends with a newline."""
        lines = [f"### {self.title}", ""] if self.title else []
        if not self.columns:
            return "\n".join([*lines, *(f"{note}\n" for note in self.notes)])
        lines.append("| " + " | ".join(markdown_text(name) for name in self.headers) + " |")
        lines.append("|" + "|".join("---:" if column.right else "---" for column in self.columns) + "|")
        lines += ["| " + " | ".join(markdown_text(cell) for cell in row) + " |" for row in self.cells()]
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Plain numbers; energies and quantities by their value, None as an empty cell."""
        return "" if not self.columns else csv_text(self.headers, [[_plain(cell) for cell in row] for row in self.rows])


def cell_text(cell: Cell, unit: str = "", missing: str = MISSING) -> str:
    """A cell as people read it, on one line; a bare number is in `unit`."""
    if cell is None:
        return missing
    if isinstance(cell, str):
        return " ".join(cell.split("\n")) if "\n" in cell else cell
    if isinstance(cell, Energy):
        return format_energy(cell)
    if isinstance(cell, Ratio):
        return format_ratio(cell.value, cell.low, cell.high)
    if isinstance(cell, Quantity):
        return str(cell)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return _shown(cell, unit) if isinstance(cell, int | float) else str(cell)


def csv_text(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Lines as CSV; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return text.getvalue()


def csv_of(names: str, values: Iterable[object]) -> str:
    """A line for each value, in columns that are declared as in `core.jsonio.declared`."""
    columns = [word.partition("=")[0] for word in names.split()]
    return csv_text(columns, [[as_data(cell) for cell in declared(value, names).values()] for value in values])


def markdown_text(text: str) -> str:
    """Words for a cell of a Markdown table, on one line, in which nothing ends the cell or begins a tag."""
    for sign in ("\\", "|", "<"):
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split("\n"))


def display_width(text: str) -> int:
    """Columns of a terminal that the text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) or unicodedata.category(sign) in ("Cf", "Mn", "Me") else
        2 if unicodedata.east_asian_width(sign) in "WF" else 1
        for sign in text
    )  # fmt: skip


def widths(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(display_width(line[column]) for line in (headers, *rows)) for column in range(len(headers))]


def without_spare(table: Table, width: int) -> Table:
    """The table without the spare columns for which a terminal has no room; a note says which.

    Columns that say the same in all rows go first.
    """
    rows = table.cells()
    least = least_widths(widths(table.headers, rows), table.unbroken)
    said = [len({row[place] for row in rows}) > 1 for place in range(len(least))]
    order = sorted(
        (place for place, column in enumerate(table.columns) if column.spare),
        key=lambda place: (said[place], table.columns[place].spare),
    )
    kept = list(range(len(least)))

    def needed(places: Sequence[int]) -> int:
        return sum(least[place] + GAP for place in places) - GAP

    left_out = []
    while order and needed(kept) > width:
        left_out.append(order.pop(0))
        kept.remove(left_out[-1])
    for place in reversed(left_out):  # a wider column that went last may have made room
        if needed([*kept, place]) <= width:
            kept = sorted([*kept, place])
    if len(kept) == len(least):
        return table
    missing = ", ".join(column.name for place, column in enumerate(table.columns) if place not in kept)
    return Table(
        tuple(table.columns[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in table.rows),
        table.title,
        (f"No room for {missing}: widen the terminal or use --json.", *table.notes),
    )


def least_widths(widths: Sequence[int], unbroken: Sequence[int]) -> list[int]:
    """The widths to which columns may be folded: words to LEAST_WORDS, `unbroken` ones not at all."""
    return [each if column in unbroken else min(each, LEAST_WORDS) for column, each in enumerate(widths)]


def column_groups(widths: Sequence[int], unbroken: Sequence[int], width: int) -> list[list[int]]:
    """The columns of a table that is too wide, as several tables below one another, each with the first column.

    One table where all fit, or where folding the columns of words is enough.
    """
    everything = list(range(len(widths)))
    if sum(each + GAP for each in least_widths(widths, unbroken)) - GAP <= width:
        return [everything]
    groups = [[0]]
    for column in everything[1:]:
        used = sum(widths[one] + GAP for one in groups[-1])
        if len(groups[-1]) > 1 and used + widths[column] > width:
            groups.append([0])
        groups[-1].append(column)
    return groups


def _shown(value: float, unit: str, below: float = 0.0, above: float = 0.0) -> str:
    if unit == "s":
        return format_duration(value, below, above)
    if unit == "%":
        return format_percent(value, below, above)
    if unit in ("B", "B/s"):
        return format_bytes(value) + unit[1:]
    return format_quantity(value, unit, below, above) if unit else format_number(value, "", below, above)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def keep_together(text: str, width: int) -> str:
    """The text with a JOINT for each space within a figure (between its number, unit and interval, in its bracket), as
    far as that leaves no word wider than `width`."""
    joined = _WHOLE.sub(lambda found: found[0].replace(" ", JOINT), text)
    return " ".join(word if display_width(word) <= width else word.replace(JOINT, " ") for word in joined.split(" "))


def _folded(text: str, width: int | None) -> list[str]:
    """The text in lines of at most `width` columns, broken at spaces outside of figures where there are some."""
    if width is None or display_width(text) <= width:
        return [text]
    lines, line = [], ""
    for word in keep_together(text, width).split(" "):
        joined = f"{line} {word}" if line else word
        if display_width(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        line = ""
        for sign in word:
            if line and display_width(line + sign) > width:
                lines.append(line)
                line = ""
            line += sign
    return [each.replace(JOINT, " ") for each in (*lines, line)]


def _plain(cell: Cell) -> str | float | None:
    if isinstance(cell, Energy):
        return cell.joules
    return cell.value if isinstance(cell, Quantity | Ratio) else cell


def neutral_cell(cell: object) -> object:
    """A cell with an apostrophe before what a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
