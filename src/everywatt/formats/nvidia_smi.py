"""Logs of nvidia-smi become tapes: of `--query-gpu=… --format=csv`, publications found behind the polls and facts by
card; of `dmon` and `pmon`, columns found by their names, where `-` is not available.

Without the dates and times of `-o DT` a log of dmon says only how many rows there are: `period_s` (1 unless set) is
then the time between two, and `start` the time of the first (1970 unless set).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from everywatt.core import foreign
from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.energy.publications import publications
from everywatt.energy.ticks import climbs
from everywatt.meters.series import (
    Part,
    Table,
    card_facts,
    given_period_s,
    group,
    number,
    start_ns,
    write_part,
    write_parts,
    zone_ns,
)
from everywatt.sensors.calibrations import calibrated
from everywatt.sensors.nvidia.gpu_known import draw_windows, facts_for
from everywatt.sensors.nvidia.smi_csv import SmiRow, parse_csv
from everywatt.tape.importing import parse_utc_ns, usual_period_s

# The reading that looks closest, first: the instant one where the driver has it.
POWER: tuple[tuple[str, Literal["instant", "draw", "average"]], ...] = (
    ("power.draw.instant", "instant"),
    ("power.draw", "draw"),
    ("power.draw.average", "average"),
)
STATE = {
    "utilization.gpu": ("utilisation", "%"),
    "utilization.memory": ("memory_utilisation", "%"),
    "memory.used": ("memory", "B"),
    "temperature.gpu": ("temperature", "°C"),
    "clocks.current.sm": ("clock_sm", "MHz"),
    "clocks.current.memory": ("clock_memory", "MHz"),
    "power.limit": ("power_limit", "W"),
}


def import_nvidia_smi(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from logs with a header (also .gz). A log without time stamps needs the time between two queries.

    options: period_s and start (for a log without time stamps; 1970 unless set), cards (how many take turns in it where
    it has no `index`), card (its name, where the log has no `name` column), driver, limit_w, zone_h (hours to subtract
    from the log's local time to get UTC; 0 if left out), column (the power column to use), uuid (of the card, where the
    log has no such column). A card that was calibrated is corrected, unless the calibration is too old or of another
    slot.
    """
    rows = [row for path in paths for row in parse_csv(foreign.lines(path))]
    timed = [row for row in rows if row.time is not None]
    if rows and not timed and any(column in rows[0].numbers for column, _ in POWER):
        timed = _counted(rows, options)
    if not timed:
        raise UsageError(f"{paths[0]} contains no nvidia-smi rows with a timestamp.", cure="log with --format=csv")
    by_gpu: dict[str, list[SmiRow]] = {}
    for row in timed:
        index = row.numbers.get("index")
        by_gpu.setdefault(f"{index:.0f}" if index is not None else "0", []).append(row)
    tables = []
    for card, mine in sorted(by_gpu.items()):
        mine.sort(key=_utc_ns)
        tables += _tables(f"gpu.{card}", mine, [_utc_ns(row) - zone_ns(options) for row in mine], options)
    if not tables:
        raise UsageError(f"{paths[0]} has no known column.", cure="include a column such as power.draw")
    meta = {"times": "counted, not logged"} if rows[0].time is None else {}
    return write_part(out, Part(tables, meta=meta), paths, options)


def _counted(rows: Sequence[SmiRow], options: Mapping[str, Any]) -> list[SmiRow]:
    """Rows of a log without time stamps, each at its turn: cards take turns, by their index, or `cards` of them."""
    period_s = given_period_s(options)
    if period_s is None:
        raise UsageError(
            "The log has no timestamps, and the time between two queries is unknown.", cure="--period 100ms"
        )
    cards = options.get("cards", 1)
    if not isinstance(cards, int) or cards < 1:
        raise UsageError(f"cards = {cards!r} is not a number of cards.", cure="--set cards=1")
    first = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=(start_ns(options) + zone_ns(options)) // 1000)
    seen: dict[float, int] = {}
    found = []
    for place, row in enumerate(rows):
        index = row.numbers.get("index")
        card = float(place % cards) if index is None else index
        turn = seen[card] = seen.get(card, -1) + 1
        at = first + timedelta(seconds=turn * period_s)
        found.append(replace(row, time=at.replace(tzinfo=None), numbers={**row.numbers, "index": card}))
    return found


def _utc_ns(row: SmiRow) -> int:
    assert row.time is not None
    return round(row.time.replace(tzinfo=UTC).timestamp() * 1e6) * 1000


def _tables(device: str, rows: list[SmiRow], at_ns: list[int], options: Mapping[str, Any]) -> list[Table]:
    found = []
    label = str(options.get("card") or rows[0].texts.get("name") or "")
    for column, reading in POWER:
        if options.get("column") not in (None, column):
            continue
        watts = [_number(row, column) for row in rows]
        if any(value == value for value in watts):
            driver = str(options.get("driver") or rows[0].texts.get("driver_version") or "")
            limit_w = float(options.get("limit_w") or _highest(_number(row, "power.limit") for row in rows)) or None
            # Where the limit of a board is not known, the readings say how large it is at least.
            facts = facts_for(label, driver, limit_w or _highest(watts), reading)
            windows = draw_windows(label, driver) if reading == "draw" else ()
            if len(windows) > 1:
                # A driver that is not named: a moving average cannot step, whatever the load does.
                facts = replace(facts, window_s=windows[-1] if climbs(watts) else windows[0])
            uuid, slot = rows[0].texts.get("uuid") or options.get("uuid") or "", rows[0].texts.get("pci.bus_id") or ""
            facts, why = calibrated(replace(facts, max_w=limit_w), str(uuid), slot, host="")
            label = f"{label} ({why})" if why else label
            found.append(_power(device, at_ns, watts, facts, label))
            break
    state = [
        (query, *STATE[query]) for query in STATE if any(_number(row, query) == _number(row, query) for row in rows)
    ]
    if state:
        channels = tuple(Channel(f"{device}.{name}", unit, Kind.GAUGE, device) for _, name, unit in state)
        table = Table(GroupInfo(f"{device}.state", "nvidia-smi", device, channels, label=label))
        for at, row in zip(at_ns, rows, strict=True):
            table.add(at, [_number(row, query) for query, _, _ in state])
        found.append(table)
    return found


def _power(device: str, at_ns: list[int], watts: list[float], facts: Facts, label: str) -> Table:
    """Fast polls repeat what was published once: a tape holds publications."""
    origin_ns = at_ns[0]
    polls = (np.array(at_ns, dtype=np.int64) - origin_ns) / NS
    published = publications(polls, watts)
    if published.period_s is None:
        published = publications(polls, watts, facts.period_s)
    period_s = published.period_s or facts.period_s
    channel = _power_channel(device, facts if facts.period_s else replace(facts, period_s=period_s))
    # Centred on the best estimate, because a tape takes a publication to be in the middle of what is possible.
    half_ns = np.round((published.late_s - published.early_s) / 2 * NS).astype(np.int64).tolist()
    centre_ns = (origin_ns + np.round(published.t_s * NS).astype(np.int64)).tolist()
    info = GroupInfo(f"{device}.power", "nvidia-smi", device, (channel,), tracked=True, label=label)
    table = Table(info, period_s=period_s or usual_period_s(at_ns), half_ns=half_ns)
    for at, value in zip(centre_ns, published.values, strict=True):
        table.add(at, [value])
    return table


def _power_channel(device: str, facts: Facts) -> Channel:
    return Channel(f"{device}.power", "W", Kind.GAUGE, device, Domain.GPU, pedigree=Pedigree.INTEGRATED, facts=facts)


def _highest(values: Iterable[float]) -> float:
    return max((value for value in values if value == value), default=0.0)


def _number(row: SmiRow, name: str) -> float:
    value = row.numbers.get(name)
    return NAN if value is None else float(value)


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


def _instants(lines: Sequence[Line], who: Sequence[Hashable], options: Mapping[str, Any]) -> list[int]:
    """When each row was written: as logged, rows of one second spread over it; else by the turn of whom it is about."""
    seen: Counter[Hashable] = Counter()
    turns = []
    for one in who:
        turns.append(seen[one])
        seen[one] += 1
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
    period_s = given_period_s({"period_s": 1.0, **options})
    if period_s is None:
        raise UsageError(f"period_s = {options.get('period_s')!r} is not a valid period.", cure="period_s=1")
    return [start_ns(options) + round(turn * period_s * NS) for turn in turns]


def _devices(lines: Sequence[Line], options: Mapping[str, Any]) -> list[Table]:
    times = _instants(lines, [line.cells["gpu"] for line in lines], options)
    cards = {line.cells["gpu"] for line in lines}
    tables: dict[str, tuple[list[str], Table]] = {}
    for line, at in zip(lines, times, strict=True):
        card = line.cells["gpu"]
        if card not in tables:
            keys = [key for key in DMON if any(key in other.cells for other in lines)]
            facts, why = card_facts(card, cards, options)
            tables[card] = keys, Table(group(f"gpu.{card}", "nvidia-smi dmon", _channels(card, keys, facts), why or ""))
        keys, table = tables[card]
        values = [number(line.cells.get(key)) for key in keys]
        table.add(at, [v if v is None or v >= 0 else None for v in values])
    return [table for _, table in tables.values()]


def _channels(card: str, keys: Sequence[str], facts: Facts) -> list[Channel]:
    device, found = f"gpu.{card}", []
    for key in keys:
        name, unit = DMON[key]
        if key == "pwr":
            found.append(_power_channel(device, replace(facts, quantum=1.0)))
        else:
            scale, unit = (1048576.0, "B") if unit == "MiB" else (1.0, unit)
            found.append(Channel(f"{device}.{name}", unit, Kind.GAUGE, device, scale=scale))
    return found


def _processes(lines: Sequence[Line], options: Mapping[str, Any]) -> list[Table]:
    """Of pmon: for each process its share of the SMs, and for each card their sum."""
    times = _instants(lines, [(line.cells["gpu"], line.cells.get("pid", "-")) for line in lines], options)
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
