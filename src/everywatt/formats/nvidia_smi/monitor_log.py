"""Logs of `nvidia-smi dmon` and `pmon` become tapes. Columns are found by their names; `-` is not available.

Without the dates and times of `-o DT` a log says only how many rows there are: `period_s` (1 unless set) is then the
time between two, and `start` the time of the first (1970 unless set).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.meters.series import Part, Table, calibrated_card, group, number, write_parts, zone_ns
from everywatt.sensors.nvidia.gpu_known import facts_for
from everywatt.tape.importing import parse_utc_ns

DMON: Final = {
    "pwr": ("power", "W"),
    "gtemp": ("temperature", "°C"),
    "temp": ("temperature", "°C"),
    "mtemp": ("memory_temperature", "°C"),
    "sm": ("utilisation", "%"),
    "mem": ("memory_utilisation", "%"),
    "mclk": ("clock_memory", "MHz"),
    "pclk": ("clock_sm", "MHz"),
    "fb": ("memory", "MiB"),
}
MOST_CARDS: Final = 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a log: its cells by column, the time where it has one."""

    cells: Mapping[str, str]
    utc_ns: int | None


def import_monitor(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from logs of dmon or pmon. options: start, period_s, zone_h, card, driver, limit_w, and uuid (of the
    log's one card) or uuid.0, uuid.1 …: calibrations of these are used.
    """
    lines: list[Line] = []
    for path in paths:
        lines += parse_lines(foreign.lines(path), zone_ns(options))
    if not lines:
        raise UsageError(
            f"{paths[0]} contains no rows of nvidia-smi dmon or pmon.", cure="a log with its '# gpu' header line"
        )
    of_processes = any("pid" in line.cells for line in lines)
    tables = (_processes if of_processes else _devices)(lines, options)
    timed = all(line.utc_ns is not None for line in lines)
    return write_parts(out, [Part(tables, meta={} if timed else {"times": "counted, not logged"})], paths, options)


def parse_lines(lines: Iterable[str], shift_ns: int = 0) -> list[Line]:
    """Rows under the header before them; anything else is passed over."""
    columns: list[str] = []
    found = []
    for text in lines:
        words = text.replace(",", " ").split()
        if words and words[0].startswith("#"):
            names = [word.lower() for word in " ".join(words).replace("#", " ").split()]
            if "gpu" in names:
                columns = names
            continue
        if not columns or len(words) < len(columns) - ("command" in columns):
            continue
        cells = dict(zip(columns, words, strict=False))
        if re.fullmatch(r"\d{1,4}", cells.get("gpu", "")):
            found.append(Line(cells, _time(cells, shift_ns)))
    return found


def _time(cells: Mapping[str, str], shift_ns: int) -> int | None:
    day, clock = cells.get("date"), cells.get("time")
    if day is None or clock is None:
        return None
    try:
        return parse_utc_ns(f"{day} {clock}", "%Y%m%d %H:%M:%S", "time") - shift_ns
    except UsageError:
        return None


def _instants(lines: Sequence[Line], turns: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """When each row was written: as logged, rows of one second spread over it; else by its turn."""
    if all(line.utc_ns is not None for line in lines):
        same: dict[int, list[int]] = {}
        for line, turn in zip(lines, turns, strict=True):
            mine = same.setdefault(line.utc_ns or 0, [])
            if turn not in mine:
                mine.append(turn)
        return [
            at + NS * same[at].index(turn) // len(same[at])
            for line, turn in zip(lines, turns, strict=True)
            for at in [line.utc_ns or 0]
        ]
    period_s = number(options.get("period_s", 1.0)) or 0.0
    if not 0 < period_s < 86_400:
        raise UsageError(f"period_s = {options.get('period_s')!r} is not a valid period.", cure="period_s=1")
    start = parse_utc_ns(str(options["start"]), "iso", "start") if options.get("start") else NS
    return [start + round(turn * period_s * NS) for turn in turns]


def _devices(lines: Sequence[Line], options: Mapping[str, Any]) -> list[Table]:
    seen: dict[str, int] = {}
    turns = []
    for line in lines:
        turns.append(seen.get(line.cells["gpu"], 0))
        seen[line.cells["gpu"]] = turns[-1] + 1
    times = _instants(lines, turns, options)
    facts = facts_for(
        str(options.get("card", "")), str(options.get("driver", "")), number(options.get("limit_w")), "draw"
    )
    tables: dict[str, tuple[list[str], Table]] = {}
    for line, at in zip(lines, times, strict=True):
        card = line.cells["gpu"]
        if card not in tables:
            keys = [key for key in DMON if any(key in other.cells for other in lines)]
            known, why = calibrated_card(facts, card, seen, options)
            tables[card] = keys, Table(group(f"gpu.{card}", "nvidia-smi dmon", _channels(card, keys, known), why or ""))
        keys, table = tables[card]
        values = [number(line.cells.get(key)) for key in keys]
        table.add(at, [v if v is None or v >= 0 else None for v in values])
    return [table for _, table in tables.values()]


def _channels(card: str, keys: Sequence[str], facts: Facts) -> list[Channel]:
    device, found = f"gpu.{card}", []
    for key in keys:
        name, unit = DMON[key]
        if key == "pwr":
            kept = ("gain_pct", "offset_w", "cards", "calibrated", "gain", "bias_w")
            known = Facts(quantum=1.0, **{name: getattr(facts, name) for name in kept})
            found.append(
                Channel(
                    f"{device}.power", "W", Kind.GAUGE, device, Domain.GPU, pedigree=Pedigree.INTEGRATED, facts=known
                )
            )
        else:
            scale, unit = (1048576.0, "B") if unit == "MiB" else (1.0, unit)
            found.append(Channel(f"{device}.{name}", unit, Kind.GAUGE, device, scale=scale))
    return found


def _processes(lines: Sequence[Line], options: Mapping[str, Any]) -> list[Table]:
    """Of pmon: for each process its share of the SMs, and for each card their sum."""
    seen: dict[tuple[str, str], int] = {}
    turns = []
    for line in lines:
        key = (line.cells["gpu"], line.cells.get("pid", "-"))
        turns.append(seen.get(key, 0))
        seen[key] = turns[-1] + 1
    times = _instants(lines, turns, options)
    tables: dict[str, Table] = {}
    sums: dict[str, dict[int, float]] = {}
    for line, at in zip(lines, times, strict=True):
        card, pid, share = line.cells["gpu"], line.cells.get("pid", "-"), number(line.cells.get("sm"))
        total = sums.setdefault(card, {})
        total[at] = total.get(at, 0.0) + (share or 0.0)
        if not pid.isdigit():
            continue
        name = f"gpu.{card}.pid.{pid}"
        if name not in tables:
            channel = Channel(f"{name}.utilisation", "%", Kind.GAUGE, f"gpu.{card}")
            tables[name] = Table(group(name, "nvidia-smi pmon", [channel], line.cells.get("command", "")))
        tables[name].add(at, [0.0 if share is None else share])
    for card, total in sums.items():
        channel = Channel(f"gpu.{card}.utilisation", "%", Kind.GAUGE, f"gpu.{card}")
        tables[card] = Table(group(f"gpu.{card}", "nvidia-smi pmon", [channel]))
        for at, share in total.items():
            tables[card].add(at, [min(share, 100.0)])
    return list(tables.values())
