"""Jetson boards: the rails that their INA3221 (and Thor's INA238) measure, read from the kernel's own files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everywatt.core.channels import NAN, Channel, GroupInfo
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.jetson.jetson_rails import Rail, facts_of, find_rails, first_the_total, rail_channel, total_note
from everywatt.sensors.sysfs import Opener, SignedFile, ValueGroup, in_unit, open_readonly, read_text

if TYPE_CHECKING:
    from everywatt.sensors.usage.activity import StateGroup

_USUAL_V = 5.0


class RailReader:
    """One rail's watts: its power file, else volts times amps."""

    def __init__(self, rail: Rail, opener: Opener = open_readonly) -> None:
        self.rail = rail
        self._files = [SignedFile(path, opener=opener) for path in rail.files]

    @property
    def why(self) -> str:
        """Why there is no value."""
        return "; ".join(f"{file.path.name}: {file.trouble}" for file in self._files if file.trouble)

    @property
    def denied(self) -> bool:
        """True where permission is what is missing."""
        return any(file.denied for file in self._files)

    def read(self) -> float:
        """Watts, NaN where a file has no value."""
        values = [file.read() for file in self._files]
        return values[0] * self.rail.power_w if self.rail.power is not None else values[0] * values[1] * 1e-6

    def volts(self) -> float:
        """The rail's voltage, or 5 V if only its power is known."""
        read = NAN if self.rail.millivolts is None else self._files[0].read() * 1e-3
        return read if read > 0 else _USUAL_V

    def close(self) -> None:
        for file in self._files:
            file.close()


class Jetson:
    """The sensor. One group for each chip; the input rail is the module's total, the others never join it."""

    name = "jetson"
    after: Sequence[str] = ()

    def __init__(self, request: Request, *, opener: Opener = open_readonly) -> None:
        self._machine = request.machine
        self._opener = opener
        self._found: list[tuple[Channel, RailReader]] | None = None

    def probe(self) -> Report:
        """Which rails there are, with one reading of each."""
        self._found = []
        rails, missing = find_rails(self._machine)
        if not rails:
            return Report(self.name, State.ABSENT, "No INA3221 with a rail was found.", missing=missing)
        order = first_the_total([rail.label for rail in rails])
        rails.sort(key=lambda rail: order.index(rail.label))
        taken: set[str] = set()
        samples: dict[str, float | None] = {}
        denied = False
        for rail in rails:
            reader = RailReader(rail, self._opener)
            watts = reader.read()
            channel = rail_channel("jetson", rail.label, facts_of(rail, reader.volts()), taken)
            reader.close()
            denied = denied or reader.denied
            if watts != watts:
                missing[channel.name] = reader.why
                continue
            self._found.append((channel, reader))
            samples[channel.name] = watts
        if not samples:
            why = "Rails exist but deliver nothing: " + "; ".join(list(missing.values())[:4]) + "."
            cure = "run as root, or make the files readable for one group" if denied else None
            return Report(self.name, State.UNUSABLE, why, cure, missing=missing)
        device = self._device(samples)
        state = self._state()
        if state.info.channels:
            (row,) = state.read()
            found = zip(state.info.channels, row.values, strict=True)
            samples |= {channel.name: in_unit(channel, raw) for channel, raw in found}
            missing |= state.missing
        state.close()
        return Report(self.name, State.USABLE, "", None, samples, missing, [device])

    def _state(self) -> StateGroup:
        from everywatt.sensors.jetson.board_state import board_state  # few machines are a Jetson

        return board_state(self._machine)

    def _device(self, samples: dict[str, float | None]) -> dict[str, object]:
        labels = [reader.rail.label for _, reader in self._found or ()]
        note = total_note(labels)
        below = sorted(name for name, watts in samples.items() if watts is not None and watts < 0)
        if below:
            low = f"{', '.join(below)} reads below 0 W, an offset of the chip that is not corrected"
            note = f"{note}; {low}" if note else low
        device: dict[str, object] = {"device": "jetson", "name": self._model(), "rails": labels}
        return {**device, "note": note} if note else device

    def _model(self) -> str:
        text = read_text(self._machine.proc / "device-tree" / "model")
        return (text or "").rstrip("\0 ")

    def groups(self) -> list[ValueGroup[RailReader] | StateGroup]:
        """One group for each chip, which publish by clocks of their own, and what the board does beside."""
        if self._found is None:
            self.probe()
        chips: dict[str, list[tuple[Channel, RailReader]]] = {}
        for channel, reader in self._found or ():
            chips.setdefault(reader.rail.chip, []).append((channel, reader))
        groups: list[ValueGroup[RailReader] | StateGroup] = []
        for chip, members in chips.items():
            channels = tuple(channel for channel, _ in members)
            info = GroupInfo(
                f"jetson.{chip}",
                self.name,
                "jetson",
                channels,
                tracked=channels[0].facts.period_s is not None,
                label=self._model(),
            )
            age_s = channels[0].facts.period_s or 0.0
            groups.append(ValueGroup(info, [reader for _, reader in members], self._machine.clock, age_s=age_s))
        state = self._state() if groups else None
        return [*groups, state] if state is not None and state.info.channels else groups
