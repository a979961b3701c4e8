"""What is stored of a job on a node, and of a node's hour: the one truth of the store's columns.

Energies are whole microjoules, so that jobs, idle and system of an hour add up to the node exactly. None is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, get_args, get_origin, get_type_hints

from everywatt.core.plugins import arrow

ID_PARTS: Final = ("array_job_id", "array_task_id", "het_job_id", "het_offset")


def shown_id(row: Mapping[str, Any]) -> str:
    """The id of a job as Slurm's own tools print it: 123, 123_4, 123+0."""
    array, task, het, offset = (row.get(name) for name in ID_PARTS)
    if array is not None and task is not None:
        return f"{array}_{task}"
    return str(row["job_id"]) if het is None or offset is None else f"{het}+{offset}"


def sum_known(values: Iterable[Any]) -> Any:
    """The sum; None where one of the values is not known."""
    known = list(values)
    return None if any(value is None for value in known) else sum(known)


class Numbered:
    """A job with Slurm's numbers."""

    __slots__ = ()

    @property
    def shown_id(self) -> str:
        """The id as Slurm's own tools print it: 123, 123_4, 123+0."""
        return shown_id({name: getattr(self, name) for name in ("job_id", *ID_PARTS)})


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
    idle_low_uj: int | None = None
    idle_high_uj: int | None = None


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
    low_uj: int | None = None
    high_uj: int | None = None


@dataclass(frozen=True, slots=True)
class JobOnNode(Numbered):
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
    idle_low_uj: int | None = None  # the 95 % interval of `idle_uj`; None in records of earlier versions
    idle_high_uj: int | None = None

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What makes a record the record of this job on this node."""
        return self.cluster, self.job_id, self.restart, self.node

    def row(self) -> dict[str, Any]:
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
    """One device of a node over one hour: jobs + idle + system is the total, to the microjoule.

    `…_low_uj` and `…_high_uj` are the ends of 95 % intervals; None where nothing of it was observed, and in records of
    earlier versions.
    """

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
    total_low_uj: int | None = None
    total_high_uj: int | None = None
    jobs_low_uj: int | None = None
    jobs_high_uj: int | None = None
    idle_low_uj: int | None = None
    idle_high_uj: int | None = None
    system_low_uj: int | None = None
    system_high_uj: int | None = None

    @property
    def key(self) -> tuple[int, str, str, str]:
        """What makes a record the record of this hour."""
        return self.hour_s, self.node, self.device, self.source

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a folder of the store holds: the class of its rows, what makes two of them the same, and their order."""

    row: type
    key: tuple[str, ...]
    order: str
    best: str  # of two rows of the same the first by this counts

    def schema(self) -> Any:
        return arrow()[0].schema(_columns(self.row))


JOB_KEY: Final = ("cluster", "job_id", "restart", "node")
SUMMED: Final = ("total_uj", "jobs_uj", "idle_uj", "system_uj")  # of hours of nodes
# The ends of an interval, by name, with the amount that they are of.
NODE_ENDS: Final = {f"{name.removesuffix('_uj')}_{end}_uj": name for name in SUMMED for end in ("low", "high")}
IDLE_ENDS: Final = {name: NODE_ENDS[name] for name in ("idle_low_uj", "idle_high_uj")}


def ends_sql(ends: Mapping[str, str]) -> dict[str, str]:
    """SQL of the sum of each end of an interval; null where a record (of an earlier version) has an amount without."""
    return {name: f"CASE WHEN count({name}) = count({of}) THEN sum({name}) END" for name, of in ends.items()}


TIMES: Final = ("covered_ms", "known_ms")  # of the devices of nodes: how long they were observed, of how long
KINDS: Final = {
    "jobs": Kind(JobOnNode, JOB_KEY, "end_s, job_id, node", "complete DESC, written_s DESC"),
    "nodes": Kind(NodeHour, ("hour_s", "node", "device", "source"), "hour_s, node, device", "written_s DESC"),
}


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
