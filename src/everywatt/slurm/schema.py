"""What is stored of a job on a node, and of a node's hour: the one truth of the store's columns.

Energies are whole microjoules, so that jobs, idle and system of an hour add up to the node exactly. None is not known.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final, get_args, get_origin, get_type_hints

from everywatt.core.plugins import library


def shown_id(
    job_id: object,
    array_job_id: int | None,
    array_task_id: int | None,
    het_job_id: int | None,
    het_offset: int | None,
) -> str:
    """The id of a job as Slurm's own tools print it: 123, 123_4, 123+0."""
    if array_job_id is not None and array_task_id is not None:
        return f"{array_job_id}_{array_task_id}"
    if het_job_id is not None and het_offset is not None:
        return f"{het_job_id}+{het_offset}"
    return str(job_id)


@dataclass(frozen=True, slots=True)
class DeviceEnergy:
    """What a job used of one device of a node: its own share, and its share of the idle power by allocation."""

    device: str
    domain: str
    source: str  # rapl, nvml, ipmi, redfish, omegawatt…
    energy_uj: int
    low_uj: int
    high_uj: int
    idle_uj: int = 0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How a job used a GPU that it was given."""

    uuid: str
    mean_utilisation: float  # 0…1
    idle_s: float
    idle_uj: int
    memory_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StepEnergy:
    """A step of a job on this node."""

    step: str  # batch, extern, interactive, 0, 1…
    start_s: float
    end_s: float
    energy_uj: int | None = None


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """One job on one node, from its first process (or Prolog) to its last. A job is the sum of its nodes."""

    job_id: int  # the raw id: of an array's task its own
    node: str
    start_s: float  # UTC, unix time
    end_s: float
    cluster: str = ""
    restart: int = 0
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    nodes: int = 1
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    name: str = ""
    state: str = "RUNNING"  # sacct's word
    exit_code: str | None = None
    submit_s: float | None = None
    period_s: float = 2.0
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    energy_uj: int | None = None  # its own share, held and active; None where it is refused
    low_uj: int | None = None
    high_uj: int | None = None
    idle_uj: int | None = None  # its share of the idle power, by allocation
    coverage: float = 0.0
    pedigree: str = ""
    scope: str = ""
    refused: str | None = None
    devices: tuple[DeviceEnergy, ...] = ()
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    gpu_use: tuple[GpuUse, ...] = ()
    steps: tuple[StepEnergy, ...] = ()
    waste_uj: int | None = None  # the part of its idle share that it did not use
    gpu_utilisation: float | None = None  # 0…1, the mean of its GPUs
    wall_uj: int | None = None
    slurm_energy_j: float | None = None  # ConsumedEnergyRaw
    complete: bool = True
    note: str = ""
    written_s: float = 0.0  # of two records of one job on one node the later one counts
    memory_mean_bytes: int | None = None  # of its processes together, over the time that was observed
    gpu_memory_mean_bytes: int | None = None  # of its GPUs together

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What makes a record the record of this job on this node."""
        return self.cluster, self.job_id, self.restart, self.node

    @property
    def shown_id(self) -> str:
        """The id as Slurm's own tools print it: 123, 123_4, 123+0."""
        return shown_id(self.job_id, self.array_job_id, self.array_task_id, self.het_job_id, self.het_offset)

    def row(self) -> dict[str, Any]:
        """Plain data, for Parquet and JSON."""
        return asdict(self)

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> JobOnNode:
        """Back from plain data; columns that this version does not know are left out."""
        known = {field.name for field in fields(cls)}
        data = {name: value for name, value in row.items() if name in known}
        data["gpus"] = tuple(data.get("gpus") or ())
        for name, kind in (("devices", DeviceEnergy), ("gpu_use", GpuUse), ("steps", StepEnergy)):
            data[name] = tuple(kind(**part) for part in data.get(name) or ())
        return cls(**data)


@dataclass(frozen=True, slots=True)
class NodeHour:
    """One device of a node over one hour: jobs + idle + system is the total, to the microjoule."""

    hour_s: int
    node: str
    device: str
    domain: str
    source: str
    total_uj: int
    jobs_uj: int
    idle_uj: int
    system_uj: int
    coverage: float
    from_s: float = 0.0  # of the hour this stretch was booked; 0 and 0 in records that do not say
    to_s: float = 0.0
    written_s: float = 0.0

    @property
    def key(self) -> tuple[int, str, str, str]:
        """What makes a record the record of this hour."""
        return self.hour_s, self.node, self.device, self.source

    def row(self) -> dict[str, Any]:
        """Plain data, for Parquet and JSON."""
        return asdict(self)


JOB_KEY: Final = ("cluster", "job_id", "restart", "node")
SUMMED: Final = ("total_uj", "jobs_uj", "idle_uj", "system_uj")  # of hours of nodes
HOUR_KEY: Final = ("hour_s", "node", "device", "source")


def arrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet, or MissingExtra."""
    return library("pyarrow", "analysis"), library("pyarrow.parquet", "analysis")


def job_schema() -> Any:
    """The Arrow schema of jobs."""
    return arrow()[0].schema(_columns(JobOnNode))


def hour_schema() -> Any:
    """The Arrow schema of nodes' hours."""
    return arrow()[0].schema(_columns(NodeHour))


def _columns(kind: type) -> list[tuple[str, Any]]:
    """Name and Arrow type of each field of a class, by its annotation."""
    hints = get_type_hints(kind)
    return [(field.name, _arrow_type(hints[field.name])) for field in fields(kind)]


def _arrow_type(hint: Any) -> Any:
    pa, _ = arrow()
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    inner = next((one for one in get_args(hint) if one not in (type(None), ...)), None)
    if get_origin(hint) is tuple:
        return pa.list_(_arrow_type(inner))
    kind = inner or hint  # of `int | None` the int
    return plain.get(kind) or pa.struct(_columns(kind))
