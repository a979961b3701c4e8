"""How good a recording is: requested and achieved rates, gaps, late ticks, throttling, the meter's own cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Domain, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.format import format_percent
from everywatt.core.stats import median
from everywatt.energy.sources import sources
from everywatt.energy.ticks import part_time, sees_a_part
from everywatt.tape.columns import load_columns, read_times
from everywatt.tape.reader import StoredGroup, Tape

SLOW_SENSOR = 3.0
# Remarks of the recorder that a reader of the figure must know. Others (where the tape was spooled, spans that were
# closed twice) stay on the tape; rates that were not reached are found from the rows themselves.
REPORTED_KINDS = frozenset(
    {"warning", "gap", "trouble", "lost", "sensor", "suspend", "client", "recorder", "tape", "cuda", "error"}
)
# NVML clock-event reasons that mean the card was held back: software and hardware power caps, thermal slowdowns.
HELD_BACK = 0x0000000000000004 | 0x0000000000000008 | 0x0000000000000020 | 0x0000000000000040 | 0x0000000000000080


def quality(tapes: Sequence[Tape]) -> dict[str, Any]:
    groups: dict[str, Any] = {}
    warnings: list[str] = []
    for tape in tapes:
        for group in tape.groups:
            if group.info.table or not any(channel.carries_energy for channel in group.info.channels):
                continue
            entry = _rates(tape, group)
            warnings += _rate_warning(group, entry)
            groups[group.info.name] = _longer(groups.get(group.info.name), entry)
        warnings += _throttling(tape)
        warnings += _unwitnessed(tape)
        warnings += [note.text for note in tape.notes() if note.kind in REPORTED_KINDS]
    return {
        "groups": groups,
        "gaps": [_gap(tape, group, gap) for tape in tapes for group in tape.groups for gap in tape.gaps(group.id)],
        "warnings": list(dict.fromkeys(warnings)),
        # What the recorder itself cost. Its joules are in the ledger, as an owner: those above idle, by CPU time.
        "meter": [dict(tape.meta["meter"]) for tape in tapes if tape.meta.get("meter")],
        "recorder": [tape.meta.get("quality") for tape in tapes if tape.meta.get("quality")],
        "sealed": all(tape.sealed for tape in tapes),
    }


def _rates(tape: Tape, group: StoredGroup) -> dict[str, Any]:
    read = read_times(tape, group)
    count = len(read)
    requested = tape.meta.get("period_s")
    achieved = _usual_step(np.diff(read), (requested or 0.0) * NS) / NS if count > 1 else None
    return {
        "requested_period_s": requested,
        "expected_period_s": group.expected_period_s,
        "achieved_period_s": achieved,
        "rows": count,
    }


def _usual_step(steps_ns: npt.NDArray[np.int64], requested_ns: float) -> float:
    """The median; where most reads come soon after others (at the edges of spans, in a short run), that over the time,
    to which a gap counts as three periods."""
    usual = median(steps_ns)
    if usual >= requested_ns / 2:
        return usual
    steps_ns = np.sort(steps_ns)
    weights = np.cumsum(np.minimum(steps_ns, 3 * requested_ns))
    return float(steps_ns[np.searchsorted(weights, weights[-1] / 2)])


def _longer(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """The rates of the longer of two segments, which a few rows of the other do not tell, and the rows of both."""
    if one is None:
        return other
    return {**max(one, other, key=lambda entry: int(entry["rows"])), "rows": one["rows"] + other["rows"]}


def _rate_warning(group: StoredGroup, entry: dict[str, Any]) -> list[str]:
    requested, achieved = entry["requested_period_s"], entry["achieved_period_s"]
    if not requested or not achieved or achieved <= SLOW_SENSOR * max(requested, group.expected_period_s):
        return []
    return [
        f"{group.info.name} ({group.info.sensor}): requested every {requested:g} s, achieved every {achieved:.2g} s"
    ]


def _throttling(tape: Tape) -> list[str]:
    warnings = []
    for group in tape.groups:
        for channel in group.info.channels:
            if not channel.name.endswith(".throttle"):
                continue
            masks = load_columns(tape, group.id, [channel.name]).values[channel.name]
            bits = masks[np.isfinite(masks)].astype(np.int64)
            share = float(np.mean((bits & HELD_BACK) != 0)) if len(bits) else 0.0
            if share > 0.01:
                warnings.append(
                    f"{channel.device} was throttled (power cap or heat) {format_percent(share)} of the time"
                )
    return warnings


def _unwitnessed(tape: Tape) -> list[str]:
    """Cards for which readings alone cannot tell a load in step with the sensor from a steady one."""
    known = {channel.name for group in tape.groups for channel in group.info.channels}
    warnings = []
    for channel in (source.channel for source in sources(tape)):
        facts, gauge = channel.facts, channel.kind is Kind.GAUGE and channel.pedigree is not Pedigree.MODELLED
        in_part = sees_a_part(facts) or part_time(channel) or (gauge and facts.window_s is None)
        if channel.domain is Domain.GPU and in_part and f"{channel.device}.utilisation" not in known:
            looks = "may look" if facts.window_s is None else "looks"
            warnings.append(
                f"{channel.device}: its power sensor {looks} at a part of each period, and no utilisation was "
                "recorded: a load in step with the sensor would look steady, and the interval does not cover one that "
                "looks idle"
            )
    return warnings


def _gap(tape: Tape, group: StoredGroup, gap: Any) -> dict[str, Any]:
    origin = tape.extent_ns()[0]
    return {
        "group": group.info.name,
        "channel": gap.channel,
        "kind": gap.kind,
        "start_s": (gap.start_ns - origin) / NS,
        "duration_s": (gap.end_ns - gap.start_ns) / NS,
    }
