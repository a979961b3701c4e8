"""How a number is printed: value and interval in one unit with one number of digits, the same way everywhere.

| quantity                | example                                 |
|-------------------------|-----------------------------------------|
| energy, power, …        | `412.3 J ± 6.1`, `12.41 kJ −0.20/+0.91` |
| beyond ± 50 %, or to 0  | `≈ 43 J (9 … 128 J)`, `≈ 31 kJ (0 … 71 GJ)` |
| without an interval     | `35.00 W` (four significant digits)     |
| rate                    | `21.30 J/item`, `3.400 items/s`         |
| percent                 | `99.7 %`, `18.0 % ± 3.1`                |
| ratio                   | `0.823 (0.790 … 0.856)`                 |
| duration                | `52.0 ms`, `12.3 s`, `4 min 05 s`       |
| bytes                   | `812 B`, `3.2 MiB`                      |
| money                   | `12.40 EUR`                             |

The half-width has two significant digits, and the value ends at the same digit. Rounding never makes an interval look
narrower than it is: half-widths are rounded up (after GUM 7.2.6 an excess of less than a twentieth of the last digit is
dropped: 10.47 becomes 11, 28.05 becomes 28), and the ends of a range are rounded outwards in the same way. The value is
rounded to nearest, so the printed interval contains the original up to 0.55 of its last digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from everywatt.core.energy import Energy

# Less than this, in the unit itself, is the rounding of sums: printed as 0.
NOTHING = 1e-9
# An interval narrower than this share of its value is not printed: no sensor is that exact, only a simulated one.
NEGLIGIBLE = 1e-6
# A half-width above this share of the value is printed as a range.
WIDE = 0.5
# Two sides that differ by less than this share of the larger one are printed as one ±.
LOPSIDED = 0.05
SIGNIFICANT = 4
# Share of the last digit that rounding up may drop (GUM 7.2.6).
_SLACK = 0.05
_PREFIXED = {"J", "W", "Wh", "J·s", "g", "Hz", "FLOP", "V", "A", "VA"}
# From this size on (in the unit itself) the prefix is used: 1234 J stays, 12345 J is 12.35 kJ.
_PREFIXES = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (1e-1, 1.0, ""), (1e-4, 1e-3, "m"), (0.0, 1e-6, "µ"))

# Signs of printed quantities and tables, for terminals and files that have ASCII alone.
_ASCII = str.maketrans(
    {
        "±": "+/-",
        "−": "-",
        "–": "-",
        "—": "-",
        "µ": "u",
        "μ": "u",
        "·": "|",
        "°": "",
        "×": "x",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "…": "...",
        "≈": "~",
        "∞": "inf",
        "²": "2",
        "³": "3",
    }
)


def in_ascii(text: str) -> str:
    """The text in ASCII: `±` as `+/-`, `µ` as `u`, and `?` for what has no such form."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


class Printed(NamedTuple):
    """The words of a printed quantity, for faces that set them apart.

    value      `412.3`, `≈ 43`
    unit       with its prefix: `kJ`
    spread     `± 6.1`, `−0.20/+0.91`, `(9 … 128 J)`; empty without an interval
    interval   both ends, in the same unit with the same digits: `406.2 … 418.4 J`; empty without an interval
    """

    value: str
    unit: str
    spread: str = ""
    interval: str = ""

    def __str__(self) -> str:
        return " ".join(word for word in (self.value, self.unit, self.spread) if word)

    def at(self, level: str) -> str:
        """The whole with the level of its interval: `412.3 J ± 6.1 (95 %)`."""
        if self.value.startswith("≈"):
            return f"{str(self)[:-1]}, {level})"
        return f"{self} ({level})"


def print_quantity(
    value: float, unit: str, below: float = 0.0, above: float = 0.0, *, signed: bool = False, like: float = 0.0
) -> Printed:
    """A value that the interval reaches `below` and `above` (both ≥ 0, in the same unit).

    Units of energy, power and the like take a prefix (`12.41 kJ`), other words do not (`3.400 items/s`); `like` is a
    size whose prefix is taken instead, as in a column. `signed` shows the plus of a positive value.
    """
    size = max((abs(size) for size in (value, below, above) if math.isfinite(size)), default=0.0)
    if size < NOTHING and math.isfinite(value + below + above):
        return Printed("0", unit)
    factor, prefix = _prefix(like or size) if _prefixed(unit) else (1.0, "")
    printed = _printed(value / factor, below / factor, above / factor, prefix + unit, signed)
    # An amount that is 0 next to its interval: no reader wants 0 GJ. A difference of 0 is one.
    if prefix and not like and below <= value and not printed.value.strip("≈ +0."):
        factor, prefix = _prefix(abs(value))
        own = _number(value / factor, _last_place(value / factor, 2), signed)
        return printed._replace(value=f"≈ {own}", unit=prefix + unit)
    return printed


def format_quantity(value: float, unit: str, below: float = 0.0, above: float = 0.0, *, signed: bool = False) -> str:
    """`412.3 J ± 6.1`: `print_quantity` in one line."""
    return str(print_quantity(value, unit, below, above, signed=signed))


def format_rounded(unit: str, half: float, *values: float) -> str:
    """`6.2 W`, `99.8 … 300.0 W`: values in one unit, with the digits that an interval leaves which is not printed.

    At most four digits of the largest one; where all are printed alike, once.
    """
    size = max(map(abs, values))
    factor, prefixed = shared_unit(size, unit)
    place = _left(size / factor, half / factor)
    shown = dict.fromkeys(_number(value / factor, place) for value in values)
    return f"{' … '.join(shown)} {prefixed}".rstrip()


def format_column(unit: str, cells: Sequence[tuple[float, float] | None]) -> list[str | None]:
    """`0.13 mJ`, `0.019 mJ`: values with their half-widths, each as `format_rounded` prints it, all in the unit of the
    largest."""
    factor, prefixed = shared_unit(max((abs(cell[0]) for cell in cells if cell), default=0.0), unit)

    def shown(value: float, half: float) -> str:
        if abs(value) < NOTHING:
            value = half = 0.0
        return f"{_number(value / factor, _left(abs(value) / factor, half / factor))} {prefixed}".rstrip()

    return [cell and shown(*cell) for cell in cells]


def _left(size: float, half: float) -> int:
    """The power of ten of the last digit that a half-width leaves, of at most four."""
    place = min(_last_place(_significant(size), SIGNIFICANT), 0)
    return max(place, _rounded_up(half)[1]) if half > NEGLIGIBLE * size else place


def format_energy(energy: Energy, *, level: str = "") -> str:
    """`412.3 J ± 6.1`, or `refused: …` with the reason."""
    if energy.joules is None:
        return f"refused: {energy.refused}"
    printed = print_quantity(energy.joules, "J", *energy.sides())
    return printed.at(level) if level else str(printed)


def format_joules(joules: float, below: float = 0.0, above: float = 0.0) -> str:
    """Energy: `412.3 J ± 6.1`."""
    return format_quantity(joules, "J", below, above)


def format_watts(watts: float, below: float = 0.0, above: float = 0.0) -> str:
    """Power: `35.00 W`."""
    return format_quantity(watts, "W", below, above)


def format_percent(share: float, below: float = 0.0, above: float = 0.0, *, signed: bool = False) -> str:
    """A share of 1 as `99.7 %` or `18.0 % ± 3.1`.

    Less than everything is never printed as 100 %, and more than nothing never as 0 %.
    """
    percent = share * 100
    if below > 0 or above > 0:
        return str(_printed(percent, below * 100, above * 100, "%", signed))
    if not math.isfinite(percent):
        return f"{_number(percent, 0, signed)} %"
    size = abs(percent)
    if size < 100 and round(size, 1) >= 100:
        return f"{_number(math.copysign(99.9, percent), -1, signed)} %"
    if size == 100:
        return f"{_number(percent, 0, signed)} %"
    return f"{_number(percent, -1 if size >= 0.05 or size < NOTHING else _last_place(size, 2), signed)} %"


def format_ratio(value: float, low: float, high: float) -> str:
    """`0.823 (0.790 … 0.856)`, `2.0 (0.9 … ∞)`; without ends where neither is finite."""
    sides = [side for side in (value - low, high - value) if math.isfinite(side)]
    if not sides:
        return _number(value, _last_place(value, SIGNIFICANT))
    half = sum(sides) / len(sides)
    place = _rounded_up(half)[1] if half > NEGLIGIBLE * abs(value) else _last_place(value, SIGNIFICANT)
    return f"{_number(value, place)} ({_outer(low, place, -1)} … {_outer(high, place)})"


def format_duration(seconds: float, below: float = 0.0, above: float = 0.0) -> str:
    """`52.0 ms`, `12.3 s`, `4 min 05 s`, `3 h 07 min`, `2 d 04 h`; with an interval `1.230 s ± 0.041`."""
    size = max(abs(seconds), *(side for side in (below, above) if math.isfinite(side))) if below or above else 0.0
    if size:
        factor, unit = _seconds_unit(size)
        return str(_printed(seconds / factor, below / factor, above / factor, unit))
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 0:
        return f"−{format_duration(-seconds)}"
    if seconds < 119.5:
        return _short_duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def format_bytes(count: float) -> str:
    """`812 B`, `3.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # What would print as 1024.0 of a unit is 1.0 of the next.
        if abs(count) < (1023.5 if unit == "B" else 1023.95) or unit == "TiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def format_number(value: float, unit: str = "", below: float = 0.0, above: float = 0.0, *, signed: bool = False) -> str:
    """A number without a prefix: `3.400 items/s`, `0.1234`; an integer is printed whole."""
    if isinstance(value, int) and not below and not above:
        return _signed(f"{value:{'+' if signed else ''}d} {unit}".rstrip())
    return str(_printed(value, below, above, unit, signed))


def format_money(amount: float, currency: str = "") -> str:
    """`12.40 EUR`; less than a hundredth with two significant digits: `0.0034 EUR`; `< 0.000001 EUR`."""
    if 0 < abs(amount) < 1e-6:
        return f"< 0.000001 {currency}".rstrip()
    place = -2 if abs(amount) >= 0.01 or amount == 0 else _last_place(amount, 2)
    return f"{_number(amount, place)} {currency}".rstrip()


def format_count(number: int, noun: str) -> str:
    """`1 item`, `3 items`, `12,000 items`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def shared_unit(size: float, unit: str) -> tuple[float, str]:
    """The factor and prefixed unit that a column takes whose largest value has this size: (1000.0, "kJ")."""
    factor, prefix = _prefix(abs(size)) if abs(size) >= NOTHING and _prefixed(unit) else (1.0, "")
    return factor, prefix + unit


def _prefixed(unit: str) -> bool:
    return unit.split("/")[0].split(" ")[0] in _PREFIXED


def _significant(value: float) -> float:
    """The value with four significant digits: 99.996 is 100.0, and not 100.00."""
    return float(f"{value:.{SIGNIFICANT - 1}e}")


def _prefix(size: float) -> tuple[float, str]:
    if size == 0:
        return 1.0, ""
    return next((factor, prefix) for least, factor, prefix in _PREFIXES if size >= least)


def _printed(value: float, below: float, above: float, unit: str, signed: bool = False) -> Printed:
    """Value and interval in that unit."""
    below, above = max(below, 0.0), max(above, 0.0)
    if not math.isfinite(value) or max(below, above) <= NEGLIGIBLE * abs(value):
        return Printed(_number(value, _last_place(_significant(value), SIGNIFICANT), signed), unit)
    finite = math.isfinite(below) and math.isfinite(above)
    half = (below + above) / 2 if finite else max((side for side in (below, above) if side < math.inf), default=0.0)
    place = _rounded_up(half)[1] if half else _last_place(value, SIGNIFICANT)
    ends = f"{_outer(value - below, place, -1, signed)} … {_outer(value + above, place, 1, signed)} {unit}".rstrip()
    if not finite or half > WIDE * abs(value) or 0 < value <= below:  # −4500 beside 4400 J would be below zero
        return Printed(f"≈ {_number(value, place, signed)}", unit, f"({ends})", ends)
    if abs(below - above) <= LOPSIDED * max(below, above):
        both, place = _rounded_up(max(below, above))
        return Printed(_number(value, place, signed), unit, f"± {_number(both, place)}", ends)
    down, up = (_number(_outward(side, place, 1), place) for side in (below, above))
    return Printed(_number(value, place, signed), unit, f"± {up}" if down == up else f"−{down}/+{up}", ends)


def _outer(end: float, place: int, side: int = 1, signed: bool = False) -> str:
    """An end of a range, rounded outwards."""
    if not math.isfinite(end):
        return "−∞" if end < 0 else "∞"
    return _number(_outward(end, place, side), place, signed)


def _outward(number: float, place: int, side: int) -> float:
    """The number at a place, rounded up (`side` 1) or down (-1), but for a twentieth of the last digit."""
    steps = _scaled(number, -place)
    whole = math.ceil(steps - _SLACK) if side > 0 else math.floor(steps + _SLACK)
    return _scaled(whole, place)


def _rounded_up(half: float) -> tuple[float, int]:
    """A half-width with two significant digits, rounded up, and the place (power of ten) of the second one."""
    place = _last_place(half, 2)
    rounded = _outward(half, place, 1)
    if _scaled(rounded, -place) > 99.5:  # 99.7 has become 100
        place += 1
        rounded = _outward(half, place, 1)
    return rounded, place


def _last_place(value: float, digits: int) -> int:
    """The power of ten of the last of so many significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    return math.floor(math.log10(abs(value))) - digits + 1


def _number(value: float, place: int, signed: bool = False) -> str:
    """The number rounded at a power of ten, with a minus sign, never as "−0"."""
    plus = "+" if signed else ""
    if not math.isfinite(value):
        return _signed(f"{value:{plus}}")
    decimals = max(-place, 0)
    rounded = round(value, -place) + 0.0
    return _signed(f"{rounded:{plus}.{decimals}f}")


def _signed(text: str) -> str:
    return text.replace("-", "−")


def _scaled(number: float, power: int) -> float:
    return number * 10.0**power if power >= 0 else number / 10.0**-power


def _seconds_unit(seconds: float) -> tuple[float, str]:
    return next(
        ((factor, unit) for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if seconds >= factor),
        (1e-9, "ns"),
    )


def _short_duration(seconds: float) -> str:
    """Three significant digits in s, ms, µs or ns."""
    if seconds < 1e-12:
        return "0 s"
    seconds = float(f"{seconds:.2e}")  # so that 0.9996 s is 1.00 s and not 1000 ms
    factor, unit = _seconds_unit(seconds)
    value = seconds / factor
    return f"{_number(value, min(_last_place(value * (1 + 1e-12), 3), 0))} {unit}"
