"""What a live view knows at one instant. Frozen: faces only read it. None means not available."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict, document

NS = 1_000_000_000


def _fields(value: Any, *without: str) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value) if one.name not in without}


def _averages(watts: tuple[float | None, ...]) -> dict[str, float | None]:
    return dict(zip(("1s", "5s", "15s"), watts, strict=True))


@dataclass(frozen=True, slots=True)
class Amount(ToDict):
    """Energy so far with its 95 % interval; `refused` has the reason if there is none."""

    JSON = "joules low high pedigree coverage refused?"

    joules: float | None = None
    low: float | None = None
    high: float | None = None
    pedigree: str = ""
    coverage: float = 1.0
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**ToDict.to_dict(self), "coverage": round(self.coverage, 6)}


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """One device.

    power_w         mean power since the snapshot before
    averages_w      exponential averages with time constants of 1, 5 and 15 s
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
        more = {"averages_w": _averages(self.averages_w), "energy": self.energy.to_dict()}
        return {**_fields(self, "history_w"), **more}


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
    low: float | None = None  # 95 % interval of `joules`
    high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        owner = {"kind": self.kind, "id": self.id, "label": self.label}
        return {"owner": owner, **_fields(self, *owner)}


@dataclass(frozen=True, slots=True)
class Owners(ToDict):
    """The owners of one stretch of time, the most expensive first. `refused` says why there are none.

    `age_s` is how long before the end of the total that stretch ended: owners are worked out less often than power.
    """

    JSON = "by entries duration_s unattributed_share age_s refused?"

    by: str = "process"
    entries: tuple[OwnerNow, ...] = ()
    duration_s: float = 0.0
    unattributed_share: float | None = None
    refused: str | None = None
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostNow(ToDict):
    """The whole machine: CPU use in percent of all CPUs, memory in use."""

    JSON = "name cpu_pct memory_bytes memory_total_bytes"

    name: str = ""
    cpu_pct: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    cpu_history_pct: tuple[float, ...] = ()


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
        spread = self.utilisation_pct
        use = None if spread is None else dict(zip(("min", "mean", "max"), spread, strict=True))
        known = _fields(self, "joules", "use_trend", "memory_trend", "retry_trend")
        return {**known, "utilisation_pct": use, "energy_j": self.joules}


@dataclass(frozen=True, slots=True)
class ModelNow(ToDict):
    """Joules per token of a model that a server runs, with the 95 % interval; `refused` says why there is none."""

    JSON = "server model phase joules_per_token low high refused?"

    server: str
    model: str = ""
    phase: str = "all"
    joules_per_token: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class BatchNow(ToDict):
    """How far a batch is: items, those that ended, seconds that the rest will take, and joules per finished item."""

    items: int
    done: int
    failed: int
    running: int
    eta_s: float | None = None
    joules_per_item: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant (`at_ns`, UTC). `live` is False where nothing more will come.

    `elapsed_s` is how long the recording is; `total` its energy, over `scope`; `notes` what a reader must know. `since`
    says from when on energies count, where that is not the beginning of the recording.
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
    models: tuple[ModelNow, ...] = ()
    live: bool = True
    notes: tuple[str, ...] = ()
    since: str = ""

    @property
    def when(self) -> datetime:
        return datetime.fromtimestamp(self.at_ns / NS, UTC)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "source": self.source,
            "at": self.when.isoformat(timespec="milliseconds"),
            "elapsed_s": self.elapsed_s,
            "live": self.live,
            "power_w": self.total_w,
            "averages_w": _averages(self.averages_w),
            "energy": {**self.total.to_dict(), "scope": self.scope},
            "devices": [device.to_dict() for device in self.devices],
            "host": self.host.to_dict(),
            "notes": list(self.notes),
        }
        if self.since:
            data["since"] = self.since
        if self.owners is not None:
            data["owners"] = self.owners.to_dict()
        if self.work:
            data["work"] = [worker.to_dict() for worker in self.work]
            data["tail"] = list(self.tail)
        if self.batch is not None:
            data["batch"] = self.batch.to_dict()
        if self.models:
            data["models"] = [model.to_dict() for model in self.models]
        return document("snapshot", data)


LOG_ENDINGS = (".jsonl", ".ndjson")


class LiveSource(Protocol):
    """One thing to look at. It is polled once an interval and closed at the end."""

    @property
    def title(self) -> str:
        """What it is, for the head of the screen."""
        ...

    def poll(self) -> Snapshot:
        """How things stand now."""
        ...

    def close(self) -> None:
        """Let go of files, and of what was only made to look at."""
        ...


def open_source(
    source: str,
    interval_s: float,
    *,
    by: str | None = None,
    gpus: tuple[str, ...] = (),
    home: Path | None = None,
    tail: int,
    token_file: Path | None = None,
    ca: Path | None = None,
) -> LiveSource:
    """The live source that a word on the command line means. Raises RunNotFound where it means nothing.

    `token_file` and `ca` are for an agent that wants a token, or whose certificate is not the system's to trust.
    """
    from everywatt.report.live.agent_source import Access, AgentSource
    from everywatt.report.live.tape_source import JOURNAL, BatchSource, TapeSource
    from everywatt.report.live.telemetry import TelemetrySource

    if source.startswith(("http://", "https://")):
        return AgentSource(source, interval_s, gpus=gpus, access=Access.of(token_file, ca))
    if token_file is not None or ca is not None:
        raise UsageError(
            "--token-file and --ca require an agent as SOURCE.", cure="everywatt monitor https://host:port"
        )
    if source.endswith(LOG_ENDINGS) and Path(source).is_file():
        return TelemetrySource(Path(source), tail=tail)
    from everywatt.core.config import resolve
    from everywatt.tape.run_store import existing_home, find_run

    path = find_run(source, existing_home(home or resolve().home))
    is_batch = path.is_dir() and (path / JOURNAL).is_file()
    tapes = TapeSource(path, interval_s, by=None if is_batch else by, gpus=gpus)
    return BatchSource(path, tapes, tail=tail) if is_batch else tapes
