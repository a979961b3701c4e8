"""Units at the border: SI inside, human units only where a person reads or types."""

from __future__ import annotations

import math
import re

from everywatt.core.errors import UsageError

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
    "kWh": 3.6e6,
}
# Less than this of anything is rounding.
NOTHING = 1e-9
NEGLIGIBLE = 1e-9
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
    return _parse(text, _DURATIONS, "s", "a duration")


def parse_power_w(text: str) -> float:
    """Watts in `100W`, `1.2kW`; a bare number is watts."""
    return _parse(text, _POWERS, "W", "a power")


def parse_energy_j(text: str) -> float:
    """Joules in `5J`, `3Wh`; a bare number is joules."""
    return _parse(text, _ENERGIES, "J", "an energy")


def _digits(value: float, spread: float) -> int:
    """Decimals that show the spread with two significant digits, or the value with four where there is no spread."""
    if 0 < spread < math.inf:
        return max(0, 1 - math.floor(math.log10(spread)))
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, 3 - math.floor(math.log10(abs(value))))


def _scale(value: float) -> tuple[float, str]:
    size = abs(value) if math.isfinite(value) else 0.0
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e4, "k"), (1e-1, "")):
        if size >= factor:
            return (1e3 if prefix == "k" else factor if prefix else 1.0), prefix
    if size == 0:
        return 1.0, ""
    return (1e-3, "m") if size >= 1e-4 else (1e-6, "µ")


def format_quantity(value: float, unit: str, below: float = 0.0, above: float = 0.0) -> str:
    """`412.3 J ± 6.1`, `12.41 kJ −0.20/+0.91`, `35.0 W`: value, unit, and the interval where there is one."""
    # A value of next to nothing is shown in the unit of its interval.
    size = max((size for size in (abs(value), below, above) if math.isfinite(size)), default=0.0)
    if size < NOTHING and math.isfinite(value + below + above):
        return f"0 {unit}"
    if max(below, above) < NEGLIGIBLE * abs(value):
        below = above = 0.0  # what adding up many numbers leaves open
    factor, prefix = _scale(size)
    value, below, above = value / factor, below / factor, above / factor
    decimals = min(_digits(value, max(below, above)), 6)
    head = f"{round(value, decimals) + 0.0:.{decimals}f} {prefix}{unit}"  # + 0.0: no "-0"
    if below <= 0 and above <= 0:
        return head
    if below == above or abs(below - above) <= 0.05 * max(below, above) < math.inf:
        return f"{head} ± {(below + above) / 2:.{decimals}f}"
    return f"{head} −{below:.{decimals}f}/+{above:.{decimals}f}"


def format_joules(joules: float, below: float = 0.0, above: float = 0.0) -> str:
    """Energy for a person."""
    return format_quantity(joules, "J", below, above)


def format_watts(watts: float, below: float = 0.0, above: float = 0.0) -> str:
    """Power for a person."""
    return format_quantity(watts, "W", below, above)


def format_percent(share: float) -> str:
    """`100 %`, `99.7 %`: never rounded up to 100."""
    percent = share * 100
    if percent >= 100:
        return "100 %"
    # The tiny addend keeps 29 % from becoming 28.9 % by the binary form of 0.29.
    return f"{min(math.floor(percent * 10 + 1e-9), 999) / 10:.1f} %"


def format_duration(seconds: float) -> str:
    """`0.052 s`, `12.3 s`, `4 min 05 s`, `3 h 07 min`."""
    if seconds < 120:
        return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_bytes(count: float) -> str:
    """`812 B`, `3.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
