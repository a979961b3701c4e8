"""Sensors that several tapes share: one opened group for each target, device selection and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from everywatt.core.clocks import Clock
from everywatt.core.jsonio import dumps
from everywatt.core.lazy_dataclass import dataclass
from everywatt.recorder.source import Source
from everywatt.sensors import registry
from everywatt.sensors.base import Group, Report, Request, Sensor, TableGroup


@dataclass
class _Entry:
    """A sensor that is open, and the sources of its groups that can be shared."""

    report: Report
    after: Sequence[str]
    sources: list[Source]
    has_tables: bool


@dataclass
class Pool:
    """All open sources. `choose` opens what a tape wants and nothing twice."""

    clock: Clock
    entries: dict[str, _Entry] = field(default_factory=dict)

    def choose(
        self,
        targets: Mapping[str, str],
        request: Request,
        wanted: Sequence[str] | None,
        sign: Callable[[], None] = lambda: None,
    ) -> tuple[list[Source], list[Report]]:
        """The sources for a tape (its own tables, shared everything else) and what every sensor said.

        `sign` is called before each sensor is asked, which may take a while.
        """

        def ask(name: str, target: str, request: Request) -> tuple[Sensor | None, Report]:
            sign()
            return self._ask(name, target, request)

        choice = registry.choose(targets, request, wanted, ask=ask)
        return [group for group in choice.groups if isinstance(group, Source)], list(choice.reports)

    def _ask(self, name: str, target: str, request: Request) -> tuple[Sensor | None, Report]:
        key = _key(name, target, request)
        entry = self.entries.get(key)
        if entry is None or entry.has_tables:  # processes are followed for each tape apart
            sensor, report = registry.probe(name, target, request)
            if sensor is None or not report.usable:
                return sensor, report
            return _Shared(self, key, name, sensor, sensor.after, report), report
        return _Shared(self, key, name, None, entry.after, entry.report), entry.report

    def together(self, source: Source) -> Sequence[Source]:
        """The sources that are opened and closed with this one, because one sensor made them; none for a table."""
        return next((entry.sources for entry in self.entries.values() if source in entry.sources), ())

    def drop(self, source: Source) -> None:
        """Close a source that nobody listens to."""
        source.close()
        for key, entry in list(self.entries.items()):
            if source in entry.sources:
                entry.sources.remove(source)
                if not entry.sources:
                    del self.entries[key]


@dataclass
class _Shared:
    """Stands in for a sensor: its groups are sources, the shared ones taken from the pool."""

    pool: Pool
    key: str
    name: str
    sensor: Sensor | None
    after: Sequence[str]
    report: Report

    def probe(self) -> Report:
        return self.report

    def groups(self) -> Sequence[Group | TableGroup]:
        entry = self.pool.entries.get(self.key)
        opened = list(self.sensor.groups()) if self.sensor is not None else []
        tables = [Source(group, self.pool.clock) for group in opened if group.info.table]
        others = [group for group in opened if not group.info.table]
        if entry is None:
            entry = _Entry(self.report, self.after, [Source(group, self.pool.clock) for group in others], bool(tables))
            if entry.sources:
                self.pool.entries[self.key] = entry
        else:
            for group in others:
                group.close()
        return [*entry.sources, *tables]  # type: ignore[list-item]


def _key(name: str, target: str, request: Request) -> str:
    machine = request.machine
    roots = [str(machine.sys), str(machine.proc), str(machine.dev)]
    options: Any = request.options.get(name) or {}
    return dumps([name, target, request.devices, request.estimate, options, roots])
