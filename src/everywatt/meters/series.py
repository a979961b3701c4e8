"""From named series with times to tapes: what the importers of other tools' recordings share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, Final

from everywatt.core.channels import NAN, Channel, Facts, GroupInfo, Row
from everywatt.core.clocks import NS, Anchor
from everywatt.core.errors import UsageError
from everywatt.core.spans import Span
from everywatt.sensors.calibrations import calibrated
from everywatt.sensors.nvidia.gpu_known import facts_for
from everywatt.tape.importing import ImportedTable, Recording, parse_utc_ns, usual_period_s, write_tape
from everywatt.tape.run_store import slug

SEGMENT: Final = "import-0001.tape"
DAY_S: Final = 86_400.0
PROCESSES: Final = GroupInfo("use.processes", "import", "host", (), table=True)
ON_GPUS: Final = GroupInfo("nvml.processes", "import", "gpu", (), table=True)


@dataclass
class Table:
    """Channels that were written together, row by row: (UTC ns, values). `period_s` is found where it is None.

    half_ns  by how much each row may have been published earlier or later, of rows in their order; empty: not at all
    """

    info: GroupInfo
    rows: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    period_s: float | None = None
    half_ns: Sequence[int] = ()

    def add(self, utc_ns: int, values: Sequence[float | None]) -> None:
        """Add a row; None, NaN and infinities count as not available."""
        clean = tuple(NAN if v is None or not math.isfinite(v) else float(v) for v in values)
        self.rows.append((utc_ns, clean))

    def pause(self, utc_ns: int) -> None:
        """Nothing was observed before this instant: the next row is not held back over the time before."""
        self.rows.append((utc_ns - 1, (NAN,) * len(self.info.channels)))


@dataclass
class Part:
    """What becomes one tape: tables, spans (UTC ns), the host and its metadata."""

    tables: list[Table]
    host: str = ""
    spans: list[tuple[str, int, int, Mapping[str, Any]]] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)
    processes: Sequence[tuple[int, Sequence[Mapping[str, Any]]]] = ()  # UTC ns, rows of `use.processes`
    on_gpus: Sequence[tuple[int, Sequence[Mapping[str, Any]]]] = ()  # UTC ns, rows of `nvml.processes`


def write_part(out: Path, part: Part, source: Sequence[Path], options: Mapping[str, Any]) -> Path:
    """One sealed tape. Channels that never had a value are left out. UsageError where there are no rows at all."""
    tables = [table for table in map(_cleaned, part.tables) if table is not None]
    if not tables:
        raise UsageError(f"{source[0]} contains no measurements.")
    instants = [at for table in tables for at in (table.rows[0][0], table.rows[-1][0])]
    instants += [at for _, start, end, _ in part.spans for at in (start, end)]
    first, last = min(instants) - NS, max(instants)
    recordings = [
        Recording(
            table.info,
            [
                Row(at + half - first, at - half - first, at + half - first, values)
                for (at, values), half in zip(table.rows, table.half_ns or repeat(0), strict=False)
            ],
            table.period_s or usual_period_s([at for at, _ in table.rows]),
        )
        for table in tables
    ]
    spans = [
        Span(f"{number:08x}", name, start - first, end - first, attributes=dict(attributes))
        for number, (name, start, end, attributes) in enumerate(part.spans, 1)
    ]
    anchors = [Anchor(at - first, at, at - first, 0) for at in dict.fromkeys((first + NS, last))]
    meta: dict[str, Any] = {"imported_from": [path.name for path in source], **part.meta}
    if part.host:
        meta["host"] = {"name": part.host}
    processes = [
        ImportedTable(info, [(at - first, rows) for at, rows in found], usual_period_s([at for at, _ in found]))
        for info, found in ((PROCESSES, part.processes), (ON_GPUS, part.on_gpus))
        if found
    ]
    meta |= dict(options.get("meta", {}))
    return write_tape(out, recordings, meta=meta, anchors=anchors, spans=spans, tables=processes)


def write_parts(out: Path, parts: Sequence[Part], source: Sequence[Path], options: Mapping[str, Any]) -> Path:
    """One tape for one part; for several a run of as many segments, in the folder of `out`."""
    if not parts:
        raise UsageError(f"{source[0]} contains no measurements.")
    if len(parts) == 1:
        return write_part(out, parts[0], source, options)
    if out.name == SEGMENT:
        folder = out.parent
    elif out.suffix:
        raise UsageError(f"{len(parts)} recordings do not fit into one tape.", cure=f"--out {out.with_suffix('')}")
    else:
        folder = out
    written: list[Path] = []
    try:
        for number, part in enumerate(parts, 1):
            written.append(folder / f"{slug(part.host) or 'import'}-{number:04d}.tape")
            write_part(written[-1], part, source, options)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)  # our own, made a moment ago
        raise
    return folder


def _cleaned(table: Table) -> Table | None:
    """The table in order of time, without repeated instants, and without channels that have no value."""
    rows = table.rows
    if any(after[0] <= before[0] for before, after in pairwise(rows)):
        rows = list(dict(sorted(rows, key=lambda row: row[0])).items())
    places = [p for p in range(len(table.info.channels)) if any(math.isfinite(values[p]) for _, values in rows)]
    if not places:
        return None
    channels = tuple(table.info.channels[place] for place in places)
    if len(places) < len(table.info.channels):
        rows = [(at, tuple([values[place] for place in places])) for at, values in rows]
    return replace(table, info=replace(table.info, channels=channels), rows=rows)


def group(name: str, sensor: str, channels: Sequence[Channel], label: str = "") -> GroupInfo:
    return GroupInfo(name, sensor, channels[0].device, tuple(channels), label=label)


def card_facts(card: str, cards: Iterable[str], options: Mapping[str, Any]) -> tuple[Facts, str | None]:
    """What is known of the errors of a card whose log has means or rounded readings, and why a stored calibration is
    not used. Its period and window are the log's own, so they are not known.

    Recordings that name no cards get them from options: card, driver, limit_w for all, and the UUID as `uuid` where
    there is one card, else as `uuid.0`, `uuid.1` …
    """
    name, driver = (str(options.get(key, "")) for key in ("card", "driver"))
    alone = options.get("uuid", "") if set(cards) == {card} else ""
    facts = facts_for(name, driver, number(options.get("limit_w")), "draw")
    facts, why = calibrated(facts, str(options.get(f"uuid.{card}", alone)), host="")
    return replace(facts, period_s=None, window_s=None, quantum=None, max_w=None), why


def number(value: Any) -> float | None:
    """A finite number from JSON or text, or None for anything else (also for `1,234.5`)."""
    if isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def zone_ns(options: Mapping[str, Any]) -> int:
    """What `zone_h` says must be subtracted from local times to get UTC."""
    hours = number(options.get("zone_h", 0))
    if hours is None or abs(hours) > 26:
        raise UsageError(f"zone_h = {options.get('zone_h')!r} is not a number of hours.")
    return round(hours * 3600) * NS


def start_ns(options: Mapping[str, Any]) -> int:
    """The time of the first line of a log that has no times: `start` (UTC), the first second of 1970 unless set."""
    return parse_utc_ns(str(options["start"]), "iso", "start") if options.get("start") else NS


def given_period_s(options: Mapping[str, Any]) -> float | None:
    """The time between two lines of a log that has no times, as `period_s` says; None where it is no such time."""
    found = number(options.get("period_s"))
    return found if found is not None and 0 < found < DAY_S else None
