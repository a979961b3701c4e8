"""Hand calculations: every figure here can be checked with a pencil."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tapes import UTC_NS, gauge_group, rows, write_tape

import everywatt
from everywatt.core.budget import Budget, Term
from everywatt.core.config import resolve
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.footprint.carbon import (
    Curve,
    Factors,
    Intensity,
    account,
    carbon_lines,
    factors_of,
    footprint,
    mean_intensity,
)

HOUR_S = 3600.0


def energy(joules=3.6e6, half=3.6e5):
    """1 kWh ± 0.1 unless told otherwise."""
    return Energy(joules, Budget((Term("gain", "gain", half),)), "gpu", "counter")


def test_grams_are_kwh_times_intensity():
    found = account(energy(), Factors(intensity=Intensity(56.0, "given")))
    assert found.carbon.value == pytest.approx(56.0)
    assert (found.carbon.low, found.carbon.high) == pytest.approx((50.4, 61.6))
    assert found.carbon_varying is None and found.cost is None


def test_pue_and_price():
    factors = Factors(intensity=Intensity(56.0, "given"), pue=1.2, price_per_kwh=0.25, currency="EUR")
    found = account(energy(7.2e6, 0.0), factors)
    assert found.energy.value == pytest.approx(2 * 1000 * 1.2)
    assert found.carbon.value == pytest.approx(2 * 1.2 * 56.0)
    assert found.cost.value == pytest.approx(2 * 1.2 * 0.25)
    assert str(found.cost) == "0.60 EUR" and found.cost.unit == "EUR"
    assert found.equivalents == ("a lamp of 10 W for 10 d 00 h", "160.0 charges of a phone of 15 Wh")


def test_little_money_is_not_shown_in_micro_euros():
    found = account(energy(1176.0, 22.0), Factors(price_per_kwh=0.25, pue=1.2, currency="EUR"))
    assert str(found.cost) == "0.0000980 EUR ± 0.0000019"


def test_each_figure_says_how_it_came_about():
    factors = Factors(intensity=Intensity(56.0, "a source", "France", 2023), pue=1.2)
    (line,) = carbon_lines(account(energy(), factors))
    assert line == "  carbon  67.2 g CO2e ± 6.8   = kWh × 1.2 (PUE) × 56 g/kWh (France, 2023, a source)"
    (line,) = carbon_lines(account(energy(), Factors(pue=1.5)))
    assert line == "  at plug 1500 Wh ± 150   = measured energy × 1.5 (PUE)"


def test_nothing_is_applied_that_nobody_asked_for(tmp_path):
    settings = resolve({}, environ={}, cwd=tmp_path, home=tmp_path)
    assert not factors_of(settings)
    assert footprint(None, factors_of(settings)) is None


def test_settings_give_factors(tmp_path):
    (tmp_path / "everywatt.toml").write_text('country = "fr"\npue = 1.1\nprice = "0.3 EUR"\n')
    (tmp_path / ".git").mkdir()
    factors = factors_of(resolve({}, environ={}, cwd=tmp_path, home=tmp_path))
    assert (factors.intensity.place, factors.intensity.year) == ("France", 2023)
    assert (factors.pue, factors.price_per_kwh, factors.currency) == (1.1, 0.3, "EUR")
    given = factors_of(resolve({"intensity": "42"}, environ={}, cwd=tmp_path, home=tmp_path))
    assert given.intensity == Intensity(42.0, "given"), "grams that were given are stronger than a country"


def test_a_refused_energy_has_no_carbon():
    found = account(Energy.refuse("no sensor"), Factors(intensity=Intensity(56.0, "given"), price_per_kwh=1.0))
    assert found.carbon.value is None and str(found.carbon) == "refused: no sensor"
    assert found.to_dict()["cost"]["refused"] == "no sensor"


@pytest.fixture
def two_hours(tmp_path):
    """100 W for an hour, then 300 W for an hour: 0.1 and 0.3 kWh."""
    ticks = rows(lambda t: 100.0 if t <= HOUR_S else 300.0, 0, 2 * HOUR_S, 10.0)
    group = gauge_group(period_s=10.0, window_s=10.0, max_w=400.0)
    return everywatt.load(write_tape(tmp_path / "two.tape", [(group, 10.0, ticks)]))


def test_the_varying_figure_follows_the_grid(two_hours):
    """400 g/kWh in the first hour, 40 in the second: 0.1 × 400 + 0.3 × 40 = 52 g; the constant mean 220 gives 88 g."""
    start = UTC_NS / 1e9
    curve = Curve(np.array([start - 900, start + HOUR_S]), np.array([400.0, 40.0]), start + 3 * HOUR_S, "grid.csv")
    assert mean_intensity(two_hours, curve)[0] == pytest.approx(130.0, rel=1e-3)
    found = footprint(two_hours, Factors(intensity=Intensity(220.0, "given"), curve=curve))
    assert found.carbon.value == pytest.approx(88.0, rel=1e-3)
    assert found.carbon_varying.value == pytest.approx(52.0, rel=1e-3)
    assert "130.0 g/kWh on average" in found.carbon_varying.how


def test_a_hole_in_the_table_is_told_and_the_figure_kept(two_hours):
    """Quarters of an hour, of which three are missing: 60 min less the 37.5 min that a value may stand."""
    start = UTC_NS / 1e9
    times = [start + 900 * quarter for quarter in range(-1, 9) if quarter not in (2, 3, 4)]
    curve = Curve(np.array(times), np.full(len(times), 50.0), times[-1] + 900, "grid.csv")
    found = footprint(two_hours, Factors(curve=curve))
    assert found.carbon_varying.value == pytest.approx(20.0, rel=1e-3)
    assert "no value for 22 min 30 s of the run; the previous one is used" in found.carbon_varying.how
    whole = Curve(np.array([start - 900, start, start + HOUR_S]), np.full(3, 50.0), start + 3 * HOUR_S, "grid.csv")
    assert "no value" not in footprint(two_hours, Factors(curve=whole)).carbon_varying.how


def test_a_curve_that_ends_too_early_is_refused(two_hours):
    start = UTC_NS / 1e9
    curve = Curve(np.array([start - 900]), np.array([400.0]), start + HOUR_S, "grid.csv")
    found = footprint(two_hours, Factors(curve=curve))
    assert found.carbon_varying.value is None
    assert "grid.csv covers 2023-11-14 21:58 UTC to 2023-11-14 23:13 UTC" in found.carbon_varying.refused


def test_parts_of_the_curve_cover_the_window():
    curve = Curve(np.array([0.0, 10.0, 20.0]), np.array([1.0, 2.0, 3.0]), 30.0, "x")
    assert curve.pieces(5.0, 25.0) == [(5.0, 10.0, 1.0), (10.0, 20.0, 2.0), (20.0, 25.0, 3.0)]
    assert curve.pieces(10.0, 20.0) == [(10.0, 20.0, 2.0)]
    assert curve.pieces(12.0, 13.0) == [(12.0, 13.0, 2.0)]
    assert curve.pieces(-1.0, 5.0) is None and curve.pieces(25.0, 31.0) is None


@pytest.mark.parametrize(
    "flags",
    [{"pue": "0.9"}, {"pue": "x"}, {"price": "free"}, {"intensity": "-1"}, {"intensity": "nan"}, {"price": "-1"}],
)
def test_factors_that_make_no_sense(flags, tmp_path):
    with pytest.raises(everywatt.EverywattError):
        resolve(flags, environ={}, cwd=tmp_path, home=tmp_path)


def test_a_country_that_is_not_known():
    with pytest.raises(UsageError, match="no grid intensity for 'Atlantis'"):
        factors_of(resolve({"country": "Atlantis"}, environ={}))


def test_rounding_of_nothing():
    assert math.isclose(account(energy(0.0, 0.0), Factors(price_per_kwh=1.0)).cost.value, 0.0)


def test_the_sci_score_is_energy_times_intensity_plus_embodied_per_unit():
    factors = Factors(intensity=Intensity(56.0, "given"), embodied_g=44.0, units=10.0, unit="item")
    found = account(energy(), factors)
    assert (found.sci.value, found.sci.low, found.sci.high) == pytest.approx((10.0, 9.44, 10.56))
    assert found.sci.unit == "g CO2e/item" and found.to_dict()["sci"]["value"] == pytest.approx(10.0)
    assert "44 g embodied" in found.sci.how and any("SCI" in line for line in carbon_lines(found))
    assert account(energy(), Factors(intensity=Intensity(56.0, "given"))).sci is None, "not without embodied carbon"
    assert account(energy(), Factors(pue=1.2, embodied_g=44.0)).sci is None, "nor without an intensity"


def test_a_modelled_energy_is_not_called_measured():
    modelled = replace(energy(), pedigree="modelled")
    assert account(modelled, Factors(pue=1.2)).energy.how == "modelled energy × 1.2 (PUE)"
    assert account(energy(), Factors(pue=1.2)).energy.how == "measured energy × 1.2 (PUE)"
