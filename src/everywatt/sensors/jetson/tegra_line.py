"""One line of tegrastats, of any generation from L4T 28 to 39.

Every field is found by its name, wherever it stands; a field that is missing is None or not listed, and words that are
not known are passed over. So a new JetPack that adds, drops or moves fields changes nothing for the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

MIB = 2**20
# Real lines have some 1,000 characters.
_LONGEST = 20_000
# A sensor that is switched off says −256 °C.
_OFF_C = -200.0
_TIME = re.compile(r"(\d\d)-(\d\d)-(\d{4}) (\d\d):(\d\d):(\d\d)(?=\s|$)")
_SIZE = r"(\d{1,9})/(\d{1,9})([kMG]?)B"
_RAM = re.compile(rf"(?<!\w)RAM {_SIZE}(?:\s*\(lfb (\d{{1,9}})x(\d{{1,9}})([kMG]?)B\))?")
_SWAP = re.compile(rf"(?<!\w)SWAP {_SIZE}(?:\s*\(cached (\d{{1,9}})([kMG]?)B\))?")
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
_RAIL = re.compile(rf"(?<![\w@])([A-Za-z]\w*)\s+{_NUMBER}/{_NUMBER}(?:/{_NUMBER})?(?=\s|$)")
_MEMORY = ("RAM", "SWAP", "IRAM")
_SCALE = {"": 1, "k": 2**10, "M": MIB, "G": 2**30}
_MILLIWATTS = {"": 1.0, "uW": 1e-3, "mW": 1.0, "W": 1e3}


@dataclass(frozen=True, slots=True)
class RailPower:
    """Milliwatts of a rail: now, tegrastats' own average since it was started, and from JetPack 7.2 the peak."""

    label: str
    current_mw: float
    average_mw: float | None
    peak_mw: float | None = None


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
    ram, swap = _ram(text), _swap(text)
    cores = _CORES.search(text)
    rails = _rails(text)
    if ram is None and cores is None and not (rails and _TEMPERATURE.search(text)):
        return None
    # Only now the words: inside brackets and parentheses stand others that look like them.
    bare = _MTS.sub(" ", _LIMIT.sub(" ", re.sub(r"\([^)]{0,200}\)", " ", text)))
    engines = dict(_engines(bare))
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


def _ram(text: str) -> Memory | None:
    match = _RAM.search(text)
    if match is None:
        return None
    scale = _SCALE[match[3]]
    blocks = int(match[4]) if match[4] else None
    block_bytes = int(match[5]) * _SCALE[match[6]] if match[5] else None
    return Memory(int(match[1]) * scale, int(match[2]) * scale, blocks, block_bytes)


def _swap(text: str) -> Memory | None:
    match = _SWAP.search(text)
    if match is None:
        return None
    scale = _SCALE[match[3]]
    cached_bytes = int(match[4]) * _SCALE[match[5]] if match[4] else None
    return Memory(int(match[1]) * scale, int(match[2]) * scale, cached_bytes=cached_bytes)


def _cores(text: str, shared_mhz: str | None) -> tuple[Engine | None, ...]:
    found: list[Engine | None] = []
    for word in text.split(","):
        match = _CORE.fullmatch(word.strip())
        if match is None:
            found.append(None)
        else:
            clock = match[2] or shared_mhz
            found.append(Engine(float(match[1]), (int(clock),) if clock else ()))
    return tuple(found)


def _engines(text: str) -> list[tuple[str, Engine]]:
    found = []
    for match in _ENGINE.finditer(text):
        name, off, percent, many, one, many_alone, one_alone, clock = match.groups()
        clocks = _clocks(many or many_alone) if many or many_alone else tuple(int(c) for c in (one or one_alone,) if c)
        clocks = clocks or ((int(clock),) if clock else ())
        found.append((name, Engine(float(percent) if percent else None, clocks, bool(off))))
    return found


def _clocks(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text))


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
        peak = _milliwatts(match[6], match[7]) if match[6] and match[7] == unit else None
        found.append(RailPower(match[1], _milliwatts(match[2], unit), average, peak))
    return tuple(found)


def _milliwatts(text: str, unit: str | None) -> float:
    return float(text) * _MILLIWATTS[unit or ""]
