"""nvidia-smi's CSV: headers with and without units, values with and without units, every word for "no value".

    parser = Parser()
    for line in lines:
        row = parser.feed(line)      # None for a header, a failure or noise

`parse_csv(lines)` does it for a whole file. Fields are found by their header's name, never by position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Words for "no value" that drivers 390 to 610 print without brackets; anything in brackets is such a word too.
_NO_VALUE = ("", "n/a", "not supported", "not available", "no data", "unknown", "unknown error", "err!")
_TEXT_FIELDS = ("timestamp", "name", "uuid", "pci.bus_id", "driver_version", "pstate")
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}
_HEADER = re.compile(r"([a-z][a-z0-9_.]*)\s*(?:\[([^\]]*)\])?")
_NUMBER = re.compile(r"(0x[0-9a-fA-F]+|[-+]?\d+(?:\.\d+)?)\s*(%|[A-Za-z]\S*)?$")
_TIME = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?", re.ASCII)
_SCALE = {"MiB": 2.0**20, "KiB": 2.0**10, "GiB": 2.0**30, "mW": 1e-3, "GHz": 1e3}


@dataclass(frozen=True, slots=True)
class SmiRow:
    """One line. Numbers are in SI-like units (W, %, °C, MHz, bytes); None where there is no value.

    `reasons` has, for each field without a value, the word nvidia-smi gave instead.
    """

    time: datetime | None
    numbers: Mapping[str, float | None]
    texts: Mapping[str, str]
    reasons: Mapping[str, str]


@dataclass(slots=True)
class Parser:
    """Reads lines one by one. `failures` keeps error messages, which nvidia-smi prints on stdout like its rows."""

    columns: Sequence[tuple[str, str]] = ()  # name and unit, from the last header
    failures: list[str] = field(default_factory=list)

    def feed(self, line: str) -> SmiRow | None:
        """The row of a line; None for a header (which is remembered), a blank, a failure or anything else."""
        line = line.strip().lstrip("\ufeff")
        cells = [cell.strip() for cell in line.split(",")]
        header = _header(cells)
        if header:
            self.columns = header
        elif len(cells) == 1 and len(line.split()) > 2 and not _no_value(line):  # a sentence
            self.failures.append(line)
        elif line and len(cells) == len(self.columns):  # else it was cut in half, or is no CSV at all
            return _row(self.columns, cells)
        return None


def parse_csv(lines: Iterable[str]) -> list[SmiRow]:
    """The rows of nvidia-smi's CSV output, which begins with a header."""
    return [row for row in map(Parser().feed, lines) if row is not None]


def _header(cells: Sequence[str]) -> list[tuple[str, str]] | None:
    """Names and units, where every cell looks like a field's name and one of them surely is one."""
    matches = [_HEADER.fullmatch(cell) for cell in cells]
    columns = [(_ALIASES.get(match[1], match[1]), match[2] or "") for match in matches if match]
    sure = any("." in name or name in (*_TEXT_FIELDS, "index") or unit for name, unit in columns)
    return columns if sure and len(columns) == len(cells) else None


def _no_value(cell: str) -> bool:
    return cell.startswith("[") or cell.lower() in _NO_VALUE


def _row(columns: Sequence[tuple[str, str]], cells: Sequence[str]) -> SmiRow:
    time: datetime | None = None
    numbers: dict[str, float | None] = {}
    texts: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for (name, unit), cell in zip(columns, cells, strict=True):
        if name == "timestamp":
            time = _time(cell)
        elif _no_value(cell):
            numbers[name] = None
            reasons[name] = cell.strip("[] ") or "empty"
        elif name not in _TEXT_FIELDS and (value := _number(cell, unit)) is not None:
            numbers[name] = value
        else:
            texts[name] = cell
    return SmiRow(time, numbers, texts, reasons)


def _number(cell: str, unit: str) -> float | None:
    match = _NUMBER.match(cell)
    if match is None:
        return None
    value = float.fromhex(match[1]) if cell.startswith("0x") else float(match[1])
    return value * _SCALE.get(match[2] or unit, 1.0)


def _time(cell: str) -> datetime | None:
    # Not strptime: it costs ten times as much, and this runs for every line.
    try:
        return datetime.fromisoformat(cell.replace("/", "-")) if _TIME.fullmatch(cell) else None
    except ValueError:
        return None
