"""What a recording is asked to do: one value for the API, the verbs, the recorder's client and its protocol."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from everywatt.core.errors import UsageError
from everywatt.core.jsonio import plain
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.platforms import MEMORIES
from everywatt.sensors.base import Request

if TYPE_CHECKING:
    from everywatt.core.config import Settings  # the recorder has no settings
    from everywatt.core.machine import Machine


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """The parameters of a recording. UsageError where they make no sense; lists become tuples.

    period_s    seconds between two reads of power and energy
    sensors     the sensors to use by name, None: all that work
    devices     GPUs in the manner of CUDA_VISIBLE_DEVICES, None: all
    pids        root processes whose trees are followed
    estimate    whether watts may be modelled where nothing measures them
    options     settings of sensors, by their names
    everything  whether all processes of the machine are recorded
    memory      how memory of processes is reported: "rss", or "pss" (proportional and unique set size as well)
    reaper      the process of an everywatt command, which is not measured itself
    cgroup      the folder of a control group that was made for the processes
    """

    period_s: float = 0.1
    sensors: tuple[str, ...] | None = None
    devices: str | None = None
    pids: tuple[int, ...] = ()
    estimate: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    everything: bool = False
    memory: str = "rss"
    reaper: int | None = None
    cgroup: str | None = None

    def __post_init__(self) -> None:
        if not self.period_s > 0:
            raise UsageError(f"A period of {self.period_s} s is not valid.")
        if self.memory not in MEMORIES:
            raise UsageError(f"The memory metric is rss or pss, not '{self.memory}'.")
        object.__setattr__(self, "pids", tuple(self.pids))
        if self.sensors is not None:
            object.__setattr__(self, "sensors", tuple(self.sensors))

    @classmethod
    def of_settings(cls, settings: Settings) -> RecordRequest:
        return cls(
            period_s=settings.period_s,
            sensors=tuple(settings.sensors) if settings.sensors else None,
            estimate=settings.estimate,
            options=settings.options,
            memory=settings.memory,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the part of the recorder's `open` message that says what to record."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordRequest:
        """The reverse. What an older client does not send has its default, what a newer one adds is left alone."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None})

    def for_sensors(self, machine: Machine, patience_s: float | None = None) -> Request:
        """What is asked of sensors on this machine."""
        return Request(
            machine,
            self.devices,
            self.pids,
            self.estimate,
            self.options,
            everything=self.everything,
            memory=self.memory,
            reaper=self.reaper,
            patience_s=patience_s,
        )


def model_file(options: Mapping[str, Mapping[str, Any]]) -> str:
    """The path of the model that these settings use as a sensor; empty without one."""
    table = options.get("model")
    file = table.get("file") if isinstance(table, Mapping) else None
    return os.path.abspath(file) if isinstance(file, str) and file else ""  # noqa: PTH100 - links stay


def whole_paths(options: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Paths in settings (`tape`, `file`, `password_file`) as they are meant here: the recorder works elsewhere."""

    def whole(key: str, value: Any) -> Any:
        path = key == "tape" or key.endswith("file")
        if not path or not isinstance(value, str | os.PathLike) or not value:
            return value
        return os.path.abspath(value)  # noqa: PTH100 - links stay

    return {
        name: {key: whole(key, value) for key, value in table.items()} if isinstance(table, Mapping) else table
        for name, table in options.items()
    }
