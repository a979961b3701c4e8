"""The sensor contract: all that the recorder may ask of a sensor. A new sensor is one new file that meets it.

    class Thermos:
        name = "thermos"
        after = ()

        def __init__(self, request: Request) -> None: ...
        def probe(self) -> Report: ...
        def groups(self) -> Sequence[Group]: ...

`probe` never raises and never trusts: a source is usable only when it delivered one real value. `groups` are what the
recorder then reads. `Sensor` with `Group` or `TableGroup` is required. The other protocols are abilities that a group
may have: it has one if it has all of its members. `sensors.simple` meets the contract for those that only read values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from everywatt.core.channels import NAN, GroupInfo, Row
from everywatt.core.errors import SensorError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.machine import Machine

if TYPE_CHECKING:  # made at run time they would cost each recorder a millisecond
    from typing import TypedDict

    class GpuProcessRow(TypedDict, total=False):
        """A process on a GPU, new or changed since the last read."""

        gpu: int
        pid: int
        type: str  # C compute, G graphics, C+G
        memory_bytes: int | None
        sm: float | None  # % of the GPU, None where not known
        uuid: str
        sample_us: int | None  # when the driver took it, Unix µs
        gpu_instance: int | None  # None unless MIG
        compute_instance: int | None
        slices: int | None  # compute slices of the MIG instance
        of_slices: int | None  # of the board
        instance_sm: float | None  # % of the MIG instance, where the board has GPM metrics
        since_ns: int  # when it was last known who is on this GPU, monotonic; not in the first rows
        gone: bool  # it left


@dataclass(frozen=True, slots=True)
class Request:
    """What the run asks of sensors.

    devices   the value of CUDA_VISIBLE_DEVICES that selects GPUs (indices, UUIDs or MIG ids), None for all
    pids      root processes whose trees are followed
    estimate  whether the modelled sensor may be used
    options   settings of a sensor, by its name: {"replay": {"tape": "…"}}
    sensors   the sensors that the run names explicitly, None where it leaves the choice to us
    everything  whether all processes of the machine are wanted, not only the trees under `pids`
    memory    metric of process memory: "rss", or "pss" (which costs 77 µs per process)
    reaper    the process of the everywatt command itself: its CPU time is the meter's, its children's is not
    patience_s  how long a probe may take, because a program waits for it; None where it may take what it needs
    """

    machine: Machine = field(default_factory=Machine.here)
    devices: str | None = None
    pids: tuple[int, ...] = ()
    estimate: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sensors: tuple[str, ...] | None = None
    everything: bool = False
    memory: str = "rss"
    reaper: int | None = None
    patience_s: float | None = None


class State(StrEnum):
    """What a probe found."""

    USABLE = "usable"
    UNUSABLE = "unusable"  # it exists and cannot be read
    ABSENT = "absent"  # there is no such hardware here


@dataclass(frozen=True, slots=True)
class Report:
    """What a probe says: a state, why, what to do, and one real value of each channel; of an estimate its interval."""

    sensor: str
    state: State
    why: str = ""
    cure: str | None = None
    samples: Mapping[str, float | None] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[Mapping[str, Any]] = ()
    power: bool = True
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.state is State.USABLE


class Group(Protocol):
    """Channels that are read together."""

    @property
    def info(self) -> GroupInfo: ...

    def read(self) -> Sequence[Row]:
        """The rows since the last read, usually one. Raises SensorError where the device is lost for now."""
        ...

    def close(self) -> None:
        """Let go of files, handles and children."""
        ...


TableRow = Mapping[str, Any]
"""A row of a table: what JSON holds, with names that the sensor chooses."""


class TableGroup(Protocol):
    """Rows that vary: processes, cgroups. `info.table` is True."""

    @property
    def info(self) -> GroupInfo: ...

    def read_table(self) -> tuple[int, Sequence[TableRow]]:
        """When it was read (monotonic ns), and the rows that are new or changed since the last read."""
        ...

    def follow(self, pids: Sequence[int]) -> None:
        """Follow these root processes too."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class RawGroup(Protocol):
    """A group whose values can be fetched first and made into rows later.

    The recorder wakes up often and for a moment; what need not be done then is done once a second.
    """

    def read_raw(self) -> Any:
        """What is quickest to fetch; None where an ordinary `read` has to find out what is wrong.

        Of a tracked group the first item is the value whose changes are watched.
        """
        ...

    def to_rows(self, taken: Sequence[tuple[int, int, Any]]) -> Sequence[Row]:
        """One row for each (began_ns, ended_ns, what `read_raw` gave)."""
        ...


@runtime_checkable
class FedGroup(Protocol):
    """A group whose rows come from a child process or a meter on the network. `read` does not wait for them."""

    rows_every_s: float  # seconds between two rows


@runtime_checkable
class TroubledGroup(Protocol):
    """A group that may have to use a fallback."""

    @property
    def trouble(self) -> str | None:
        """A sentence about how it is read, which becomes a warning of the run; None where all is well."""
        ...


@runtime_checkable
class HurriedTable(Protocol):
    """A table that is read more often while a run is young, if that is cheap."""

    hurry_s: float  # seconds between two such reads

    def ask_all(self) -> None:
        """The next read leaves nothing out, however short the last one is ago: a run begins or ends there."""
        ...


@runtime_checkable
class CgroupTable(Protocol):
    """A table of control groups."""

    def watch(self, folder: str) -> None:
        """Report the group in this folder from now on: it was made for a command."""
        ...


@runtime_checkable
class ExitTable(Protocol):
    """A table of processes that may know how each of them ended."""

    @property
    def exits(self) -> bool:
        """Whether the end of every process is reported, with its total use."""
        ...


Ability = TypeVar("Ability")


def able(group: Any, ability: Callable[..., Ability]) -> Ability | None:
    """The group as one with this ability, None where it lacks a member; a plug-in's property may raise anything."""
    try:
        return group if isinstance(group, cast("type[Ability]", ability)) else None
    except Exception:  # noqa: BLE001 - a plug-in may do anything
        return None


class Sensor(Protocol):
    """One hardware family. Built with a Request; `after` names sensors that are preferred over it."""

    name: str
    after: Sequence[str]

    def probe(self) -> Report: ...
    def groups(self) -> Sequence[Group | TableGroup]: ...


def _plain(row: Row, width: int) -> bool:
    """True if a row is already clean data."""
    read_ns, early_ns, late_ns, values = row
    if not (type(read_ns) is type(early_ns) is type(late_ns) is int and type(values) is tuple):
        return False
    try:
        return early_ns <= late_ns and len(values) == width and math.isfinite(sum(values))
    except TypeError:
        return False


def checked(row: Any, info: GroupInfo) -> Row:
    """The row of a plug-in as clean data; SensorError where it makes no sense."""
    if type(row) is Row and _plain(row, len(info.channels)):
        return row  # nearly always
    try:
        read_ns, early_ns, late_ns, values = row
        clean = tuple(NAN if value is None or not math.isfinite(value) else float(value) for value in values)
        times = int(read_ns), int(early_ns), int(late_ns)
    except (TypeError, ValueError) as error:
        raise SensorError(f"invalid row: {error}") from None
    if len(clean) != len(info.channels):
        raise SensorError(f"{len(clean)} values for {len(info.channels)} channels")
    if times[1] > times[2]:
        raise SensorError("invalid row: early_ns > late_ns")
    return Row(*times, clean)
