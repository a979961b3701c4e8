"""The channels of one GPU behind NVML: energy and power at the fast cadence, its state once a second.

Cost: a fast read is one call (the fields), plus one of utilisation every 160 ms. Utilisation costs as much as the
fields do, and is worth it: it is the second witness of what a card did inside a cell of its power sensor. Drivers
publish it every 170 to 200 ms, so asking more often shows nothing new. Where fields do not work, energy and power are
single calls, the others than the first when a new value was published, else every 90 ms.

GPM metrics (Hopper and later) are the share of SMs, warps, tensor pipes and DRAM bandwidth that was in use: the mean
between two samples, so each read takes one new sample and compares it with the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from everywatt.core.channels import NAN, Cadence, Channel, Domain, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.calibrations import calibrated
from everywatt.sensors.nvidia.gpu_known import Reading, facts_for, in_slot
from everywatt.sensors.nvidia.nvml_api import FieldId, Fields, attempt, is_lost, metric, tried, words_for

if TYPE_CHECKING:
    from everywatt.sensors.nvidia.nvml_device import GpuHandle, Identity, UtilisationSamples

FIELD_ENERGY = 83
FIELD_AVERAGE = 185
FIELD_INSTANT = 186
COMPANION_NS = 90_000_000
UTILISATION_NS = 160_000_000
SLOW_RATES_NS = NS // 2
INERT_NS = 3 * NS // 2  # every other second
RELATED_NS = 5 * NS
SETTING_NS = 10 * NS
OFTEN_NS = 9 * NS // 10  # how long an answer is kept for a metric that is asked every second
STILL, SELDOM_NS = 3, 7 * NS // 2  # after so many equal answers it is asked less often, at last every 4 s

Call = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where one channel's raw value comes from: a field of the batch, or a call of its own.

    `every_ns` is how long an answer is kept before the next query, unless the channel named in `follows` changed.
    """

    channel: Channel
    field_id: FieldId | None = None
    call: Call | None = None
    every_ns: int = 0
    follows: str = ""


@dataclass(slots=True)
class Found:
    """What probing found: sources that gave a value, that value (in the channel's unit), and why others did not."""

    sources: list[Source] = field(default_factory=list)
    samples: dict[str, float | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, source: Source, raw: float) -> None:
        self.sources.append(source)
        self.samples[source.channel.name] = raw * source.channel.scale

    @property
    def counts(self) -> bool:
        """Whether the first reading is an energy counter."""
        return bool(self.sources) and self.sources[0].channel.kind is Kind.COUNTER

    @property
    def measures(self) -> bool:
        """Whether joules can come from any of the readings."""
        return any(source.channel.carries_energy for source in self.sources)

    @property
    def module(self) -> str | None:
        """The module whose power is among the readings."""
        return next((s.channel.device for s in self.sources if s.channel.domain is Domain.MODULE), None)

    def drop_counter(self, why: str) -> None:
        """The first reading turned out to be no counter: power is then the first."""
        name = self.sources.pop(0).channel.name
        self.samples.pop(name, None)
        self.missing[name] = why
        self.set_mirrors()

    def set_mirrors(self) -> None:
        """The first reading of a domain speaks for it, and the others count the same joules."""
        first: dict[Domain | None, str] = {None: ""}
        for place, source in enumerate(self.sources):
            mirror_of = first.setdefault(source.channel.domain, source.channel.name)
            own = not mirror_of or mirror_of == source.channel.name
            channel = replace(source.channel, mirror_of=None if own else mirror_of)
            self.sources[place] = replace(source, channel=channel)


def _info(device: GpuHandle, what: str, channels: Sequence[Channel], cadence: Cadence) -> GroupInfo:
    """A group of one GPU; fast ones are read when the driver publishes."""
    gpu, name, fast = device.identity.gpu, f"gpu.{device.index}", cadence is Cadence.FAST
    full = f"nvml.{name}.{what}"
    return GroupInfo(full, "nvml", name, tuple(channels), cadence, tracked=fast, label=gpu.name, uuid=gpu.uuid)


class PowerGroup:
    """Energy and power of one GPU: fields in one call, single calls only where they have to be."""

    def __init__(
        self,
        device: GpuHandle,
        sources: list[Source],
        closed: Callable[[], None],
        samples: UtilisationSamples | None = None,
    ) -> None:
        self._device = device
        self._closed = closed
        self.info = _info(device, "power", [source.channel for source in sources], Cadence.FAST)
        self._batch = [place for place, source in enumerate(sources) if source.field_id is not None]
        self._fields = Fields(device.nvml, [sources[place].field_id or 0 for place in self._batch])
        self._first = len(self._batch) if self._batch == list(range(len(self._batch))) else 0
        calls = [(place, source.call) for place, source in enumerate(sources) if source.call is not None]
        self._carrying = [place for place, source in enumerate(sources) if source.channel.carries_energy]
        self._calls = [(place, call) for place, call in calls if place in self._carrying]
        self._witnesses = [(place, call) for place, call in calls if place not in self._carrying]
        self._witnessed_ns = 0
        self._last = [NAN] * len(sources)
        self._companions_ns = 0
        period_s = sources[0].channel.facts.period_s
        self._age_ns = 0 if period_s is None else round(period_s * NS)
        self._samples = samples
        self._sampled_ns = 0
        # Only where one call of the fields is all there is, beside utilisation.
        whole = self._first > 0 and not self._calls and len(self._witnesses) == len(sources) - self._first < 2
        self._quick = self._fields.quick() if whole else None
        self.read_raw = self._read_raw if self._quick is not None else None

    def _read_raw(self) -> tuple[int, tuple[int, ...], float | None] | None:
        """The raw energy or power, all fields raw, and utilisation where it was asked for; None where the call failed.

        `to_rows` makes rows of it later: a wake-up is the wrong time for more than the call itself.
        """
        handle = self._device.handle
        raw = None if handle is None or self._quick is None else self._quick(handle)
        if raw is None:
            return None
        busy = None
        if self._samples is None and self._witnesses:
            now_ns = self._device.clock.monotonic_ns()
            if now_ns - self._witnessed_ns >= UTILISATION_NS:
                self._witnessed_ns = now_ns
                busy = _raw(self._witnesses[0][1], handle)
        return raw[2], raw, busy

    def to_rows(self, taken: Sequence[tuple[int, int, tuple[int, tuple[int, ...], float | None]]]) -> list[Row]:
        """The rows of what was read, each with when its read began and ended."""
        samples, now_ns = self._samples, self._device.clock.monotonic_ns()
        if samples is not None and now_ns - self._sampled_ns >= UTILISATION_NS:
            self._sampled_ns = now_ns
            self._device.call(samples.update)
        witness = len(self._last) > self._first
        busy = self._last[-1]
        rows = []
        values = self._last
        for before_ns, after_ns, (_, raw, asked) in taken:
            values = self._fields.values(raw)
            if all(value != value for value in values):
                self._refuse_empty()
            if witness:
                busy = samples.at(before_ns) if samples is not None else busy if asked is None else asked
                values.append(busy)
            rows.append(Row((before_ns + after_ns) // 2, before_ns - self._age_ns, after_ns, tuple(values)))
        self._last = values
        return rows

    def read(self) -> list[Row]:
        """One row. Raises SensorError where the GPU is lost or gives none of its values."""
        before_ns = self._device.clock.monotonic_ns()
        values = self._device.call(self._read)
        after_ns = self._device.clock.monotonic_ns()
        read_ns = (before_ns + after_ns) // 2
        return [Row(read_ns, before_ns - self._age_ns, after_ns, tuple(values))]

    def close(self) -> None:
        self._closed()

    def _read(self, handle: Any) -> list[float]:
        values = self._last.copy()
        if self._first:  # nearly always the fields are the first channels
            values[: self._first] = self._fields.read(handle)
        elif self._batch:
            for place, value in zip(self._batch, self._fields.read(handle), strict=True):
                values[place] = value
        now_ns = self._device.clock.monotonic_ns()
        for place, call in self._calls:
            # A new publication of the first channel, or time: the others of a call of their own are asked then.
            if place == 0 or now_ns - self._companions_ns >= COMPANION_NS or values[0] != self._last[0]:
                values[place] = _raw(call, handle)
                self._companions_ns = now_ns if place else self._companions_ns
        if now_ns - self._witnessed_ns >= UTILISATION_NS:
            self._witnessed_ns = now_ns
            for place, call in self._witnesses:
                values[place] = _raw(call, handle)
        for place in self._carrying:
            if values[place] == values[place]:
                break
        else:
            self._refuse_empty()
        self._last = values
        return values

    def _refuse_empty(self) -> None:
        codes = set(self._fields.errors.values())
        lost = next((code for code in codes if is_lost(code)), None)
        if lost is not None:
            raise self._device.nvml.NVMLError(lost)
        raise SensorError(words_for(codes.pop()) if codes else "none of its power readings works")


class StateGroup:
    """Memory, temperature, clocks, limit and GPM metrics of one GPU, once a second, each on its own.

    Each is a call into the driver. So the power limit, a setting, is asked every 10 s; memory clock and throttle
    reasons every 5 s, and every other second while the SM clock changes; temperature and use of the memory's bandwidth
    every other second. The SM clock, temperature and that use are asked ever less often while they stand still, at last
    every 4 s, until they move, or the memory in use does, for then a process came or left. In between their last answer
    is kept. Memory is asked every second.
    """

    def __init__(self, device: GpuHandle, sources: list[Source], gpm: Gpm | None, closed: Callable[[], None]) -> None:
        self._device = device
        self._sources = sources
        self._gpm = gpm
        self._closed = closed
        self._last: dict[str, _Asked] = {}
        self._memory = f"gpu.{device.index}.memory"
        # Memory first: where it changed the others are asked.
        self._order = sorted(range(len(sources)), key=lambda place: sources[place].channel.name != self._memory)
        channels = [source.channel for source in sources] + (gpm.channels if gpm else [])
        self.info = _info(device, "state", channels, Cadence.SLOW)

    def read(self) -> list[Row]:
        """One row, NaN for metrics that failed this time. Raises SensorError where the GPU is lost."""
        values = self._device.call(self._read)
        now_ns = self._device.clock.monotonic_ns()
        return [Row(now_ns, now_ns, now_ns, tuple(values))]

    def close(self) -> None:
        if self._gpm:
            self._gpm.close()
        self._closed()

    def _read(self, handle: Any) -> list[float]:
        now_ns = self._device.clock.monotonic_ns()
        changed: set[str] = set()
        values = [NAN] * len(self._sources)
        for place in self._order:
            values[place] = self._value(self._sources[place], handle, now_ns, changed)
        values += self._gpm.read(handle) if self._gpm else []
        if all(value != value for value in values):
            raise SensorError("none of its state readings works")
        return values

    def _value(self, source: Source, handle: Any, now_ns: int, changed: set[str]) -> float:
        name = source.channel.name
        asked = self._last.get(name)
        if asked is None:
            asked = _Asked(NAN, now_ns, now_ns, 0)
        elif now_ns < asked.again_ns and (source.follows not in changed or now_ns < asked.asked_ns + INERT_NS):
            if asked.still < STILL or self._memory not in changed:
                return asked.value
            asked = asked._replace(still=0)
        value = _raw(source.call, handle)
        still = asked.still + 1 if value == asked.value else 0
        if not still:
            changed.add(name)
        every_ns = source.every_ns
        if still >= STILL and name != self._memory:
            every_ns = max(every_ns, min(max(every_ns, OFTEN_NS) * (still // STILL + 1), SELDOM_NS))
        self._last[name] = _Asked(value, now_ns, now_ns + (every_ns if value == value else 0), still)
        return value


class _Asked(NamedTuple):
    """A metric's last answer, when it was asked, when it is to be asked again, and how often it was the same."""

    value: float
    asked_ns: int
    again_ns: int
    still: int


def _raw(call: Call | None, handle: Any) -> float:
    """A metric's raw value, NaN where it fails; raises where the device is lost."""
    value: float | None = metric(lambda: float(call(handle))) if call else None
    return NAN if value is None else value


def probe_power(device: GpuHandle, handle: Any) -> Found:
    """The energy and power readings that this GPU really gives, best first."""
    nvml, found = device.nvml, Found()
    fields = Fields(nvml, (FIELD_ENERGY, FIELD_INSTANT, FIELD_AVERAGE))
    read, failed = attempt(fields.read, handle)
    energy, instant, average = read or (NAN, NAN, NAN)
    why = {key: words_for(code) for key, code in fields.errors.items()} if read else dict.fromkeys(fields.ids, failed)
    name = f"gpu.{device.index}"
    _offer(found, device, "energy", "counter", energy, FIELD_ENERGY, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    if instant == instant:
        _offer(found, device, "power", "instant", instant, FIELD_INSTANT, None, handle)
    else:
        _offer(found, device, "power", "draw", NAN, None, nvml.nvmlDeviceGetPowerUsage, handle)
    if average == average:
        _offer(found, device, "power_average", "average", average, FIELD_AVERAGE, None, handle)
    else:
        found.missing[f"{name}.power_average"] = why.get(FIELD_AVERAGE, "no value")
    return found


def _offer(
    found: Found,
    device: GpuHandle,
    what: str,
    reading: Reading,
    raw: float,
    field_id: int | None,
    call: Call | None,
    handle: Any,
) -> None:
    """Add a channel by its field where that gave a value, else by its own call, else say why it is missing."""
    mirror_of = found.sources[0].channel.name if found.sources else None
    channel = power_channel(device.identity, what, reading, mirror_of, found.missing)
    if raw == raw:
        found.add(Source(channel, field_id=field_id), raw)
        return
    _try(found, Source(channel, call=call), handle)


def power_channel(
    who: Identity, what: str, reading: Reading, mirror_of: str | None, missing: dict[str, str]
) -> Channel:
    """A channel of energy (mJ) or power (mW) with what is known of the card; `missing` gets a refused calibration."""
    counter = what == "energy"
    device = f"gpu.{who.gpu.index}"
    facts = facts_for(who.gpu.name, who.driver, who.max_w, reading)
    facts, why = calibrated(facts, who.gpu.uuid, slot=who.gpu.pci_bus_id)
    if why is not None:
        missing[f"{device}.calibration"] = why
    return Channel(
        name=f"{device}.{what}",
        unit="J" if counter else "W",
        kind=Kind.COUNTER if counter else Kind.GAUGE,
        device=device,
        domain=Domain.GPU,
        scale=1e-3,
        pedigree=Pedigree.COUNTER if counter else Pedigree.INTEGRATED,
        mirror_of=mirror_of,
        facts=facts,
        in_slot=in_slot(who.gpu.name),
    )


def probe_utilisation(found: Found, device: GpuHandle, handle: Any) -> bool:
    """Add utilisation to the fast channels, where it is available (on a MIG board it is not)."""
    channel = _gauge(device, "utilisation", "%")
    return _try(found, Source(channel, call=lambda handle: device.rates(handle, UTILISATION_NS)[0]), handle)


def probe_state(device: GpuHandle, handle: Any) -> Found:
    """The slow channels, each tried on its own."""
    nvml, found = device.nvml, Found()

    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    offers: list[tuple[str, str, float, Call]] = [
        ("memory_utilisation", "%", 1.0, lambda handle: device.rates(handle, SLOW_RATES_NS)[1]),
        ("memory", "B", 1.0, device.read_memory),
        ("temperature", "°C", 1.0, lambda handle: nvml.nvmlDeviceGetTemperature(handle, 0)),
        ("clock_sm", "MHz", 1.0, lambda handle: nvml.nvmlDeviceGetClockInfo(handle, 1)),
        ("clock_memory", "MHz", 1.0, lambda handle: nvml.nvmlDeviceGetClockInfo(handle, 2)),
        ("throttle", "mask", 1.0, reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        ("power_limit", "W", 1e-3, nvml.nvmlDeviceGetEnforcedPowerLimit),
    ]
    clock = f"gpu.{device.index}.clock_sm"
    seldom = {
        "memory_utilisation": (INERT_NS, ""),
        "temperature": (INERT_NS, ""),
        "clock_memory": (RELATED_NS, clock),
        "throttle": (RELATED_NS, clock),
        "power_limit": (SETTING_NS, ""),
    }
    for what, unit, scale, call in offers:
        every_ns, follows = seldom.get(what, (0, ""))
        source = Source(_gauge(device, what, unit, scale), call=call, every_ns=every_ns, follows=follows)
        if not _try(found, source, handle) and what == "throttle" and reasons:
            older = nvml.nvmlDeviceGetCurrentClocksThrottleReasons  # drivers before 535 have only this name
            _try(found, Source(source.channel, call=older, every_ns=every_ns, follows=follows), handle)
    return found


def _gauge(device: GpuHandle, what: str, unit: str, scale: float = 1.0) -> Channel:
    return Channel(f"gpu.{device.index}.{what}", unit, Kind.GAUGE, f"gpu.{device.index}", scale=scale)


def _try(found: Found, source: Source, handle: Any) -> bool:
    name = source.channel.name
    call = source.call
    value, why = attempt(lambda: float(call(handle))) if call else (NAN, "")
    if why:
        found.missing[name] = why
        return False
    found.add(source, value)
    found.missing.pop(name, None)
    return True


METRICS = {
    "sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


class Gpm:
    """Two samples and one request, made once, of a GPU or of one of its MIG instances. `channels` are percent."""

    def __init__(self, nvml: Any, index: int, handle: Any, instance: int | None = None) -> None:
        self._nvml, self._instance = nvml, instance
        self.channels = [Channel(f"gpu.{index}.{name}", "%", Kind.GAUGE, f"gpu.{index}", scale=1.0) for name in METRICS]
        self._older, self._newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, constant in enumerate(METRICS.values()):
            self._request.metrics[place].metricId = getattr(nvml, constant)
        self._take(handle, self._older)

    def read(self, handle: Any) -> list[float]:
        """Percent since the last read, NaN where a metric failed. Raises where the device is lost."""
        why = attempt(self._sample, handle)[1]
        if why:
            return [NAN] * len(METRICS)
        self._older, self._newer = self._newer, self._older
        entries = [self._request.metrics[place] for place in range(len(METRICS))]
        return [NAN if entry.nvmlReturn else float(entry.value) for entry in entries]

    def _take(self, handle: Any, sample: Any) -> None:
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(handle, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(handle, self._instance, sample)

    def _sample(self, handle: Any) -> None:
        self._take(handle, self._newer)
        self._request.sample1, self._request.sample2 = self._older, self._newer
        self._nvml.nvmlGpmMetricsGet(self._request)

    def close(self) -> None:
        for sample in (self._older, self._newer):
            tried(self._nvml.nvmlGpmSampleFree, sample)  # it fails for a lost GPU, whose reads have reported that


def probe_gpm(nvml: Any, index: int, handle: Any) -> tuple[Gpm | None, dict[str, str]]:
    """The GPM reader of a GPU, or None with the reason for each of its channels."""
    supported, why = attempt(lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    if supported:
        gpm, why = attempt(Gpm, nvml, index, handle)
        if gpm is not None:
            return gpm, {}
    why = f"GPM metrics: {why}" if why else "this GPU has no GPM metrics (available from Hopper on)"
    return None, {f"gpu.{index}.{name}": why for name in METRICS}
