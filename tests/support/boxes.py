"""Text as `wattmetre-read` prints it, made by us, with what it holds."""

from __future__ import annotations

import math

ORIGIN_S = 1_745_428_511


def header(plugs: int) -> str:
    pairs = ",".join(f"#current{n},#activepow{n}" for n in range(1, plugs + 1))
    return f"#timestamp,#frame_is_ok,#U1,#U2,#U3,{pairs}"


def watts(plug: int, row: int) -> float:
    """What plug (from 1) reads in a row: whole tenths; every second row repeats."""
    return round(10 * plug + 5 * math.sin((row // 2) / 7 + plug), 1)


def line(row: int, plugs: int, period_ns: int = 10_000_000) -> str:
    at = ORIGIN_S * 10**9 + row * period_ns
    cells = [f"{watts(plug, row) / 230:.1f},{watts(plug, row):.1f}" for plug in range(1, plugs + 1)]
    return f"{at // 10**9}.{at % 10**9:09d},true,230.1,0.0,0.0," + ",".join(cells)


def text(rows: int, plugs: int) -> str:
    return "\n".join([header(plugs), *(line(row, plugs) for row in range(rows))]) + "\n"


def joules(plug: int, rows: int, period_s: float = 0.01) -> float:
    """Each row held back to the one before."""
    return sum(watts(plug, row) for row in range(1, rows)) * period_s
