"""Recordings of AIPowerMeter, of all its generations, and job trees of Lab-IA: powers in JSON lines become tapes.

A power of the machine there is what a counter rose by since the line before, over that time: the counter is built up
again. A card's power is a reading of the moment in the generations that asked nvidia-smi. A line that is torn costs
that line; `-1` for a counter that is absent is absent; each segment is a span, and time between two is in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.meters.series import Part, Table, card_facts, group, number, write_parts, zone_ns
from everywatt.tape.importing import parse_utc_ns

FILE: Final = "power_metrics.json"
END: Final = "END OF RECORDING SEGMENT"
LONGEST_LINE: Final = 16 << 20
REST_PID: Final = (1 << 22) + 1  # above all numbers of processes on Linux: those that were not followed
# Of the machine: key, channel, device, domain.
CPU: Final = (
    ("intel_power", "cpu.0.package.energy", "cpu.0", Domain.PACKAGE),
    ("total_dram_power", "dram.0.energy", "dram.0", Domain.DRAM),
    ("total_cpu_power", "cpu.0.core.energy", "cpu.0", Domain.CORE),
    ("uncore_power", "cpu.0.uncore.energy", "cpu.0", Domain.UNCORE),
    ("psys_power", "psys.energy", "psys", Domain.NODE),
)
# Of each card, by generation: power, utilisation (times what gives percent), memory.
COUNTED: Final = ("nvidia_power", "per_gpu_nvidia_power")  # means of the card's own counter
GAUGED: Final = ("power", "W", Kind.GAUGE, Pedigree.INTEGRATED)  # a card in the generations that asked nvidia-smi
POWERS: Final = ("per_gpu_nvidia_power", "per_gpu_power_draw")
USES: Final = (("per_gpu_nvidia_use_rate", 1.0), ("per_gpu_absolute_percent_usage", 100.0))
WHOLES: Final = ("nvidia_power", "nvidia_draw_absolute")


@dataclass
class Log:
    """The lines of one recording: (UTC ns, metrics), None where a segment ends, and how many were torn."""

    lines: list[tuple[int, Mapping[str, Any]] | None] = field(default_factory=list)
    torn: int = 0
    swapped: int = 0


def import_aipowermeter(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from a recording's folder or its `power_metrics.json`. options: zone_h, card (name of the GPU), driver,
    uuid (of the one card) or uuid.0, uuid.1 …: their calibrations are used."""
    files = [_file(path) for path in paths]
    parts = [_part(file, options) for file in files]
    return write_parts(out, parts, files, options)


def import_labia(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A run from trees of job records (`…/<user>/<jobid>/power_metrics.json`): one tape and one span a job."""
    files = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob(FILE)))
    if not files:
        raise UsageError(f"{paths[0]} contains no {FILE}.", cure="a folder of job records")
    parts = []
    for file in files:
        try:
            parts.append(_job(file, options))
        except UsageError:
            if len(files) == 1:
                raise  # of many jobs some are empty: they ended before the first reading
    return write_parts(out, parts, files, options)


def _file(path: Path) -> Path:
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{path} contains no {FILE}.", cure="a folder written by AIPowerMeter")
    return file


def read_log(lines: Iterator[str], shift_ns: int = 0) -> Log:
    """The readings of a log; lines that are not whole are counted."""
    log = Log()
    for line in lines:
        if not line.strip():
            continue
        try:
            entry = foreign.parse_json(line)
        except ValueError:
            log.torn += 1
            continue
        if isinstance(entry, str):
            if entry.strip() == END:
                log.lines.append(None)
            continue
        metrics = entry.get("metrics") if isinstance(entry, dict) else None
        if not isinstance(metrics, Mapping) or not isinstance(entry.get("date"), str):
            log.torn += 1
            continue
        try:
            log.lines.append((parse_utc_ns(entry["date"], "iso", "date") - shift_ns, metrics))
        except (UsageError, OverflowError):
            log.torn += 1
    return log


def _part(file: Path, options: Mapping[str, Any]) -> Part:
    log = read_log(foreign.lines(file), zone_ns(options))
    tables = tables_of(log, options)
    if not any(table.rows for table in tables):
        raise UsageError(f"{file} contains no readings of AIPowerMeter.", cure=f"a {FILE} written by AIPowerMeter")
    told: dict[str, Any] = {"torn_lines": log.torn, "swapped_fields": log.swapped}
    for name in ("metadata.json", "meta_data.json"):
        told.update({"description": _json(file.with_name(name))} if file.with_name(name).is_file() else {})
    spans: list[tuple[str, int, int, Mapping[str, Any]]] = [
        (f"segment {place}", start, end, {}) for place, (start, end) in enumerate(segments_of(log), 1)
    ]
    meta = {key: value for key, value in told.items() if value}
    return Part(tables, spans=spans, meta=meta, processes=processes_of(log))


def _job(file: Path, options: Mapping[str, Any]) -> Part:
    part = _part(file, options)
    about = json_object(file.with_name("meta_data.json"))
    times = [at for table in part.tables for at, _ in table.rows]
    names = {"jobid": about.get("jobid", file.parent.name), "user": file.parent.parent.name}
    attributes = {**names, **{key: about[key] for key in ("job_name", "node_id") if key in about}}
    node = about.get("node_id")
    part.host = str(node[0] if isinstance(node, list) and node else node or "")
    part.spans = [(f"job {attributes['jobid']}", min(times), max(times), attributes)]
    return part


def _json(path: Path) -> Any:
    try:
        return foreign.read_json(path)
    except UsageError:
        return None


def json_object(path: Path) -> Mapping[str, Any]:
    """The object in a file; an empty one where there is none."""
    found = _json(path)
    return found if isinstance(found, Mapping) else {}


def tables_of(log: Log, options: Mapping[str, Any] | None = None) -> list[Table]:
    """Tables of the machine and of each card, with rows for every line and pauses between segments."""
    options = options or {}
    cards = sorted({card for line in log.lines if line for card in _cards(line[1])})
    counted = any(key in section(line[1], "gpu") for line in log.lines if line for key in COUNTED)
    machine = Table(group("cpu", "aipowermeter", [_counter(*entry[1:]) for entry in CPU]))
    tables = {}
    for card in cards:
        facts, why = card_facts(card, cards, options)
        channels = _card_channels(card, facts, counted)
        tables[card] = Table(group(f"gpu.{card}", "aipowermeter", channels, label=why or ""))
    last: int | None = None
    for line in log.lines:
        if line is None:
            last = None
            continue
        at, metrics = line
        if last is not None and at <= last:
            log.torn += 1
            continue
        step_s = 0.0 if last is None else (at - last) / NS
        if last is None:  # counters start again, so that the time since the last segment counts as not observed
            whole, sums = [0.0] * len(CPU), {card: [0.0] for card in cards}
        machine.add(at, _risen(whole, [watts_of(section(metrics, "cpu").get(entry[0])) for entry in CPU], step_s))
        for card, table in tables.items():
            values = _card_values(metrics, card, log)
            if counted:
                values[:1] = _risen(sums[card], values[:1], step_s)
            elif last is None and table.rows:
                table.pause(at)
            table.add(at, values)
        last = at
    return [machine, *tables.values()]


def processes_of(log: Log) -> list[tuple[int, list[dict[str, Any]]]]:
    """Rows of `use.processes` for every line: each process with its share of CPU use, added up over time.

    Shares are all that is known, so a second in which every busy CPU was a process's counts as one CPU second. What the
    shares leave is the use of other processes. Empty where no line has shares.
    """
    lines = [line for line in log.lines if line is not None]
    if not any(_shares(metrics) for _, metrics in lines):
        return []
    frames: list[tuple[int, list[dict[str, Any]]]] = []
    used_s: dict[int, float] = {}
    alive: set[int] = set()
    last: int | None = None
    following = iter([*(_shares(metrics) for _, metrics in lines[1:]), {}])
    for line in log.lines:
        if line is None:
            last = None
            continue
        at, metrics, coming = line[0], line[1], next(following)
        if frames and at <= frames[-1][0]:
            continue
        shares = _shares(metrics)
        for pid, share in shares.items():
            used_s[pid] = used_s.get(pid, 0.0) + (0.0 if last is None else share * (at - last) / NS)
        here = {*shares, *coming}
        rows: list[dict[str, Any]] = [{"pid": pid, "start": 0, "gone": True} for pid in sorted(alive - here)]
        for pid in sorted(here):
            names = {"name": "other processes"} if pid == REST_PID else {}
            memory = number(section(section(metrics, "cpu"), "per_process_mem_use_abs").get(str(pid)))
            sizes = {} if memory is None or memory < 0 else {"rss_bytes": memory}
            rows.append({"pid": pid, "start": 0, "cpu_s": used_s.get(pid, 0.0), **names, **sizes})
        frames.append((at, rows))
        alive, last = here, at
    return frames


def _shares(metrics: Mapping[str, Any]) -> dict[int, float]:
    """Share of CPU use by process, and of the others; empty where a line has none."""
    found: dict[int, float] = {}
    for name, value in section(section(metrics, "cpu"), "per_process_cpu_uses").items():
        share = number(value)
        if str(name).isdecimal() and 0 < int(name) < REST_PID and share is not None and share >= 0:
            found[int(name)] = share
    if found:
        found[REST_PID] = max(1.0 - sum(found.values()), 0.0)
    return found


def _risen(sums: list[float], watts: Sequence[float | None], step_s: float) -> list[float | None]:
    """What counters stand at after a step, None where a power is not known; `sums` is brought up to date."""
    for place, power in enumerate(watts):
        sums[place] += (power or 0.0) * step_s
    return [None if power is None else total for power, total in zip(watts, sums, strict=True)]


def segments_of(log: Log) -> list[tuple[int, int]]:
    """First and last instant of every segment."""
    found: list[list[int]] = []
    fresh = True
    for line in log.lines:
        if line is None:
            fresh = True
        elif fresh:
            found.append([line[0], line[0]])
            fresh = False
        else:
            found[-1][1] = max(found[-1][1], line[0])
    return [(start, end) for start, end in found if end > start]


def _counter(name: str, device: str, domain: Domain) -> Channel:
    return Channel(name, "J", Kind.COUNTER, device, domain)


def _card_channels(card: str, facts: Facts, counted: bool) -> list[Channel]:
    device = f"gpu.{card}"
    name, unit, kind, pedigree = ("energy", "J", Kind.COUNTER, Pedigree.COUNTER) if counted else GAUGED
    return [
        Channel(f"{device}.{name}", unit, kind, device, Domain.GPU, pedigree=pedigree, facts=facts),
        Channel(f"{device}.utilisation", "%", Kind.GAUGE, device),
        Channel(f"{device}.memory", "B", Kind.GAUGE, device),
    ]


def section(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in an object; an empty one where there is none."""
    found = metrics.get(name)
    return found if isinstance(found, Mapping) else {}


def watts_of(value: Any) -> float | None:
    """Power, of which a list has one for each package; less than nothing means absent."""
    if isinstance(value, list):
        parts = [watts_of(one) for one in value]
        known = [one for one in parts if one is not None]
        return sum(known) if known and len(known) == len(parts) else None
    found = number(value)
    return None if found is None or found < 0 else found


def _cards(metrics: Mapping[str, Any]) -> Iterator[str]:
    gpu = section(metrics, "gpu")
    found = [str(card) for key in POWERS for card in section(gpu, key) if str(card) != "all"]
    yield from found
    if not found and any(watts_of(gpu.get(key)) is not None for key in WHOLES):
        yield "all"


def _card_values(metrics: Mapping[str, Any], card: str, log: Log) -> list[float | None]:
    gpu = section(metrics, "gpu")
    keys = WHOLES if card == "all" else ()
    power = next((w for key in keys if (w := watts_of(gpu.get(key))) is not None), None)
    for key in POWERS:
        power = watts_of(section(gpu, key).get(card)) if power is None else power
    use = next((v * by for key, by in USES if (v := number(section(gpu, key).get(card))) is not None), None)
    memory = number(section(gpu, "per_gpu_nvidia_memory").get(card))
    held = section(gpu, "per_gpu_attributable_mem_use").get(card)
    if memory is None and isinstance(held, Mapping):
        memory = sum(v for one in held.values() if (v := number(one)) is not None)
    if use is not None and memory is not None and use > 100 >= memory >= 0:
        log.swapped += 1  # a percentage of bytes: some versions store the two under each other's name
        use, memory = memory, use
    return [power, use if use is None or 0 <= use <= 100 else None, memory]


def day_text(utc_ns: int) -> str:
    """How AIPowerMeter writes an instant."""
    whole, part = divmod(utc_ns, NS)
    return f"{datetime.fromtimestamp(whole):%Y-%m-%d %H:%M:%S}.{part // 1000:06d}"
