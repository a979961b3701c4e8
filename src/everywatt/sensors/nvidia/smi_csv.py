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

# As printed by drivers 390 to 610; brackets are stripped and case is ignored before the comparison.
MISSING = frozenset(
    {
        "",
        "n/a",
        "not supported",
        "not available",
        "unknown error",
        "insufficient permissions",
        "function not found",
        "requested functionality has been deprecated",
        "gpu is lost",
        "gpu requires reset",
        "no data",
        "err!",
        "unknown",
    }
)
TEXT_FIELDS = frozenset({"timestamp", "name", "gpu_name", "uuid", "gpu_uuid", "pci.bus_id", "driver_version", "pstate"})
_ALIASES = {
    "clocks_event_reasons.active": "clocks_throttle_reasons.active",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
}
_HEADER = re.compile(r"\s*([a-z][a-z0-9_.]*)\s*(?:\[([^\]]*)\])?\s*")
_NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(%|[A-Za-z]\S*)?$")
_TIME = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_SCALE = {"MiB": 2.0**20, "KiB": 2.0**10, "GiB": 2.0**30, "mW": 1e-3, "GHz": 1e3}
_FAILURES = (
    "unable to determine the device handle",
    "failed to initialize nvml",
    "nvidia-smi has failed",
    "no devices were found",
    "no devices found",
    "gpu is lost",
    "is not a valid field to query",
    "invalid combination of input arguments",
    "option is not recognized",
    "is not recognized",
    "insufficient permissions",
    "unknown error",
)


@dataclass(frozen=True, slots=True)
class SmiRow:
    """One line. Numbers are in SI-like units (W, %, °C, MHz, bytes); None where there is no value.

    `reasons` has, for each field without a value, the word nvidia-smi gave instead.
    """

    time: datetime | None
    numbers: Mapping[str, float | None]
    texts: Mapping[str, str]
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Parser:
    """Reads lines one by one. `names` are given for output without a header; `failures` keeps error messages."""

    names: Sequence[str] = ()
    units: Sequence[str] = ()
    failures: list[str] = field(default_factory=list)
    noise: int = 0

    def feed(self, line: str) -> SmiRow | None:
        """The row of a line; None for a header (which is remembered), a blank, a failure or anything else."""
        line = line.strip().lstrip("\ufeff")
        if not line:
            return None
        if failure_of(line):
            self.failures.append(line)
            return None
        cells = [cell.strip() for cell in line.split(",")]
        header = _header(cells)
        if header:
            self.names = [name for name, _ in header]
            self.units = [unit for _, unit in header]
            return None
        if not self.names or len(cells) != len(self.names):
            self.noise += 1  # a line cut in half, or no CSV at all
            return None
        units = self.units or [""] * len(self.names)
        return _row(self.names, units, cells)


def parse_csv(lines: Iterable[str], names: Sequence[str] = ()) -> list[SmiRow]:
    """The rows of nvidia-smi's CSV output. `names` are the queried fields where there is no header (noheader)."""
    parser = Parser([canonical(name) for name in names])
    return [row for row in map(parser.feed, lines) if row is not None]


def failure_of(line: str) -> str | None:
    """The line itself where it is one of nvidia-smi's error messages (it prints them on stdout) and not a row."""
    low = line.lower()
    if "," in line and not low.startswith(("unable", "failed", "nvidia-smi has", "field ")):
        return None
    bare = low.strip("[]") in MISSING  # a one-column row
    return line if not bare and any(word in low for word in _FAILURES) else None


def canonical(name: str) -> str:
    """The one name of a field that drivers print under several."""
    return _ALIASES.get(name, name)


def rejected_field(text: str) -> str | None:
    """The name in `Field "power.draw.instant" is not a valid field to query.`"""
    match = re.search(r"[Ff]ield \"?([A-Za-z0-9_.]+)\"? is not a valid field", text)
    return match.group(1) if match else None


def lost_bus_id(text: str) -> str | None:
    """The bus id in `Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error`, lower case."""
    match = re.search(r"device handle for GPU\s*\d*:?\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)", text)
    return short_bus_id(match.group(1)) if match else None


def short_bus_id(text: str) -> str:
    """`0000:0b:00.0` of `00000000:0B:00.0`: nvidia-smi prints the domain with four digits or with eight."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _header(cells: Sequence[str]) -> list[tuple[str, str]] | None:
    """Names and units, where every cell looks like a field's name and one of them surely is one."""
    matches = [_HEADER.fullmatch(cell) for cell in cells]
    if not all(matches):
        return None
    pairs = [(canonical(m.group(1)), m.group(2) or "") for m in matches if m]
    sure = any("." in name or name in TEXT_FIELDS or name == "index" or unit for name, unit in pairs)
    return pairs if sure else None


def _row(names: Sequence[str], units: Sequence[str], cells: Sequence[str]) -> SmiRow:
    numbers: dict[str, float | None] = {}
    texts: dict[str, str] = {}
    reasons: dict[str, str] = {}
    time: datetime | None = None
    for name, unit, cell in zip(names, units, cells, strict=True):
        word = cell.strip("[] ").lower()
        if name == "timestamp":
            time = _time(cell)
        elif word in MISSING:
            numbers[name] = None
            reasons[name] = cell.strip("[] ") or "empty"
        elif name in TEXT_FIELDS:
            texts[name] = cell
        else:
            value = _number(cell, unit)
            if value is None:
                texts[name] = cell
            else:
                numbers[name] = value
    return SmiRow(time, numbers, texts, reasons)


def _number(cell: str, unit: str) -> float | None:
    if cell.startswith("0x"):
        try:
            return float(int(cell, 16))
        except ValueError:
            return None
    match = _NUMBER.match(cell)
    if match is None:
        return None
    return float(match.group(1)) * _SCALE.get(match.group(2) or unit, 1.0)


def _time(cell: str) -> datetime | None:
    # Not strptime: it costs ten times as much, and this runs for every line.
    match = _TIME.fullmatch(cell)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        return datetime(year, month, day, hour, minute, second, int((match.group(7) or "0").ljust(6, "0")[:6]))
    except ValueError:
        return None
