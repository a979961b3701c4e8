"""Tapes of a machine whose processes, GPUs and power are known, for tests of the ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tapes import ORIGIN_NS, UTC_NS, at, counter_group, gauge_group

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import Anchor
from everywatt.core.spans import Note, Span
from everywatt.tape.writer import TapeWriter

DOMAINS = {"cpu": Domain.PACKAGE, "dram": Domain.DRAM, "gpu": Domain.GPU, "module": Domain.MODULE}
HOST = GroupInfo(
    "use.host",
    "use",
    "host",
    (
        Channel("host.cpu_time", "s", Kind.COUNTER, "host", facts=Facts(period_s=0.01, quantum=0.01)),
        Channel("host.idle_time", "s", Kind.COUNTER, "host", facts=Facts(period_s=0.01, quantum=0.01)),
    ),
)
PROCESSES = GroupInfo("use.processes", "use", "host", (), table=True)
CGROUPS = GroupInfo("use.cgroups", "use", "host", (), table=True)
GPUS = GroupInfo("nvml.processes", "nvml", "gpu", (), table=True)


@dataclass
class Process:
    """A process that uses `rates[k]` CPUs in second k, from `began` to `ended` (whole seconds)."""

    pid: int
    rates: Sequence[float]
    began: int = 0
    ended: int | None = None
    ppid: int = 1
    name: str = "work"
    extra: dict[str, Any] = field(default_factory=dict)

    def used(self, second: int) -> float:
        """CPU seconds from its start to the end of `second`."""
        end = len(self.rates) if self.ended is None else self.ended
        return sum(self.rates[self.began : min(second, end)])

    @property
    def start(self) -> int:
        """As in /proc: ticks after boot, which is the origin of the monotonic clock here."""
        return (at(self.began) // 10_000_000) if self.began else 17

    @property
    def id(self) -> str:
        return f"{self.pid}:{self.start}"


def process_rows(processes: Sequence[Process], second: int, told: dict[str, Any]) -> list[dict[str, Any]]:
    """What the sensor tells at a second: rows that are new or changed, and ends."""
    rows = []
    for process in processes:
        alive = process.began <= second and (process.ended is None or second < process.ended)
        if not alive:
            if told.pop(process.id, None) is not None:
                rows.append({"pid": process.pid, "start": process.start, "gone": True})
            continue
        row = {
            "pid": process.pid,
            "start": process.start,
            "ppid": process.ppid,
            "name": process.name,
            "cpu_s": process.used(second),
            "children_cpu_s": 0.0,
            "rss_bytes": 1 << 20,
            "threads": 1,
            **process.extra,
        }
        if told.get(process.id) != row:
            rows.append(row)
            told[process.id] = row
    return rows


def write_machine(
    path: Path,
    watts: dict[str, Sequence[float]],
    processes: Sequence[Process] | None = (),
    *,
    seconds: int,
    other: Sequence[float] | None = None,
    cpus: int = 4,
    gauges: Sequence[str] = (),
    gpu_rows: dict[int, list[dict[str, Any]]] | None = None,
    cgroup_rows: dict[int, list[dict[str, Any]]] | None = None,
    utilisation: dict[str, Sequence[float]] | None = None,
    missing: Sequence[int] = (),
    spans: Sequence[tuple[str, float, float | None, dict[str, Any]]] = (),
    follow: Sequence[int] = (),
    everything: bool = False,
    host: str = "box",
    memory_bytes: int | None = None,
    packages: Sequence[int] | None = None,
    threads_per_core: int | None = None,
    seal: bool = True,
    between: tuple[int, int] | None = None,
    looked_until: int | None = None,
    searching: bool = False,
) -> Path:
    """A tape of `seconds`: devices draw `watts[device][k]` in second k; `other` CPUs are busy beside the processes.

    Energy comes every 0.1 s, processes every second; seconds in `missing` have no rows of gauges. `between` are the
    seconds in which this tape was recorded: counters and processes count from the beginning all the same.
    `looked_until` is the last second of which use is on it: a kill takes what was not written yet. `searching`: when
    counters are published (every 0.1 s) is not known, and is searched for by the reads of the first second.
    """
    machine = {"name": host, "cpus": cpus, "memory_bytes": memory_bytes, "packages": packages}
    machine["threads_per_core"] = threads_per_core
    meta = {"host": machine, "period_s": 0.1}
    writer = TapeWriter(path, meta)
    writer.anchor(Anchor(ORIGIN_NS, UTC_NS, ORIGIN_NS, 0))
    for device, levels in watts.items():
        if searching:
            _searched_counter(writer, device, levels, between or (0, seconds))
        else:
            _power(writer, device, levels, seconds, device in gauges, missing, between)
    for device, levels in (utilisation or {}).items():
        channel = Channel(f"{device}.utilisation", "%", Kind.GAUGE, device)
        number = writer.add_group(GroupInfo(f"use.{device}", "test", device, (channel,)), 1.0)
        writer.append(number, [_row(k, (levels[max(k - 1, 0)],)) for k in range(seconds + 1)])
    if processes is not None:
        looked = between if looked_until is None else ((between or (0, seconds))[0], looked_until)
        _use(writer, processes, seconds, other or [0.0] * seconds, cpus, everything, looked)
    for info, table in ((GPUS, gpu_rows), (CGROUPS, cgroup_rows)):
        if table is not None:
            number = writer.add_group(info, 1.0)
            for second, rows in sorted(table.items()):
                writer.append_table(number, at(second), rows)
    for index, (name, start, end, attributes) in enumerate(spans):
        writer.span_open(Span(f"s{index}", name, at(start), None, None, attributes))
        if end is not None:
            writer.span_close(f"s{index}", at(end))
    if follow:
        writer.note(Note(at(0), "follow", "followed", {"pids": list(follow), "starts": [None] * len(follow)}))
    writer.flush()
    if seal:
        return writer.seal()
    writer.abandon()
    return path


def _row(seconds: float, values: tuple[float, ...]) -> Row:
    return Row(at(seconds), at(seconds), at(seconds), values)


def _power(
    writer: TapeWriter,
    device: str,
    levels: Sequence[float],
    seconds: int,
    gauge: bool,
    missing: Sequence[int],
    between: tuple[int, int] | None,
) -> None:
    domain = DOMAINS[device.split(".")[0]]
    if gauge:
        number = writer.add_group(gauge_group(device, domain, period_s=0.1, window_s=0.1), 0.1)
        rows = []
        for step in range(seconds * 10 + 1):
            second = min(max((step - 1) // 10, 0), seconds - 1)
            if second not in missing:
                rows.append(_row(step / 10, (levels[second],)))
    else:
        number = writer.add_group(counter_group(device, domain, period_s=0.1), 0.1)
        rows, joules = [_row(0, (100.0,))], 100.0
        for step in range(1, seconds * 10 + 1):
            joules += levels[min((step - 1) // 10, seconds - 1)] / 10
            rows.append(_row(step / 10, (joules,)))
    writer.append(number, _recorded(rows, between))


def _searched_counter(writer: TapeWriter, device: str, levels: Sequence[float], between: tuple[int, int]) -> None:
    """Read once, then often, then once a second; a value is 60 ms old at a full second."""
    number = writer.add_group(counter_group(device, DOMAINS[device.split(".")[0]], quantum=0.001), 1.0)
    start, end = between
    reads = [start, start + 0.42, *(start + 0.52 + 0.1 * step for step in range(5)), *range(start + 2, end + 1)]
    rows = []
    for place, read in enumerate(reads):
        published = math.floor((read - 0.04) * 10 + 1e-9) / 10 + 0.04
        before = reads[place - 1] if place else read - 1
        late, early = (read, before) if read - before > 0.2 and place < 8 else (published + 0.01, published - 0.04)
        whole, part = divmod(published, 1)
        joules = 100.0 + sum(levels[: int(whole)]) + part * levels[min(int(whole), len(levels) - 1)]
        rows.append(Row(at(read), at(early), at(late), (round(joules, 3),)))
    writer.append(number, rows)


def _recorded(rows: list[Row], between: tuple[int, int] | None) -> list[Row]:
    if between is None:
        return rows
    return [row for row in rows if at(between[0]) <= row.late_ns <= at(between[1])]


def _use(
    writer: TapeWriter,
    processes: Sequence[Process],
    seconds: int,
    other: Sequence[float],
    cpus: int,
    everything: bool,
    between: tuple[int, int] | None,
) -> None:
    number = writer.add_group(HOST, 0.1)
    rows, busy = [_row(0, (50.0, 1000.0))], 50.0
    for step in range(1, seconds * 10 + 1):
        second = (step - 1) // 10
        now = [p for p in processes if p.began <= second and (p.ended is None or second < p.ended)]
        busy += (sum(p.rates[second] for p in now) + other[second]) / 10
        rows.append(_row(step / 10, (busy, 1050.0 + cpus * step / 10 - busy)))
    writer.append(number, _recorded(rows, between))
    number = writer.add_group(PROCESSES, 1.0)
    told: dict[str, Any] = {}
    first, last = between or (0, seconds)
    for second in range(first, last + 1):
        table = process_rows(processes, second, told)
        if second == first and everything:
            table.insert(0, {"pid": 0, "start": 0, "name": "host", "everything": True})
        if table:
            writer.append_table(number, at(second), table)
        if second % 100 == 99:
            writer.flush()
