"""Jetson boards: the rails that their INA3221 (and Thor's INA238) measure, read from the kernel's own files.

By hwmon (JetPack 5 and later) or iio (JetPack 4). What a rail's watts cover is in its name (`TOTALS`); everything else
is a rail. The same table serves tegrastats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.machine import Machine
from everywatt.sensors.base import Report
from everywatt.sensors.procfs import file_text
from everywatt.sensors.simple import Sampled, SimpleSensor
from everywatt.sensors.sysfs import (
    Candidate,
    SignedFile,
    ValueGroup,
    alive,
    deliver_nothing,
    entries,
    read_count,
    value_groups,
)

if TYPE_CHECKING:
    from everywatt.sensors.usage.activity import StateGroup

# The input of the module (TX, NX, Nano) or of the whole board (Thor's VIN, measured before the carrier board).
TOTALS = ("VDD_IN", "POM_5V_IN", "VIN")
NO_TOTAL = (
    "no rail of this board is its input: the figure is the sum of the module's rails, without the carrier board and "
    "what is plugged into it"
)
# NVIDIA's start-up script has 512 samples averaged: about 430 ms, so that reading faster repeats values.
PERIOD_S = 0.43
# Shunts of the developer kits are 5 mΩ, 1 %. The INA3221 counts 40 µV of shunt voltage and is off by up to 80 µV.
SHUNT_OHM, STEP_V, OFFSET_V = 0.005, 40e-6, 80e-6
GAIN_PCT = 2.0
# The input rail in the series of exporters, by its names on the boards.
SERIES_TOTALS = ("vdd_in", "pom_5v_in", "vin", "vin_sys_5v0", "5v_in")
I2C = "perf.sys.bus.i2c."
SERIES_UNITS = (
    ("percentage", "%"),
    ("celcius", "°C"),
    ("celsius", "°C"),
    ("_hz", "Hz"),
    ("bytes", "B"),
    ("_epoch", "s"),
)
_NOT_CONNECTED = {"nc", "n/c", "not connected", "not_connected"}
_CHIP = re.compile(r"ina3221x?")
_TOTAL_CHIP = "ina238"
_ADDRESS = re.compile(r"\d+-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class Rail:
    """One measured supply: the file with its power (`power_w` watts for each count), or those with its mV and mA."""

    chip: str
    label: str
    files: tuple[Path, ...]
    power_w: float
    shunt_ohm: float
    period_s: float | None


def domain_of(label: str) -> Domain:
    """What the watts of a rail of this name cover."""
    return Domain.SOC if label.upper() in TOTALS else Domain.RAIL


def connected(label: str) -> bool:
    """False for a channel of the chip that the board does not use."""
    return label.strip().lower() not in _NOT_CONNECTED


def word(label: str) -> str:
    """A label as part of a channel's name."""
    return re.sub(r"[^\w+-]+", "_", label.strip()).strip("_") or "unnamed"


def rail_channel(device: str, label: str, facts: Facts, taken: set[str]) -> Channel:
    """The power channel of a rail, in watts, under a name that is not taken yet."""
    stem, number = word(label), 1
    while (name := f"{device}.{stem}.power") in taken:
        number += 1
        stem = f"{word(label)}-{number}"
    taken.add(name)
    return Channel(name, "W", Kind.GAUGE, device, domain_of(label), pedigree=Pedigree.INTEGRATED, facts=facts)


def first_the_total(labels: Iterable[str]) -> list[str]:
    """Labels with the input first: the recorder watches the first channel of a group for changes."""
    return sorted(labels, key=lambda label: label.upper() not in TOTALS)


def find_rails(machine: Machine) -> tuple[list[Rail], dict[str, str]]:
    """Every rail, and channels that are left out with the reason."""
    left_out: dict[str, str] = {}
    rails = [rail for folder in hwmon_chips(machine) for rail in _hwmon_rails(folder, left_out)]
    rails += [rail for folder in _iio_folders(machine.sys) for rail in _iio_rails(folder, left_out)]
    return rails, left_out


def hwmon_chips(machine: Machine) -> list[Path]:
    """The hwmon folders that are ours: every INA3221, and on a board with one (or a Tegra) the INA238."""
    found: dict[str, Path] = {}
    for folder in _hwmon_folders(machine.sys):
        found.setdefault(folder.name, folder)
    named = {name: file_text(folder / "name").lower() for name, folder in found.items()}
    ours = [folder for name, folder in found.items() if _CHIP.fullmatch(named[name])]
    if ours or _is_tegra(machine):
        ours += [folder for name, folder in found.items() if named[name] == _TOTAL_CHIP]
    return sorted(ours, key=lambda folder: (_address(folder), folder.name))


def _hwmon_folders(sys: Path) -> Iterator[Path]:
    yield from entries(sys / "class" / "hwmon")
    for bus in ("drivers/ina3221", "drivers/ina3221x", "drivers/ina238", "drivers/ina2xx", "devices"):
        for device in entries(sys / "bus" / "i2c" / bus):
            if _ADDRESS.fullmatch(device.name):
                yield from entries(device / "hwmon")


def _is_tegra(machine: Machine) -> bool:
    places = (machine.proc / "device-tree", machine.sys / "firmware" / "devicetree" / "base")
    return any("tegra" in file_text(place / "compatible") for place in places)


def _address(folder: Path) -> str:
    """The place of a chip on its bus (`1-0040`), or its folder's name if unknown."""
    device = folder / "device"
    places: list[Path] = [folder.resolve(), *([device.resolve()] if device.exists() else [])]
    for path in places:
        for part in reversed(path.parts):
            if _ADDRESS.fullmatch(part):
                return part
    return folder.name


def _hwmon_rails(folder: Path, left_out: dict[str, str]) -> Iterator[Rail]:
    chip = _address(folder)
    total = file_text(folder / "name").lower() == _TOTAL_CHIP
    period_ms = read_count(folder / "update_interval")
    period_s = period_ms / 1e3 if period_ms else None if total else PERIOD_S
    # Channels 4 to 6 of an INA3221 are its shunts' voltages and 7 is their sum: no rails.
    for index in (1,) if total else (1, 2, 3):
        labels = [file_text(folder / f"{kind}{index}_label") for kind in ("in", "power", "curr")]
        label = next(filter(None, labels), None) or file_text(folder / "label") or ("VIN" if total else f"in{index}")
        files = _there(folder, f"power{index}_input", f"in{index}_input", f"curr{index}_input")
        if not files:
            continue
        if not connected(label):
            left_out[f"{chip}/in{index}"] = f"labelled '{label}': not connected"
        elif file_text(folder / f"in{index}_enable") == "0":
            left_out[f"{chip}/in{index}"] = f"{label} is switched off (in{index}_enable is 0)"
        else:
            micro_ohm = read_count(folder / f"shunt{index}_resistor")
            yield Rail(chip, label, files, 1e-6, micro_ohm * 1e-6 if micro_ohm else SHUNT_OHM, period_s)


def _iio_folders(sys: Path) -> list[Path]:
    """Folders with `rail_name_0`: under the chip's address, else in the class of iio devices."""
    devices = [
        device
        for bus in ("drivers/ina3221x", "drivers/ina3221", "devices")
        for device in entries(sys / "bus" / "i2c" / bus)
        if _ADDRESS.fullmatch(device.name)
    ]
    found: dict[str, Path] = {}
    for device in devices:
        folders = [folder for folder in entries(device) if folder.name.startswith("iio") and _has_rails(folder)]
        for folder in folders[:1]:  # `iio_device` and `iio:deviceN` are two names of one thing
            found.setdefault(device.name, folder)
    if found:
        return [found[address] for address in sorted(found)]
    return [folder for folder in entries(sys / "bus" / "iio" / "devices") if _has_rails(folder)]


def _has_rails(folder: Path) -> bool:
    return any((folder / f"rail_name_{index}").exists() for index in range(3))


def _iio_rails(folder: Path, left_out: dict[str, str]) -> Iterator[Rail]:
    chip = _address(folder)
    for index in range(3):
        label = file_text(folder / f"rail_name_{index}") or f"rail{index}"
        names = (f"in_power{index}_input", f"in_voltage{index}_input", f"in_current{index}_input")
        files = _there(folder, *names)
        if files and not connected(label):
            left_out[f"{chip}/rail{index}"] = f"labelled '{label}': not connected"
        elif files:
            yield Rail(chip, label, files, 1e-3, SHUNT_OHM, PERIOD_S)


def _there(folder: Path, power: str, volts: str, amps: str) -> tuple[Path, ...]:
    """The file with a rail's power, else those with its volts and amps; nothing where neither is there."""
    found = ((folder / power,), (folder / volts, folder / amps))
    return next((files for files in found if all(file.exists() for file in files)), ())


def facts_of(rail: Rail, volts: float) -> Facts:
    """What the chip's step and offset are at this rail's voltage (5 V unless read)."""
    amp_step, amp_offset = STEP_V / rail.shunt_ohm, OFFSET_V / rail.shunt_ohm
    return Facts(
        period_s=rail.period_s,
        window_s=rail.period_s,
        quantum=round(amp_step * volts, 6),
        gain_pct=GAIN_PCT,
        offset_w=round(amp_offset * volts, 6),
    )


def total_note(labels: Sequence[str]) -> str | None:
    """What has to be said of a board without an input rail, None of the others."""
    return None if any(label.upper() in TOTALS for label in labels) else NO_TOTAL


def series_channel(name: str, sensor: str, key: str) -> Channel:
    """The channel of a series: watts of the board or of a rail, else a state with the unit of its name."""
    rail = (name.removeprefix(I2C) if name.startswith(I2C) else sensor).lower()
    watts = name.startswith(I2C) or "wattage_current_milliwatts" in name
    if watts:
        total = rail in SERIES_TOTALS
        channel = "soc.power" if total else f"soc.{rail or 'rail'}.power"
        domain = Domain.SOC if total else Domain.RAIL
        scale = 0.001 if "milliwatts" in name else 1.0
        return Channel(channel, "W", Kind.GAUGE, "soc", domain, scale, Pedigree.INTEGRATED)
    unit = next((unit for word, unit in SERIES_UNITS if word in name), "")
    return Channel(key, unit, Kind.GAUGE, "host")


_USUAL_V = 5.0


class RailReader:
    """One rail's watts: its power file, else volts times amps."""

    def __init__(self, rail: Rail) -> None:
        self.rail = rail
        self.files = [SignedFile(path.resolve()) for path in rail.files]

    @property
    def trouble(self) -> str:
        return "; ".join(f"{file.path.name}: {file.trouble}" for file in self.files if file.trouble)

    def read(self) -> float:
        """Watts, NaN where a file has no value."""
        first, *amps = [file.read() for file in self.files]
        return first * amps[0] * 1e-6 if amps else first * self.rail.power_w

    def volts(self) -> float:
        """The rail's voltage, or 5 V if only its power is known."""
        read = self.files[0].read() * 1e-3 if len(self.files) > 1 else NAN
        return read if read > 0 else _USUAL_V

    def close(self) -> None:
        for file in self.files:
            file.close()


class Jetson(SimpleSensor):
    """The sensor. One group for each chip, which publish by clocks of their own, and what the board does beside.

    The input rail is the module's total, the others never join it.
    """

    name = "jetson"
    absent = "No INA3221 with a rail was found."

    def find(self) -> list[ValueGroup]:
        rails, left_out = find_rails(self.machine)
        self.missing |= left_out
        order = first_the_total([rail.label for rail in rails])
        rails.sort(key=lambda rail: order.index(rail.label))
        readers = [RailReader(rail) for rail in rails]
        taken: set[str] = set()
        channels = [rail_channel("jetson", one.rail.label, facts_of(one.rail, one.volts()), taken) for one in readers]
        tried = [Candidate(channel.name, reader) for channel, reader in zip(channels, readers, strict=True)]
        found = alive(zip(channels, readers, strict=True), tried, self.missing, self.machine.clock)
        self._labels = [reader.rail.label for _, reader in found]
        if rails and not found:
            raise deliver_nothing("Rails", [file for reader in readers for file in reader.files], self.missing)
        return value_groups([(self._info(c, reader), c, reader) for c, reader in found], self.machine.clock)

    def probe(self) -> Report:
        """One reading of each rail, and what else the board shows."""
        report = super().probe()
        if not report.usable:
            return report
        samples, state = dict(report.samples), self._state()
        device = self._device(samples)
        if state.info.channels:
            samples |= state.sample()
            self.missing |= state.missing
        return replace(report, samples=samples, devices=[device])

    def groups(self) -> list[Sampled | StateGroup]:  # type: ignore[override]
        groups: list[Sampled | StateGroup] = [*super().groups()]
        state = self._state() if groups else None
        return [*groups, state] if state is not None and state.info.channels else groups

    def _state(self) -> StateGroup:
        from everywatt.sensors.jetson.board_state import board_state  # few machines are a Jetson

        return board_state(self.machine)

    def _device(self, samples: Mapping[str, float | None]) -> dict[str, object]:
        notes = [note for note in (total_note(self._labels),) if note]
        if below := sorted(name for name, watts in samples.items() if watts is not None and watts < 0):
            notes.append(f"{', '.join(below)} reads below 0 W, an offset of the chip that is not corrected")
        device: dict[str, object] = {"device": "jetson", "name": self._model(), "rails": self._labels}
        return {**device, "note": "; ".join(notes)} if notes else device

    def _model(self) -> str:
        return file_text(self.machine.proc / "device-tree" / "model")

    def _info(self, channel: Channel, reader: RailReader) -> GroupInfo:
        tracked = channel.facts.period_s is not None
        return GroupInfo(f"jetson.{reader.rail.chip}", self.name, "jetson", (), tracked=tracked, label=self._model())
