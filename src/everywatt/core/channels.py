"""What sensors deliver: channels, groups of channels that are read together, and rows of ticks."""

from __future__ import annotations

from dataclasses import asdict, field
from enum import StrEnum
from typing import Any, NamedTuple

from everywatt.core.lazy_dataclass import dataclass

NAN = float("nan")


class Kind(StrEnum):
    """A counter accumulates; a gauge says how things stand."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Domain(StrEnum):
    """What a joule covers. Which domains contain which is in `core.domains`."""

    WALL = "wall"
    PSU = "psu"
    NODE = "node"
    MODULE = "module"
    SOC = "soc"
    PACKAGE = "package"
    CORE = "core"
    UNCORE = "uncore"
    DRAM = "dram"
    GPU = "gpu"
    GPU_MEMORY = "gpu-memory"
    RAIL = "rail"


class Pedigree(StrEnum):
    """How a joule came about."""

    COUNTER = "counter"
    INTEGRATED = "integrated"
    MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the sensor behind a channel. None means not known.

    period_s   how often the hardware publishes a new value
    window_s   a gauge's value is the mean over this long before its publication (0: instantaneous)
    quantum    the smallest step of a value, in the channel's unit
    wrap       a counter starts again at this value, in raw hardware counts
    max_w      the most power the device can draw (bounds gaps and several wraps)
    gain_pct   95 % half-width of the gain error, in percent of the reading
    offset_w   95 % half-width of the offset error, in watts
    correlation  of the two errors, from −1 to 1
    freedom    degrees of freedom of these half-widths (None: as many as a normal distribution has)
    cards      label of a sensor family whose errors may be shared (cards of one model)
    gain_alike, offset_alike  share of the variance of gain and offset that cards of one model have in common
    calibrated gain and offset were fitted against a meter, for this very device
    gain       factor that turns a reading into watts or joules (1 unless calibrated)
    bias_w     watts to add after the factor (0 unless calibrated)
    """

    period_s: float | None = None
    window_s: float | None = None
    quantum: float | None = None
    wrap: float | None = None
    max_w: float | None = None
    gain_pct: float | None = None
    offset_w: float | None = None
    correlation: float = 0.0
    freedom: float | None = None
    cards: str | None = None
    gain_alike: float = 1.0
    offset_alike: float = 1.0
    calibrated: bool = False
    gain: float = 1.0
    bias_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Channel:
    """One quantity of one device, e.g. `cpu.0.package.energy` in joules.

    A raw value times `scale` is in `unit`. `domain` is set for energy (unit J) and power (unit W) that may enter a
    total. `mirror_of` names a channel that counts the same joules by another path, so that nothing is added twice.
    `in_slot` is True of a card that is known to be in a slot of its own: it is inside no module.
    """

    name: str
    unit: str
    kind: Kind
    device: str
    domain: Domain | None = None
    scale: float = 1.0
    pedigree: Pedigree = Pedigree.COUNTER
    mirror_of: str | None = None
    facts: Facts = field(default_factory=Facts)
    in_slot: bool = False

    @property
    def carries_energy(self) -> bool:
        """True where joules can come from this channel."""
        return self.domain is not None and self.unit in ("J", "W")


class Cadence(StrEnum):
    """How often a group is read: FAST at the run's period (100 ms), SLOW once a second."""

    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Channels of one device that are read together and published on one schedule; stored in the tape.

    inline     cheap and fresh enough to be read by the measured program itself where a span starts and ends
    tracked    the hardware publishes on a schedule of its own (every `facts.period_s` of the first channel, or
               unknown); the recorder finds the phase and stores publications instead of polls
    table      rows vary (processes); stored as a table, not as channels
    names      what a channel's numbers 1, 2, … stand for, where they are no quantity
    uuid       the device's own number where it has one (GPUs)
    """

    name: str
    sensor: str
    device: str
    channels: tuple[Channel, ...]
    cadence: Cadence = Cadence.FAST
    inline: bool = False
    tracked: bool = False
    table: bool = False
    label: str = ""
    uuid: str = ""
    names: tuple[str, ...] = ()

    @property
    def layout(self) -> tuple[tuple[str, str, float], ...]:
        """What the values of a row are: name, unit and scale of each. Rows of different layouts do not go together."""
        return tuple((channel.name, channel.unit, channel.scale) for channel in self.channels)

    @property
    def lists_gpu_processes(self) -> bool:
        """Whether its rows say who is on which GPU."""
        return self.table and self.device == "gpu"

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        return data if self.names else {key: value for key, value in data.items() if key != "names"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GroupInfo:
        """The inverse of `to_dict`; unknown keys of later versions are ignored."""
        channels = tuple(_channel(entry) for entry in data["channels"])
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        known |= {"channels": channels, "cadence": Cadence(data.get("cadence", "fast"))}
        return cls(**{**known, "names": tuple(data.get("names", ()))})


def _channel(data: dict[str, Any]) -> Channel:
    known = {key: data[key] for key in Channel.__dataclass_fields__ if key in data}
    facts = data.get("facts") or {}
    known["facts"] = Facts(**{key: facts[key] for key in Facts.__dataclass_fields__ if key in facts})
    known["kind"] = Kind(data["kind"])
    known["pedigree"] = Pedigree(data.get("pedigree", "counter"))
    known["domain"] = Domain(data["domain"]) if data.get("domain") else None
    return Channel(**known)


class Row(NamedTuple):
    """One tick of every channel of a group, raw as the hardware gave it (NaN where a channel gave nothing).

    The value was read at `read_ns` and published at some time in [`early_ns`, `late_ns`]. A counter's value belongs to
    the publication instant; a gauge's to the averaging window that ends there.
    """

    read_ns: int
    early_ns: int
    late_ns: int
    values: tuple[float, ...]


def fresh(read_ns: int, values: tuple[float, ...], age_ns: int = 0) -> Row:
    """A row of a sensor whose value is at most `age_ns` old when it is read."""
    return Row(read_ns, read_ns - age_ns, read_ns, values)
