"""Figures as narrow text: fixed widths, so that a screen does not dance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from everywatt.core.format import WIDE, format_percent, format_rounded, in_ascii
from everywatt.core.tables import display_width
from everywatt.core.units import J_PER_KWH

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = ".:-=+*#@"
_ASCII = str.maketrans(BLOCKS + "░", ASCII_BLOCKS + ".")
UNITS = ("J", "Wh", "kWh")
_PER_UNIT = {"Wh": J_PER_KWH / 1000, "kWh": J_PER_KWH}
NOTHING = "-"


class Figure(Protocol):
    """Joules with the ends of their 95 % interval, where they are known."""

    @property
    def joules(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def spread(figure: Figure) -> float:
    """Half the width of its interval as a share of it; 0 where that is not known."""
    if figure.low is None or figure.high is None or not figure.joules:
        return 0.0
    return (figure.high - figure.low) / 2 / abs(figure.joules)


def watts(value: float | None, share: float = 0.0) -> str:
    """`182.3 W`, `12.41 kW`, `-`; with an interval of this share of it, its digits: `182 W`, `≈ 3.3 W`."""
    return NOTHING if value is None else _rounded(value, "W", share)


def energy(joules: float | None, unit: str = "J", share: float = 0.0) -> str:
    """At most four digits with the unit, as `watts`; `-` where it is not known."""
    if joules is None:
        return NOTHING
    if unit not in _PER_UNIT:
        return _rounded(joules, "J", share)
    amount = joules / _PER_UNIT[unit]
    if abs(amount) >= 1:
        return _rounded(amount, unit, share)
    half = min(share, 1.0) * abs(amount)
    # Not more than three decimals: the column is narrow.
    places = min(3, 1 - math.floor(math.log10(half))) if half else 3
    return f"{'≈ ' * (share > WIDE)}{amount:.{places}f} {unit}"


def _rounded(value: float, unit: str, share: float) -> str:
    """The digits that the interval leaves; two where it is wide."""
    text = format_rounded(unit, (1.0 if share > WIDE else share) * abs(value), value)
    return f"≈ {text}" if share > WIDE else text


def half_width(figure: Figure) -> str:
    """`±1.2 %` of the energy; `>100 %` where the figure says little more than its order of magnitude."""
    share = spread(figure)
    if not share:
        return NOTHING
    if not 0.0005 <= share <= 1:
        return ">100 %" if share > 1 else "<0.1 %"
    return f"±{100 * share:.0f} %" if share >= 0.0995 else f"±{format_percent(share)}"


def percent(value: float | None) -> str:
    """`98 %`, `0.4 %`: narrower than elsewhere, a tenth of a percent of use is noise."""
    if value is None:
        return NOTHING
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"


def gib(used: float | None, total: float | None = None) -> str:
    """`4.0/16 G`, `512 M`."""
    if used is None:
        return NOTHING
    if total:
        return f"{used / 2**30:.1f}/{total / 2**30:.0f} G"
    if used < 2**30 * 0.9995:
        return f"{used / 2**20:.0f} M"
    return f"{used / 2**30:.1f} G"


def number(value: float | None, unit: str) -> str:
    """`47 °C`, `1410 MHz`."""
    return NOTHING if value is None else f"{value:.0f} {unit}"


def clock(seconds: float) -> str:
    """`0:01:23`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False, top: float | None = None) -> str:
    """The newest `width` values as bars between 0 and `top` (the largest of them unless given), newest at the right."""
    palette = ASCII_BLOCKS if ascii_only else BLOCKS
    newest = list(values)[-width:] if width > 0 else []
    ceiling = top if top else max(newest, default=0.0)
    if ceiling <= 0:
        return (palette[0] * len(newest)).rjust(max(width, 0))
    steps = len(palette) - 1
    return "".join(palette[max(0, min(steps, round(value / ceiling * steps)))] for value in newest).rjust(width)


def chart(values: Sequence[float], width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    """The newest `width` values as columns of `height` lines, between 0 and the largest of them."""
    palette = ASCII_BLOCKS if ascii_only else BLOCKS
    newest = list(values)[-width:] if width > 0 else []
    ceiling = max(newest, default=0.0)
    steps = len(palette)
    filled = [round(value / ceiling * steps * height) if ceiling > 0 else 0 for value in newest]
    lines = []
    for row in range(height - 1, -1, -1):
        levels = [max(0, min(steps, eighths - row * steps)) for eighths in filled]
        lines.append("".join(palette[level - 1] if level else " " for level in levels).rjust(width))
    return lines


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """A share between 0 and 1 as a bar."""
    full = round(max(0.0, min(1.0, share)) * width)
    return ("#" if ascii_only else "█") * full + ("." if ascii_only else "░") * (width - full)


def cut(text: str, width: int, *, ascii_only: bool = False) -> str:
    """The text in at most `width` columns; what is left out is marked. Control characters never reach a terminal."""
    if display_width(text) <= width and text.isprintable() and (not ascii_only or text.isascii()):
        return text
    clean = "".join(char if char.isprintable() else "?" for char in text)
    if ascii_only:
        clean = in_ascii(clean.translate(_ASCII))
    if display_width(clean) <= width:
        return clean
    mark = "~" if ascii_only else "…"
    return fitting(clean, width - 1) + mark if width > 0 else ""


def fitting(text: str, width: int) -> str:
    """As much of the text as fits into `width` columns of a terminal."""
    if text.isascii():
        return text[: max(0, width)]
    end, left = 0, width
    for sign in text:
        left -= display_width(sign)
        if left < 0:
            break
        end += 1
    return text[:end]
