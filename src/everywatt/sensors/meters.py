"""What sensors of slow meters share: they exist only where they are configured, and are asked by a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.errors import EverywattError, SensorError
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.polling import PolledGroup

KNOWN = ("gain_pct", "offset_w", "max_w", "quantum", "window_s")


@dataclass(frozen=True, slots=True)
class Meter:
    """One thing that tells power. `ask` gives the values of `channels`, NaN where one is missing, or raises."""

    device: str
    channels: tuple[Channel, ...]
    ask: Callable[[], tuple[float, ...]]
    label: str = ""
    end: Callable[[], None] = lambda: None


def power_channel(device: str, domain: Domain, facts: Facts) -> Channel:
    """`DEVICE.power` in watts."""
    return Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=Pedigree.INTEGRATED, facts=facts)


class SlowMeters:
    """A sensor of meters. A subclass names itself, and gives the meters that its options describe.

    Options of every one: period_s, timeout_s, gain_pct, offset_w, max_w, quantum, window_s.
    """

    name = ""
    after: Sequence[str] = ()
    needs = "url"
    period_s = 1.0
    age_s = 1.0

    def __init__(self, request: Request) -> None:
        self.request = request
        self.machine = request.machine
        self.options: Mapping[str, Any] = request.options.get(self.name) or {}
        self._meters: list[Meter] | None = None

    def configured(self) -> bool:
        """True where the options say what to ask. Nothing on a network is asked otherwise."""
        return bool(self.options.get(self.needs))

    def meters(self) -> list[Meter]:
        """The meters to ask; SensorError where there is none, as for a family that has not said which it has."""
        raise SensorError(f"{self.name} does not list its meters.")

    def probe(self) -> Report:
        """One reading of each meter."""
        self._meters = []
        if not self.configured():
            return Report(self.name, State.ABSENT, f"not configured: [sensor.{self.name}] {self.needs}", power=False)
        samples: dict[str, float | None] = {}
        missing: dict[str, str] = {}
        try:
            _ = self.every_s, self.timeout_s  # report an invalid number now
            for meter in self.meters():
                self._try(meter, samples, missing)
        except (EverywattError, OSError) as error:
            return Report(self.name, State.UNUSABLE, str(error), getattr(error, "cure", None))
        if not samples:
            return Report(self.name, State.UNUSABLE, "; ".join(missing.values()), missing=missing)
        devices = [{"device": meter.device, "name": meter.label} for meter in self._meters]
        return Report(self.name, State.USABLE, "", None, samples, missing, devices)

    def _try(self, meter: Meter, samples: dict[str, float | None], missing: dict[str, str]) -> None:
        assert self._meters is not None
        try:
            values = meter.ask()
        except (EverywattError, OSError) as error:
            meter.end()
            missing[meter.channels[0].name] = str(error)
            return
        if values[0] != values[0]:
            meter.end()
            missing[meter.channels[0].name] = f"{meter.label or meter.device} responds without a value"
            return
        self._meters.append(meter)
        for channel, value in zip(meter.channels, values, strict=True):
            if value == value:
                samples[channel.name] = value * channel.scale

    def groups(self) -> list[PolledGroup]:
        """One group for each meter that answered."""
        if self._meters is None:
            self.probe()
        return [
            PolledGroup(
                GroupInfo(f"{self.name}.{meter.device}", self.name, meter.device, meter.channels, label=meter.label),
                meter.ask,
                self.machine.clock,
                period_s=self.every_s,
                age_s=self.age_s,
                patience_s=2 * self.timeout_s + self.every_s,
                end=meter.end,
            )
            for meter in self._meters or ()
        ]

    @property
    def every_s(self) -> float:
        """How often a meter is asked."""
        return self.positive("period_s", self.period_s)

    @property
    def timeout_s(self) -> float:
        """How long an answer may take."""
        return self.positive("timeout_s", 5.0)

    def positive(self, key: str, default: float) -> float:
        """A number more than 0 among the options."""
        value = self.options.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise SensorError(f"[sensor.{self.name}] {key} = {value!r} is not a number above 0.")
        return float(value)

    def facts(self, **known: Any) -> Facts:
        """What is known of the meter: what the options say over what the caller knows."""
        told = {key: self.options[key] for key in KNOWN if key in self.options}
        odd = next((key for key, value in told.items() if not isinstance(value, int | float)), None)
        if odd:
            raise SensorError(f"[sensor.{self.name}] {odd} = {told[odd]!r} is not a number.")
        return Facts(**{**known, **{key: float(value) for key, value in told.items()}})

    def several(self, key: str) -> list[str]:
        """One text or a list of them."""
        value = self.options.get(key) or ()
        found = [value] if isinstance(value, str) else list(value)
        if not all(isinstance(entry, str) and entry for entry in found):
            raise SensorError(f"[sensor.{self.name}] {key} must be a string or a list of strings.")
        return found
