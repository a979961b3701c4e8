"""A sensor that just reads values: probing, groups and gaps come with it.

class Thermos(SimpleSensor):
    name = "thermos"
    absent = "There is no thermos."

    def find(self) -> list[SimpleGroup]:
        channel = Channel("thermos.0.power", "W", Kind.GAUGE, "thermos.0", Domain.RAIL, pedigree=Pedigree.INTEGRATED)
        return [self.group(channel, read=lambda: read_watts(self.machine.sys / "class" / "thermos"))]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from everywatt.core.channels import Channel, GroupInfo, Row
from everywatt.core.clocks import Clock
from everywatt.core.errors import EverywattError, SensorError
from everywatt.sensors.base import Group, Report, Request, State


class Absent(SensorError):
    """What a sensor reads is not on this machine."""


class Sampled(Group, Protocol):
    """A group that can be tried once."""

    def sample(self) -> tuple[float, ...]:
        """Its values now. SensorError or OSError if they cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class SimpleGroup:
    """Channels that one function reads; it raises SensorError where the device cannot be read now."""

    info: GroupInfo
    sample: Callable[[], tuple[float, ...]]
    clock: Clock
    age_ns: int = 0
    end: Callable[[], None] = lambda: None

    def read(self) -> list[Row]:
        """One row, of values that were at most `age_ns` old when the read began."""
        start_ns = self.clock.monotonic_ns()
        values = self.sample()
        end_ns = self.clock.monotonic_ns()
        return [Row(end_ns, start_ns - self.age_ns, end_ns, values)]

    def close(self) -> None:
        """Let go of what is kept open, if anything is."""
        self.end()


class SimpleSensor:
    """A sensor by the groups it finds. A subclass sets `name` and gives `find`.

    `absent` says what is not here where nothing is found, `cure` what to do where nothing that was found can be read;
    `missing` is why channels are not there, `how` is how the others are read, `devices` what is listed of each device
    where that is more than its name, and `power` whether the watts are not another sensor's; `find` may change them.
    """

    name = ""
    after: Sequence[str] = ()
    absent = "There is no such hardware here."
    cure: str | None = None

    def __init__(self, request: Request) -> None:
        self.request = request
        self.machine = request.machine
        self.missing: dict[str, str] = {}
        self.how = ""
        self.power = True
        self.devices: list[dict[str, Any]] = []
        self._usable: list[Sampled] | None = None
        self._open = 0  # groups that are not closed

    @property
    def named(self) -> bool:
        return self.request.sensors is not None and self.name in self.request.sensors

    def find(self) -> Iterable[Sampled]:
        """The groups that exist here, whether they can be read or not.

        Raises Absent with a specific reason if no group exists, SensorError if no group can be used.
        """
        raise NotImplementedError

    def group(self, *channels: Channel, read: Callable[[], float | tuple[float, ...]], label: str = "") -> SimpleGroup:
        """Channels of one device; `read` gives their raw values (of one channel the value itself)."""

        def values() -> tuple[float, ...]:
            found = read()
            return found if isinstance(found, tuple) else (found,)

        device = channels[0].device
        return SimpleGroup(GroupInfo(device, self.name, device, channels, label=label), values, self.machine.clock)

    def probe(self) -> Report:
        report = self._probe()
        if not report.usable:
            self.close()
        return report

    def _probe(self) -> Report:
        self._usable = []
        samples: dict[str, float | None] = {}
        missing = self.missing = {}
        try:
            found = list(self.find())
        except EverywattError as error:
            state = State.ABSENT if isinstance(error, Absent) else State.UNUSABLE
            return Report(self.name, state, error.message, error.cure, {}, missing, self.devices)
        except OSError as error:
            return Report(self.name, State.UNUSABLE, str(error), None, {}, missing, self.devices)
        for group in found:
            channels = group.info.channels
            try:
                values = group.sample()
            except (EverywattError, OSError) as error:
                group.close()
                missing[channels[0].name] = str(error)
                continue
            self._usable.append(group)
            for channel, raw in zip(channels, values, strict=True):
                if raw == raw:
                    samples[channel.name] = raw * channel.scale
                else:
                    missing[channel.name] = "cannot be read"
        if samples:
            infos = {group.info.device: group.info for group in self._usable}
            named = [{"device": name} | ({"name": info.label} if info.label else {}) for name, info in infos.items()]
            return Report(self.name, State.USABLE, self.how, None, samples, missing, self.devices or named, self.power)
        if found:
            return Report(self.name, State.UNUSABLE, "; ".join(missing.values()), self.cure, {}, missing, self.devices)
        return Report(self.name, State.ABSENT, self.absent, missing=missing, devices=self.devices)

    def groups(self) -> Sequence[Sampled]:
        if self._usable is None:
            self.probe()
        self._open = len(self._usable or ())
        return self._usable or []

    def one_closed(self) -> None:
        """A group that shares something with the others is closed: with the last of them, all is let go."""
        self._open -= 1
        if self._open == 0:
            self.close()

    def close(self) -> None:
        """Let go of what the groups share."""
