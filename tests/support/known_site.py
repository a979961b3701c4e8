"""A store of a small site with known jobs, for tests of what is made of it. 2026-11-15, UTC."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from everywatt.slurm.schema import NODE_ENDS, DeviceEnergy, GpuUse, JobOnNode, NodeHour, StepEnergy
from everywatt.slurm.site.store import Store

T0 = 1_794_700_800.0  # 2026-11-15T00:00Z
HOUR = 3600.0
MJ = 10**12  # microjoules
GIB = 1 << 30


def job(job_id: int, user: str, start_h: float, hours: float, energy_uj: int | None, **more: object) -> JobOnNode:
    row = JobOnNode(
        job_id,
        "n1",
        T0 + start_h * HOUR,
        T0 + (start_h + hours) * HOUR,
        cluster="c",
        user=user,
        state="COMPLETED",
        energy_uj=energy_uj,
        low_uj=None if energy_uj is None else energy_uj * 9 // 10,
        high_uj=None if energy_uj is None else energy_uj * 11 // 10,
        coverage=1.0,
        pedigree="counter",
        scope="cpu",
    )
    return replace(row, **more)


def jobs() -> list[JobOnNode]:
    """ada: 1 (1 kWh, lazy), 2 (two nodes, a GPU that stood still); bob: 3_4 (failed), 5 (refused); cy: 6 (torn)."""
    lazy = job(
        1,
        "ada",
        10,
        1,
        3_600_000_000_000,
        account="phys",
        idle_uj=400_000_000_000,
        waste_uj=350_000_000_000,
        cpus=16.0,
        cpu_s=2 * HOUR,
        memory_bytes=64 * GIB,
        memory_peak_bytes=4 * GIB,
        slurm_energy_j=5_000_000.0,
        devices=(DeviceEnergy("cpu.0", "package", "rapl", 3_600_000_000_000, 0, 4 * MJ, 400_000_000_000),),
        steps=(StepEnergy("batch", T0, T0, 600_000_000_000), StepEnergy("0", T0, T0, 2_900_000_000_000)),
    )
    gpus = (GpuUse("gpu.0", 0.9, 0.0, 0), GpuUse("gpu.1", 0.0, 3 * HOUR, 61 * 3 * 3600 * 10**6))
    cards = (
        DeviceEnergy("cpu.0", "package", "rapl", 1 * MJ, 0, 2 * MJ),
        DeviceEnergy("gpu.0", "gpu", "nvml", 2 * MJ, 0, 3 * MJ, 658_800_000_000),
    )
    two = job(2, "ada", 12, 3, 3 * MJ, account="phys", nodes=2, idle_uj=658_800_000_000, waste_uj=600_000_000_000)
    first = replace(two, gpus=("gpu.0", "gpu.1"), gpu_use=gpus, gpu_utilisation=0.45, devices=cards)
    second = replace(two, node="n2", energy_uj=MJ, low_uj=MJ, high_uj=MJ, idle_uj=0, waste_uj=0)
    failed = job(7, "bob", 20, 0.5, 500_000_000_000, account="chem", state="FAILED", array_job_id=3, array_task_id=4)
    refused = job(5, "bob", 21, 0.001, None, account="chem", refused="too short")
    torn = job(6, "cy", 22, 1, 100, nodes=2, complete=False, coverage=0.5, note="the node went away")
    return [lazy, first, second, failed, refused, torn]


def hours() -> list[NodeHour]:
    """n1 from 10:00 to 15:00; its jobs drew all of their energy of 12:00 to 15:00 in the first of these hours."""
    drawn = {10: 3_600_000_000_000, 12: 2_999_999_999_998, 13: 1, 14: 1}
    rows = []
    for hour in range(10, 15):
        jobs_uj = drawn.get(hour, 0)
        at = int(T0 + hour * HOUR)
        total = jobs_uj + 700_000_000_000 + 300_000_000_000
        rows.append(NodeHour(at, "n1", "cpu.0", "package", "rapl", total, jobs_uj, 7 * 10**11, 3 * 10**11, 1.0))
    return [replace(row, from_s=float(row.hour_s), to_s=row.hour_s + HOUR, **ends(row)) for row in rows]


def ends(row: NodeHour) -> dict[str, int]:
    """Intervals of 3 % to both sides."""
    amounts = {name: getattr(row, amount) for name, amount in NODE_ENDS.items()}
    return {name: uj * (97 if "_low_" in name else 103) // 100 for name, uj in amounts.items()}


def make(path: Path) -> Store:
    """The store."""
    store = Store(path)
    for row in jobs():
        store.append([row], row.node)
    store.append_hours(hours(), "n1")
    return store
