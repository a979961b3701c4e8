"""Carbon and cost: what a run's kWh mean with factors that the user gave. Apart from joules, and never applied unasked.

Grams are energy at the plug × grams per kWh. Energy at the plug is the measured energy × PUE (power usage
effectiveness: what the whole room draws over what its computers draw; 1 where none is given). The interval is the
energy's own: factors are taken as they are given.
"""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.core import foreign
from everywatt.core.clocks import NS
from everywatt.core.config import Settings
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.core.format import format_duration, format_money, format_number, format_quantity
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.units import J_PER_KWH

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


PREFIXED = ("g CO2e", "Wh")
LAMP_W = 10.0
PHONE_WH = 15.0


@dataclass(frozen=True, slots=True)
class Factors:
    """What joules are multiplied with. None: not asked for.

    embodied_g  grams of CO2e of making the hardware, as much of them as this use of it has to carry
    units       functional units that came of it, `unit` is the name of one: for the SCI score
    """

    intensity: Intensity | None = None
    curve: Curve | None = None
    pue: float | None = None
    price_per_kwh: float | None = None
    currency: str = ""
    embodied_g: float | None = None
    units: float = 1.0
    unit: str = "run"

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.intensity, self.curve, self.pue, self.price_per_kwh))

    def lines(self) -> list[str]:
        """With what carbon and cost are made, for people."""
        lines = []
        if self.intensity is not None:
            lines.append(f"Carbon: {self.intensity}.")
        if self.curve is not None:
            lines.append(f"Carbon over time: {self.curve.source}, {self.curve.extent()}.")
        if self.pue is not None:
            lines.append(f"PUE: {self.pue:g}; carbon and cost are multiplied by it.")
        if self.price_per_kwh is not None:
            lines.append(f"Price of a kWh: {self.price_per_kwh:g} {self.currency}".rstrip() + ".")
        return lines


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity with the 95 % interval that its energy brings; `value` None where it was refused, with the reason."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    how: str
    refused: str = ""

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return f"refused: {self.refused}"
        below, above = self.value - self.low, self.high - self.value
        if below <= 0 and above <= 0 and not self.unit.startswith(PREFIXED):
            return format_money(self.value, self.unit)
        return format_quantity(self.value, self.unit, below, above)

    def to_dict(self) -> dict[str, Any]:
        data = {"value": self.value, "low": self.low, "high": self.high, "unit": self.unit, "how": self.how}
        return {**data, "refused": self.refused} if self.refused else data


@dataclass(frozen=True, slots=True)
class Footprint:
    """What was asked for, each with how it came about; None where its factor was not given.

    carbon          with one intensity for the whole run
    carbon_varying  with the intensity that the grid had while the energy was drawn
    sci             software carbon intensity (ISO/IEC 21031): both that and the embodied carbon, per functional unit
    """

    energy: Amount
    carbon: Amount | None
    carbon_varying: Amount | None
    cost: Amount | None
    pue: float | None
    equivalents: tuple[str, ...] = ()
    sci: Amount | None = None

    def to_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in ("energy", "carbon", "carbon_varying", "cost", "sci")}
        given = {name: amount.to_dict() for name, amount in parts.items() if amount is not None}
        return {**given, "pue": self.pue, "equivalents": list(self.equivalents)}


def factors_of(settings: Settings) -> Factors:
    """The factors that options, environment and files give; none of them has a default."""
    intensity = None
    if settings.intensity is not None:
        intensity = Intensity(settings.intensity, "given")
    elif settings.country is not None:
        intensity = country_intensity(settings.country)
    curve = read_curve(settings.intensity_file) if settings.intensity_file is not None else None
    price, currency = settings.price if settings.price is not None else (None, "")
    return Factors(intensity, curve, settings.pue, price, currency)


def footprint(run: Run, factors: Factors) -> Footprint | None:
    """Carbon and cost of a run; None where no factor was given."""
    if not factors:
        return None
    energy = run.energy()
    curve = factors.curve
    varying, why = mean_intensity(run, curve) if curve is not None and energy.joules is not None else (None, "")
    return account(energy, factors, varying, why)


def account(energy: Energy, factors: Factors, varying_g_per_kwh: float | None = None, why: str = "") -> Footprint:
    """The sums alone. `varying_g_per_kwh` is the mean of the factors' curve, weighted with the run's power."""
    pue = 1.0 if factors.pue is None else factors.pue
    times = f" × {factors.pue:g} (PUE)" if factors.pue is not None else ""

    def amount(factor: float, unit: str, how: str) -> Amount:
        if energy.joules is None or energy.low is None or energy.high is None:
            return Amount(None, None, None, unit, how, energy.refused or "no energy was measured")
        kwh = factor * pue / J_PER_KWH
        return Amount(energy.joules * kwh, energy.low * kwh, energy.high * kwh, unit, how)

    carbon = varying = cost = None
    if factors.intensity is not None:
        carbon = amount(factors.intensity.g_per_kwh, "g CO2e", f"kWh{times} × {factors.intensity}")
    if factors.curve is not None:
        how = f"kWh{times} × the grid's intensity at the time ({factors.curve.source})"
        if varying_g_per_kwh is None:
            varying = Amount(None, None, None, "g CO2e", how, why or energy.refused or "no intensity for that time")
        else:
            mean = f"{varying_g_per_kwh:.1f} g/kWh on average" + (f"; {why}" if why else "")
            varying = amount(varying_g_per_kwh, "g CO2e", f"{how}, {mean}")
    if factors.price_per_kwh is not None:
        unit = factors.currency or "(price units)"
        cost = amount(factors.price_per_kwh, unit, f"kWh{times} × {factors.price_per_kwh:g} {unit} per kWh")
    whole = amount(1000.0, "Wh", f"{'modelled' if 'modelled' in energy.pedigree else 'measured'} energy{times}")
    sci = _sci(varying or carbon, factors)
    return Footprint(whole, carbon, varying, cost, factors.pue, _equivalents(whole), sci)


def _sci(operational: Amount | None, factors: Factors) -> Amount | None:
    """(E × I + M) / R of ISO/IEC 21031; None without M, which no sensor knows, or without an intensity."""
    if factors.embodied_g is None or operational is None:
        return None
    per = f"per {factors.unit}" if factors.units == 1 else f"/ {factors.units:g} {factors.unit}s"
    how = f"({operational.unit} of the energy + {factors.embodied_g:g} g embodied, given) {per}"
    unit = f"g CO2e/{factors.unit}"
    if operational.value is None or operational.low is None or operational.high is None:
        return Amount(None, None, None, unit, how, operational.refused)
    value, low, high = (
        (one + factors.embodied_g) / factors.units for one in (operational.value, operational.low, operational.high)
    )
    return Amount(value, low, high, unit, how)


def _equivalents(energy: Amount) -> tuple[str, ...]:
    if not energy.value:
        return ()
    seconds, charges = energy.value / LAMP_W * 3600, energy.value / PHONE_WH
    lamp = f"a lamp of {LAMP_W:g} W for {format_duration(seconds)}"
    return (lamp, f"{format_number(charges)} charges of a phone of {PHONE_WH:g} Wh")


def mean_intensity(run: Run, curve: Curve) -> tuple[float | None, str]:
    """Grams per kWh of the curve, weighted with the energy drawn in each of its steps; or None. And what is amiss."""
    joules: list[npt.NDArray[np.float64]] = []
    grams: list[npt.NDArray[np.float64]] = []
    stale_s = 0.0
    for tape, windows in zip(run.tapes, run.windows(), strict=True):
        if not windows:
            continue
        starts, ends, intensities = [], [], []
        for start_ns, end_ns in windows:
            utc = (tape.to_utc_ns(start_ns) / NS, tape.to_utc_ns(end_ns) / NS)
            pieces = curve.pieces(*utc)
            if pieces is None:
                return None, f"{curve.source} covers {curve.extent()}, which is not the whole run"
            stale_s += curve.stale_s(*utc)
            for low, high, g_per_kwh in pieces:
                starts.append(start_ns / NS + (low - utc[0]))
                ends.append(start_ns / NS + (high - utc[0]))
                intensities.append(g_per_kwh)
        origin = tape.extent_ns()[0] / NS
        part = Run(tape.path, [tape])
        joules.append(part.energies(np.array(starts) - origin, np.array(ends) - origin))
        grams.append(np.array(intensities))
    amounts, factors = np.concatenate(joules), np.concatenate(grams)
    known = np.isfinite(amounts)
    if not known.any() or amounts[known].sum() <= 0:
        return None, "no energy was measured in any step of the curve"
    held = f"the table has no value for {format_duration(stale_s)} of the run; the previous one is used"
    return float((amounts[known] * factors[known]).sum() / amounts[known].sum()), held if stale_s > 0 else ""


def carbon_lines(found: Footprint) -> list[str]:
    """Lines for a terminal: each figure with how it came about."""
    lines = []
    for label, amount in (
        *(("carbon", found.carbon), ("carbon", found.carbon_varying), ("cost", found.cost), ("SCI", found.sci)),
    ):
        if amount is not None:
            lines.append(f"  {label:<7} {amount}   = {amount.how}")
    if found.carbon is None and found.carbon_varying is None and found.cost is None:
        lines.append(f"  at plug {found.energy}   = {found.energy.how}")
    return lines
