"""Logs of `ipmitool dcmi power reading`, FreeIPMI's `ipmi-dcmi` and ipmiutil become tapes.

The time of a reading is a line before it that a loop printed (`date`, `date +%s`), else what the BMC says unless it is
1970, else counted: `period_s` (required then) after `start`. Averages since the BMC's reset are not used. A reading
that calls itself deactivated is one, unless it is zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.meters.series import Part, Table, given_period_s, group, start_ns, write_parts, zone_ns
from everywatt.tape.importing import parse_utc_ns

# Without blanks in front: a search would try each of a million of them up to the last.
_POWER = re.compile(r"(?:Instantaneous power reading|Current Power)\s*:\s*(\d+(?:\.\d+)?)\s*Watts", re.IGNORECASE)
_BMC = re.compile(r"\s*(?:IPMI timestamp|Time ?stamp)\s*:\s*(.+?)(?:\s{2,}|\s+Sampling period|$)", re.IGNORECASE)
_STATE = re.compile(r"\s*(?:Power reading state is|Power Measurement)\s*:\s*(\w+)", re.IGNORECASE)
_FORMS: Final = ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y - %H:%M:%S", "%m/%d/%y %H:%M:%S", "%a %b %d %H:%M:%S %Z %Y")
OLDEST_NS: Final = 946_684_800 * NS  # a BMC that lost its clock says 1970


@dataclass
class Reading:
    """One answer of a BMC."""

    watts: float
    logged_ns: int | None
    bmc_ns: int | None = None
    active: bool = True


def import_ipmi(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from such logs. options: start, period_s (if the log has no times), zone_h, gain_pct, offset_w."""
    readings: list[Reading] = []
    for path in paths:
        readings += parse_log(foreign.lines(path), zone_ns(options))
    if not readings:
        raise UsageError(f"{paths[0]} contains no power readings of a BMC.", cure="ipmitool dcmi power reading")
    known: dict[str, Any] = {key: float(options[key]) for key in ("gain_pct", "offset_w") if key in options}
    channel = Channel(
        "bmc.power", "W", Kind.GAUGE, "bmc", Domain.PSU, pedigree=Pedigree.INTEGRATED, facts=Facts(quantum=1.0, **known)
    )
    table = Table(group("bmc", "ipmi", [channel]))
    for at, reading in zip(_times(readings, options), readings, strict=True):
        table.add(at, [reading.watts if reading.active or reading.watts > 0 else None])
    return write_parts(out, [Part([table])], paths, options)


def parse_log(lines: Iterable[str], shift_ns: int = 0) -> list[Reading]:
    """The readings of a log with their time stamps."""
    found: list[Reading] = []
    logged: int | None = None
    for line in lines:
        if match := _POWER.search(line):
            inline = _instant(line[: match.start()].strip(" []"), shift_ns)
            found.append(Reading(float(match[1]), inline if inline is not None else logged))
            logged = None
        elif found and (match := _BMC.match(line)):
            at = _instant(match[1], shift_ns)
            found[-1].bmc_ns = at if at is not None and at > OLDEST_NS else None
        elif found and (match := _STATE.match(line)):
            found[-1].active = match[1].lower() in ("activated", "active")
        elif (at := _instant(line.strip(), shift_ns)) is not None:
            logged = at
    return found


def _instant(text: str, shift_ns: int) -> int | None:
    text = text.strip()
    if not text or len(text) > 60:
        return None
    if re.fullmatch(r"\d{9,10}(\.\d+)?", text):
        return parse_utc_ns(text, "s", "time")
    try:
        moment = datetime.fromisoformat(text)
        local = 0 if moment.tzinfo else shift_ns
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000) * 1_000_000 - local
    except (ValueError, OverflowError):
        pass
    plain = re.sub(r"\s+(?:AM|PM)?\s*[A-Z]{3,5}(?=\s+\d{4}$|$)", "", text)
    for form in _FORMS:
        try:
            return round(datetime.strptime(plain, form).replace(tzinfo=UTC).timestamp()) * NS - shift_ns
        except (ValueError, OverflowError):
            continue
    return None


def _times(readings: Sequence[Reading], options: Mapping[str, Any]) -> list[int]:
    for clock in ("logged_ns", "bmc_ns"):
        times = [getattr(reading, clock) for reading in readings]
        if all(at is not None for at in times) and len(set(times)) == len(times):
            return times
    period_s = given_period_s(options)
    if period_s is None:
        raise UsageError("The log contains no times for its readings.", cure="--set period_s=10, the pause of the loop")
    return [start_ns(options) + round(place * period_s * NS) for place in range(len(readings))]
