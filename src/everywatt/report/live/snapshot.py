"""What a live view knows at one instant. Frozen: faces only read it. None means not available."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from everywatt.core.jsonio import document

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Amount:
    """Energy so far with its 95 % interval; `refused` has the reason if there is none."""

    joules: float | None = None
    low: float | None = None
    high: float | None = None
    pedigree: str = ""
    coverage: float = 1.0
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = {
            "joules": self.joules,
            "low": self.low,
            "high": self.high,
            "pedigree": self.pedigree,
            "coverage": round(self.coverage, 6),
        }
        return data if self.refused is None else {**data, "refused": self.refused}


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """One device.

    power_w         mean power since the snapshot before
    averages_w      rolling averages over 1, 5 and 15 s
    energy          since the recording began
    in_total        whether its joules are part of the total (a core is inside its package)
    throttled       whether power cap or heat hold it back
    history_w       power at the snapshots before, oldest first
    age_s           how old the newest reading is
    settling        read, but no power is known yet: too little time, or it is not yet found when it publishes
    """

    name: str
    label: str = ""
    power_w: float | None = None
    averages_w: tuple[float | None, ...] = (None, None, None)
    energy: Amount = field(default_factory=Amount)
    in_total: bool = True
    utilisation_pct: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    throttled: bool | None = None
    power_limit_w: float | None = None
    history_w: tuple[float, ...] = ()
    age_s: float | None = None
    settling: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "label": self.label,
            "power_w": self.power_w,
            "averages_w": dict(zip(("1s", "5s", "15s"), self.averages_w, strict=True)),
            "energy": self.energy.to_dict(),
            "in_total": self.in_total,
            "settling": self.settling,
            "utilisation_pct": self.utilisation_pct,
            "memory_bytes": self.memory_bytes,
            "memory_total_bytes": self.memory_total_bytes,
            "temperature_c": self.temperature_c,
            "clock_mhz": self.clock_mhz,
            "throttled": self.throttled,
            "power_limit_w": self.power_limit_w,
            "age_s": self.age_s,
        }


@dataclass(frozen=True, slots=True)
class OwnerNow:
    """One owner: its mean power over the last stretch, and its joules since the view began."""

    kind: str
    id: str
    label: str
    power_w: float
    joules: float
    cpu_pct: float | None = None
    gpu_pct: float | None = None
    memory_bytes: float | None = None
    method: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "owner": {"kind": self.kind, "id": self.id, "label": self.label},
            "power_w": self.power_w,
            "joules": self.joules,
            "cpu_pct": self.cpu_pct,
            "gpu_pct": self.gpu_pct,
            "memory_bytes": self.memory_bytes,
            "method": self.method,
        }


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of one stretch of time, the most expensive first. `refused` says why there are none."""

    by: str = "process"
    entries: tuple[OwnerNow, ...] = ()
    duration_s: float = 0.0
    unattributed_share: float | None = None
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = {
            "by": self.by,
            "duration_s": self.duration_s,
            "unattributed_share": self.unattributed_share,
            "entries": [entry.to_dict() for entry in self.entries],
        }
        return data if self.refused is None else {**data, "refused": self.refused}


@dataclass(frozen=True, slots=True)
class HostNow:
    """The whole machine: CPU use in percent of all CPUs, memory in use."""

    name: str = ""
    cpu_pct: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    cpu_history_pct: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "cpu_pct": self.cpu_pct,
            "memory_bytes": self.memory_bytes,
            "memory_total_bytes": self.memory_total_bytes,
        }


@dataclass(frozen=True, slots=True)
class WorkNow:
    """What a batch log says of one worker, counted from its events, and its card's power and energy where it is known.

    The trends are the newest values: use (%), memory (bytes), whether a start was a retry.
    """

    worker: str
    events: int
    success: int
    failure: int
    retries: int
    runtime_s: float | None
    utilisation_pct: tuple[float, float, float] | None
    memory_max_bytes: float | None
    status: str
    item: str
    updated: str
    power_w: float | None = None
    joules: float | None = None
    use_trend: tuple[float, ...] = ()
    memory_trend: tuple[float, ...] = ()
    retry_trend: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        spread = self.utilisation_pct
        return {
            "worker": self.worker,
            "events": self.events,
            "success": self.success,
            "failure": self.failure,
            "retries": self.retries,
            "runtime_s": self.runtime_s,
            "utilisation_pct": None if spread is None else dict(zip(("min", "mean", "max"), spread, strict=True)),
            "memory_max_bytes": self.memory_max_bytes,
            "status": self.status,
            "item": self.item,
            "updated": self.updated,
            "power_w": self.power_w,
            "energy_j": self.joules,
        }


@dataclass(frozen=True, slots=True)
class BatchNow:
    """How far a batch is: items, those that ended, seconds that the rest will take, and joules per finished item."""

    items: int
    done: int
    failed: int
    running: int
    eta_s: float | None = None
    joules_per_item: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant (`at_ns`, UTC). `live` is False where nothing more will come.

    `elapsed_s` is how long the recording is; `total` its energy, over `scope`; `notes` what a reader must know.
    """

    source: str
    at_ns: int
    elapsed_s: float
    devices: tuple[DeviceNow, ...] = ()
    total_w: float | None = None
    averages_w: tuple[float | None, ...] = (None, None, None)
    total: Amount = field(default_factory=Amount)
    scope: str = ""
    history_w: tuple[float, ...] = ()
    host: HostNow = field(default_factory=HostNow)
    owners: Owners | None = None
    work: tuple[WorkNow, ...] = ()
    tail: tuple[str, ...] = ()
    batch: BatchNow | None = None
    live: bool = True
    notes: tuple[str, ...] = ()

    @property
    def when(self) -> datetime:
        """The instant, UTC."""
        return datetime.fromtimestamp(self.at_ns / NS, UTC)

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON form: one line of `monitor --json`."""
        data: dict[str, Any] = {
            "source": self.source,
            "at": self.when.isoformat(timespec="milliseconds"),
            "elapsed_s": self.elapsed_s,
            "live": self.live,
            "power_w": self.total_w,
            "averages_w": dict(zip(("1s", "5s", "15s"), self.averages_w, strict=True)),
            "energy": {**self.total.to_dict(), "scope": self.scope},
            "devices": [device.to_dict() for device in self.devices],
            "host": self.host.to_dict(),
            "notes": list(self.notes),
        }
        if self.owners is not None:
            data["owners"] = self.owners.to_dict()
        if self.work:
            data["work"] = [worker.to_dict() for worker in self.work]
            data["tail"] = list(self.tail)
        if self.batch is not None:
            data["batch"] = self.batch.to_dict()
        return document("snapshot", data)
