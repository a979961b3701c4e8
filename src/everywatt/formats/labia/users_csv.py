"""Lab-IA's table of each user: new jobs are added in the old columns, once, sorted by date, by one writer at a time.

Both generations are written: `labia` in kWh with seconds, `co2` in Wh with `1h2min3s` and four columns of emissions.
A figure is a job's own share with its share of idle, which is what the old figures held; means of
memory are in GB. What a record does not know stays empty, and is not zero. A job on several nodes has several rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from everywatt.core.device import is_gpu
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.files import replacing
from everywatt.slurm.locks import exclusive
from everywatt.slurm.schema import DeviceEnergy, JobOnNode
from everywatt.slurm.site.users import is_name

HEADS: Final[Mapping[str, tuple[str, ...]]] = {
    "labia": (
        *("node name", "job_id", "start date", "Total Duration (sec)", "GPU Consumption  (kWH)"),
        *("Avg. GPU RAM USAGE (Gb)", "GPU SM Usage (%)", "CPU Consumption (kWH)", "Avg. CPU RAM USAGE (Gb)"),
        "CPU usage (%)",
    ),
    "co2": (
        *("node name", "job_id", "start date", "Total Duration", "GPU Consumption (WH)", "Avg. GPU RAM USAGE (Gb)"),
        *("GPU SM Usage (%)", "CPU Consumption (WH)", "Avg. CPU RAM USAGE (Gb)", "CPU usage (%)"),
        *("GPU Emission RTE (gCO2eq)", "GPU Emission ADEME (gCO2eq)", "CPU Emission RTE (gCO2eq)"),
        "CPU Emission ADEME (gCO2eq)",
    ),
}
UJ_PER_WH: Final = 3.6e9
WAIT_S: Final = 120.0
DATE: Final = 2


@dataclass(frozen=True, slots=True)
class Grams:
    """Grams per kWh of one record, with the PUE in it: as the grid was then, and as one figure. None: not known."""

    varying: float | None = None
    constant: float | None = None


def row_of(job: JobOnNode, generation: str, grams: Grams | None = None) -> list[str] | None:
    """A record in the old columns; None where it has no energy or no duration, which the old tables cannot say."""
    length_s = job.end_s - job.start_s
    if job.energy_uj is None or length_s <= 0:
        return None
    cards = [part for part in job.devices if part.domain == "gpu" or is_gpu(part.device)]
    gpu_wh = _wh(cards)
    # What is of no card is of the machine; a record without parts by device is of the machine as a whole.
    cpu_wh = (job.energy_uj + (job.idle_uj or 0)) / UJ_PER_WH - gpu_wh
    used = job.cpu_s / (job.cpus * length_s) if job.cpu_s is not None and job.cpus else None
    scale, time = (1000.0, f"{length_s:.0f}") if generation == "labia" else (1.0, spoken(length_s))
    cells = [
        job.node,
        str(job.job_id),
        f"{datetime.fromtimestamp(job.start_s):%Y-%m-%d %H:%M:%S}",
        time,
        _text(gpu_wh / scale),
        _gigabytes(job.gpu_memory_mean_bytes),
        _text(None if job.gpu_utilisation is None else 100 * job.gpu_utilisation, 2),
        _text(cpu_wh / scale),
        _gigabytes(job.memory_mean_bytes),
        _text(None if used is None else 100 * used, 2),
    ]
    if generation == "co2":
        for wh in (gpu_wh, cpu_wh):
            rates = (grams.varying, grams.constant) if grams else (None, None)
            cells += [_text(None if rate is None else wh / 1000 * rate, 4) for rate in rates]
    return cells


def spoken(seconds: float) -> str:
    """`1h2min3s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}min" if hours or minutes else "") + f"{rest}s"


def append(folder: Path, user: str, rows: Iterable[Sequence[str]], generation: str) -> int:
    """Add rows to a user's table; gives how many were new. Waits for another writer; readers see old or new, whole."""
    if not is_name(user):
        raise UsageError(f"'{user}' is not a valid name for a file.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{user}.csv"
    with exclusive(folder / f".{user}.csv.lock", WAIT_S) as mine:
        if not mine:
            raise EverywattError(f"{path} was locked by another process for {WAIT_S:g} s.", cure="try again")
        there = _read(path, generation)
        known = {tuple(row[: DATE + 1]): list(row) for row in reversed(there)}
        before = len(known)
        for row in rows:
            known.setdefault(tuple(row[: DATE + 1]), list(row))
        wanted = sorted(known.values(), key=lambda row: (row[DATE], _number(row[1]), row[0]))
        if wanted != there or not path.exists():
            _write(path, wanted, generation)
        return len(known) - before


def _read(path: Path, generation: str) -> list[list[str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = [row for row in csv.reader(file) if row]
    heads = [_plain(head) for head in HEADS[generation]]
    if rows and [_plain(head) for head in rows[0]] != heads:
        other = next((name for name in HEADS if [_plain(h) for h in HEADS[name]] == [_plain(h) for h in rows[0]]), None)
        cure = f"--to labia-csv{'-co2' if other == 'co2' else ''}" if other else "another folder"
        raise UsageError(f"{path} has different columns.", cure=cure)
    return [row for row in rows[1:] if len(row) > DATE]


def _write(path: Path, rows: Iterable[Sequence[str]], generation: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADS[generation])
    writer.writerows(rows)
    with replacing(path) as part:
        part.write_text(text.getvalue(), encoding="utf-8", errors="surrogateescape")


def _wh(parts: Iterable[DeviceEnergy]) -> float:
    return sum(part.energy_uj + part.idle_uj for part in parts) / UJ_PER_WH


def _gigabytes(size_bytes: int | None) -> str:
    return _text(None if size_bytes is None else size_bytes / 1e9, 3)


def _text(value: float | None, decimals: int = 6) -> str:
    return "" if value is None else f"{max(value, 0.0):.{decimals}f}"


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)


def _plain(head: Any) -> str:
    return " ".join(str(head).split()).casefold()
