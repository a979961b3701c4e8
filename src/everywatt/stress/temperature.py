"""The hottest place of the machine, and the stop when it gets too hot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.machine import Machine
from everywatt.sensors.base import Group, Request
from everywatt.sensors.registry import choose, known

LOOK_S = 1.0
OLD_S = 10.0
_CELSIUS = "°C"
_LIKELY_C = (-40.0, 200.0)
"""Plausible range of a chip's temperature; disconnected inputs read far outside it."""


class Thermometer:
    """Every temperature that sensors and the kernel's own files give, in °C."""

    def __init__(self, machine: Machine | None = None, options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        machine = machine or Machine.here()
        self._files = _files(machine.sys)
        self._groups: list[Group] = []
        self._last: dict[str, tuple[float, float]] = {}
        for group in choose(known(machine.environ), Request(machine, estimate=False, options=options or {})).groups:
            if not group.info.table and any(channel.unit == _CELSIUS for channel in group.info.channels):
                self._groups.append(cast("Group", group))
            else:
                group.close()

    def read(self) -> dict[str, float]:
        """Temperatures by name; those that have not been told for ten seconds are left out."""
        found: dict[str, float] = {}
        for name, file in self._files:
            with suppress(OSError, ValueError):
                found[name] = max(int(file.read_text()) / 1000, found.get(name, -math.inf))
        now = time.monotonic()
        for group in self._groups:
            with suppress(EverywattError, OSError):
                for row in group.read():
                    for channel, value in zip(group.info.channels, row.values, strict=True):
                        if channel.unit == _CELSIUS and not math.isnan(value):
                            self._last[channel.name] = (now, value * channel.scale)
        found |= {name: value for name, (told, value) in self._last.items() if now - told < OLD_S}
        return {name: value for name, value in found.items() if _LIKELY_C[0] < value < _LIKELY_C[1]}

    def close(self) -> None:
        """Let go of the sensors."""
        for group in self._groups:
            group.close()


class TooHot:
    """A `stop` for `play`: a sentence as soon as something is hotter than the limit, else None.

    UsageError if no sensor reports a temperature: a limit that is not monitored is none.
    """

    def __init__(
        self, limit_c: float, thermometer: Thermometer | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_c = limit_c
        self._thermometer = thermometer or Thermometer()
        self._clock = clock
        self._next = clock()
        if not self._thermometer.read():
            self._thermometer.close()
            raise UsageError(
                "No sensor on this machine reports a temperature, so no limit can be enforced.",
                cure="leave --max-temperature out and limit --time",
            )

    def __call__(self) -> str | None:
        """Looks once a second."""
        if self._clock() < self._next:
            return None
        self._next = self._clock() + LOOK_S
        found = self._thermometer.read()
        if not found:
            return "no sensor reports a temperature any more"
        name, hottest = max(found.items(), key=lambda item: item[1])
        if hottest <= self._limit_c:
            return None
        return f"{name} is at {hottest:.0f} °C, above {self._limit_c:g} °C"

    def close(self) -> None:
        """Let go of the sensors."""
        self._thermometer.close()


def _files(sys: Path) -> list[tuple[str, Path]]:
    """Temperatures of hwmon chips and thermal zones, by name."""
    zones = sorted((sys / "class" / "thermal").glob("thermal_zone*/temp"))
    found = [(_word(file.parent / "type") or file.parent.name, file) for file in zones]
    for file in sorted((sys / "class" / "hwmon").glob("hwmon*/temp*_input")):
        chip = _word(file.parent / "name") or file.parent.name
        label = _word(file.with_name(file.name.replace("_input", "_label"))) or file.name.removesuffix("_input")
        found.append((f"{chip} {label}", file))
    return found


def _word(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
