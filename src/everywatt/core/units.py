"""Units that a person types, as SI; `core.format` prints them."""

from __future__ import annotations

import math
import re

from everywatt.core.errors import UsageError

J_PER_KWH = 3.6e6
LONGEST_S = 100 * 365.25 * 86400.0  # clocks, and the integers of a tape, count 292 years of nanoseconds

_DURATIONS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_POWERS = {"uW": 1e-6, "µW": 1e-6, "mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}
_ENERGIES = {
    "uJ": 1e-6,
    "µJ": 1e-6,
    "mJ": 1e-3,
    "J": 1.0,
    "kJ": 1e3,
    "MJ": 1e6,
    "mWh": 3.6,
    "Wh": 3600.0,
    "kWh": J_PER_KWH,
}
SI_UNITS = {
    **{unit: ("W", factor) for unit, factor in _POWERS.items()},
    **{unit: ("J", factor) for unit, factor in _ENERGIES.items()},
    "MWh": ("J", 1000 * J_PER_KWH),
}
"""Units of power and energy in files of others: the one that a tape has, and the factor to it."""
_BYTES = {"b": 1.0} | {
    f"{prefix}{binary}{end}": float((1024 if binary else 1000) ** power)
    for power, prefix in enumerate("kmgt", 1)
    for binary in ("", "i")
    for end in ("", "b")
}
_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ]*)\s*")


def _parse(text: str, table: dict[str, float], bare: str, what: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = (match.group(2) or bare) if match else ""
    if match is None or unit not in table:
        known = ", ".join(dict.fromkeys(table))
        raise UsageError(f"'{text}' is not {what}.", cure=f"a number with one of: {known}")
    value = float(match.group(1)) * table[unit]
    if not math.isfinite(value):
        raise UsageError(f"'{text}' is not {what}: it is not finite.")
    return value


def parse_duration_s(text: str) -> float:
    """Seconds in `250ms`, `10s`, `1.5h`; a bare number is seconds."""
    seconds = _parse(text, _DURATIONS, "s", "a duration")
    if abs(seconds) > LONGEST_S:
        raise UsageError(f"'{text}' is longer than 100 years.", cure="a duration such as 10s")
    return seconds


def parse_power_w(text: str) -> float:
    """Watts in `100W`, `1.2kW`; a bare number is watts."""
    return _parse(text, _POWERS, "W", "a power")


def parse_energy_j(text: str) -> float:
    """Joules in `5J`, `3Wh`; a bare number is joules."""
    return _parse(text, _ENERGIES, "J", "an energy")


def parse_bytes(text: str) -> float:
    """Bytes in `512MiB`, `1GB`, `2 kB`, `3G`, in capitals or not, or bytes a second in `50MB/s`; a bare number is
    bytes."""
    match = _NUMBER.fullmatch(text.strip().removesuffix("/s"))
    factor = _BYTES.get(match.group(2).lower() or "b") if match else None
    if match is None or factor is None or not 0 <= float(match.group(1)) * factor < math.inf:
        raise UsageError(f"'{text}' is not a size.", cure="a number with B, kB, MB, GB, KiB, MiB or GiB")
    return float(match.group(1)) * factor
