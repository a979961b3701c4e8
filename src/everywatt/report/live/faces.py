"""Snapshots for programs and for paper: JSON lines, CSV rows, a table of now."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any, TextIO

from everywatt.core.errors import UsageError
from everywatt.core.format import format_duration, format_joules
from everywatt.core.jsonio import dumps
from everywatt.report.live import format as show
from everywatt.report.live.snapshot import Amount, DeviceNow, OwnerNow, Snapshot
from everywatt.report.live.view import SPECIAL

CSV_HEAD = (
    "time",
    "elapsed_s",
    "device",
    "label",
    "power_w",
    "energy_j",
    "energy_low_j",
    "energy_high_j",
    "utilisation_pct",
    "memory_bytes",
    "memory_total_bytes",
    "temperature_c",
    "clock_mhz",
    "throttled",
    "power_limit_w",
    "pedigree",
)


def json_line(snapshot: Snapshot) -> str:
    """One object on one line."""
    return dumps(snapshot.to_dict())


class CsvFile:
    """Appends one row for each device and interval, each interval flushed. An empty cell is not available.

    UsageError where the file has other columns already, or cannot be written.
    """

    def __init__(self, path: str, stdout: TextIO) -> None:
        self._own = path != "-"
        try:
            self._file = _append(Path(path)) if self._own else stdout
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not self._own or _empty(Path(path)):
            self._writer.writerow(CSV_HEAD)
            self._file.flush()

    def write(self, snapshot: Snapshot) -> None:
        """The rows of one interval."""
        stamp = snapshot.when.isoformat(timespec="milliseconds")
        for device in snapshot.devices:
            self._writer.writerow([stamp, f"{snapshot.elapsed_s:.3f}", *map(_cell, _row(device))])
        self._file.flush()

    def close(self) -> None:
        """Close the file; stdout stays open."""
        if self._own:
            self._file.close()


def _append(path: Path) -> TextIO:
    if path.is_file() and not _empty(path):
        with path.open(encoding="utf-8", newline="") as file:
            head = file.readline().rstrip("\r\n")
        if head != ",".join(CSV_HEAD):
            raise UsageError(f"{path} has another format: its first line is '{head[:60]}'.", cure="choose another file")
    return path.open("a", encoding="utf-8", newline="")


def _empty(path: Path) -> bool:
    try:
        return os.stat(path).st_size == 0  # noqa: PTH116 - a device or a pipe has size 0, too
    except FileNotFoundError:
        return True


def _row(device: DeviceNow) -> tuple[Any, ...]:
    energy = device.energy
    return (
        device.name,
        device.label,
        device.power_w,
        energy.joules,
        energy.low,
        energy.high,
        device.utilisation_pct,
        device.memory_bytes,
        device.memory_total_bytes,
        device.temperature_c,
        device.clock_mhz,
        device.throttled,
        device.power_limit_w,
        energy.pedigree,
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value}"


DEVICE_HEADS = ["DEVICE", "POWER", "1 S", "5 S", "15 S", "ENERGY", "UTIL", "MEMORY", "TEMP", "CLOCK", "LIMIT", "STATE"]
MOST_OWNERS = 25
LONGEST_LABEL = 48
OWNER_HEADS = ["OWNER", "KIND", "POWER", "ENERGY", "CPU", "GPU", "MEMORY", "BY"]


def device_rows(snapshot: Snapshot) -> list[list[str]]:
    """The devices as cells under DEVICE_HEADS."""
    return [
        [
            device.name,
            show.watts(device.power_w),
            *(show.watts(value) for value in device.averages_w),
            energy_text(device.energy),
            show.percent(device.utilisation_pct),
            show.gib(device.memory_bytes, device.memory_total_bytes),
            show.number(device.temperature_c, "C"),
            show.number(device.clock_mhz, "MHz"),
            show.number(device.power_limit_w, "W"),
            "settling" if device.settling else {True: "throttled", False: "ok", None: show.NOTHING}[device.throttled],
        ]
        for device in snapshot.devices
    ]


def owner_rows(snapshot: Snapshot, most: int = MOST_OWNERS) -> list[list[str]]:
    """The owners as cells under OWNER_HEADS; those beyond `most` are one row, so that the table still adds up."""
    entries = snapshot.owners.entries if snapshot.owners else ()
    if len(entries) > most:
        small = [entry for entry in entries if entry.kind not in SPECIAL][most - len(SPECIAL) :]
        rest = OwnerNow(
            "", "", f"{len(small)} more owners", sum(o.power_w for o in small), sum(o.joules for o in small)
        )
        entries = (*(entry for entry in entries if entry not in small), rest)
    return [
        [
            show.cut(owner.label, LONGEST_LABEL),
            owner.kind,
            show.watts(owner.power_w),
            format_joules(owner.joules),
            show.percent(owner.cpu_pct),
            show.percent(owner.gpu_pct),
            show.gib(owner.memory_bytes),
            owner.method,
        ]
        for owner in entries
    ]


WORK_HEADS = [
    "WORKER",
    "EVENTS",
    "DONE",
    "FAILED",
    "RETRIES",
    "MEAN",
    "MEMORY",
    "UTIL %",
    "UTIL",
    "VRAM",
    "RETRY",
    "POWER",
    "ENERGY",
    "LAST",
    "ITEM",
]
SPARK = 24


def _spark(values: tuple[float, ...], ascii_only: bool, top: float | None = None) -> str:
    return show.sparkline(values, SPARK, ascii_only=ascii_only, top=top).strip() if values else show.NOTHING


def work_rows(snapshot: Snapshot, *, ascii_only: bool = False) -> list[list[str]]:
    """What a batch says, as cells under WORK_HEADS; USE, VRAM and AGAIN (retries) are the newest values as bars."""
    return [
        [
            worker.worker,
            *map(str, (worker.events, worker.success, worker.failure, worker.retries)),
            show.NOTHING if worker.runtime_s is None else format_duration(worker.runtime_s),
            show.gib(worker.memory_max_bytes),
            show.NOTHING if worker.utilisation_pct is None else "/".join(f"{v:.0f}" for v in worker.utilisation_pct),
            _spark(worker.use_trend, ascii_only, 100.0),
            _spark(worker.memory_trend, ascii_only),
            _spark(worker.retry_trend, ascii_only, 1.0),
            show.watts(worker.power_w),
            show.energy(worker.joules),
            worker.status,
            show.cut(worker.item, LONGEST_LABEL),
        ]
        for worker in snapshot.work
    ]


def energy_text(amount: Amount) -> str:
    """`412.3 J ± 6.1`, or `-`."""
    if amount.joules is None:
        return show.NOTHING
    if amount.low is None or amount.high is None:
        return format_joules(amount.joules)
    return format_joules(amount.joules, amount.joules - amount.low, amount.high - amount.joules)


def heading(snapshot: Snapshot) -> str:
    """What was seen, in one line."""
    host = f" on {snapshot.host.name}" if snapshot.host.name else ""
    if snapshot.total_w is None and snapshot.total.refused:
        return f"{snapshot.source}{host}, {snapshot.when.astimezone():%H:%M:%S}: {snapshot.total.refused}"
    total = energy_text(snapshot.total)
    scope = " · ".join(filter(None, (snapshot.scope, snapshot.total.pedigree)))
    return (
        f"{snapshot.source}{host}, {snapshot.when.astimezone():%H:%M:%S}: {show.watts(snapshot.total_w)}, "
        f"{total} in {format_duration(snapshot.elapsed_s)}{f' · {scope}' if scope else ''}"
    )
