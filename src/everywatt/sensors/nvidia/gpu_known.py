"""Known GPU power sensors: how often they publish, what a reading averages, how far cards are off.

The facts are data, each row with its source: `known_cards.json`. A row names what is known and leaves out what is not.
A reading that averages `window_s` of every `period_s` has seen window/period of the time.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from everywatt.core.channels import Facts
from everywatt.core.stats import student_factor

Reading = Literal["counter", "instant", "average", "draw"]

EXACT_NAMES = ("everywatt Simulated Exact",)


class KnownSensor(NamedTuple):
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


class Card(NamedTuple):
    """One card measured against an external meter: reading = (1 + gradient_pct/100) × watts + offset_w."""

    model: str
    offset_w: float
    gradient_pct: float
    limit_w: float  # of the board, by its maker's data sheet (K80: of one of its two GPUs)


_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("known_cards.json").read_text(encoding="utf-8"))


def _rows(table: str) -> list[dict[str, Any]]:
    """The rows of a table without where they come from."""
    return [{key: value for key, value in row.items() if key not in ("source", "note")} for row in _DATA[table]]


TABLE: tuple[KnownSensor, ...] = tuple(KnownSensor(**row) for row in _rows("sensors"))  # the first that fits counts
CARDS: tuple[Card, ...] = tuple(Card(**row) for row in _rows("cards"))

# Cards for slots, by words of their names. A superchip's GPU is named after the superchip (GH200, GB200, GB10).
_IN_SLOT = re.compile(r"\b(PCIe|PCIE|NVL|GeForce|Quadro|TITAN|Tesla|RTX|T4|A(2|10|16|30|40)|L(2|4|20|40|40S|40G))\b")
_SUPERCHIP = re.compile(r"\bG[BH]\d+|\bGrace\b")


def in_slot(name: str) -> bool:
    """True for a card that is known to be in a slot, and so in no module; False where its name does not say."""
    return _IN_SLOT.search(name) is not None and _SUPERCHIP.search(name) is None


class Spread(NamedTuple):
    """95 % half-widths for a card that is not calibrated: gain, and offset in watts.

    `correlation` is that of gain and offset, `freedom` the effective number of cards.
    """

    gain_pct: float
    offset_w: float
    correlation: float
    freedom: int


def spread(*leave_out: str) -> Spread:
    """How far the next card may be off, from the measured ones; models that contain a word of `leave_out` do not count.

    A prediction interval around zero (readings are not corrected by the mean of other cards). Cards of one model are
    alike and count as fewer. A sensor that reads too steep mostly starts too low; of that correlation counts what is
    left after one standard error. The derivation is in docs/estimation.md.
    """
    words = [word.lower() for word in leave_out]
    cards = [card for card in CARDS if not any(word in card.model.lower() for word in words)]
    of_model = Counter(card.model for card in cards)
    weights = [1 / (1 + (of_model[card.model] - 1) * MEASURED_ALIKE**2) for card in cards]
    count = sum(weights)
    gains, offsets = [card.gradient_pct for card in cards], [card.offset_w for card in cards]

    def mean_product(first: list[float], second: list[float]) -> float:
        return sum(weight * one * other for weight, one, other in zip(weights, first, second, strict=True)) / count

    gain_rms, offset_rms = (math.sqrt(mean_product(errors, errors)) for errors in (gains, offsets))
    factor = student_factor(int(count)) * math.sqrt(1 + 1 / count)
    correlation = mean_product(gains, offsets) / (gain_rms * offset_rms)
    surely = max(abs(correlation) - (1 - correlation**2) / math.sqrt(count), 0.0)
    return Spread(factor * gain_rms, factor * offset_rms, math.copysign(surely, correlation), int(count))


# The largest board among CARDS. Within their range, 150 to 450 W, offsets do not grow with the limit of a board; beyond
# it they are taken to, because a sensor for larger currents may be off by more.
LARGEST_W = max(card.limit_w for card in CARDS)

# Share of the variance of gain and offset that is between models and not between cards of one model: intraclass
# correlation of CARDS by one-way analysis of variance, 0.37 and 0.16. Their mean says how much more five cards of one
# model tell than one. For totals of several cards both are rounded up, because five cards are few to know them from
# (the offset's may be up to 0.70, one side, 95 %), and the larger makes totals wider.
MEASURED_ALIKE = 0.27
GAIN_ALIKE, OFFSET_ALIKE = 0.4, 0.7


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
    return Facts(
        period_s=period_s,
        window_s=window_s,
        quantum=quantum,
        max_w=max_w,
        gain_pct=round(wide.gain_pct, 2),
        offset_w=round(wide.offset_w * max((max_w or 0.0) / LARGEST_W, 1.0), 2),
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


def row_for(name: str, driver: str) -> KnownSensor | None:
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
