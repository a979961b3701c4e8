"""How much carbon a kWh brings: one figure a country and year, or a table over time."""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.lazy_dataclass import dataclass

TABLE = "grid_intensity.csv"
SOURCE = "Our World in Data, as carried by codecarbon 3.3.2"
TIME_COLUMNS = ("time", "time_utc", "datetime", "date_heure", "timestamp", "date")
VALUE_COLUMNS = ("g_per_kwh", "gco2_per_kwh", "intensity", "taux_co2", "carbon_intensity")
# The last row of a table holds for as long as the one before it did; one row alone for this long.
ALONE_S = 900.0
# A value that stands for more steps than this stands in for values that are missing (some tables fill every other row).
STALE_STEPS = 2.5
LATEST_S = 1e11  # in the year 5138: more are no seconds


@dataclass(frozen=True, slots=True)
class Intensity:
    """Grams of CO2 equivalent per kWh, and where the figure comes from."""

    g_per_kwh: float
    source: str
    place: str = ""
    year: int | None = None

    def __str__(self) -> str:
        about = ", ".join(part for part in (self.place, str(self.year or ""), self.source) if part)
        return f"{self.g_per_kwh:g} g/kWh ({about})"


@dataclass(frozen=True, slots=True)
class Curve:
    """Intensity over time: each value holds from its time to the next one's. UTC seconds."""

    start_s: npt.NDArray[np.float64]
    g_per_kwh: npt.NDArray[np.float64]
    end_s: float
    source: str

    def pieces(self, low_s: float, high_s: float) -> list[tuple[float, float, float]] | None:
        """(start, end, g/kWh) of the steps between two instants; None where the table does not cover them."""
        if low_s < self.start_s[0] or high_s > self.end_s:
            return None
        first = int(np.searchsorted(self.start_s, low_s, side="right")) - 1
        last = max(int(np.searchsorted(self.start_s, high_s, side="left")) - 1, first)
        bounds = [low_s, *self.start_s[first + 1 : last + 1].tolist(), high_s]
        values = self.g_per_kwh[first : last + 1].tolist()
        return [(bounds[i], bounds[i + 1], values[i]) for i in range(len(values))]

    def stale_s(self, low_s: float, high_s: float) -> float:
        """Seconds between two instants for which a value stands in that is older than is usual in the table."""
        if len(self.start_s) < 3:
            return 0.0
        holds_s = STALE_STEPS * float(np.median(np.diff(self.start_s)))
        ends = np.append(self.start_s[1:], self.end_s)
        start, end = np.maximum(self.start_s + holds_s, low_s), np.minimum(ends, high_s)
        return float(np.maximum(end - start, 0.0).sum())

    def extent(self) -> str:
        """From when to when it holds, for people."""
        ends = (datetime.fromtimestamp(t, UTC) for t in (float(self.start_s[0]), self.end_s))
        return " to ".join(f"{moment:%Y-%m-%d %H:%M} UTC" for moment in ends)


@cache
def countries() -> tuple[tuple[str, str, str, int, float], ...]:
    """The bundled table: two letters, three letters, name, year, grams per kWh."""
    text = (files("everywatt.footprint") / TABLE).read_text(encoding="utf-8")
    rows = list(csv.reader(line for line in text.split("\n") if line and not line.startswith("#")))
    return tuple((row[0], row[1], row[2], int(row[3]), float(row[4])) for row in rows[1:])


def country_intensity(country: str) -> Intensity:
    """The yearly figure of a country by its two or three letters or its name. UsageError if there is none."""
    wanted = country.strip().casefold()
    for two, three, name, year, grams in countries():
        if wanted in (two.casefold(), three.casefold(), name.casefold()):
            return Intensity(grams, SOURCE, name, year)
    raise UsageError(
        f"There is no grid intensity for '{country}'.", cure="a code such as FR, DEU or US, or --intensity GRAMS"
    )


def read_curve(path: Path) -> Curve:
    """A CSV with a column of times (ISO 8601, or UTC seconds) and one of grams per kWh, `,` or `;` between.

    Times without a zone are UTC. Rows without a value are passed over: the value before holds on, and where
    that is for long, `Curve.stale_s` tells. UsageError, with the
    line, where something cannot be read.
    """
    found = foreign.lines(path, errors="strict", limits=foreign.SMALL)
    lines = [line for line in found if line.strip() and not line.startswith("#")]
    if not lines:
        raise UsageError(f"{path} is empty.", cure="columns time and g_per_kwh")
    rows = csv.reader(lines, delimiter=";" if lines[0].count(";") > lines[0].count(",") else ",")
    heads = [head.strip().casefold().replace(" ", "_") for head in next(rows)]
    time_at, value_at = _column(path, heads, TIME_COLUMNS), _column(path, heads, VALUE_COLUMNS)
    grams: dict[float, float] = {}
    for number, row in enumerate(rows, 2):
        if len(row) <= max(time_at, value_at) or not row[value_at].strip():
            continue
        grams[_seconds(path, number, row[time_at])] = _grams(path, number, row[value_at])
    if not grams:
        raise UsageError(f"{path} has no row with a value.", cure="columns time and g_per_kwh")
    times = sorted(grams)
    step = times[-1] - times[-2] if len(times) > 1 else ALONE_S
    return Curve(np.array(times), np.array([grams[t] for t in times]), times[-1] + step, path.name)


def _column(path: Path, heads: list[str], known: tuple[str, ...]) -> int:
    for name in known:
        if name in heads:
            return heads.index(name)
    raise UsageError(
        f"{path} has no column {known[0]}; it has: {', '.join(heads)}.", cure=f"one of: {', '.join(known)}"
    )


def _seconds(path: Path, number: int, text: str) -> float:
    with suppress(ValueError):
        if abs(seconds := float(text)) < LATEST_S:
            return seconds
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{path}, row {number}: '{text}' is not a time such as 2026-11-15T10:15+01:00.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _grams(path: Path, number: int, text: str) -> float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"{path}, row {number}: '{text}' is not an amount of grams per kWh.")
    return value
