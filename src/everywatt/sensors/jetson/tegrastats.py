"""Jetson boards by the tegrastats command, where the kernel's own files are missing: one long-lived child.

Lines are of any generation from L4T 28 to 39. Every field is found by its name, at any position; a field that is
missing is None or not listed, and words that are not known are passed over. So a new JetPack that adds, drops or moves
fields changes nothing for the others.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from everywatt.core.channels import NAN, Channel, Facts, GroupInfo, Row
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Request
from everywatt.sensors.child import Child, LoopingChild
from everywatt.sensors.jetson.board_state import gauge
from everywatt.sensors.jetson.jetson import (
    GAIN_PCT,
    OFFSET_V,
    PERIOD_S,
    SHUNT_OHM,
    connected,
    first_the_total,
    rail_channel,
    total_note,
    word,
)
from everywatt.sensors.simple import SimpleSensor

MIB = 2**20
# Real lines have some 1,000 characters.
_LONGEST = 20_000
# A sensor that is switched off says −256 °C.
_OFF_C = -200.0
_TIME = re.compile(r"(\d\d)-(\d\d)-(\d{4}) (\d\d):(\d\d):(\d\d)(?=\s|$)")
_SIZE = r"(\d{1,9})/(\d{1,9})([kMG]?)B"
_PART = r"(\d{1,9})([kMG]?)B"
_CORES = re.compile(r"(?<!\w)(?:CPU|cpu) \[([^\]]{1,4000})\](?:@(\d{1,6}))?")  # until L4T 28 one clock for all
_CORE = re.compile(r"(\d{1,3})%(?:@(\d{1,6}))?")
_MTS = re.compile(r"(?<!\w)MTS fg (\d{1,3})% bg (\d{1,3})%")
_LIMIT = re.compile(r"(?<!\w)EDP limit \d{1,9}")
_ENGINE = re.compile(
    r"(?<![\w@])([A-Za-z][A-Za-z0-9_]*)\s+"
    r"(?:(off)|(\d{1,3})%(?:@(?:\[([\d,\s]{1,200})\]|(\d{1,6})))?|@(?:\[([\d,\s]{1,200})\]|(\d{1,6}))|(\d{1,6}))(?=\s|$)"
)
_TEMPERATURE = re.compile(r"(?<![\w@])([A-Za-z]\w*)@(-?\d{1,4}(?:\.\d{1,6})?)C(?:/-?\d{1,4}(?:\.\d{1,6})?C)?(?=\s|$)")
_NUMBER = r"(-?\d{1,9}(?:\.\d{1,6})?)([um]?W)?"
_RAIL = re.compile(rf"(?<![\w@])([A-Za-z]\w*)\s+{_NUMBER}/{_NUMBER}(?:/{_NUMBER})?(?=\s|$)")  # now, mean, peak
_MEMORY = ("RAM", "SWAP", "IRAM")
_SCALE = {"": 1, "k": 2**10, "M": MIB, "G": 2**30}
_MILLIWATTS = {"": 1.0, "uW": 1e-3, "mW": 1.0, "W": 1e3}


@dataclass(frozen=True, slots=True)
class RailPower:
    """Milliwatts of a rail: now, and tegrastats' own average since it was started."""

    label: str
    current_mw: float
    average_mw: float | None


@dataclass(frozen=True, slots=True)
class Engine:
    """How busy an engine is (%) and its clocks in MHz; None and () where the line lacks them."""

    percent: float | None = None
    clocks_mhz: tuple[int, ...] = ()
    off: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in use and in all; the largest free blocks of RAM, and what is cached of swap."""

    used_bytes: int
    total_bytes: int
    blocks: int | None = None
    block_bytes: int | None = None
    cached_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TegraLine:
    """What one line says. `cores` has None for a core that is off; `time` is local time without a zone."""

    time: datetime | None = None
    rails: tuple[RailPower, ...] = ()
    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    cores: tuple[Engine | None, ...] = ()
    gpu: Engine | None = None
    emc: Engine | None = None
    engines: Mapping[str, Engine] = field(default_factory=dict)
    ram: Memory | None = None
    swap: Memory | None = None
    mts_percent: tuple[float, float] | None = None


def parse_line(text: str) -> TegraLine | None:
    """What a line says, None for one that is not of tegrastats."""
    if len(text) > _LONGEST:
        return None
    ram, swap = _memory(text, "RAM"), _memory(text, "SWAP")
    cores = _CORES.search(text)
    rails = _rails(text)
    if ram is None and cores is None and not (rails and _TEMPERATURE.search(text)):
        return None
    # Words come last: text inside brackets and parentheses can look like them.
    bare = _MTS.sub(" ", _LIMIT.sub(" ", re.sub(r"\([^)]{0,200}\)", " ", text)))
    engines = _engines(bare)
    mts = _MTS.search(text)
    return TegraLine(
        time=_time(text),
        rails=rails,
        temperatures_c={match[1]: float(match[2]) for match in _TEMPERATURE.finditer(text) if float(match[2]) > _OFF_C},
        cores=_cores(cores[1], cores[2]) if cores else (),
        gpu=engines.pop("GR3D_FREQ", None) or engines.pop("GR3D", None),
        emc=engines.pop("EMC_FREQ", None) or engines.pop("EMC", None),
        engines=engines,
        ram=ram,
        swap=swap,
        mts_percent=(float(mts[1]), float(mts[2])) if mts else None,
    )


def _time(text: str) -> datetime | None:
    match = _TIME.match(text.lstrip())
    if match is None:
        return None
    month, day, year, hour, minute, second = map(int, match.groups())
    try:
        return datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None


def _memory(text: str, name: str) -> Memory | None:
    match = re.search(rf"(?<!\w){name} {_SIZE}(?:\s*\(lfb (\d{{1,9}})x{_PART}\))?(?:\s*\(cached {_PART}\))?", text)
    if match is None:
        return None
    used, total, blocks, block_bytes, cached_bytes = (
        int(number) * _SCALE[unit or ""] if number else None
        for number, unit in (
            (match[1], match[3]),
            (match[2], match[3]),
            (match[4], ""),
            match.group(5, 6),
            match.group(7, 8),
        )
    )
    return Memory(used or 0, total or 0, blocks, block_bytes, cached_bytes)


def _cores(text: str, shared_mhz: str | None) -> tuple[Engine | None, ...]:
    found: list[Engine | None] = []
    for core in text.split(","):
        match = _CORE.fullmatch(core.strip())
        if match is None:
            found.append(None)
        else:
            clock = match[2] or shared_mhz
            found.append(Engine(float(match[1]), (int(clock),) if clock else ()))
    return tuple(found)


def _engines(text: str) -> dict[str, Engine]:
    found = {}
    for match in _ENGINE.finditer(text):
        name, off, percent, many, one, many_alone, one_alone, clock = match.groups()
        clocks = tuple(map(int, re.findall(r"\d{1,9}", many or many_alone or one or one_alone or clock or "")))
        found[name] = Engine(float(percent) if percent else None, clocks, bool(off))
    return found


def _rails(text: str) -> tuple[RailPower, ...]:
    """Rails in the order of the line. Where one of them has a unit, words without one are something else."""
    # Memory loses its unit, and looks like a rail, where a line was cut off.
    matches = [match for match in _RAIL.finditer(text) if match[1] not in _MEMORY]
    units = any(match[3] for match in matches)
    found = []
    for match in matches:
        if units and not match[3]:
            continue
        unit = match[3]
        # A line that was cut off ends in a number without its unit: that number is not whole.
        average = _milliwatts(match[4], match[5]) if match[5] == unit else None
        found.append(RailPower(match[1], _milliwatts(match[2], unit), average))
    return tuple(found)


def _milliwatts(text: str, unit: str | None) -> float:
    return float(text) * _MILLIWATTS[unit or ""]


INTERVAL_MS = 430
PROBE_S = 4.0
SILENCE_S = 5.0
# tegrastats does not print a rail's voltage: 5 V and 20 V occur, and the offset is that of the larger.
_FACTS = Facts(
    period_s=PERIOD_S, window_s=PERIOD_S, quantum=0.001, gain_pct=GAIN_PCT, offset_w=20.0 * OFFSET_V / SHUNT_OHM
)
# By the last word of a channel's name. A rail's `power` is watts too, with what is known of the chip.
_UNITS = {
    **dict.fromkeys(("utilisation", "memory_utilisation", "mts_foreground", "mts_background"), "%"),
    **dict.fromkeys(("memory", "memory_total", "free_block", "swap", "swap_total", "swap_cached"), "B"),
    "average_power": "W",
    "clock": "MHz",
    "free_blocks": "",
    "temperature": "°C",
}


def line_values(line: TegraLine) -> dict[str, float]:
    """What a line says by the names of channels: rails, the input first, then the state of the board.

    Cores that are off are NaN, since they may be switched on; what else the line lacks is left out.
    """
    rails = [rail for rail in line.rails if connected(rail.label)]
    watts = {rail.label: rail.current_mw * 1e-3 for rail in reversed(rails)}
    means = {rail.label: rail.average_mw * 1e-3 for rail in reversed(rails) if rail.average_mw is not None}
    labels = list(dict.fromkeys(rail.label for rail in rails))
    values: dict[str, float | None] = {f"{word(label)}.power": watts[label] for label in first_the_total(labels)}
    for number, core in enumerate(line.cores):
        values |= {what: NAN if value is None else value for what, value in _engine(f"cpu{number}", core).items()}
    ram, swap = line.ram, line.swap
    values |= {f"{word(label)}.average_power": means.get(label) for label in labels}
    values |= _engine("gpu", line.gpu)
    values["memory_utilisation"], values["emc.clock"] = _engine("emc", line.emc).values()
    if ram is not None:
        values |= {"memory": ram.used_bytes, "memory_total": ram.total_bytes}
        values |= {"free_block": ram.block_bytes, "free_blocks": ram.blocks}
    if swap is not None:
        values |= {"swap": swap.used_bytes, "swap_total": swap.total_bytes, "swap_cached": swap.cached_bytes}
    values["mts_foreground"], values["mts_background"] = line.mts_percent or (None, None)
    values |= {f"{sensor}.temperature": celsius for sensor, celsius in line.temperatures_c.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def _engine(name: str, engine: Engine | None) -> dict[str, float | None]:
    clocks = () if engine is None else engine.clocks_mhz
    percent = None if engine is None else engine.percent
    return {f"{name}.utilisation": percent, f"{name}.clock": clocks[0] if clocks else None}


def channel_of(name: str) -> Channel:
    """The channel of a value by its name."""
    stem, _, what = name.rpartition(".")
    return rail_channel("jetson", stem, _FACTS, set()) if what == "power" else gauge(name, _UNITS[what])


class TegraGroup:
    """The child's lines as rows. Silence, an end and lines without power are a SensorError, and a new child."""

    rows_every_s = PERIOD_S

    def __init__(self, info: GroupInfo, first: dict[str, float], child: LoopingChild) -> None:
        self.info = info
        self._first = first
        self._child = child
        self._line_ns = 0

    def sample(self) -> tuple[float, ...]:
        return tuple(self._first.values())

    def read(self) -> list[Row]:
        """The lines that have arrived since the last read."""
        found = self._child.rows(self._values)
        if self._child.failure is not None:
            raise SensorError(self._child.failure)
        now_ns, step_ns = self._child.clock.monotonic_ns(), round(PERIOD_S * NS)
        rows = []
        # Lines that were kept back and come together are a period apart; none is older than the last one seen.
        for back, values in zip(reversed(range(len(found))), found, strict=True):
            read_ns = now_ns - step_ns * back
            if read_ns > self._line_ns:
                rows.append(Row(read_ns, max(read_ns - step_ns, self._line_ns), read_ns, values))
                self._line_ns = read_ns
        return rows

    def _values(self, text: str) -> tuple[float, ...] | None:
        line = parse_line(text)
        said = {} if line is None else line_values(line)
        values = tuple(said.get(name, NAN) for name in self._first)
        return values if values[0] == values[0] else None  # without the first rail it is no reading

    def close(self) -> None:
        self._child.end()


class Tegrastats(SimpleSensor):
    name = "tegrastats"
    after: Sequence[str] = ("jetson",)
    absent = "tegrastats was not found on the PATH."

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.how = "one tegrastats, power integrated"

    def find(self) -> list[TegraGroup]:
        """One group, by the first line of a short run of it."""
        environ, clock = self.machine.environ, self.machine.clock
        binary = shutil.which("tegrastats", path=environ.get("PATH", ""))
        if binary is None:
            return []
        command = [binary, "--interval", str(INTERVAL_MS)]
        line = self._first_line(command)
        values = line_values(line)
        channels = tuple(map(channel_of, values))
        if not any(channel.unit == "W" for channel in channels):
            raise SensorError("tegrastats runs, but its lines contain no power.", cure="sudo everywatt doctor")
        note = total_note([rail.label for rail in line.rails])
        self.devices = [{"device": "jetson", **({"note": note} if note else {})}]
        info = GroupInfo("tegrastats", self.name, "jetson", channels, label="tegrastats")
        child = LoopingChild(self.name, lambda: command, environ, clock, PERIOD_S, SILENCE_S)
        return [TegraGroup(info, values, child)]

    def _first_line(self, command: Sequence[str]) -> TegraLine:
        clock = self.machine.clock
        start_ns = clock.monotonic_ns()
        child = Child(command, self.machine.environ)
        said = ""
        try:
            while (now_ns := clock.monotonic_ns()) - start_ns < PROBE_S * NS:
                for text in child.lines():
                    if (line := parse_line(text)) is not None:
                        return line
                    said = said or text.strip()
                if child.finished:
                    raise SensorError(f"tegrastats exited without printing a line{f': {said[:200]}' if said else '.'}")
                clock.sleep_until(now_ns + 20_000_000)
        finally:
            child.end()
        raise SensorError(f"tegrastats printed no line within {PROBE_S:g} s.")
