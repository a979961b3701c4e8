"""Recordings of Apple's powermetrics become tapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import number
from everywatt.meters.series import Part, Table, write_part

_HEAD = re.compile(r"\*{3} Sampled system activity \(([^)]{10,60})\) \((\d{1,9}(?:\.\d{1,6})?)ms elapsed\) \*{3}")
_LINE = re.compile(
    r"^[ \t]*([A-Z][\w .()+-]{1,60}?)[ \t]*(?:\([^)\n]{1,40}\))?: (\d{1,7}(?:\.\d{1,6})?) ?(m?W)[ \t\r]*$", re.MULTILINE
)
# What each program version calls the same thing.
_NAMES = {
    "CPU Power": "cpu",
    "GPU Power": "gpu",
    "ANE Power": "ane",
    "DRAM Power": "dram",
    "Package Power": "combined",
    "Combined Power": "combined",
    "Intel energy model derived package power": "combined",
}
_KEYS = {"cpu_power": "cpu", "gpu_power": "gpu", "ane_power": "ane", "dram_power": "dram", "combined_power": "combined"}
# Stamps have whole seconds, the time since the last sample is exact: the two may differ by so much.
_DRIFT_NS = 2 * NS
_DOMAINS = {"combined": Domain.SOC, "cpu": Domain.PACKAGE, "gpu": Domain.GPU, "dram": Domain.DRAM}
_ORDER = ("combined", "cpu", "gpu", "dram", "ane")


@dataclass(frozen=True, slots=True)
class Sample:
    """Mean watts by part (cpu, gpu, ane, dram, combined) of the `elapsed_s` seconds that end at `time`."""

    time: datetime
    elapsed_s: float
    watts: Mapping[str, float]


def parse_powermetrics(data: bytes) -> list[Sample]:
    """The samples of a recording, text or plist. One that is cut off or damaged is left out."""
    plists = b"<plist" in data[:4096] or b"<plist" in data
    found = _plists(data) if plists else _texts(data.decode("utf-8", errors="replace"))
    return [sample for sample in found if sample.watts and sample.elapsed_s > 0]


def _texts(text: str) -> Iterator[Sample]:
    heads = list(_HEAD.finditer(text))
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(text)
        when = _when(head[1])
        if when is None:
            continue
        watts: dict[str, float] = {}
        for match in _LINE.finditer(text, head.end(), end):
            part = _NAMES.get(match[1].strip())
            if part is not None:
                watts[part] = float(match[2]) * (1e-3 if match[3] == "mW" else 1.0)
        yield Sample(when, float(head[2]) * 1e-3, watts)


def _when(text: str) -> datetime | None:
    try:
        return datetime.strptime(text.strip(), "%a %b %d %H:%M:%S %Y %z").astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _plists(data: bytes) -> Iterator[Sample]:
    import plistlib

    for part in data.split(b"\0"):
        if not part.strip():
            continue
        try:
            found: Any = plistlib.loads(part.strip(), fmt=plistlib.FMT_XML)
        except Exception:  # noqa: BLE001 - damaged XML raises many kinds
            continue
        sample = _plist(found)
        if sample is not None:
            yield sample


def _plist(found: Any) -> Sample | None:
    if not isinstance(found, Mapping) or not isinstance(found.get("timestamp"), datetime):
        return None
    elapsed_ns, processor = number(found.get("elapsed_ns")), found.get("processor")
    if elapsed_ns is None or not isinstance(processor, Mapping):
        return None
    watts = {part: value * 1e-3 for key, part in _KEYS.items() if (value := number(processor.get(key))) is not None}
    package = number(processor.get("package_watts"))
    if package is not None:
        watts["combined"] = package
    return Sample(found["timestamp"].replace(tzinfo=UTC), elapsed_ns * 1e-9, watts)


def import_powermetrics(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from what `powermetrics` printed (-f text or -f plist). Apple calls the figures estimates."""
    samples: list[Sample] = []
    for path in paths:
        try:
            samples += parse_powermetrics(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error}.") from error
    if not samples:
        raise UsageError(
            f"{paths[0]} contains no sample with power.", cure="powermetrics --samplers cpu_power,gpu_power"
        )
    samples.sort(key=lambda sample: sample.time)
    parts = [part for part in _ORDER if any(part in sample.watts for sample in samples)]
    usual_s = sorted(sample.elapsed_s for sample in samples)[len(samples) // 2]
    info = GroupInfo("powermetrics", "powermetrics", "mac", tuple(_channel(part, usual_s) for part in parts))
    table = Table(info)
    for at, sample in zip(_times(samples), samples, strict=True):
        table.add(at, [sample.watts.get(part) for part in parts])
    return write_part(out, Part([table], meta={"samples": len(samples)}), paths, options)


def _channel(part: str, usual_s: float) -> Channel:
    device = "mac" if part == "combined" else f"mac.{part}"
    facts = Facts(period_s=usual_s, window_s=usual_s, quantum=0.001)
    domain, pedigree = _DOMAINS.get(part), Pedigree.MODELLED
    return Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=pedigree, facts=facts)


def _times(samples: Sequence[Sample]) -> list[int]:
    times: list[int] = []
    for sample in samples:
        stamp_ns = round(sample.time.timestamp()) * NS
        next_ns = times[-1] + round(sample.elapsed_s * NS) if times else stamp_ns
        near = abs(next_ns - stamp_ns) <= _DRIFT_NS
        times.append(next_ns if near else max(stamp_ns, times[-1] + 1))
    return times
