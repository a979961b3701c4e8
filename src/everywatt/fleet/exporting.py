"""From the ledger to series: every name that the agent exports, and which samples go to the tape."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.core.channels import Cadence, GroupInfo
from everywatt.core.clocks import NS, Clock
from everywatt.core.platforms import rss_bytes
from everywatt.fleet.device_counters import Line
from everywatt.fleet.metrics import LOW_HIGH, OWNER_CPU, OWNER_ENERGY, OWNER_LOW_HIGH, OWNER_MEMORY, Registry, Series
from everywatt.fleet.watch import Watcher
from everywatt.ledger.engine import REST_DEVICE, UJ
from everywatt.sensors.base import Report

REPEAT_MS = (
    15_000  # a series that does not change is repeated, well within Prometheus's staleness limit of five minutes
)
SAMPLES = GroupInfo("agent.samples", "agent", "host", (), Cadence.SLOW, table=True, label="exported series")
RSS_NS = 5 * NS
MOST_BEHIND_NS = 300 * NS  # a clock that is set back by less than this is waited for
STATES = {
    "utilisation": ("everywatt_utilisation_ratio", 0.01),
    "memory": ("everywatt_memory_bytes", 1.0),
    "temperature": ("everywatt_temperature_celsius", 1.0),
    "power_limit": ("everywatt_power_limit_watts", 1.0),
}
# What a power model reports of itself if a sensor measures the same target.
MODEL = {"model.drift": "everywatt_model_drift", "model.ratio": "everywatt_model_ratio"}
PASSING = ("everywatt_owner_", "everywatt_job_", "everywatt_llm_")  # metrics whose series come and go
CLOCKS = {"clock_sm": "sm", "clock_memory": "memory", "clock": "cpu"}


class UtcOffset:
    """UTC minus CLOCK_MONOTONIC, so that times of samples stay in order.

    A clock that is set back by up to five minutes is waited for: times of samples go at half speed until it has caught
    up. A larger step is taken as it is: the clock was wrong before. `steps` counts those, and `back_s` is the last one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ns = clock.monotonic_ns()
        self.ns = clock.utc_ns() - self._at_ns
        self.steps = 0
        self.back_s = 0.0

    def update(self) -> None:
        """Look at the clocks again."""
        at_ns = self._clock.monotonic_ns()
        ahead_ns = self.ns - (self._clock.utc_ns() - at_ns)
        passed_ns, self._at_ns = at_ns - self._at_ns, at_ns
        if ahead_ns > MOST_BEHIND_NS:
            self.steps += 1
            self.back_s = ahead_ns / NS
        elif ahead_ns > 0:
            ahead_ns = min(ahead_ns, passed_ns // 2)
        self.ns -= ahead_ns

    def ms(self, monotonic_ns: int) -> int:
        """UTC milliseconds of an instant."""
        return (monotonic_ns + self.ns) // 1_000_000


@dataclass(frozen=True, slots=True)
class MetricSource:
    """What names of other exporters are written from: the agent's figures at one instant."""

    watcher: Watcher
    reports: Sequence[Report]
    utc: UtcOffset
    now_ns: int


class Exporter:
    """Writes the books of a watcher into a registry, and the registry's news into rows for the tape."""

    def __init__(self, watcher: Watcher, reports: Sequence[Report]) -> None:
        self.watcher = watcher
        self.registry = Registry()
        self.utc = UtcOffset(watcher.clock)
        self._reports = reports
        self._unusable = frozenset(report.sensor for report in reports if report.state.value == "unusable")
        self._totals = watcher.memory_totals
        self._defined: set[int] = set()
        self._owner_series: dict[tuple[Any, str], list[Series]] = {}
        self._state_series = [
            (name, factor, self.registry.series(*series)) for name, factor, series in _state_series(watcher)
        ]
        self._device_series = [(line, self._series_of(line)) for line in watcher.lines.all]
        self._sensors = [
            (
                self.registry.series("everywatt_sensor_up", ("sensor", name)),
                [s for s in watcher.sources if s.info.sensor == name],
            )
            for name in dict.fromkeys(source.info.sensor for source in watcher.sources)
            if name not in self._unusable
        ]
        self._rss_ns = 0
        self.more: Mapping[str, Mapping[tuple[tuple[str, str], ...], float | None]] = {}
        with self.registry.lock:
            self._constant()
            self._go_on_with_owners()

    def _series_of(self, line: Line) -> tuple[Series, ...]:
        """Energy with its interval, power, coverage and age of a device."""
        device, domain, pedigree = ("device", line.device), ("domain", line.domain), ("pedigree", line.pedigree)
        series = self.registry.series
        return (
            series("everywatt_energy_joules_total", device, domain, pedigree),
            *(series(name, device, domain, pedigree) for name in LOW_HIGH),
            series("everywatt_power_watts", device, domain, pedigree),
            series("everywatt_coverage_ratio", device, domain),
            series("everywatt_tick_age_seconds", device, domain),
        )

    def _go_on_with_owners(self) -> None:
        """Restore the series that the previous agent published: the tape must record if one of them has ended."""
        self._owners(0)
        for series in (one for found in self._owner_series.values() for one in found):
            series.written, series.value = series.value, None

    def _constant(self) -> None:
        from everywatt import __version__

        versions = (("version", __version__), ("python", sys.version.split()[0]), ("machine", os.uname().machine))
        self.registry.set("everywatt_build_info", 1.0, *versions)
        for name in self._unusable:
            self.registry.set("everywatt_sensor_up", 0.0, ("sensor", name))
        names = {str(d.get("device")): d for report in self._reports for d in report.devices}
        for line in self.watcher.lines.all:
            facts = names.get(line.channel.device, {})
            card = (("name", str(facts.get("name") or "")), ("uuid", str(facts.get("uuid") or "")))
            counts = ("total", "1" if line.in_total else "0")
            device, domain = ("device", line.device), ("domain", line.domain)
            self.registry.set("everywatt_device_info", 1.0, device, domain, *card, counts)
            covers = ("covers", "sampling only" if line.sampling_only else "all")
            self.registry.set("everywatt_interval_info", 1.0, device, domain, covers)
            total = self._totals.get(line.channel.device)
            if total and line.in_total:
                self.registry.set("everywatt_memory_total_bytes", total, ("device", line.device))
        if self._totals.get("host"):
            self.registry.set("everywatt_memory_total_bytes", self._totals["host"], ("device", "host"))

    def update(self, now_ns: int) -> None:
        """All values as they stand now."""
        steps = self.utc.steps
        self.utc.update()
        with self.registry.lock:
            if self.utc.steps != steps:
                for series in self.registry:
                    series.written_ms = 0
            self._devices(now_ns)
            self._states(now_ns)
            self._owners(now_ns)
            self._agent(now_ns)

    def _devices(self, now_ns: int) -> None:
        for line, (energy, low, high, power, coverage, age) in self._device_series:
            energy.at_ms = low.at_ms = high.at_ms = power.at_ms = self.utc.ms(line.settled_ns)
            energy.value = line.settled_uj / UJ if line.settled_ns else None
            low.value = line.low_uj / UJ if line.settled_ns else None
            high.value = line.high_uj / UJ if line.settled_ns else None
            power.value = None if line.stale(now_ns) or line.power_w is None else round(line.power_w, 6)
            coverage.value = _rounded(line.coverage(now_ns))
            age.value = round(max((now_ns - line.at_ns) / NS, 0.0), 3) if line.at_ns else None
        for up, sources in self._sensors:
            up.value = float(all(source.outage is None for source in sources))

    def _states(self, now_ns: int) -> None:
        states = self.watcher.states
        for name, factor, series in self._state_series:
            found = states.value(name, now_ns)
            series.value = None if found is None else found[0] * factor
            series.at_ms = None if found is None else self.utc.ms(found[1])

    def _owners(self, now_ns: int) -> None:
        watcher, registry = self.watcher, self.registry
        times = {line.device: self.utc.ms(line.settled_ns) for line in watcher.lines.total()}
        most_uj = {line.device: line.high_uj for line in watcher.lines.total()}  # no owner has more than its device
        if watcher.lines.modules:
            times[REST_DEVICE] = self.utc.ms(watcher.lines.modules[-1].settled_ns)
        known = self._owner_series
        living = 0
        bounds = watcher.counters.bounds_uj
        for owner, amounts in watcher.counters.uj.items():
            ends = bounds.get(owner, {})
            for device, amount in amounts.items():
                if device not in times:
                    continue
                key = (owner, device)
                found = known.get(key)
                if found is None:
                    labels = (("kind", owner.kind), ("owner", owner.id), ("device", device))
                    found = known[key] = [registry.series(name, *labels) for name in (OWNER_ENERGY, *OWNER_LOW_HIGH)]
                living += 1
                energy, low, high = found
                energy.at_ms = low.at_ms = high.at_ms = times[device]
                low_uj, high_uj = ends.get(device) or (0, 2 * amount)
                high_uj = max(min(high_uj, most_uj.get(device, high_uj)), amount)
                energy.value, low.value, high.value = amount / UJ, low_uj / UJ, high_uj / UJ
        now_ms = self.utc.ms(now_ns)
        for name, values in (
            (OWNER_CPU, watcher.counters.cpu_s),
            (OWNER_MEMORY, watcher.cpu.memory),
        ):
            for owner, value in values.items():
                key = (owner, name)
                found = known.get(key)
                if found is None:
                    found = known[key] = [registry.series(name, ("kind", owner.kind), ("owner", owner.id))]
                living += 1
                found[0].value, found[0].at_ms = round(value, 6), now_ms
        if living < len(known):
            self._end_others(times)
        for device, reasons in watcher.counters.reasons.items():
            for reason in reasons:
                registry.set("everywatt_unattributed_info", 1.0, ("device", device), ("reason", reason))
        jobs = {
            (("job", j.id), ("user", j.user), ("account", j.account), ("partition", j.partition))
            for j in watcher.places.jobs.values()
        }
        for series in registry.known("everywatt_job_info"):
            series.value = 1.0 if series.labels in jobs else None
        for job in jobs:
            registry.set("everywatt_job_info", 1.0, *job)

    def _end_others(self, devices: Iterable[str]) -> None:
        """Series of owners that are counted no longer have no value: they became a part of the rest."""
        counters = self.watcher.counters
        named = ((OWNER_CPU, counters.cpu_s), (OWNER_MEMORY, self.watcher.cpu.memory))
        living = {(owner, device) for owner, amounts in counters.uj.items() for device in amounts if device in devices}
        living |= {(owner, name) for name, values in named for owner in values}
        for key in self._owner_series.keys() - living:
            for series in self._owner_series.pop(key):
                series.value = None

    def _agent(self, now_ns: int) -> None:
        put, states = self.registry.set, self.watcher.states
        for mode, name in (("busy", "host.cpu_time"), ("idle", "host.idle_time")):
            found = states.value(name, now_ns)
            at_ms = None if found is None else self.utc.ms(found[1])
            put("everywatt_host_cpu_seconds_total", None if found is None else found[0], ("mode", mode), at_ms=at_ms)
        put("everywatt_agent_cpu_seconds_total", round(time.process_time(), 4))
        if now_ns >= self._rss_ns:
            self._rss_ns = now_ns + RSS_NS
            size = rss_bytes()
            put("everywatt_agent_resident_memory_bytes", None if size is None else float(size))
        for name, values in self.more.items():
            for labels, value in values.items():
                put(name, value, *labels)

    # The tape.

    def new_segment(self) -> None:
        """Define every series again in the next rows."""
        self._defined.clear()

    def news(self, now_ns: int) -> list[dict[str, Any]]:
        """Rows for the tape: series that are new there, and the samples that changed or are due again.

        {"i": number, "n": name, "l": labels} and {"t": UTC ms, "c": how many, "s": "[number, ms after t, value, …]"}; a
        value of null marks the end of the series.
        """
        now_ms = self.utc.ms(now_ns)
        rows: list[dict[str, Any]] = []
        flat: list[Any] = []
        dead: list[Series] = []
        for series in self.registry:
            value = series.value
            at_ms = now_ms if series.at_ms is None else series.at_ms
            if value is None:
                dead.append(series)
                if series.written is None:
                    continue
                at_ms = max(now_ms, series.written_ms + 1)
            elif at_ms <= series.written_ms or (value == series.written and at_ms - series.written_ms < REPEAT_MS):
                continue
            if series.id not in self._defined:
                self._defined.add(series.id)
                rows.append({"i": series.id, "n": series.family.name, "l": dict(series.labels)})
            flat += (series.id, at_ms - now_ms, value)
            series.written, series.written_ms = value, at_ms
        self._forget(dead)
        if flat:
            # A text, since a list would be looked at item by item once more.
            rows.append({"t": now_ms, "c": len(flat) // 3, "s": json.dumps(flat, separators=(",", ":"))})
        return rows

    def _forget(self, dead: Iterable[Series]) -> None:
        """Owners and jobs that ended come back under another number, if ever."""
        with self.registry.lock:
            for series in dead:
                name = series.family.name
                passing = name.startswith(PASSING) or name not in self.registry.families
                if passing and series.written is None:
                    self.registry.remove(series)
                    self._defined.discard(series.id)


def _rounded(value: float | None) -> float | None:
    """Six digits: engines keep few of them, and a text has less to carry."""
    return None if value is None else round(value, 6)


def _state_series(watcher: Watcher) -> list[tuple[str, float, tuple[Any, ...]]]:
    """Channel, factor, and the name and labels of its series."""
    found: list[tuple[str, float, tuple[Any, ...]]] = []
    for name, channel in watcher.states.channels.items():
        suffix = name.removeprefix(channel.device + ".")
        if name == "host.memory":
            found.append((name, 1.0, ("everywatt_host_memory_bytes",)))
        elif suffix in MODEL:
            found.append((name, 1.0, (MODEL[suffix], ("device", channel.device))))
        elif suffix.endswith(".temperature"):
            found.append((name, 1.0, ("everywatt_temperature_celsius", ("device", name.removesuffix(".temperature")))))
        elif suffix == "gpu.utilisation":
            found.append((name, 0.01, ("everywatt_utilisation_ratio", ("device", channel.device))))
        elif suffix.endswith(".utilisation"):  # of a single CPU
            found.append((name, 0.01, ("everywatt_utilisation_ratio", ("device", name.removesuffix(".utilisation")))))
        elif suffix in STATES:
            metric, factor = STATES[suffix]
            found.append((name, factor, (metric, ("device", channel.device))))
        elif suffix in CLOCKS or suffix.endswith(".clock"):
            scale = {"MHz": 1e6, "kHz": 1e3, "Hz": 1.0}.get(channel.unit)
            part = suffix.removesuffix(".clock")  # cpu3, gpu, emc
            device = name.removesuffix(".clock") if part.startswith("cpu") else channel.device
            if scale:
                clock = CLOCKS.get(suffix) or part.rstrip("0123456789")
                found.append((name, scale, ("everywatt_clock_hertz", ("device", device), ("clock", clock))))
    return found
