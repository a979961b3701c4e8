"""Any command or file that prints a number, as a meter. What it is must be said in the settings of the user."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from everywatt.core.channels import Channel, Domain, Kind, Pedigree
from everywatt.core.errors import SensorError
from everywatt.core.units import SI_UNITS
from everywatt.sensors.meters import CommandMeters, PolledGroup

_NUMBER = re.compile(r"([-+]?\d{1,18}(?:\.\d{0,18})?(?:[eE][-+]?\d{1,2})?)\s*([A-Za-z]*)")
_LONGEST = 1 << 16


def parse_number(text: str, unit: str, pattern: str | None = None) -> float:
    """The only number in a text. SensorError if it has no number, several lines or another unit.

    `pattern` is a regular expression whose first group is the number.
    """
    if pattern is not None:
        found = re.search(pattern, text)
        if found is None or not found.groups():
            raise SensorError("the pattern matches nothing in the output.")
        text = found.group(1) or ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    match = _NUMBER.fullmatch(lines[0]) if len(lines) == 1 else None
    if match is None:
        raise SensorError(f"the output is not one number: {' | '.join(lines)[:80]!r}.")
    if match[2] and match[2] != unit:
        raise SensorError(f"the output is in {match[2]}, but the settings say {unit}.")
    return float(match[1])


class Execute(CommandMeters):
    """The sensor. Options: command (a line or a list of words, no shell) or file; unit, domain, device, pattern."""

    name = "exec"
    needs = "command or file"
    age_s = 0.0

    def configured(self) -> bool:
        """Where there is something to run or read."""
        return bool(self.options.get("command") or self.options.get("file"))

    def meters(self) -> list[PolledGroup]:
        unit = str(self.options.get("unit", "W"))
        if unit not in SI_UNITS:
            raise SensorError(f"[sensor.exec] unit = '{unit}' is not one of {', '.join(SI_UNITS)}.")
        pattern = self._pattern()
        read = self._reader()

        def ask() -> tuple[float, ...]:
            return (parse_number(read(), unit, pattern),)

        what = str(self.options.get("file") or self._words()[0])
        return [self.meter([self._channel(unit)], ask, Path(what).name)]

    def _channel(self, unit: str) -> Channel:
        try:
            domain = Domain(str(self.options.get("domain", "wall")))
        except ValueError:
            raise SensorError(f"[sensor.exec] domain must be one of {', '.join(Domain)}.") from None
        si, scale = SI_UNITS[unit]
        device = str(self.options.get("device", f"{domain}.exec"))
        counter = si == "J"
        name = f"{device}.{'energy' if counter else 'power'}"
        kind, pedigree = (Kind.COUNTER, Pedigree.COUNTER) if counter else (Kind.GAUGE, Pedigree.INTEGRATED)
        return Channel(name, si, kind, device, domain, scale, pedigree, facts=self.facts())

    def _pattern(self) -> str | None:
        pattern = self.options.get("pattern")
        try:
            return None if pattern is None else re.compile(str(pattern)).pattern
        except re.error as error:
            raise SensorError(f"[sensor.exec] pattern is not a regular expression: {error}.") from None

    def _words(self) -> list[str]:
        command: Any = self.options["command"]
        try:
            words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        except (ValueError, TypeError) as error:
            raise SensorError(f"[sensor.exec] command cannot be read: {error}.") from None
        if not words:
            raise SensorError("[sensor.exec] command is empty.")
        return words

    def _reader(self) -> Any:
        if self.options.get("file"):
            file = Path(str(self.options["file"]))

            def from_file() -> str:
                try:
                    with file.open("rb") as opened:
                        return opened.read(_LONGEST).decode(errors="replace")
                except OSError as error:
                    raise SensorError(f"{file} cannot be read: {error.strerror}.") from None

            return from_file
        words = self._words()

        return lambda: self.output(words, must_succeed=True)
