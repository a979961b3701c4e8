"""Recordings of Apple's powermetrics become tapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.sensors.apple.powermetrics import Sample, parse_powermetrics
from everywatt.tape.importing import write_utc_table

# Stamps tell whole seconds, the time since the last sample is exact: they are let drift apart by so much.
_DRIFT_NS = 2 * NS
_DOMAINS = {"combined": Domain.SOC, "cpu": Domain.PACKAGE, "gpu": Domain.GPU, "dram": Domain.DRAM}
_ORDER = ("combined", "cpu", "gpu", "dram", "ane")


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
    channels = tuple(_channel(part, usual_s) for part in parts)
    info = GroupInfo("powermetrics", "powermetrics", "mac", channels)
    rows = list(zip(_times(samples), samples, strict=True))
    table = [(at, tuple(sample.watts.get(part, NAN) for part in parts)) for at, sample in rows]
    meta = {"samples": len(samples), **dict(options.get("meta", {}))}
    return write_utc_table(out, [(info, table)], source=paths, meta=meta)


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
