"""Series and their text: Prometheus' and OpenMetrics', one writer for both.

A series is made once and lives on; a scrape only joins texts. Samples of devices carry the time of their tick, so that
a difference between two samples is the energy between the two ticks, whenever they were scraped.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Labels = tuple[tuple[str, str], ...]
TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


OWNER_ENERGY: Final = "everywatt_owner_energy_joules_total"
OWNER_CPU: Final = "everywatt_owner_cpu_seconds_total"
OWNER_MEMORY: Final = "everywatt_owner_memory_bytes"
LOW_HIGH: Final = ("everywatt_energy_low_joules_total", "everywatt_energy_high_joules_total")
OWNER_LOW_HIGH: Final = ("everywatt_owner_energy_low_joules_total", "everywatt_owner_energy_high_joules_total")


class Family(NamedTuple):
    """A metric: its name as samples have it, its type, its unit (the last word of the name) and its help."""

    name: str
    type: str
    unit: str
    help: str


HELP: Final = {
    "everywatt_energy_joules_total": "Energy of a device since it was first counted.",
    "everywatt_energy_low_joules_total": "Lower end of its 95 % interval.",
    "everywatt_energy_high_joules_total": "Upper end of its 95 % interval.",
    "everywatt_power_watts": "Mean power of a device between its last two ticks.",
    "everywatt_power_limit_watts": "Configured power limit.",
    "everywatt_utilisation_ratio": "Share of time in which the device was busy.",
    "everywatt_memory_bytes": "Used memory of the device.",
    "everywatt_memory_total_bytes": "Total memory of the device.",
    "everywatt_temperature_celsius": "Temperature of the device.",
    "everywatt_clock_hertz": "Clock of the device.",
    "everywatt_coverage_ratio": "Share of the time since the start that was observed.",
    "everywatt_tick_age_seconds": "Age of the newest reading.",
    "everywatt_model_drift": "1 if the power model of a device no longer fits the sensor beside it.",
    "everywatt_model_ratio": "Measured over modelled power of a device.",
    "everywatt_device_info": 'Metadata of a device; total="1" if it is part of the sum.',
    "everywatt_interval_info": 'What the interval of a device covers: "all", or "sampling only" '
    "if gain and offset are unknown.",
    "everywatt_owner_energy_joules_total": "Energy of a device by owner.",
    "everywatt_owner_energy_low_joules_total": "Lower end of the 95 % interval by owner.",
    "everywatt_owner_energy_high_joules_total": "Upper end of the 95 % interval by owner.",
    "everywatt_unattributed_info": "Why energy of a device is unattributed.",
    "everywatt_owner_cpu_seconds_total": "CPU time by owner.",
    "everywatt_owner_memory_bytes": "Resident memory by owner.",
    "everywatt_job_info": "Jobs on this node.",
    "everywatt_llm_joules_per_token": "Active energy by token over the last minute: "
    "by prompt token for prefill, else by generated token.",
    "everywatt_llm_joules_per_token_low": "Lower end of its 95 % interval.",
    "everywatt_llm_joules_per_token_high": "Upper end of its 95 % interval.",
    "everywatt_llm_energy_joules_total": "Active energy of a server by model.",
    "everywatt_llm_energy_low_joules_total": "Lower end of its 95 % interval.",
    "everywatt_llm_energy_high_joules_total": "Upper end of its 95 % interval.",
    "everywatt_llm_tokens_total": "Tokens that were joined with energy, by model and phase.",
    "everywatt_llm_other_energy_joules_total": "Active energy of a server without tokens: "
    "loading, and time in which its counters were not read.",
    "everywatt_llm_held_energy_joules_total": "Energy of cards that a server kept awake without using them.",
    **{
        f"everywatt_llm_{kind}_energy_{end}_joules_total": f"{side} end of its 95 % interval."
        for kind in ("other", "held")
        for end, side in (("low", "Lower"), ("high", "Upper"))
    },
    "everywatt_llm_up": "Whether the counters of a server could be read.",
    "everywatt_llm_refused_info": "Why a server has no joules per token now.",
    "everywatt_host_cpu_seconds_total": "CPU time of the host, summed over its CPUs.",
    "everywatt_host_memory_bytes": "Used memory of the host.",
    "everywatt_sensor_up": "Whether a sensor works.",
    "everywatt_build_info": "Versions.",
    "everywatt_agent_cpu_seconds_total": "CPU time of the agent itself.",
    "everywatt_agent_resident_memory_bytes": "Resident memory of the agent itself.",
    "everywatt_agent_disk_bytes": "Size of the stored tape segments.",
    "everywatt_remote_write_samples_total": "Samples by outcome: sent, dropped before sending, or rejected.",
    "everywatt_remote_write_pending_bytes": "Size of the tape that has not been sent yet.",
    "everywatt_remote_write_lag_seconds": "Age of the oldest sample that has not been sent.",
}
UNITS: Final = ("joules", "watts", "ratio", "bytes", "celsius", "hertz", "seconds")


def _family(name: str) -> Family:
    """A metric of ours: counters are called …_total, and the word before that, or the last one, is the unit."""
    unit = name.removesuffix("_total").rpartition("_")[2]
    kind = "counter" if name.endswith("_total") else "gauge"
    return Family(name, kind, unit if unit in UNITS else "", HELP[name])


FAMILIES: Final[dict[str, Family]] = {name: _family(name) for name in HELP}
_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
Sample = tuple[str, dict[str, str], float]


def samples(text: str) -> Iterator[Sample]:
    """Name, labels and value of every sample of a Prometheus text; other lines are skipped."""
    for line in text.split("\n"):
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        if match is None:
            continue
        labels = {name: _unescaped(value) for name, value in _LABEL.findall(match[2] or "")}
        try:
            yield match[1], labels, float(match[3])
        except ValueError:
            continue


def escape(value: str) -> str:
    """A label's value for both text formats: backslash, quote and newline escaped, invalid UTF-8 replaced."""
    return value.encode("utf-8", "replace").decode().translate(_ESCAPES)


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)


def labels_text(labels: Labels) -> str:
    """`{name="value",…}`, or nothing."""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels) + "}" if labels else ""


def number(value: float) -> str:
    """The shortest digits that give the number back; whole ones without a point."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


@dataclass(slots=True, eq=False)
class Series:
    """One series. `value` None: it has none now, and is left out."""

    family: Family
    labels: Labels
    id: int
    head: str
    value: float | None = None
    at_ms: int | None = None
    written: float | None = None  # newest value on the tape, and its time
    written_ms: int = 0


@dataclass
class Registry:
    """All series of an agent.

    `lock` is held from when they change until that is on the tape, and while a text is made of them: what a scraper
    has seen is never lost by a kill.
    """

    families: Mapping[str, Family] = field(default_factory=lambda: FAMILIES)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _series: dict[str, dict[Labels, Series]] = field(default_factory=dict)
    _by_id: dict[int, Series] = field(default_factory=dict)  # all of them once more: walked several times a second
    _counters: dict[int, Series] = field(default_factory=dict)  # those that only grow
    _count: int = 0

    def series(self, name: str, *labels: tuple[str, str]) -> Series:
        """The series of that name and those labels, created if new. KeyError for an unknown name."""
        mine = self._series.get(name)
        found = None if mine is None else mine.get(labels)
        return self._add(self.families[name], labels) if found is None else found

    def _add(self, family: Family, labels: Labels) -> Series:
        self._count += 1
        made = Series(family, labels, self._count, family.name + labels_text(labels))
        self._series.setdefault(family.name, {})[labels] = self._by_id[made.id] = made
        if family.type == "counter":
            self._counters[made.id] = made
        return made

    def set(self, name: str, value: float | None, *labels: tuple[str, str], at_ms: int | None = None) -> None:
        """Give a series its value, and the time of its tick where it has one."""
        series = self.series(name, *labels)
        series.value, series.at_ms = value, at_ms

    def take_text(self, text: str) -> None:
        """Series of another exporter's text, for the tape and remote write: `text` does not print them again.

        Metrics that it no longer exports have no value.
        """
        if not text and self._series.keys() <= self.families.keys():
            return
        kinds: dict[str, str] = {}
        present: set[Series] = set()
        for line in text.split("\n"):
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ", 3)
                kinds[name] = kind
        for name, pairs, value in samples(text):
            if name in self.families:
                continue
            labels = tuple(pairs.items())
            series = self._series.get(name, {}).get(labels) or self._add(
                Family(name, kinds.get(name, "gauge"), "", ""), labels
            )
            series.value = value
            present.add(series)
        for name in self._series.keys() - self.families.keys():
            for series in self._series[name].values():
                series.value = series.value if series in present else None

    def known(self, name: str) -> list[Series]:
        """All series of a metric, also those without a value now."""
        return list(self._series.get(name, {}).values())

    def remove(self, series: Series) -> None:
        self._series[series.family.name].pop(series.labels, None)
        self._by_id.pop(series.id, None)
        self._counters.pop(series.id, None)

    def __iter__(self) -> Iterator[Series]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def counters(self) -> list[tuple[Series, float | None, int | None]]:
        """The counters' values now, for `restore`."""
        return [(one, one.value, one.at_ms) for one in self._counters.values()]

    def restore(self, before: Iterable[tuple[Series, float | None, int | None]]) -> None:
        """Restore the counters' values: what is not on the tape would be taken back after a restart."""
        for series in self._counters.values():
            series.value = series.at_ms = None
        for series, value, at_ms in before:
            series.value, series.at_ms = value, at_ms

    def text(self, *, open_metrics: bool = False) -> str:
        """All values as text; every metric with its HELP and TYPE (and UNIT), in a fixed order."""
        out: list[str] = []
        with self.lock:
            for name in self.families:
                living = [series for series in self._series.get(name, {}).values() if series.value is not None]
                if living:
                    out += _head(self.families[name], open_metrics)
                    out += [_line(series, open_metrics) for series in living]
        if open_metrics:
            out.append("# EOF")
        return "\n".join(out) + "\n" if out else ""


def _head(family: Family, open_metrics: bool) -> list[str]:
    if not open_metrics:
        return [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.type}"]
    base, kind = family.name.removesuffix("_total") if family.type == "counter" else family.name, family.type
    if base.endswith("_info") and kind == "gauge":
        base, kind = base.removesuffix("_info"), "info"
    unit = [f"# UNIT {base} {family.unit}"] if family.unit and base.endswith(f"_{family.unit}") else []
    return [f"# TYPE {base} {kind}", *unit, f"# HELP {base} {family.help.replace(chr(34), chr(92) + chr(34))}"]


def _line(series: Series, open_metrics: bool) -> str:
    text = f"{series.head} {number(series.value or 0.0)}"
    if series.at_ms is None:
        return text
    if not open_metrics:
        return f"{text} {series.at_ms}"
    digits = str(series.at_ms)
    return f"{text} {digits[:-3]}.{digits[-3:]}"


def wants_open(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics to plain text."""
    best = {"open": 0.0, "text": 0.0}
    for part in accept.split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if kind == "application/openmetrics-text":
            best["open"] = max(best["open"], quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            best["text"] = max(best["text"], quality)
    return best["open"] > 0 and best["open"] >= best["text"]
