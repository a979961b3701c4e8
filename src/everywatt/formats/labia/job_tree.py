"""Lab-IA's tree of jobs, `prolog_log/2026_11/USER/JOB/{meta_data.json,power_metrics.json}`, to records and back.

A log there has what the machine drew and what of it went to the job by its share of busy time, so idle is inside. That
share is the record's energy; its interval is from nothing to all that the node drew meanwhile, as another job may have
owned the rest. A missing end is taken from the last reading, and the record says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.clocks import NS
from everywatt.core.device import Device, is_gpu
from everywatt.core.errors import UsageError
from everywatt.core.files import replace_text
from everywatt.formats.aipowermeter.importer import END, FILE, day_text, json_object, read_log, section, watts_of
from everywatt.meters.series import zone_ns
from everywatt.slurm.schema import DeviceEnergy, JobOnNode
from everywatt.slurm.site.store import safe_node
from everywatt.slurm.site.users import is_name
from everywatt.tape.importing import parse_utc_ns

META: Final = "meta_data.json"
UJ: Final = 1_000_000
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
            found.jobs += _job(folder, options or {})
        except (OSError, UsageError, ValueError) as error:
            found.problems.append((folder, str(error)))
    return found


def _job(folder: Path, options: Mapping[str, Any]) -> list[JobOnNode]:
    about = json_object(folder / META)
    shift_ns = zone_ns(options)
    lines: list[tuple[int, Mapping[str, Any]] | None] = []
    if (folder / FILE).is_file():
        lines = read_log(foreign.lines(folder / FILE), shift_ns).lines
    times = [line[0] for line in lines if line]
    start_ns = _instant(about.get("start_date"), shift_ns) or (times[0] if times else None)
    told_ns = _instant(about.get("end_date"), shift_ns)
    end_ns = told_ns or (times[-1] if times else None)
    job = str(about.get("jobid") or folder.name)
    if not job.isdecimal():
        raise ValueError(f"'{job}' is not a job number")
    if start_ns is None or end_ns is None:
        raise ValueError("it has no times: no readings, and no start_date")
    end_ns = max(end_ns, start_ns)
    nodes = about.get("node_id")
    names = [str(node) for node in nodes] if isinstance(nodes, list) else [str(nodes or "unknown")]
    devices, covered_s = _devices(lines)
    length_s = (end_ns - start_ns) / NS
    record = JobOnNode(
        job_id=int(job),
        node=names[0],
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
        complete=told_ns is not None,
        note=NOTE if told_ns is not None else f"{NOTE}; {INFERRED}",
    )
    return [record]


def _devices(lines: list[tuple[int, Mapping[str, Any]] | None]) -> tuple[list[DeviceEnergy], float]:
    """Joules of each device, a reading held back to the one before it, and the seconds that were so covered."""
    own: dict[str, float] = {}
    whole: dict[str, float] = {}
    covered_s, last_ns = 0.0, None
    for line in lines:
        if line is None:
            last_ns = None
            continue
        at_ns, metrics = line
        step_s = (at_ns - last_ns) / NS if last_ns is not None else 0.0
        last_ns = at_ns
        if step_s <= 0:
            continue
        covered_s += step_s
        for device, (mine_w, all_w) in _powers(metrics).items():
            own[device] = own.get(device, 0.0) + mine_w * step_s
            whole[device] = whole.get(device, 0.0) + max(all_w, mine_w) * step_s
    return [
        DeviceEnergy(
            device,
            "gpu" if is_gpu(device) else "package",
            "nvml" if is_gpu(device) else "rapl",
            round(own[device] * UJ),
            0,
            round(whole[device] * UJ),
        )
        for device in sorted(own)
    ], covered_s


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
    except (UsageError, OverflowError):
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
