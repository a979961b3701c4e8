"""The page of a site: each day has a place of its own."""

import re
from datetime import UTC, datetime
from pathlib import Path

from everywatt.footprint.carbon import Factors, Intensity
from everywatt.report.html.site import site_page
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.monthly import month_of_site, period_of_site
from everywatt.slurm.site.store import Store


def store_of(folder: Path, *days: str) -> Store:
    """A store with a job of an hour and a kilojoule on each of these days."""
    store = Store(folder)
    ends = [datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=UTC).timestamp() for day in days]
    facts = {"energy_uj": 10**9, "low_uj": 10**9, "high_uj": 10**9, "coverage": 1.0}
    store.append([JobOnNode(at, "n1", end_s - 3600, end_s, **facts) for at, end_s in enumerate(ends, 1)], "n1")
    return store


def places(page: str) -> tuple[list[float], list[str]]:
    """Where the columns are, and what the axis says."""
    return [float(x) for x in re.findall(r'<rect x="([\d.]+)"', page)], re.findall(r'class="tick">([^<]+)', page)


def test_a_month_has_its_own_days(tmp_path: Path) -> None:
    store = store_of(tmp_path, "2026-11-01", "2026-11-30")
    columns, marks = places(site_page(month_of_site(store, "2026-11", Factors())))
    assert columns == [1.0, 29 * 720 / 30 + 1]
    assert marks == ["1", "5", "10", "15", "20", "25", "30"]


def test_days_of_two_months_do_not_lie_on_one_another(tmp_path: Path) -> None:
    store = store_of(tmp_path, "2026-10-16", "2026-11-15", "2026-11-16")
    bounds_s = tuple(datetime(2026, month, 16, 11, tzinfo=UTC).timestamp() + 7200 * (month - 10) for month in (10, 11))
    page = site_page(period_of_site(store, bounds_s, "the last 31 days", Factors()))
    columns, marks = places(page)
    assert len(columns) == 3 and columns == sorted(set(columns))
    assert (marks[0], marks[-1]) == ("10-16", "11-16")


def test_carbon_has_the_digits_of_its_energy(tmp_path: Path) -> None:
    """8.10 MJ ± 0.71 at 56 g/kWh: 126 g, not 126.0."""
    store = Store(tmp_path)
    end_s = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()
    energy = {"energy_uj": 8_100_000_000_000, "low_uj": 7_390_000_000_000, "high_uj": 8_810_000_000_000}
    store.append([JobOnNode(1, "n1", end_s - 3600, end_s, **energy, coverage=1.0)], "n1")
    page = site_page(month_of_site(store, "2026-11", Factors(Intensity(56.0, "given"))))
    assert "8.10 MJ ± 0.71" in page and "2250 Wh" in page
    assert page.count("126 g CO2e") >= 2 and "126.0 g" not in page, "in the total and in the tables"
