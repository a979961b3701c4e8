"""What the sensors of this machine say, and what the total of a run here would contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from everywatt.core.channels import GroupInfo
from everywatt.core.domains import WHOLE, Answer, contains
from everywatt.core.format import format_bytes, format_quantity
from everywatt.energy.sources import Source, addable, scope_of, sources
from everywatt.sensors.base import Report, Request
from everywatt.sensors.registry import NOT_TRIED, Choice, probe
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
    sensor: str
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
        source.group.info.sensor,
        source in added,
        note,
    )


def _note(source: Source, added: Sequence[Source]) -> str:
    """Why a source is not in the total."""
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
            reports[name] = replace(report, why=f"{NOT_USED}: power is measured")
    return reports


def shown(channel: str, value: float | None) -> str | None:
    """A value with the unit of its channel, which its last word implies; None where there is no value."""
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
    return format_quantity(value, unit)
