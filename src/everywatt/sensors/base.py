"""The sensor contract: three small protocols. A new sensor is one new file that meets them.

    class Thermos:
        name = "thermos"
        after = ()

        def __init__(self, request: Request) -> None: ...
        def probe(self) -> Report: ...
        def groups(self) -> Sequence[Group]: ...

`probe` never raises and never trusts: a source is usable only when it delivered one real value. `groups` are what the
recorder then reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Protocol

from everywatt.core.channels import NAN, GroupInfo, Row
from everywatt.core.errors import SensorError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.machine import Machine


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
    """What a probe says: a state, why, what to do, and one real value of each channel."""

    sensor: str
    state: State
    why: str = ""
    cure: str | None = None
    samples: Mapping[str, float | None] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[Mapping[str, Any]] = ()
    power: bool = True

    @property
    def usable(self) -> bool:
        """True where values were really read."""
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


class TableGroup(Protocol):
    """Rows that vary: processes, cgroups. `info.table` is True."""

    @property
    def info(self) -> GroupInfo: ...

    def read_table(self) -> tuple[int, list[dict[str, Any]]]:
        """When it was read (monotonic ns), and the rows that are new or changed since the last read."""
        ...

    def follow(self, pids: Sequence[int]) -> None:
        """Follow these root processes too."""
        ...

    def close(self) -> None: ...


class Sensor(Protocol):
    """One hardware family. Built with a Request; `after` names sensors that are preferred over it."""

    name: str
    after: Sequence[str]

    def probe(self) -> Report: ...
    def groups(self) -> Sequence[Group | TableGroup]: ...


def _plain(row: Row, width: int) -> bool:
    """True where a row is clean data as it stands."""
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
