"""Known GPU power sensors, as data: how often they publish, what a reading averages, how far cards are off.

Sources
  [Y]  Z. Yang, K. Adamek, W. Armour, "Accurate and Convenient Energy Measurements for GPUs" (SC 2024, arXiv 2312.02741)
       and its measurements of over 70 cards (github.com/JimZeyuYang/GPU_Power_Benchmark, Overall_Results.xlsx).
  [N]  NVML API reference, nvmlDeviceGetPowerUsage: a 1 s average on Ampere (except GA100) or newer.
  [Z]  ml.energy blog on NVML: the energy counter moves about every 100 ms (A100 and later).

A reading that averages `window_s` of every `period_s` has seen window/period of the time. None: nobody has said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from everywatt.core.channels import Facts
from everywatt.core.stats import student_factor

Reading = Literal["counter", "instant", "average", "draw"]

EXACT_NAMES = ("everywatt Simulated Exact",)


class Row(NamedTuple):
    """One sensor: cards whose name matches `names`, drivers from `driver_from` up to but not with `driver_to`.

    Windows are in seconds, for each reading. `counter_s` is how often the energy counter moves.
    """

    family: str
    names: str
    period_s: float | None = None
    instant_s: float | None = None
    average_s: float | None = None
    draw_s: float | None = None
    counter_s: float | None = None
    driver_from: int = 0
    driver_to: int = 10_000


_GA10X = r"\bRTX 30[5-9]0|\bRTX A\d{3,4}\b|\bA(2|10|10G|16|40)\b"
_ADA = r"\bRTX 40\d\d|\bL(2|4|20|40|40S|40G)\b|\bRTX \d000.* Ada|\bRTX 5880"

# The first row that fits is the one.
TABLE: tuple[Row, ...] = (
    # Blackwell: [N] only.
    Row("Blackwell", r"\bRTX 50\d\d|\bG?B(100|200|300)\b|\bRTX PRO \d000 Blackwell", None, None, 1.0, 1.0),
    # H100 PCIe, 10 cards, drivers 525.105 and 525.116 [Y]: instant 22 to 25 ms of every 100 ms.
    Row("Hopper", r"\bG?H(20|100|200|800)\b", 0.1, 0.025, 1.0, 1.0, 0.1),
    # RTX 4090 [Y]: the driver of 530 has no average, and its power.draw is what later ones call instant.
    Row("Ada", _ADA, 0.1, 0.1, 1.0, 0.1, 0.1, 530, 531),
    Row("Ada", _ADA, 0.1, 0.1, 1.0, 1.0, 0.1),
    # GA100 [Y]: 16 cards, 18 to 25 ms of every 100 ms, on every driver; there is no average.
    Row("GA100", r"\bA(100|800|30)X?\b", 0.1, 0.025, None, 0.025, 0.1),
    # RTX A5000 [Y]: 80 ms of every 100 ms.
    Row("Ampere", r"\bRTX A5000\b", 0.1, 0.08, 1.0, 0.08, 0.1, 530, 531),
    Row("Ampere", r"\bRTX A5000\b", 0.1, 0.08, 1.0, 1.0, 0.1),
    # RTX 3090, 3070 Ti [Y]: 100 ms; four 3090 of one computer maker 78 to 80 ms, under the same name.
    Row("Ampere", _GA10X, 0.1, 0.1, 1.0, 0.1, 0.1, 530, 531),
    Row("Ampere", _GA10X, 0.1, 0.1, 1.0, 1.0, 0.1),
    # Quadro RTX 8000, 4 cards [Y]: 20 ms of every 100 ms, unlike other Turing cards. Others of the line: unknown.
    Row("Turing", r"\bQuadro RTX 8000\b", 0.1, 0.02, None, 0.02),
    Row("Turing", r"\bQuadro (RTX|T)|\bT4G?\b|\bT(400|600|1000|1200)\b", 0.1),
    # RTX 2080 Ti, 2060 S, TITAN RTX, GTX 1650 Ti [Y].
    Row("Turing", r"\bRTX 20\d\d|\bGTX 16\d\d|\bTITAN RTX\b", 0.1, 0.1, None, 0.1),
    # V100, 4 cards [Y].
    Row("Volta", r"\bV100|\bTITAN V\b|\bGV100\b", 0.02, 0.01, None, 0.01),
    # P100, GTX 1080, 1080 Ti, TITAN X (Pascal) [Y].
    Row(
        "Pascal",
        r"\bGTX 10\d\d|\bP(100|40|6|4)\b|\bTITAN Xp|\bTITAN X \(Pascal\)|\bG?P[12456]000\b",
        0.02,
        0.01,
        None,
        0.01,
    ),
    # M40 [Y]: 14 of 31 ms. Other Maxwell boards follow a charging curve, which is no window.
    Row("Maxwell", r"\bM40\b", 0.031, 0.014, None, 0.014),
    Row("Maxwell", r"\bGTX 9\d\d|\bGTX TITAN X\b|\bM(4|6|10|60)\b|\bK620\b", 0.1),
    # K40m, K80 [Y]: a charging curve too.
    Row("Kepler", r"\bK40", 0.015),
    Row("Kepler", r"\bK80", 0.1),
)


class Card(NamedTuple):
    """One card measured against an external meter [Y]: reading = (1 + gradient_pct/100) × watts + offset_w."""

    model: str
    offset_w: float
    gradient_pct: float
    limit_w: float  # of the board, by its maker's data sheet (K80: of one of its two GPUs)


CARDS: tuple[Card, ...] = (
    Card("RTX 3090", 3.47, -5.49, 350),
    Card("RTX 3090", -1.66, -0.65, 350),
    Card("RTX 3090", 3.92, -1.77, 350),
    Card("RTX 3090", -5.07, 1.48, 350),
    Card("RTX 3090", -8.53, 1.72, 350),
    Card("RTX 4090", -12.35, 4.45, 450),
    Card("RTX 3070 Ti", -4.80, 0.39, 290),
    Card("RTX 2080 Ti", -5.80, -3.34, 250),
    Card("RTX 2060 S", 11.85, -1.30, 175),
    Card("GTX TITAN Xp", 2.54, -2.59, 250),
    Card("GTX 1080 Ti", -0.33, -0.12, 250),
    Card("GTX 1080", -5.16, 6.36, 180),
    Card("GTX TITAN X", 1.23, 1.06, 250),
    Card("RTX A5000", 8.76, -9.50, 230),
    Card("A100 40G", -1.21, -4.58, 250),
    Card("P100 16G", 0.88, -0.72, 250),
    Card("M40", 1.45, -2.87, 250),
    Card("K80", -6.29, -3.63, 150),
    Card("K40m", 0.81, 2.41, 235),
)

# Words by which a board differs from the one that has all its other words: limits do not carry over.
_OTHER_BOARD = {"Ti", "S", "D", "SXM2", "SXM3", "SXM4", "SXM5", "Laptop", "Max-Q"}


def board_limit_w(name: str) -> float | None:
    """The power limit of a board by its maker's data sheet, where its model is among `CARDS`."""
    words = set(re.split(r"[\s-]+", name.replace("SUPER", "S")))
    for card in CARDS:
        model = set(card.model.split()) - {"GTX"}
        if all(word in words or f"{word}B" in words for word in model) and not (_OTHER_BOARD & words) - model:
            return card.limit_w
    return None


class Spread(NamedTuple):
    """95 % half-widths for a card that is not calibrated: gain, and offset in watts and in percent of the limit.

    `correlation` is that of gain and offset, `freedom` the number of cards.
    """

    gain_pct: float
    offset_w: float
    offset_limit_pct: float
    correlation: float
    freedom: int


def spread(*leave_out: str) -> Spread:
    """How far the next card may be off, from the measured ones; models that contain a word of `leave_out` do not count.

    A prediction interval around zero (nobody corrects by the mean of other people's cards). Leaving out any model gives
    gains of 6.6 to 8.8 % and offsets of 4.2 to 6.0 % of the limit. A sensor that reads too steep mostly starts too low:
    over the 19 cards gain and offset are correlated by −0.39.
    """
    words = [word.lower() for word in leave_out]
    cards = [card for card in CARDS if not any(word in card.model.lower() for word in words)]
    gains, offsets = [card.gradient_pct for card in cards], [100 * card.offset_w / card.limit_w for card in cards]
    mixed = sum(gain * offset for gain, offset in zip(gains, offsets, strict=True))
    return Spread(
        _half_width(gains),
        _half_width([card.offset_w for card in cards]),
        _half_width(offsets),
        mixed / math.sqrt(sum(gain * gain for gain in gains) * sum(offset * offset for offset in offsets)),
        len(cards),
    )


# Share of the variance of gain and offset that is between models and not between cards of one model: intraclass
# correlation of CARDS by one-way analysis of variance, 0.37 and 0.64 (offset as a share of the limit). Five cards of
# one model are few to know it from, so both are rounded up.
GAIN_ALIKE, OFFSET_ALIKE = 0.4, 0.7


def _half_width(errors: list[float]) -> float:
    count = len(errors)
    mean_square = sum(error * error for error in errors) / count
    return student_factor(count) * math.sqrt(mean_square * (1 + 1 / count))


def facts_for(name: str, driver: str, max_w: float | None, reading: Reading, *, leave_out: Sequence[str] = ()) -> Facts:
    """What is known of one reading of a card, by its name and driver ("535.54.03").

    `max_w` is the board's limit where it is known. For a counter `window_s` is what the sensor behind it sees of each
    period, where that is only a part. `leave_out` takes a model out of the spread (to test the spread on that model).
    """
    quantum = 1e-3  # NVML counts in mW and mJ
    if any(exact in name for exact in EXACT_NAMES):
        return Facts(quantum=quantum, max_w=max_w, gain_pct=0.0, offset_w=0.0, cards=model_of(name))
    period_s, window_s = timing(name, driver, reading)
    wide = spread(*leave_out)
    offset_w = wide.offset_w if max_w is None else wide.offset_limit_pct / 100 * max_w
    return Facts(
        period_s=period_s,
        window_s=window_s,
        quantum=quantum,
        max_w=max_w,
        gain_pct=round(wide.gain_pct, 2),
        offset_w=round(offset_w, 2),
        correlation=round(wide.correlation, 3),
        freedom=wide.freedom,
        cards=model_of(name),
        gain_alike=GAIN_ALIKE,
        offset_alike=OFFSET_ALIKE,
    )


def timing(name: str, driver: str, reading: Reading) -> tuple[float | None, float | None]:
    """(period, window) of a reading in seconds, None where not known."""
    row = row_for(name, driver)
    if row is None:
        return None, None
    if reading == "counter":
        part_time = row.instant_s is not None and row.period_s is not None and row.instant_s < row.period_s / 2
        return row.counter_s, row.instant_s if part_time else None
    window_s = {"instant": row.instant_s, "average": row.average_s, "draw": row.draw_s}[reading]
    return row.period_s, window_s


def draw_windows(name: str, driver: str) -> tuple[float, ...]:
    """Every window that `power.draw` of a card may average: several where the driver decides and is not known."""
    if driver_major(driver) is not None:
        window_s = timing(name, driver, "draw")[1]
        return () if window_s is None else (window_s,)
    family = row_for(name, driver)
    rows = [row for row in TABLE if family is not None and row.names == family.names]
    return tuple(sorted({row.draw_s for row in rows if row.draw_s is not None}))


def row_for(name: str, driver: str) -> Row | None:
    """The row of the table that fits a card's name and driver."""
    major = driver_major(driver)
    for row in TABLE:
        if re.search(row.names, name, re.IGNORECASE) and (major is None or row.driver_from <= major < row.driver_to):
            if major is None and row.driver_from:
                continue  # an unknown driver is taken to be one of the many, not the odd one
            return row
    return None


def driver_major(driver: str) -> int | None:
    """535 of "535.54.03"."""
    match = re.match(r"\s*(\d+)", driver)
    return int(match.group(1)) if match else None


def model_of(name: str) -> str:
    """The model as a key for cards that may share an error: the name without the maker's words."""
    return " ".join(word for word in name.split() if word not in ("NVIDIA", "GeForce", "Tesla", "Quadro"))
