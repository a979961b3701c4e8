"""Recordings of AIPowerMeter, of all its generations, and job trees of Lab-IA: powers in JSON lines become tapes, and a
run becomes such a recording (its generation of 2026).

A power of the machine there is what a counter rose by since the line before, over that time: the counter is built up
again. A card's power is a reading of the moment in the generations that asked nvidia-smi. A line that is torn costs
that line; `-1` marks an absent counter; each segment is a span, and time between two is in neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.core import foreign
from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.device import Device
from everywatt.core.errors import MeasurementRefused, RunExists, UsageError
from everywatt.energy.sources import Source, sources
from everywatt.energy.window import source_ticks
from everywatt.fleet.imports import MODELLED_PCT
from everywatt.ledger.split.split import cut, process_use
from everywatt.ledger.use.account import tape_use
from everywatt.ledger.use.tenants import Tenant
from everywatt.meters.series import Part, Table, card_facts, group, number, write_parts, zone_ns
from everywatt.tape.columns import load_columns
from everywatt.tape.importing import parse_utc_ns
from everywatt.tape.reader import Tape

if TYPE_CHECKING:
    from everywatt.sensors.base import GpuProcessRow
    from everywatt.sensors.usage.member import ProcessRow

FILE: Final = "power_metrics.json"
END: Final = "END OF RECORDING SEGMENT"
ABOUT: Final = "metadata.json"
ESTIMATES: Final = "everywatt_modelled"  # in ABOUT: the powers that no sensor measured; the format itself cannot say so
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
MEMORIES: Final = {"rss_bytes": "per_process_mem_use_abs", "uss_bytes": "per_process_mem_use_uss"}
GPU_USE, GPU_MEMORY = "per_gpu_per_pid_utilization_absolute", "per_gpu_attributable_mem_use"  # by card and pid


@dataclass
class Log:
    """The lines of one recording, segment by segment: (UTC ns, metrics), and how many were torn."""

    segments: list[list[tuple[int, Mapping[str, Any]]]] = field(default_factory=lambda: [[]])
    torn: int = 0
    swapped: int = 0

    @property
    def lines(self) -> list[tuple[int, Mapping[str, Any]]]:
        return [line for segment in self.segments for line in segment]


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
                log.segments.append([])
            continue
        metrics = entry.get("metrics") if isinstance(entry, dict) else None
        if not isinstance(metrics, Mapping) or not isinstance(entry.get("date"), str):
            log.torn += 1
            continue
        try:
            log.segments[-1].append((parse_utc_ns(entry["date"], "iso", "date") - shift_ns, metrics))
        except UsageError:
            log.torn += 1
    return log


def _part(file: Path, options: Mapping[str, Any]) -> Part:
    log = read_log(foreign.lines(file), zone_ns(options))
    estimates = json_object(file.with_name(ABOUT)).get(ESTIMATES)
    tables = tables_of(log, options, estimates if isinstance(estimates, list) else ())
    if not any(table.rows for table in tables):
        raise UsageError(f"{file} contains no readings of AIPowerMeter.", cure=f"a {FILE} written by AIPowerMeter")
    meta: dict[str, Any] = {"torn_lines": log.torn, "swapped_fields": log.swapped}
    for name in (ABOUT, "meta_data.json"):
        meta.update({"description": _json(file.with_name(name))} if file.with_name(name).is_file() else {})
    spans: list[tuple[str, int, int, Mapping[str, Any]]] = [
        (f"segment {place}", start, end, {}) for place, (start, end) in enumerate(segments_of(log), 1)
    ]
    meta = {key: value for key, value in meta.items() if value}
    return Part(tables, spans=spans, meta=meta, processes=processes_of(log), on_gpus=on_gpus_of(log))


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
    """The JSON object in a file, or an empty one if the file has none."""
    found = _json(path)
    return found if isinstance(found, Mapping) else {}


def tables_of(log: Log, options: Mapping[str, Any] | None = None, estimates: Sequence[Any] = ()) -> list[Table]:
    """Tables of the machine and of each card, with rows for every line and pauses between segments.

    `estimates` are the keys of the machine's powers that a model made, as `export_aipowermeter` names them.
    """
    options = options or {}
    cards = sorted({card for _, metrics in log.lines for card in _cards(metrics)})
    counted = any(key in section(metrics, "gpu") for _, metrics in log.lines for key in COUNTED)
    counters = [
        Channel(name, "J", Kind.COUNTER, device, domain, pedigree=Pedigree.MODELLED, facts=Facts(gain_pct=MODELLED_PCT))
        if key in estimates
        else Channel(name, "J", Kind.COUNTER, device, domain)
        for key, name, device, domain in CPU
    ]
    machine = Table(group("cpu", "aipowermeter", counters))
    tables = {}
    for card in cards:
        facts, why = card_facts(card, cards, options)
        device = f"gpu.{card}"
        name, unit, kind, pedigree = ("energy", "J", Kind.COUNTER, Pedigree.COUNTER) if counted else GAUGED
        channels = [
            Channel(f"{device}.{name}", unit, kind, device, Domain.GPU, pedigree=pedigree, facts=facts),
            Channel(f"{device}.utilisation", "%", Kind.GAUGE, device),
            Channel(f"{device}.memory", "B", Kind.GAUGE, device),
        ]
        tables[card] = Table(group(device, "aipowermeter", channels, label=why or ""))
    for segment in log.segments:
        last: int | None = None
        # Counters start again with each segment, so that the time since the last one counts as not observed.
        whole, sums = [0.0] * len(CPU), {card: [0.0] for card in cards}
        for at, metrics in segment:
            if last is not None and at <= last:
                log.torn += 1
                continue
            step_s = 0.0 if last is None else (at - last) / NS
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


def processes_of(log: Log) -> list[tuple[int, list[ProcessRow]]]:
    """Rows of `use.processes` for every line: each process with its share of CPU use, added up over time.

    Shares are all that is known, so a second in which every busy CPU was a process's counts as one CPU second. What the
    shares leave is the use of other processes. Empty where no line has shares.
    """
    if not any(_shares(metrics) for _, metrics in log.lines):
        return []
    frames: list[tuple[int, list[ProcessRow]]] = []
    used_s: dict[int, float] = {}
    alive: set[int] = set()
    last: int | None = None
    following = iter([*(_shares(metrics) for _, metrics in log.lines[1:]), {}])
    for place, (at, metrics) in ((place, line) for segment in log.segments for place, line in enumerate(segment)):
        last, coming = last if place else None, next(following)
        if frames and at <= frames[-1][0]:
            continue
        shares = _shares(metrics)
        for pid, share in shares.items():
            used_s[pid] = used_s.get(pid, 0.0) + (0.0 if last is None else share * (at - last) / NS)
        here = {*shares, *coming}
        rows: list[ProcessRow] = [{"pid": pid, "start": 0, "gone": True} for pid in sorted(alive - here)]
        for pid in sorted(here):
            row: ProcessRow = {"pid": pid, "start": 0, "cpu_s": used_s.get(pid, 0.0)}
            if pid == REST_PID:
                row["name"] = "other processes"
            held = {name: section(section(metrics, "cpu"), key).get(str(pid)) for name, key in MEMORIES.items()}
            sizes = {name: size for name, value in held.items() if (size := number(value)) is not None and size >= 0}
            row.update(cast("ProcessRow", sizes))
            rows.append(row)
        frames.append((at, rows))
        alive, last = here, at
    return frames


def on_gpus_of(log: Log) -> list[tuple[int, list[GpuProcessRow]]]:
    """Rows of `nvml.processes` for every line: who was on which card, with its use and memory. Empty where no line says
    so."""
    frames: list[tuple[int, list[GpuProcessRow]]] = []
    there: set[tuple[int, int]] = set()
    for at, metrics in log.lines:
        if frames and at <= frames[-1][0]:
            continue
        uses, held = (_by_card_and_pid(section(metrics, "gpu"), key) for key in (GPU_USE, GPU_MEMORY))
        here = uses.keys() | held.keys()
        rows: list[GpuProcessRow] = [
            {"gpu": card, "pid": pid, "type": "C", "sm": 0.0, "gone": True} for card, pid in sorted(there - here)
        ]
        for card, pid in sorted(here):
            use, memory = uses.get((card, pid)), held.get((card, pid))
            sm, size = None if use is None else 100.0 * use, None if memory is None else int(memory)
            rows.append({"gpu": card, "pid": pid, "type": "C", "sm": sm, "memory_bytes": size})
        if rows:
            frames.append((at, rows))
        there = here
    return frames


def _by_card_and_pid(gpu: Mapping[str, Any], key: str) -> dict[tuple[int, int], float]:
    return {
        (int(card), int(pid)): amount
        for card, found in section(gpu, key).items()
        for pid, value in (found.items() if isinstance(found, Mapping) else ())
        if _is_pid(card) and _is_pid(pid) and (amount := number(value)) is not None and amount >= 0
    }


def _is_pid(name: Any) -> bool:
    """Whether a key is a number that a process, or a card, may have."""
    return str(name).isdecimal() and len(str(name)) < 8 and int(name) < REST_PID


def _shares(metrics: Mapping[str, Any]) -> dict[int, float]:
    """Share of CPU use by process, and of the others; empty where a line has none."""
    found: dict[int, float] = {}
    for name, value in section(section(metrics, "cpu"), "per_process_cpu_uses").items():
        share = number(value)
        if _is_pid(name) and int(name) and share is not None and share >= 0:
            found[int(name)] = share
    if found:
        found[REST_PID] = max(1.0 - sum(found.values()), 0.0)
    return found


def _risen(sums: list[float], watts: Sequence[float | None], step_s: float) -> list[float | None]:
    """Counter values after a step, None if a power is not known; `sums` is updated."""
    for place, power in enumerate(watts):
        sums[place] += (power or 0.0) * step_s
    return [None if power is None else total for power, total in zip(watts, sums, strict=True)]


def segments_of(log: Log) -> list[tuple[int, int]]:
    """First and last instant of every segment."""
    edges = [(segment[0][0], max(at for at, _ in segment)) for segment in log.segments if segment]
    return [(start, end) for start, end in edges if end > start]


def section(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object, or an empty one if it is missing."""
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
    whole, part = divmod(utc_ns, NS)
    return f"{datetime.fromtimestamp(whole):%Y-%m-%d %H:%M:%S}.{part // 1000:06d}"


PERIOD_S: Final = 1.0
# Of the cards, beside their power: their name for it, and the end of ours.
_BESIDE: Final = {"nvidia_use_rate": "utilisation", "nvidia_memory": "memory"}
_KEYS: Final = {domain: key for key, _, _, domain in CPU}


def export_aipowermeter(run: Run, folder: Path | None = None) -> list[Path]:
    """Write a run's power, a line every second, each the mean since the line before; a segment ends with each tape, and
    where nothing was observed.

    RunExists where the folder has a recording already: unlike theirs, ours are not deleted to make room.
    """
    folder = folder or Path(f"{run.name}.aipowermeter")
    target = folder / FILE
    if target.exists():
        raise RunExists(
            f"{target} exists already, and recordings are never overwritten.", cure="--out with another folder"
        )
    lines: list[str] = []
    for one in [Run(run.path, [tape]) for tape in run.tapes]:
        lines += _segment(one)
    if not lines:
        raise MeasurementRefused("This run has no power to export.")
    folder.mkdir(parents=True, exist_ok=True)
    about = folder / ABOUT
    # What its user wrote about it, here or in their recording that it was made from; else its name.
    theirs = run.meta.get("description")
    text = theirs.get("description") if isinstance(theirs, Mapping) else theirs
    metadata = {"description": run.meta.get("note") or text or run.name, "date": day_text(_started_ns(run))}
    found = [source for tape in run.tapes for source in sources(tape) if source.domain in _KEYS]
    modelled = {_KEYS[source.domain] for source in found if source.channel.pedigree is Pedigree.MODELLED}
    about.write_text(json.dumps(metadata | ({ESTIMATES: sorted(modelled)} if modelled else {})) + "\n", "utf-8")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [target, about]


def _started_ns(run: Run) -> int:
    return run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0])


def _segment(run: Run) -> list[str]:
    tape = run.tapes[0]
    found = [source for source in sources(tape) if source.domain in (*_KEYS, Domain.GPU)]
    first_ns, last_ns = tape.extent_ns()
    length_s = (last_ns - first_ns) / NS
    if not found or length_s <= 0:
        return []
    edges_s = np.append(np.arange(0.0, length_s, PERIOD_S), length_s)
    if len(edges_s) > 2 and edges_s[-1] - edges_s[-2] < PERIOD_S / 2:
        edges_s = np.delete(edges_s, -2)
    steps_s = np.diff(edges_s)
    started_ns = _started_ns(run)
    at_ns = first_ns + np.round(edges_s * NS).astype(np.int64)
    powers, observed = [], np.zeros(len(steps_s), dtype=np.bool_)
    for source in found:
        ticks = source_ticks(source, first_ns, last_ns)
        if ticks is not None:
            joules, coverage = ticks.many(at_ns[:-1], at_ns[1:])
            powers.append((source, np.where(coverage > 0, joules / steps_s, np.nan)))
            observed |= coverage > 0
    cards = [source.channel.device for source in found if source.domain is Domain.GPU]
    beside = {key: {card: _readings(tape, f"{card}.{what}", at_ns) for card in cards} for key, what in _BESIDE.items()}
    uses, memories = _cpu_uses(tape, at_ns), {key: _memories(tape, name, at_ns) for name, key in MEMORIES.items()}
    tenants = _tenants(tape, cards, at_ns)
    lines: list[str] = []
    edges = np.flatnonzero(np.diff(observed, prepend=False, append=False)).reshape(-1, 2)
    for first, place in [(begin, place) for begin, end in edges for place in range(begin, end + 1)]:
        if lines and place == first:
            lines.append(json.dumps(END))
        step = max(place - 1, first)  # the first line covers no time
        metrics = _metrics([(source, float(power[step])) for source, power in powers])
        if uses:
            shares = {str(pid): float(share[step]) for pid, share in uses.items()}
            whole_w = metrics["cpu"].get("intel_power")
            metrics["cpu"]["per_process_cpu_uses"] = shares
            for key, sizes in memories.items():
                held = {str(pid): int(of[place]) for pid, of in sizes.items() if pid in uses and np.isfinite(of[place])}
                metrics["cpu"] |= {key: held} if sizes else {}
            if whole_w is not None:
                metrics["cpu"]["rel_intel_power"] = {pid: share * whole_w for pid, share in shares.items()}
        for key, readings in beside.items():
            now = {card: float(values[place]) for card, values in readings.items() if np.isfinite(values[place])}
            if now:
                whole = sum(now.values()) / (len(now) if key == "nvidia_use_rate" else 1)
                each = {Device.parse(card).name: value for card, value in now.items()}
                metrics.setdefault("gpu", {}).update({key: whole, f"per_gpu_{key}": each})
        if tenants:
            there = {card: of_card[place] for card, of_card in tenants.items()}
            metrics.setdefault("gpu", {})[GPU_USE] = {
                card: {str(one.pid): one.sm / 100 for one in found if one.sm is not None}
                for card, found in there.items()
            }
            metrics["gpu"][GPU_MEMORY] = {
                card: {str(one.pid): int(one.memory_bytes) for one in found if one.memory_bytes is not None}
                for card, found in there.items()
            }
        lines.append(json.dumps({"date": day_text(started_ns + round(edges_s[place] * NS)), "metrics": metrics}))
    return [*lines, json.dumps(END)] if lines else []


def _cpu_uses(tape: Tape, at_ns: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.float64]]:
    """The share of each process in the CPU time that was used between neighbouring instants, by pid."""
    use = tape_use(tape)
    if use.processes is None:
        return {}
    starts_ns, ends_ns, count = at_ns[:-1], at_ns[1:], len(at_ns) - 1
    pieces = cut(list(zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)), use.processes.edges)
    subject = np.ones(len(use.processes.processes), dtype=np.bool_)
    found = process_use(pieces, use.processes, use.period_s, use.runs, subject)
    step = np.searchsorted(at_ns, pieces.starts_ns[found.stretch], side="right") - 1
    used: dict[int, npt.NDArray[np.float64]] = {}
    for place, facts in enumerate(use.processes.processes):
        mine = found.owner == place
        if mine.any():
            seconds = np.bincount(step[mine], found.amount[mine], count)
            used[facts.pid] = used.get(facts.pid, np.zeros(count)) + seconds
    whole = np.sum(list(used.values()), axis=0) if used else np.zeros(count)
    if use.busy is not None:
        whole = np.fmax(whole, use.busy.used(starts_ns, ends_ns))
    used.pop(REST_PID, None)
    return {pid: seconds / np.maximum(whole, 1e-9) for pid, seconds in used.items()}


def _tenants(tape: Tape, cards: Sequence[str], at_ns: npt.NDArray[np.int64]) -> dict[str, list[tuple[Tenant, ...]]]:
    """Who was on each card in the time that ends with each instant, by the card's number; of cards that the tape says
    this of."""
    gpus = tape_use(tape).gpus
    if gpus is None:
        return {}
    devices = map(Device.parse, cards)
    return {one.name: gpus.at(one.index, at_ns - 1) for one in devices if one.index in gpus.edges}


def _memories(tape: Tape, name: str, at_ns: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.float64]]:
    """The newest memory of a kind of each process at each instant, by pid; NaN where none is known."""
    processes = tape_use(tape).processes
    if processes is None or name not in processes.memory:
        return {}
    number, seen_ns, size = map(np.array, processes.memory[name])
    found = {}
    for place, facts in enumerate(processes.processes):
        mine = number == place
        if mine.any():
            newest = np.searchsorted(seen_ns[mine], at_ns, side="right") - 1
            found[facts.pid] = np.where(newest >= 0, size[mine][newest], np.nan)
    return found


def _readings(tape: Tape, name: str, at_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The newest value of a channel at each instant, NaN before its first and where there is no such channel."""
    for stored in tape.groups:
        channel = next((one for one in stored.info.channels if one.name == name), None)
        columns = load_columns(tape, stored.id, [name]) if channel is not None else None
        if channel is not None and columns is not None and len(columns.read):
            place = np.searchsorted(columns.read, at_ns, side="right") - 1
            values = np.asarray(columns.values[name], dtype=np.float64) * channel.scale
            return np.where(place >= 0, values[np.maximum(place, 0)], np.nan)
    return np.full(len(at_ns), np.nan)


def _metrics(powers: Sequence[tuple[Source, float]]) -> dict[str, Any]:
    cpu: dict[str, Any] = {}
    cards: dict[str, float] = {}
    for source, power in powers:
        if not np.isfinite(power):
            continue
        if source.domain is Domain.GPU:
            cards[Device.parse(source.channel.device).name] = power
        else:
            cpu[_KEYS[source.domain]] = cpu.get(_KEYS[source.domain], 0.0) + power
    cpu.setdefault("psys_power", -1)  # theirs for absent
    metrics: dict[str, Any] = {"cpu": cpu}
    if cards:
        metrics["gpu"] = {"nvidia_power": sum(cards.values()), "per_gpu_nvidia_power": cards}
    return metrics
