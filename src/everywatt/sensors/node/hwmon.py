"""Power and energy of hwmon chips: AMD's energy driver, graphics cards, rails, power supplies, ACPI power meters.

What a chip's joules cover is data (`CHIPS`). A chip that is not in the table is a rail under its own name: it is
recorded, and no total takes it in where it might be counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from everywatt.core.channels import Cadence, Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.sensors.cpu.rapl import PERIOD_S, Cpu, Rapl, energy_channel, name_of
from everywatt.sensors.jetson.jetson import connected, hwmon_chips, word
from everywatt.sensors.procfs import file_text
from everywatt.sensors.simple import SimpleSensor
from everywatt.sensors.sysfs import (
    Candidate,
    NumberFile,
    ValueGroup,
    address_of,
    alive,
    deliver_nothing,
    entries,
    numbered,
    read_count,
    socket_of,
    value_groups,
)

MICRO = 1e-6
_VALUE = re.compile(r"(power|energy)(\d+)_(average|input)")
_CORE = re.compile(r"Ecore(\d+)")
_SOCKET = re.compile(r"Esocket(\d+)")
_CPU_COUNTERS = ("amd_energy", "zenergy")
_CARDS = ("amdgpu", "i915", "xe")


@dataclass(frozen=True, slots=True)
class Chip:
    """What a chip's values cover: by label where that is known, else `rest`. None keeps a value out of every total."""

    rest: Domain | None
    labels: dict[str, Domain | None] = field(default_factory=dict)


# Device and domain of what ACPI power meters of NVIDIA's superchips measure, by "Module Power Socket 0". They nest: a
# module holds its Grace and its GPUs, and a Grace (processor, memory, regulators) its CPU and SysIO rails. Which of
# NVML's cards a "GPU Power Socket" holds is not known, so no total takes it in.
_SUPERCHIP = re.compile(r"(Module|Grace|CPU|SysIO|GPU) Power Socket (\d{1,3})")
_SUPERCHIP_PARTS: dict[str, tuple[str, Domain | None]] = {
    "Module": ("module", Domain.MODULE),
    "Grace": ("cpu", Domain.PACKAGE),
    "CPU": ("cpu", Domain.CORE),
    "SysIO": ("cpu", Domain.UNCORE),
    "GPU": ("gpu-socket", None),
}
CHIPS: dict[str, Chip] = {
    # Laptop processors with graphics report the whole chip here, under these labels.
    "amdgpu": Chip(Domain.GPU, {"slowPPT": Domain.SOC, "fastPPT": None}),
    "i915": Chip(Domain.GPU),
    # A card contains its package. Arc A and Ponte Vecchio have no `card`: there the package is all that is measured.
    "xe": Chip(None, {"card": Domain.GPU, "pkg": Domain.GPU, "power1": Domain.GPU, "energy1": Domain.GPU}),
    "power_meter": Chip(Domain.NODE),
    "ibmaem": Chip(Domain.NODE),
    "fam15h_power": Chip(Domain.PACKAGE),
    "amd_hsmp_hwmon": Chip(Domain.PACKAGE),
    "zenpower": Chip(None, {"SVI2_P_Core": Domain.CORE, "SVI2_P_SoC": Domain.UNCORE}),
    "corsairpsu": Chip(None, {"power total": Domain.PSU}),
    "ina3221": Chip(Domain.RAIL, {"VDD_IN": Domain.SOC, "POM_5V_IN": Domain.SOC}),
    "ina226": Chip(Domain.RAIL),
}
UNKNOWN = Chip(Domain.RAIL)
# A battery's power says what flows into or out of it, not what the machine draws.
BATTERY = Chip(None)


@dataclass(frozen=True, slots=True)
class Value:
    """One power or energy file of a chip. `which` distinguishes chips of the same name."""

    chip: str
    which: int
    folder: Path
    quantity: str
    index: int
    file: str
    label: str

    @property
    def device(self) -> str:
        """`hwmon.NAME`, with a number from the second chip of that name on."""
        return f"hwmon.{word(self.chip)}" + (f"-{self.which}" if self.which else "")


def find_values(sys: Path) -> tuple[list[Value], dict[str, str]]:
    """Every power and energy value of every chip, and those left out with the reason."""
    values: list[Value] = []
    left_out: dict[str, str] = {}
    seen: dict[str, int] = {}
    for folder in entries(sys / "class" / "hwmon"):
        # Older drivers, ACPI's power meter among them, keep their files one level below.
        found = [value for place in (folder, folder / "device") for value in _values(place, folder, left_out)]
        if not found:
            continue
        chip = found[0].chip
        which = seen[chip] = seen.get(chip, -1) + 1
        values += [Value(v.chip, which, v.folder, v.quantity, v.index, v.file, v.label) for v in found]
    return values, left_out


def _values(place: Path, folder: Path, left_out: dict[str, str]) -> Iterator[Value]:
    chip = file_text(folder / "name") or file_text(folder / "device" / "name") or folder.name
    for path in entries(place):
        match = _VALUE.fullmatch(path.name)
        if match is None or (match[1] == "energy" and match[3] == "average"):
            continue
        stem = f"{match[1]}{match[2]}"
        about = file_text(place / f"{stem}_oem_info")
        label = file_text(place / f"{stem}_label") or (about if _SUPERCHIP.fullmatch(about) else stem)
        if not connected(label):
            left_out[f"{chip}/{path.name}"] = f"labelled '{label}': not connected"
            continue
        yield Value(chip, 0, place, match[1], int(match[2]), path.name, label)


def card_devices(sys: Path) -> dict[str, tuple[str, str]]:
    """Device (`gpu.0`) and chip of each graphics card that reports power here, by socket (PCI address)."""
    found: dict[str, str] = {}
    for value in find_values(sys)[0]:
        socket = socket_of(address_of(value.folder)) if value.chip in _CARDS else None
        if socket:
            found.setdefault(socket, value.chip)
    return {socket: (device, found[socket]) for socket, device in numbered(sys, found).items()}


class Hwmon(SimpleSensor):
    """The sensor. One group for each chip; a CPU energy driver has one for its sockets and a slow one for its cores,
    of which there may be hundreds.

    AMD's energy driver counts what RAPL counts. Where `rapl` or `perf` is in the same run its sockets are mirrors of
    their packages; named alone (`--sensors hwmon`) they count by themselves.
    """

    name = "hwmon"
    absent = "No hwmon chip reports power or energy."

    def find(self) -> list[ValueGroup]:
        values, left_out = find_values(self.machine.sys)
        self.missing |= left_out
        values = self._not_of_others(values)
        # By the chip's own place: the kernel gives the number of a chip that left to the next one.
        files = [NumberFile(value.folder.resolve() / value.file) for value in values]
        tried = []
        for value, file in zip(values, files, strict=True):
            joules, core = MICRO if value.quantity == "energy" else None, _CORE.fullmatch(value.label)
            tried.append(Candidate(f"{value.device}/{value.file}", file, joules, may_rest=core is not None))
        working = alive(zip(values, files, strict=True), tried, self.missing, self.machine.clock)
        if values and not working:
            raise deliver_nothing("hwmon chips", files, self.missing)
        channels = self._channels([value for value, _ in working])
        self.devices = [{"device": d, "chip": chip} for d, chip in {v.device: v.chip for v, _ in working}.items()]
        self.power = any(channel.carries_energy and channel.mirror_of is None for channel in channels)
        found = [(self._info(value, c), c, file) for (value, file), c in zip(working, channels, strict=True)]
        return value_groups(found, self.machine.clock)

    def _info(self, value: Value, channel: Channel) -> GroupInfo:
        cores = channel.device.startswith("core.")
        return GroupInfo(
            f"{value.device}.cores" if cores else value.device,
            self.name,
            value.device,
            (),
            cadence=Cadence.SLOW if cores else Cadence.FAST,
            inline=value.chip in _CPU_COUNTERS and not cores,
            label=value.chip,
        )

    def _not_of_others(self, values: list[Value]) -> list[Value]:
        """Without the chips that the `jetson` sensor of the same run reads."""
        wanted = self.request.sensors
        if wanted is not None and "jetson" not in wanted:
            return values
        theirs = {folder.name for folder in hwmon_chips(self.machine)}
        return [v for v in values if v.folder.name not in theirs and v.folder.parent.name not in theirs]

    def _channels(self, values: Sequence[Value]) -> list[Channel]:
        cpu = Cpu.read(self.machine.proc)
        by_rapl = self._beside() if any(v.chip in _CPU_COUNTERS for v in values) else frozenset()
        whole = {(v.device, v.quantity, v.index) for v in values if v.file.endswith("_average")}
        out = _kept_out(values)
        cards = card_devices(self.machine.sys) if any(value.chip in _CARDS for value in values) else {}
        channels: list[Channel] = []
        taken: set[str] = set()
        for value in values:
            name = _name(value)
            twin = value.file.endswith("_input") and (value.device, value.quantity, value.index) in whole
            mirror_of = f"{name}.{value.quantity}" if twin else None
            name += "_input" if twin else ""
            while f"{name}.{value.quantity}" in taken:
                name += f"-{value.index}"
            taken.add(f"{name}.{value.quantity}")
            full = f"{name}.{value.quantity}"
            if value.chip in _CPU_COUNTERS:
                channels.append(_cpu_channel(value, full, cpu, by_rapl))
            else:
                channel = _chip_channel(value, full, mirror_of, value in out)
                known = cards.get(socket_of(address_of(value.folder)) or "") if channel.domain is Domain.GPU else None
                channels.append(replace(channel, device=known[0]) if known else channel)
        return channels

    def _beside(self) -> frozenset[str]:
        """Names of the RAPL channels that the same run records."""
        from everywatt.sensors.cpu.perf import PerfRapl  # only AMD's energy driver is compared with it

        wanted = self.request.sensors
        for sensor in (Rapl(self.request), PerfRapl(self.request)):
            if wanted is None or sensor.name in wanted:
                report = sensor.probe()
                if report.usable:
                    return frozenset(report.samples)
        return frozenset()


def _cpu_channel(value: Value, name: str, cpu: Cpu, by_rapl: frozenset[str]) -> Channel:
    """A socket or a core of AMD's energy driver, which extends the hardware's 32 bits itself and so never wraps."""
    socket, core = _SOCKET.fullmatch(value.label), _CORE.fullmatch(value.label)
    domain = Domain.PACKAGE if socket else Domain.CORE
    place = str(int(socket[1])) if socket else ""
    model = energy_channel(domain, place, cpu=cpu, scale=MICRO, wrap=None, max_w=None)
    device = f"cpu.{place}" if socket else f"core.{int(core[1])}" if core else value.device
    twin = name_of(Domain.PACKAGE, place) if socket else ""
    kept = domain if socket or core else None
    mirror_of = twin if twin in by_rapl else None
    return Channel(name, "J", Kind.COUNTER, device, kept, MICRO, mirror_of=mirror_of, facts=model.facts)


def _name(value: Value) -> str:
    """A channel's name without its quantity: by chip and label, a superchip's by device and domain."""
    device, domain = _superchip(value) or ("", None)
    if domain is None:
        return f"{value.device}.{word(value.label)}"
    return device if domain is Domain.MODULE else f"{device}.{domain.value}"


def _superchip(value: Value) -> tuple[str, Domain | None] | None:
    """Device and domain of a superchip's ACPI meter by its label; None for every other value."""
    match = _SUPERCHIP.fullmatch(value.label) if value.chip == "power_meter" else None
    if match is None:
        return None
    device, domain = _SUPERCHIP_PARTS[match[1]]
    return f"{device}.{int(match[2])}", domain


def _kept_out(values: Sequence[Value]) -> frozenset[Value]:
    """Values that others (may) contain: a card's package, several ACPI meters that do not say what they measure."""
    cards = {value.device for value in values if value.chip == "xe" and value.label == "card"}
    unknown = [value for value in values if value.chip == "power_meter" and _superchip(value) is None]
    inner = [value for value in values if value.device in cards and value.label == "pkg"]
    return frozenset(inner + (unknown if len({value.device for value in unknown}) > 1 else []))


def _chip_channel(value: Value, name: str, mirror_of: str | None, out: bool) -> Channel:
    chip = BATTERY if re.fullmatch(r"BAT\w*", value.chip) else CHIPS.get(value.chip, UNKNOWN)
    device, domain = _superchip(value) or (value.device, None if out else chip.labels.get(value.label, chip.rest))
    counter = value.quantity == "energy"
    return Channel(
        name,
        "J" if counter else "W",
        Kind.COUNTER if counter else Kind.GAUGE,
        device,
        domain,
        MICRO,
        Pedigree.COUNTER if counter else Pedigree.INTEGRATED,
        mirror_of,
        _facts(value),
        in_slot=value.chip in _CARDS and domain is Domain.GPU,
    )


def _facts(value: Value) -> Facts:
    """What the chip says of itself: intervals in milliseconds, accuracy in percent, power in microwatts."""

    def count(ending: str) -> int | None:
        return read_count(value.folder / f"{value.quantity}{value.index}_{ending}")

    update_ms = read_count(value.folder / "update_interval")
    interval_ms = count("average_interval") if value.file.endswith("_average") else None
    most_uw = count("rated_max") or count("cap_max")
    # ACPI's meaning: 90 % accuracy is an error of up to 10 %. "100.0%" is a field that was never filled in.
    accuracy = re.match(r"\d+(\.\d+)?", file_text(value.folder / f"power{value.index}_accuracy"))
    error_pct = 100.0 - float(accuracy[0]) if accuracy else 0.0
    return Facts(
        period_s=update_ms / 1e3 if update_ms else PERIOD_S if value.chip in _CPU_COUNTERS else None,
        window_s=interval_ms / 1e3 if interval_ms else None,
        max_w=most_uw * MICRO if most_uw else None,
        gain_pct=error_pct if 0.0 < error_pct < 100.0 else None,
    )
