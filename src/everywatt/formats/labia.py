"""Lab-IA's archives and tables: its tree of jobs to records and back, its table of each user, its zips of wattmeters.

The tree is `prolog_log/2026_11/USER/JOB/{meta_data.json,power_metrics.json}`. A log there has what the machine drew and
what of it went to the job by its share of busy time, so idle is inside. That share is the record's energy; its interval
is from nothing to all that the node drew meanwhile, as another job may have owned the rest, and for time that the log
lacks to twice the job's mean power. A missing end is taken from
the last reading, and the record says so.

To the table of a user new jobs are added in the old columns, once, sorted by date, by one writer at a time, in both
generations: `labia` in kWh with seconds, `co2` in Wh with `1h2min3s` and four columns of emissions. A figure is a job's
own share with its share of idle, which is what the old figures held; means of memory are in GB. What a record does not
know stays empty, and is not zero. A job on several nodes has several rows.

Of a wattmeter there is one zip a day, named after the day on which it ends, and a small copy beside. The text begins as
wattmetre-read's own log does: a log line, then another one that the header is glued to.

    DIR/omegawatt/11_16_2026_USB0.zip             every row, in `log_omegawatt_of_the_day`
    DIR/omegawatt_subsample/11_16_2026_USB0.zip   one row a second: its mean, where Lab-IA has every 100th line
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from everywatt.api.run import load
from everywatt.core import foreign
from everywatt.core.channels import Channel, Domain, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.device import Device, is_gpu
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.files import replace_text, replacing
from everywatt.core.tables import csv_text
from everywatt.formats.aipowermeter import END, FILE, Log, day_text, json_object, read_log, section, watts_of
from everywatt.ledger.engine import UJ
from everywatt.meters.archive import downsample
from everywatt.meters.block import Block
from everywatt.meters.omegawatt_csv import write_csv
from everywatt.meters.series import Part, Table, group, write_part, zone_ns
from everywatt.slurm.locks import exclusive
from everywatt.slurm.node.state import MOST_POWER
from everywatt.slurm.schema import DeviceEnergy, JobOnNode
from everywatt.slurm.site.store import safe_node
from everywatt.slurm.site.users import is_name
from everywatt.tape.importing import parse_utc_ns

META: Final = "meta_data.json"
NOTE: Final = "imported from a Lab-IA tree"
INFERRED: Final = "its end is inferred from its last reading"


@dataclass(slots=True)
class Found:
    """What a tree held: records, and jobs that could not be read, with the reason."""

    jobs: list[JobOnNode] = field(default_factory=list)
    problems: list[tuple[Path, str]] = field(default_factory=list)


def read_tree(root: Path, options: Mapping[str, Any] | None = None) -> Found:
    """All jobs under a folder: a tree, a month, a user or one job. options: zone_h, by how many hours its
    local times are ahead of UTC (0)."""
    found = Found()
    folders = sorted({path.parent for name in (META, FILE) for path in root.rglob(name)})
    if not folders:
        raise UsageError(f"{root} contains no Lab-IA jobs.", cure=f"folders with {META} and {FILE}")
    for folder in folders:
        try:
            found.jobs.append(_job(folder, options or {}))
        except (OSError, UsageError, ValueError) as error:
            found.problems.append((folder, str(error)))
    return found


def _job(folder: Path, options: Mapping[str, Any]) -> JobOnNode:
    about = json_object(folder / META)
    shift_ns = zone_ns(options)
    log = read_log(foreign.lines(folder / FILE), shift_ns) if (folder / FILE).is_file() else Log()
    times = [at for at, _ in log.lines]
    start_ns = _instant(about.get("start_date"), shift_ns) or (times[0] if times else None)
    reported_end_ns = _instant(about.get("end_date"), shift_ns)
    end_ns = reported_end_ns or (times[-1] if times else None)
    job = str(about.get("jobid") or folder.name)
    if not job.isdecimal():
        raise ValueError(f"'{job}' is not a job number")
    if start_ns is None or end_ns is None:
        raise ValueError("it has no times: no readings, and no start_date")
    end_ns = max(end_ns, start_ns)
    node = about.get("node_id")
    length_s = (end_ns - start_ns) / NS
    devices, covered_s = _devices(log, length_s)
    return JobOnNode(
        job_id=int(job),
        node=str((node[0] if isinstance(node, list) and node else node) or "unknown"),
        start_s=start_ns / NS,
        end_s=end_ns / NS,
        user=folder.parent.name,
        name=str(about.get("job_name") or ""),
        state="UNKNOWN",
        energy_uj=sum(part.energy_uj for part in devices) if devices else None,
        low_uj=sum(part.low_uj for part in devices) if devices else None,
        high_uj=sum(part.high_uj for part in devices) if devices else None,
        coverage=min(covered_s / length_s, 1.0) if length_s else 0.0,
        pedigree="integrated" if devices else "",
        scope="cpu+gpu" if any(part.domain == "gpu" for part in devices) else "cpu" if devices else "",
        refused=None if devices else "its log contains no power of the job",
        devices=tuple(devices),
        complete=reported_end_ns is not None,
        note=NOTE if reported_end_ns is not None else f"{NOTE}; {INFERRED}",
    )


def _devices(log: Log, length_s: float) -> tuple[list[DeviceEnergy], float]:
    """Joules of each device as a run of these readings has them, and the seconds in which all were observed.

    In the rest of a job's time it may have drawn up to twice its mean power.
    """
    rows = [[(at, _powers(metrics)) for at, metrics in segment] for segment in log.segments]
    devices = sorted({device for segment in rows for _, powers in segment for device in powers})
    if not devices:
        return [], 0.0
    table = Table(group("labia", "labia", [_gauge(name) for device in devices for name in (f"own.{device}", device)]))
    for segment in filter(None, rows):
        if table.rows:
            table.pause(segment[0][0])
        for at, powers in segment:
            pairs = [powers.get(device, (math.nan, math.nan)) for device in devices]
            table.add(at, [w for own, whole in pairs for w in (own, max(whole, own))])
    with TemporaryDirectory() as folder:
        run = load(write_part(Path(folder) / "job.tape", Part([table]), [Path(FILE)], {}))
        figures = {device: (run.energy(device=f"own.{device}"), run.energy(device=device)) for device in devices}
        seen_s = {device: run.duration_s * whole.coverage for device, (_, whole) in figures.items()}
    return [
        DeviceEnergy(
            device,
            "gpu" if is_gpu(device) else "package",
            "nvml" if is_gpu(device) else "rapl",
            round((own.joules or 0.0) * UJ),
            0,
            round(((whole.joules or 0.0) + _unseen_j(own.joules or 0.0, seen_s[device], length_s)) * UJ),
        )
        for device, (own, whole) in figures.items()
    ], min(seen_s.values())


def _unseen_j(joules: float, seen_s: float, length_s: float) -> float:
    """What a job may have drawn while a device was not observed."""
    return MOST_POWER * joules / seen_s * max(length_s - seen_s, 0.0) if seen_s > 0 else 0.0


def _gauge(device: str) -> Channel:
    domain = Domain.GPU if is_gpu(device.removeprefix("own.")) else Domain.PACKAGE
    return Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=Pedigree.INTEGRATED)


def _powers(metrics: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Watts of the job and of all, by device. Where a log does not say what was the job's, the whole is taken."""
    found: dict[str, tuple[float, float]] = {}
    cpu, gpu = section(metrics, "cpu"), section(metrics, "gpu")
    whole = watts_of(cpu.get("intel_power"))
    shares = cpu.get("rel_intel_power")
    if whole is not None:
        mine = sum(watts_of(watts) or 0.0 for watts in shares.values()) if isinstance(shares, Mapping) else whole
        found["cpu.0"] = mine, whole
    for key in ("per_gpu_nvidia_power", "per_gpu_power_draw"):
        cards = gpu.get(key)
        owned = gpu.get("per_gpu_attributable_power")
        for card, watts in cards.items() if isinstance(cards, Mapping) else ():
            drawn = watts_of(watts)
            if drawn is None or str(card) == "all":
                continue
            mine_w = watts_of(owned.get(card)) if isinstance(owned, Mapping) else drawn
            found[f"gpu.{card}"] = min(mine_w or 0.0, drawn), drawn
    return found


def _instant(text: Any, shift_ns: int) -> int | None:
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return parse_utc_ns(text, "iso", "date") - shift_ns
    except UsageError:
        return None


def write_job(root: Path, job: JobOnNode) -> Path | None:
    """A record as a folder of the tree, with its mean powers at its start and end; None where it is there already.

    Nothing is written over, and a record whose user cannot be a folder is an error.
    """
    if not is_name(job.user):
        raise UsageError(f"'{job.user}' is not a valid name for a folder.")
    month = f"{datetime.fromtimestamp(job.start_s):%Y_%m}"
    folder = root / month / job.user / str(job.job_id)
    if (folder / META).exists() and json_object(folder / META).get("node_id") != job.node:
        folder = folder.with_name(f"{job.job_id}-{safe_node(job.node)}")  # a job of several nodes
    if (folder / META).exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    length_s = job.end_s - job.start_s
    cards = {Device.parse(part.device).name: part for part in job.devices if is_gpu(part.device)}
    machine_uj = sum(_total(part) for part in job.devices if not is_gpu(part.device))
    if job.energy_uj is not None and length_s > 0:
        powers = {card: _total(part) / UJ / length_s for card, part in cards.items()}
        watts = machine_uj / UJ / length_s
        metrics: dict[str, Any] = {"cpu": {"intel_power": watts, "rel_intel_power": {str(job.job_id): watts}}}
        if powers:
            metrics["gpu"] = {"nvidia_power": sum(powers.values()), "per_gpu_nvidia_power": powers}
        lines: list[Any] = [{"date": _local(at_s), "metrics": metrics} for at_s in (job.start_s, job.end_s)]
        text = "".join(f"{json.dumps(line)}\n" for line in [*lines, END])
        replace_text(folder / FILE, text)
    about = {"node_id": job.node, "jobid": str(job.job_id), "job_name": job.name}
    dates = {"start_date": _local(job.start_s), **({"end_date": _local(job.end_s)} if job.complete else {})}
    replace_text(folder / META, json.dumps({**about, **dates}))
    return folder


def _total(part: DeviceEnergy) -> int:
    return part.energy_uj + part.idle_uj


def _local(unix_s: float) -> str:
    return day_text(round(unix_s * NS))


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


Grams = tuple[float | None, float | None]
"""Grams per kWh of one record, with the PUE in it: as the grid was then, and as one figure. None: not known."""


def table_row(job: JobOnNode, generation: str, grams: Grams = (None, None)) -> list[str] | None:
    """A record in the old columns; None where it has no energy or no duration, which the old tables cannot say."""
    length_s = job.end_s - job.start_s
    if job.energy_uj is None or length_s <= 0:
        return None
    cards = [part for part in job.devices if part.domain == "gpu" or is_gpu(part.device)]
    gpu_wh = sum(map(_total, cards)) / UJ_PER_WH
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
        cells += [_text(None if rate is None else wh / 1000 * rate, 4) for wh in (gpu_wh, cpu_wh) for rate in grams]
    return cells


def spoken(seconds: float) -> str:
    """`1h2min3s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}min" if hours or minutes else "") + f"{rest}s"


def add_rows(folder: Path, user: str, rows: Iterable[Sequence[str]], generation: str) -> int:
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
            with replacing(path) as part:
                text = csv_text(HEADS[generation], wanted)
                part.write_text(text, encoding="utf-8", errors="surrogateescape")
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


def _gigabytes(size_bytes: int | None) -> str:
    return _text(None if size_bytes is None else size_bytes / 1e9, 3)


def _text(value: float | None, decimals: int = 6) -> str:
    return "" if value is None else f"{max(value, 0.0):.{decimals}f}"


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)


def _plain(head: Any) -> str:
    return " ".join(str(head).split()).casefold()


FULL, SMALL, MEMBER = "omegawatt", "omegawatt_subsample", "log_omegawatt_of_the_day"
_MARK: Final = "everywatt, from UTC ns "


def write_zips(archive: Path, meter: str, turn: tuple[int, int], blocks: Callable[[], Iterable[Block]]) -> list[Path]:
    """Both zips of a recording (`blocks` gives it, each time from its start); none where they are there already.

    A second recording of a day gets `_2` behind its name: nothing is overwritten.
    """
    first = next(iter(blocks()), None)
    if first is None:
        return []
    began_ns = int(first.utc_ns[0])
    written = []
    for folder, rows in ((FULL, blocks), (SMALL, lambda: by_second(blocks))):
        path = _free(archive / folder, day_name(meter, began_ns, turn), began_ns)
        if path is not None:
            _write_zip(path, meter, began_ns, first.plugs, rows())
            written.append(path)
    return written


def day_name(meter: str, utc_ns: int, turn: tuple[int, int]) -> str:
    """`11_16_2026_USB0`: the day of the first turn after an instant, and the port."""
    at = datetime.fromtimestamp(utc_ns / NS)
    if (at.hour, at.minute) >= turn:
        at += timedelta(days=1)
    port = re.search(r"usb\d+", meter, re.IGNORECASE)
    return f"{at:%m_%d_%Y}_{port[0].upper() if port else meter}"


def _free(folder: Path, name: str, began_ns: int) -> Path | None:
    """A path that is not taken; None where this very recording is there."""
    number = 1
    while (path := folder / f"{name}{f'_{number}' if number > 1 else ''}.zip").exists():
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as packed:
            if packed.comment == f"{_MARK}{began_ns}".encode():
                return None
        number += 1
    return path


def _write_zip(path: Path, meter: str, began_ns: int, plugs: int, blocks: Iterable[Block]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.comment = f"{_MARK}{began_ns}".encode()
        with packed.open(MEMBER, "w", force_zip64=True) as raw, io.TextIOWrapper(raw, "ascii") as file:
            at = datetime.fromtimestamp(began_ns / NS)
            log = f"{at:%Y/%m/%d-%H:%M:%S};{at:%a %b %e %H:%M:%S %Y};INFO;"
            file.write(f"{log}Starting logging on '{meter}' plugcount=0\n{log}detect '{plugs}' plugs.")
            write_csv(blocks, file)


def by_second(blocks: Callable[[], Iterable[Block]]) -> Iterator[Block]:
    """One row for every second that was observed, at its end: power by energy, volts and amperes as means of rows."""
    means = _row_means(blocks())
    for cells in downsample(blocks(), 1.0):
        seen = (cells.observed_s > 0) & (cells.rows > 0)
        if not seen.any():
            continue
        others = [next(means) for _ in range(int((cells.rows > 0).sum()))]
        kept = [row for row, good in zip(others, seen[cells.rows > 0], strict=True) if good]
        volts, amps = (np.array(columns) for columns in zip(*kept, strict=True))
        ends = cells.start_ns[seen] + cells.length_ns
        yield Block(ends, np.ones(len(ends), dtype=np.bool_), volts, amps, cells.mean_w()[seen])


def _row_means(blocks: Iterable[Block]) -> Iterator[tuple[list[float], list[float]]]:
    """Mean volts and amperes of the good rows of every second that has any."""
    second, count = -1, 0
    volts, amps = np.zeros(3), np.zeros(0)
    for block in blocks:
        good = block.take(block.ok)
        if not len(good):
            continue
        places = good.utc_ns // NS
        starts = np.flatnonzero(np.concatenate(([True], np.diff(places) > 0)))
        sums = (np.add.reduceat(good.volts, starts, axis=0), np.add.reduceat(good.amps, starts, axis=0))
        sizes = np.diff(np.append(starts, len(good)))
        for place, size, of_volts, of_amps in zip(places[starts], sizes, *sums, strict=True):
            if place == second:
                volts, amps, count = volts + of_volts, amps + of_amps, count + int(size)
                continue
            if count:
                yield (volts / count).tolist(), (amps / count).tolist()
            second, volts, amps, count = int(place), of_volts, of_amps, int(size)
    if count:
        yield (volts / count).tolist(), (amps / count).tolist()
