"""Series of an engine become a run: one tape a node, energy counters as counters, everything else beside them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.fleet.exporting import CLOCKS, STATES
from everywatt.fleet.metrics import LOW_HIGH, labels_text
from everywatt.fleet.query import Series
from everywatt.fleet.tables import is_counter
from everywatt.meters.series import Part, Table, write_parts
from everywatt.sensors.cpu.rapl import Cpu, energy_channel
from everywatt.sensors.jetson import jetson
from everywatt.sensors.nvidia import gpu_known

OWN: Final = frozenset(
    {"device", "domain", "pedigree", "name", "uuid", "total", "kind", "owner", "user", "account", "partition", "sensor"}
    | {
        "exported_job",
        "exported_instance",
        "version",
        "python",
        "machine",
        "outcome",
        "mode",
        "clock",
        "covers",
        "reason",
    }
)
MODELLED_PCT: Final = 100.0  # of a machine whose model is not known: from nothing to twice
NODE_LABELS: Final = ("instance", "job", "__name__")
UNITS: Final = (
    ("_joules_total", "J", 1.0),
    ("_joules", "J", 1.0),
    ("_watts", "W", 1.0),
    ("_milliwatts", "W", 1e-3),
    ("_bytes", "B", 1.0),
    ("_bytes_total", "B", 1.0),
    ("_seconds_total", "s", 1.0),
    ("_seconds", "s", 1.0),
    ("_ratio", "%", 100.0),
    ("_celsius", "°C", 1.0),
    ("_celcius", "°C", 1.0),
    ("_percentage", "%", 1.0),
    ("_hertz", "Hz", 1.0),
    ("_hz", "Hz", 1.0),
)
# Counters and gauges of other exporters that are joules and watts of a device.
DCGM: Final = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("J", 1e-3), "DCGM_FI_DEV_POWER_USAGE": ("W", 1.0)}
GAP_PERIODS: Final = 3
ENERGY: Final = "everywatt_energy_joules_total"
COVERAGE: Final = "everywatt_coverage_ratio"
FELL: Final = 0.9  # coverage below this share of what it was: time was lost, and not only seen a little later
PROBES: Final = 32


@dataclass(frozen=True, slots=True)
class MappedSeries:
    """A series and the channel that it becomes."""

    channel: Channel
    series: Series


def own_labels(metric: str) -> frozenset[str] | None:
    """Labels that are the metric's own and not its node's; None for a metric of another exporter."""
    return OWN if metric.startswith("everywatt_") else None


def translate(series: Series, card: str = "") -> MappedSeries | None:
    """The channel of a series; `card` is the name of the device behind it, where that is known."""
    labels = series.labels
    device = labels.get("device", "")
    if series.name == ENERGY:
        return MappedSeries(energy(device, labels.get("domain", ""), labels.get("pedigree", ""), card), series)
    if series.name == "everywatt_power_watts":
        counted = energy(device, labels.get("domain", ""), labels.get("pedigree", ""), card)
        name = counted.name.removesuffix(".energy") + ".power"
        facts = replace(counted.facts, quantum=None)
        gauge = replace(counted, name=name, unit="W", kind=Kind.GAUGE, mirror_of=counted.name, facts=facts)
        return MappedSeries(gauge, series)
    for word, (metric, _) in STATES.items():
        if series.name == metric:
            unit, scale = _unit(metric)
            chip = ".".join(device.split(".")[:2])  # `cpu.0` of `cpu.0.core.3`
            return MappedSeries(Channel(f"{device}.{word}", unit, Kind.GAUGE, chip, None, scale), series)
    if series.name == "everywatt_clock_hertz":
        word = {value: key for key, value in CLOCKS.items()}.get(labels.get("clock", ""), "clock")
        return MappedSeries(Channel(f"{device}.{word}", "MHz", Kind.GAUGE, device, None, 1e-6), series)
    if series.name == "everywatt_host_memory_bytes":
        return MappedSeries(Channel("host.memory", "B", Kind.GAUGE, "host"), series)
    if series.name == "everywatt_host_cpu_seconds_total":
        word = {"busy": "cpu_time", "idle": "idle_time"}.get(labels.get("mode", ""), "other_time")
        return MappedSeries(Channel(f"host.{word}", "s", Kind.COUNTER, "host"), series)
    return _foreign(series)


def _unit(metric: str) -> tuple[str, float]:
    """The unit of a channel, and the factor to it, by how the name of a metric ends."""
    return next(((unit, scale) for end, unit, scale in UNITS if metric.endswith(end)), ("", 1.0))


def energy(device: str, domain: str, pedigree: str, card: str = "") -> Channel:
    """The counter of a device's joules, with what can be known of its sensor from afar.

    A processor is taken for one whose counter comes from a model, a modelled machine for one that is no server: the
    wider interval of each, since labels report neither.
    """
    try:
        what = Domain(domain)
    except ValueError:
        what = None
    base, _, middle = device.partition(" ")
    if middle:
        stem = f"{base}.{middle}"
    elif what in (Domain.PACKAGE, Domain.CORE, Domain.UNCORE):
        stem = f"{base}.{domain}"
    elif what is Domain.DRAM:
        stem = f"cpu.{base.removeprefix('dram.')}.dram"
    else:
        stem = base
    kind = Pedigree(pedigree) if pedigree in set(Pedigree) else Pedigree.COUNTER
    facts = _facts(what, base, kind, card)
    return Channel(f"{stem}.energy", "J", Kind.COUNTER, base, what, 1.0, kind, facts=facts)


def _facts(domain: Domain | None, device: str, pedigree: Pedigree, card: str) -> Facts:
    if pedigree is Pedigree.MODELLED:
        return Facts(gain_pct=MODELLED_PCT)
    if domain is Domain.GPU:
        known = gpu_known.facts_for(card, "", None, "counter")
        return replace(known, quantum=1e-6, period_s=None, window_s=None)
    if domain in (Domain.SOC, Domain.RAIL):
        return Facts(gain_pct=jetson.GAIN_PCT)
    if domain in (Domain.PACKAGE, Domain.CORE, Domain.UNCORE, Domain.DRAM) or device.startswith("psys"):
        assert domain is not None
        wide = energy_channel(domain, "0", cpu=Cpu("AuthenticAMD"), scale=1.0, wrap=None, max_w=None).facts
        return Facts(gain_pct=wide.gain_pct, offset_w=wide.offset_w, cards=f"unknown/{domain.value}")
    return Facts()


def _foreign(series: Series) -> MappedSeries:
    """A metric of an exporter: watts or joules of a device where that is known, else a state of the host."""
    name, labels = series.name, series.labels
    if name in DCGM and "gpu" in labels and not labels.get("GPU_I_ID"):
        unit, scale = DCGM[name]
        channel = energy(f"gpu.{labels['gpu']}", "gpu", "counter", labels.get("modelName", ""))
        if unit == "W":
            counted = channel.name
            channel = replace(channel, name=f"gpu.{labels['gpu']}.power", unit="W", kind=Kind.GAUGE, mirror_of=counted)
            channel = replace(channel, pedigree=Pedigree.INTEGRATED)
        return MappedSeries(replace(channel, scale=scale), series)
    if name == "node_rapl_package_joules_total" and "index" in labels:
        return MappedSeries(energy(f"cpu.{labels['index']}", "package", "counter"), series)
    if name == "node_rapl_dram_joules_total" and "index" in labels:
        return MappedSeries(energy(f"dram.{labels['index']}", "dram", "counter"), series)
    if name == "tegra_wattage_current_milliwatts":
        return MappedSeries(jetson.series_channel(name, labels.get("sensor", ""), name), series)
    kind = Kind.COUNTER if is_counter(name) else Kind.GAUGE
    unit, scale = _unit(name)
    return MappedSeries(Channel(_key(name, labels), unit, kind, labels.get("device") or "host", None, scale), series)


def _key(name: str, labels: dict[str, str]) -> str:
    pairs: Sequence[tuple[str, str]] = [p for p in sorted(labels.items()) if p[0] not in NODE_LABELS]
    return name + labels_text(tuple(pairs))


@dataclass
class Target:
    """What one agent (or exporter) was scraped for: its place and its series by channel."""

    host: str
    labels: Mapping[str, str]
    mapped: dict[str, MappedSeries] = field(default_factory=dict)
    info: list[Series] = field(default_factory=list)
    _counting: list[str] | None = None

    def same(self, other: Target) -> bool:
        """Whether both report the same joules: counters of one name have one value at one time, and did count.

        States do not distinguish nodes: two idle nodes may well report the same.
        """
        common = [name for name in self._counters() if name in other.mapped]
        return (
            bool(common)
            and _may_agree(self.mapped[common[0]].series, other.mapped[common[0]].series)
            and all(_agree(self.mapped[name].series, other.mapped[name].series) for name in common)
        )

    def _counters(self) -> list[str]:
        """Energy counters that did count. Every target is compared with every node, so they are looked for once."""
        if self._counting is None:
            self._counting = [name for name, mapped in self.mapped.items() if _counts(mapped)]
        return self._counting

    def take(self, other: Target) -> None:
        """Add what another target reports of the same node."""
        self._counting = None
        for name, mapped in other.mapped.items():
            mine = self.mapped.get(name)
            self.mapped[name] = mapped if mine is None else replace(mine, series=_merged(mine.series, mapped.series))
        self.info += other.info


def _counts(mapped: MappedSeries) -> bool:
    values = mapped.series.values
    return mapped.channel.carries_energy and mapped.channel.kind is Kind.COUNTER and values[-1] > values[0]


def _may_agree(one: Series, other: Series) -> bool:
    """A quick look at some samples: False where none of them is in both."""
    for place in range(0, len(other.at_ms), max(1, len(other.at_ms) // PROBES)):
        found = bisect_left(one.at_ms, other.at_ms[place])
        if (
            found < len(one.at_ms)
            and one.at_ms[found] == other.at_ms[place]
            and one.values[found] == other.values[place]
        ):
            return True
    return False


def _agree(one: Series, other: Series) -> bool:
    mine = dict(zip(one.at_ms, one.values, strict=True))
    shared = [(mine[at], value) for at, value in zip(other.at_ms, other.values, strict=True) if at in mine]
    return 2 * len(shared) >= min(len(one.at_ms), len(other.at_ms)) and all(a == b for a, b in shared)


def _merged(one: Series, other: Series) -> Series:
    samples = {**dict(zip(one.at_ms, one.values, strict=True)), **dict(zip(other.at_ms, other.values, strict=True))}
    made = Series(one.name, one.labels)
    for at in sorted(samples):
        made.add(at, samples[at])
    return made


def targets(series: Iterable[Series]) -> tuple[list[Target], list[str]]:
    """Nodes with their series, and notes on duplicates.

    A node is what its `instance` says, without the port. Targets that report the same joules (scraped and written, or a
    pair of engines) count once; targets that report different ones under one name are two nodes.
    """
    series = [_plain(one) for one in series]
    names = _card_names(series)
    found: dict[tuple[tuple[str, str], ...], Target] = {}
    for one in series:
        own = own_labels(one.name)
        place = {
            key: value
            for key, value in one.labels.items()
            if (key in ("instance", "job") if own is None else key not in own)
        }
        key = tuple(sorted(place.items()))
        target = found.get(key) or found.setdefault(key, Target(_host(place), place))
        if own is not None and one.name.endswith("_info"):
            target.info.append(one)
            continue
        mapped = translate(one, names.get((key, one.labels.get("device", "")), ""))
        if mapped is not None:
            target.mapped[_free(mapped.channel.name, target.mapped)] = mapped
    return _joined(found.values())


def _plain(series: Series) -> Series:
    """The series with labels that can be shown: a newline as \\n, so that no terminal obeys a label."""

    def shown(text: str) -> str:
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

    if all(value.isprintable() for value in series.labels.values()):
        return series
    return Series(series.name, {key: shown(value) for key, value in series.labels.items()}, series.at_ms, series.values)


def _card_names(series: Sequence[Series]) -> dict[tuple[tuple[tuple[str, str], ...], str], str]:
    own = own_labels("everywatt_device_info") or ()
    return {
        (tuple(sorted(p for p in one.labels.items() if p[0] not in own)), one.labels.get("device", "")): one.labels.get(
            "name", ""
        )
        for one in series
        if one.name == "everywatt_device_info"
    }


def _host(place: Mapping[str, str]) -> str:
    instance = place.get("instance", "")
    head, colon, port = instance.rpartition(":")
    return head if colon and port.isdecimal() and head else instance


def _free(name: str, taken: Mapping[str, MappedSeries]) -> str:
    number = 2
    found = name
    while found in taken:
        found, number = f"{name}#{number}", number + 1
    return found


def _joined(found: Iterable[Target]) -> tuple[list[Target], list[str]]:
    nodes: list[Target] = []
    notes: list[str] = []
    for target in sorted(found, key=lambda one: -len(one.mapped)):
        twin = next((node for node in nodes if node.same(target)), None)
        if twin is not None:
            notes.append(f"{_words(target)} reports the same samples as {_words(twin)}; they are counted once.")
            twin.take(target)
            continue
        home = next((n for n in nodes if n.host == target.host and not n.mapped.keys() & target.mapped.keys()), None)
        if home is None:
            nodes.append(target)
        else:
            home.take(target)
    return [node for node in nodes if node.mapped], notes


def _words(target: Target) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(target.labels.items())) or "series without labels"


def part_of(node: Target) -> Part:
    """One node as the recording of one tape. Series with the same times are one group.

    Where everywatt reports joules, those of other exporters are kept beside them and not added.
    """
    groups: dict[tuple[str, bytes], list[tuple[str, MappedSeries]]] = {}
    ours = any(_is_ours(mapped) and mapped.channel.carries_energy for mapped in node.mapped.values())
    for name, mapped in node.mapped.items():
        if ours and not _is_ours(mapped):
            mapped = replace(mapped, channel=replace(mapped.channel, domain=None, mirror_of=None))
        mapped = replace(mapped, channel=_as_uncertain(mapped, node), series=_with_outages(mapped, node))
        groups.setdefault((mapped.channel.device, mapped.series.at_ms.tobytes()), []).append((name, mapped))
    tables = []
    for number, ((device, _), members) in enumerate(groups.items(), 1):
        channels = tuple(replace(mapped.channel, name=name) for name, mapped in members)
        info = GroupInfo(f"{device}.{number}", "prometheus", device, channels)
        times = members[0][1].series.at_ms
        columns = zip(*(_clean(mapped.series.values) for _, mapped in members), strict=True)
        tables.append(Table(info, list(zip([at_ms * 1_000_000 for at_ms in times], columns, strict=True))))
    return Part(tables, host=node.host, spans=list(_jobs(node)), meta={"labels": dict(node.labels)})


def _as_uncertain(mapped: MappedSeries, node: Target) -> Channel:
    """The channel of a counter of ours, with a gain that is uncertain enough for the agent's own 95 % interval: that
    also has what the agent knew of readings and not of the sensor."""
    channel, one, facts = mapped.channel, mapped.series, mapped.channel.facts
    ends = [node.mapped.get(_key(name, dict(one.labels))) for name in LOW_HIGH] if one.name == ENERGY else [None]
    joules = _increase(one.values)
    if channel.pedigree is Pedigree.MODELLED or not joules or None in ends:
        return channel
    low_j, high_j = (_increase(end.series.values) for end in ends if end is not None)
    offset_j = (facts.offset_w or 0.0) * (one.at_ms[-1] - one.at_ms[0]) / 1000
    known_pct = 100 * math.sqrt(max(((high_j - low_j) / 2) ** 2 - offset_j**2, 0.0)) / joules
    return replace(channel, facts=replace(facts, gain_pct=max(facts.gain_pct or 0.0, known_pct)))


def _increase(values: Sequence[float]) -> float:
    """What a counter counted; where it went back, it began again."""
    return sum(after - before for before, after in pairwise(values) if after > before)


def _with_outages(mapped: MappedSeries, node: Target) -> Series:
    """A counter of ours, which starts again after a time that no agent saw and none could bridge: there its coverage
    fell. Coverage may be stored only when it changes."""
    one, places = mapped.series, set[int]()
    labels = {name: value for name, value in one.labels.items() if name != "pedigree"}
    coverage = node.mapped.get(_key(COVERAGE, labels)) if one.name == ENERGY else None
    if coverage is None or len(one.at_ms) < 2:
        return one
    steps = [after - before for before, after in pairwise(one.at_ms)]
    usual = sorted(steps)[len(steps) // 2]
    for (from_ms, before), (to_ms, after) in pairwise(zip(coverage.series.at_ms, coverage.series.values, strict=True)):
        if after < FELL * before:
            inside = range(max(bisect_right(one.at_ms, from_ms), 1), bisect_right(one.at_ms, to_ms))
            place = max(inside, key=lambda place: steps[place - 1], default=0)
            if place and (len(inside) == 1 or steps[place - 1] > GAP_PERIODS * usual):
                places.add(place)
    base, values = 0.0, array("d")
    for place, value in enumerate(one.values):
        base = value if place in places else base
        values.append(value - base)
    return replace(one, values=values) if places else one


def _clean(values: array[float]) -> Sequence[float]:
    """The same with NaN for infinities, which are not measurements."""
    return values if math.isfinite(sum(values)) else [value if math.isfinite(value) else NAN for value in values]


def _is_ours(mapped: MappedSeries) -> bool:
    return mapped.series.name.startswith("everywatt_")


def _jobs(node: Target) -> Iterator[tuple[str, int, int, Mapping[str, Any]]]:
    """A span for each stretch of time in which a job was there."""
    for one in node.info:
        if one.name != "everywatt_job_info" or len(one.at_ms) < 2:
            continue
        steps = sorted(b - a for a, b in zip(one.at_ms, one.at_ms[1:], strict=False))
        most = GAP_PERIODS * steps[len(steps) // 2]
        job = one.labels.get("exported_job") or one.labels.get("job", "")
        details = {key: one.labels[key] for key in ("user", "account", "partition") if one.labels.get(key)}
        first = last = one.at_ms[0]
        for at in (*one.at_ms[1:], None):
            if at is None or at - last > most:
                yield f"job {job}", first * 1_000_000, last * 1_000_000, {"job": job, **details}
                first = at if at is not None else first
            last = at if at is not None else last


def write_run(out: Path, nodes: Sequence[Target], source: str, meta: Mapping[str, Any]) -> Path:
    """A tape (one node) or a folder of tapes at `out`.

    Nodes of one name get a number: tapes of one host and one time would count as one recording that was made twice.
    """
    parts: list[Part] = []
    seen: Counter[str] = Counter()
    for part in map(part_of, nodes):
        seen[part.host] += 1
        parts.append(replace(part, host=f"{part.host} #{seen[part.host]}") if seen[part.host] > 1 else part)
    return write_parts(out, parts, [Path(source)], {"meta": meta})
