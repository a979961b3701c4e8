"""Cheap counters that the measured program reads itself where a span starts and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from everywatt.core.channels import GroupInfo, Row
from everywatt.core.clocks import NS
from everywatt.sensors import registry
from everywatt.sensors.base import Group, Request, checked

MUTED_NS = NS


class Inline:
    """The inline groups of a run, opened in this process too. A group that fails is left alone for a second."""

    def __init__(self, groups: Sequence[GroupInfo], targets: Mapping[str, str], request: Request) -> None:
        names = {info.name for info in groups if info.inline}
        sensors = sorted({info.sensor for info in groups if info.inline and info.sensor in targets})
        self._groups: list[tuple[str, Group]] = []
        self._muted: dict[str, int] = {}
        self._clock = request.machine.clock
        if not sensors:
            return
        for group in registry.choose(targets, request, sensors).groups:
            if group.info.inline and group.info.name in names:
                self._groups.append((group.info.name, cast("Group", group)))
            else:
                group.close()

    @classmethod
    def of(cls, groups: Sequence[object], request: Request) -> Inline:
        """Of groups that are open already."""
        made = cls((), {}, request)
        made._groups = [(cast("Group", group).info.name, cast("Group", group)) for group in groups]
        return made

    def read(self) -> list[tuple[str, Row]]:
        """One row of each group, by the group's name."""
        edges = []
        for name, group in self._groups:
            if self._muted and self._muted.get(name, 0) > self._clock.monotonic_ns():
                continue
            try:
                rows = group.read()
                if rows:
                    edges.append((name, checked(rows[-1], group.info)))
            except Exception:  # noqa: BLE001 - a plug-in may do anything; the recorder notes the outage
                self._muted[name] = self._clock.monotonic_ns() + MUTED_NS
        return edges

    def close(self) -> None:
        """Let go of the files."""
        for _, group in self._groups:
            try:
                group.close()
            except Exception:  # noqa: BLE001 - a plug-in may do anything
                pass
        self._groups = []
