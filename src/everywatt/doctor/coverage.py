"""What the sensors of this machine say, and what the total of a run here would contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from everywatt.core.channels import GroupInfo
from everywatt.core.domains import WHOLE, Answer, contains
from everywatt.core.format import format_bytes, format_quantity
from everywatt.core.tables import Cell, Column, Table
from everywatt.energy.sources import Source, addable, scope_of, sources
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.registry import NOT_TRIED, Choice, choose, must_be_known, probe
from everywatt.tape.reader import StoredGroup

NOT_USED = "not used"
# Samples are in SI units, whatever the hardware counts in.
UNITS = (
    ("energy", "J"),
    ("power", "W"),
    ("power_average", "W"),
    ("power_limit", "W"),
    ("utilisation", "%"),
    ("active", "%"),
    ("occupancy", "%"),
    ("temperature", "°C"),
    ("clock", "MHz"),
    ("clock_sm", "MHz"),
    ("clock_memory", "MHz"),
    ("_time", "s"),
)

BYTES = ("memory", "memory_total", "swap", "swap_total", "swap_cached", "free_block")


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is measured: its label, domain and provenance, and how it stands to the total."""

    label: str
    device: str
    domain: str
    pedigree: str
    in_total: bool
    note: str = ""

    @property
    def text(self) -> str:
        """`cpu.0 core (inside cpu.0)`."""
        return f"{self.label} ({self.note})" if self.note else self.label


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is measured, and the scope of the total: `cpu+gpu`, empty where nothing measures power."""

    scope: str
    parts: tuple[Part, ...]

    @property
    def total(self) -> tuple[Part, ...]:
        """What the total adds up."""
        return tuple(part for part in self.parts if part.in_total)

    @property
    def others(self) -> tuple[Part, ...]:
        """What is recorded besides, and never added to the total."""
        return tuple(part for part in self.parts if not part.in_total)


def coverage(groups: Iterable[GroupInfo]) -> Coverage:
    """What a run that reads these groups would add up, by the rule of every figure."""
    stored = [StoredGroup(number, info, 1.0) for number, info in enumerate(groups, 1)]
    found = sources(SimpleNamespace(groups=stored))  # type: ignore[arg-type]  # it asks a tape for its groups only
    added = addable(found)
    return Coverage(scope_of(added), tuple(_part(source, added) for source in found))


def _part(source: Source, added: Sequence[Source]) -> Part:
    channel = source.channel
    note = "" if source in added else _note(source, added)
    return Part(
        source.label,
        channel.device,
        source.domain.value,
        channel.pedigree.value,
        source in added,
        note,
    )


def _note(source: Source, added: Sequence[Source]) -> str:
    twin = next((other for other in added if other.domain is source.domain), None)
    if twin is not None:
        return f"the same as {twin.label}"
    outer = [other for other in added if contains(other.domain, source.domain) is Answer.YES]
    if outer:
        same = [other for other in outer if other.channel.device == source.channel.device]
        return f"inside {', '.join(dict.fromkeys(other.label for other in same or outer))}"
    if source.domain in WHOLE:
        return f"{source.domain.value}: a total of its own"
    return "may overlap with the total"


def every_report(choice: Choice, targets: Mapping[str, str], request: Request) -> dict[str, Report]:
    """What each sensor says of itself, by name. One that a run would not use, because a better one works, is probed as
    well, and says so."""
    used = {group.info.sensor for group in choice.groups}
    reports = {report.sensor: report for report in choice.reports}
    for name, report in reports.items():
        if report.why.startswith(NOT_TRIED):
            found = probe(name, targets[name], request)[1]
            why = f"{NOT_USED}: {report.why.partition(': ')[2]}" if found.usable else found.why
            reports[name] = replace(found, why=why)
        elif report.usable and report.power and name not in used and used:
            reports[name] = replace(report, why=f"{NOT_USED}: another sensor delivers power")
    return reports


def probe_all(
    targets: Mapping[str, str], request: Request, wanted: Sequence[str] | None = None
) -> tuple[list[Report], Coverage]:
    """What each sensor says of itself, and what a run would add up. `wanted` limits the sensors by name.

    Replay has no hardware to probe. A sensor that a run would not use, because a better one works, is probed as well.
    """
    must_be_known(wanted or (), targets)
    names = list(wanted or [name for name in targets if name != "replay"])
    with closing(choose({name: targets[name] for name in names}, request, wanted)) as choice:
        covered = coverage(group.info for group in choice.groups)
    reports = every_report(choice, targets, request)
    return [reports[name] for name in names if name in reports], covered


def shown(channel: str, value: float | None, interval: tuple[float, float] | None = None) -> str | None:
    """A value, of an estimate with its interval, in the unit that the channel's last word implies; None without one."""
    if value is None:
        return None
    word = channel.rpartition(".")[2]
    if word in BYTES:
        return format_bytes(value)
    if word == "throttle":
        return f"{round(value):#x}"  # a mask of reasons
    unit = next((unit for ending, unit in UNITS if word.endswith(ending)), "")
    if not unit and value.is_integer():
        return str(round(value))  # a count
    low, high = interval or (value, value)
    return format_quantity(value, unit, value - low, high - value)


def example(report: Report) -> str | None:
    """The first value: `cpu.0.package.energy = 1234 J`, `host.power ≈ 2.4 W (0.9 … 6.1 W)`; None without one."""
    values = [(name, shown(name, value, report.intervals.get(name))) for name, value in report.samples.items()]
    found = (f"{name} {text if text.startswith('≈') else f'= {text}'}" for name, text in values if text is not None)
    return next(found, None)


def report_row(report: Report) -> dict[str, Any]:
    return {
        "sensor": report.sensor,
        "state": str(report.state),
        "power": report.power and report.usable,
        "why": report.why or None,
        "cure": report.cure,
        "samples": dict(report.samples),
        "missing": dict(report.missing),
        "devices": [dict(device) for device in report.devices],
    }


@dataclass(frozen=True, slots=True)
class SensorList:
    """The sensors of a machine, and what a total contains; `everything`: the absent and unused ones are listed too."""

    reports: Sequence[Report]
    covered: Coverage
    everything: bool = False

    @property
    def power(self) -> bool:
        return any(report.usable and report.power for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        total = {"scope": self.covered.scope or None, "parts": [part.label for part in self.covered.total]}
        return {"sensors": [report_row(report) for report in self.reports], "power": self.power, "total": total}

    def tables(self) -> list[Table]:
        """What a total contains, then the sensors that work or could, the cards, the channels in use."""
        order = [State.USABLE, State.UNUSABLE, State.ABSENT]
        listed = [report for report in self.reports if self.everything or report.state is not State.ABSENT]
        listed.sort(key=lambda report: (order.index(report.state), report.why.startswith(NOT_USED)))
        absent = [report.sensor for report in self.reports if report not in listed]
        reasons = f"absent  {', '.join(absent)} (reasons: everywatt sensors --all)"
        parts = [
            _total_lines(self.covered),
            _sensor_table(listed),
            Table.lines(reasons) if absent else None,
            _card_table(self.reports),
            _channel_table([report for report in listed if self.everything or not report.why.startswith(NOT_USED)]),
        ]
        tables = [part for part in parts if part is not None]
        return [part for table in tables for part in (Table.lines(""), table)][1:]


def _total_lines(covered: Coverage) -> Table | None:
    if not covered.parts:
        return None
    by_way: dict[str, list[str]] = {}
    for part in covered.total:
        by_way.setdefault(part.pedigree, []).append(part.label)
    ways = "; ".join(f"{' + '.join(labels)} ({way})" for way, labels in by_way.items())
    beside = [f"beside  {', '.join(part.text for part in covered.others)}"] if covered.others else []
    return Table.lines(f"total   {covered.scope}: {ways}", *beside)


def _sensor_table(reports: Sequence[Report]) -> Table | None:
    rows = [[r.sensor, r.state, len(r.samples) or None, r.why or None, r.cure] for r in reports]
    return Table.of("SENSOR", "STATE", Column("CHANNELS", ""), "REASON", "FIX", rows=rows) if rows else None


def _card_table(reports: Sequence[Report]) -> Table | None:
    cards = {str(device["uuid"]): device for report in reports for device in report.devices if device.get("uuid")}
    rows: list[list[Cell]] = [
        [
            str(card["device"]),
            str(card.get("name") or "") or None,
            None if card.get("memory_bytes") is None else float(card["memory_bytes"]),
            "yes" if card.get("selected", True) else "no: CUDA_VISIBLE_DEVICES",
            uuid,
        ]
        for uuid, card in cards.items()
    ]
    return Table.of("CARD", "NAME", Column("MEMORY", "B"), "MEASURED", "UUID", rows=rows) if rows else None


def _channel_table(reports: Sequence[Report]) -> Table | None:
    """A value of each channel, then those without one, with the reason."""
    rows: list[list[Cell]] = []
    for report in (report for report in reports if report.usable):
        rows += [
            [report.sensor, channel, shown(channel, value, report.intervals.get(channel)), report.missing.get(channel)]
            for channel, value in report.samples.items()
        ]
        why: dict[str, list[str]] = {}
        for channel, reason in report.missing.items():
            if channel not in report.samples:
                why.setdefault(reason, []).append(channel)
        rows += [[report.sensor, _joined(channels), None, reason] for reason, channels in why.items()]
    return Table.of("SENSOR", "CHANNEL", Column("VALUE", align="right"), "REASON", rows=rows) if rows else None


def _joined(channels: Sequence[str]) -> str:
    """Channels that lack a value for one reason: `sm_active, dram_active of gpu.0, gpu.1`."""
    parts = [channel.rpartition(".") for channel in channels]
    devices, words = list(dict.fromkeys(part[0] for part in parts)), list(dict.fromkeys(part[2] for part in parts))
    if len(channels) < 3 or not all(devices) or len(devices) * len(words) != len(channels):
        return ", ".join(channels)
    return f"{', '.join(words)} of {', '.join(devices)}"
