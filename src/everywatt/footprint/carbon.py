"""Carbon and cost: what a run's kWh mean with factors that the user gave. Apart from joules, and never applied unasked.

Grams are energy at the plug × grams per kWh. Energy at the plug is the measured energy × PUE (power usage
effectiveness: what the whole room draws over what its computers draw; 1 where none is given). The interval is the
energy's own: factors are taken as they are given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.core.clocks import NS
from everywatt.core.config import Settings
from everywatt.core.energy import Energy
from everywatt.core.format import format_duration, format_money, format_number, format_quantity
from everywatt.core.lazy_dataclass import dataclass
from everywatt.footprint.intensity import Curve, Intensity, country_intensity, read_curve

J_PER_KWH = 3.6e6
PREFIXED = ("g CO2e", "Wh")
LAMP_W = 10.0
PHONE_WH = 15.0


@dataclass(frozen=True, slots=True)
class Factors:
    """What joules are multiplied with. None: not asked for."""

    intensity: Intensity | None = None
    curve: Curve | None = None
    pue: float | None = None
    price_per_kwh: float | None = None
    currency: str = ""

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.intensity, self.curve, self.pue, self.price_per_kwh))


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
        if below <= 0 and above <= 0 and self.unit not in PREFIXED:
            return format_money(self.value, self.unit)
        return format_quantity(self.value, self.unit, below, above)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {"value": self.value, "low": self.low, "high": self.high, "unit": self.unit, "how": self.how}
        return {**data, "refused": self.refused} if self.refused else data


@dataclass(frozen=True, slots=True)
class Footprint:
    """What was asked for, each with how it came about; None where its factor was not given.

    carbon          with one intensity for the whole run
    carbon_varying  with the intensity that the grid had while the energy was drawn
    """

    energy: Amount
    carbon: Amount | None
    carbon_varying: Amount | None
    cost: Amount | None
    pue: float | None
    equivalents: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        parts = {name: getattr(self, name) for name in ("energy", "carbon", "carbon_varying", "cost")}
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
        cost = amount(factors.price_per_kwh, unit, f"kWh{times} × {factors.price_per_kwh:g} {factors.currency} per kWh")
    whole = amount(1000.0, "Wh", f"measured energy{times}")
    return Footprint(whole, carbon, varying, cost, factors.pue, _equivalents(whole))


def _equivalents(energy: Amount) -> tuple[str, ...]:
    if energy.value is None:
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
    for label, amount in (("carbon", found.carbon), ("carbon", found.carbon_varying), ("cost", found.cost)):
        if amount is not None:
            lines.append(f"  {label:<7} {amount}   = {amount.how}")
    if found.carbon is None and found.carbon_varying is None and found.cost is None:
        lines.append(f"  at plug {found.energy}   = {found.energy.how}")
    return lines
