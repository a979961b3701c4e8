"""Carbon and cost by hand."""

from dataclasses import dataclass
from pathlib import Path

import known_site
import numpy as np
import pytest
from known_site import HOUR, T0

from everywatt.slurm.site.carbon import added_up, charged, in_all, mean_over
from everywatt.slurm.site.monthly import month_bounds_s, month_of_site
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.totals import Wanted, sums


@dataclass(frozen=True)
class Constant:
    g_per_kwh: float


@dataclass(frozen=True)
class Table:
    """50 g/kWh until 13:00, then 100, until 23:00."""

    start_s: np.ndarray
    g_per_kwh: np.ndarray
    end_s: float = T0 + 22 * HOUR + 1800


@dataclass(frozen=True)
class Given:
    intensity: Constant | None = None
    curve: Table | None = None
    pue: float | None = None
    price_per_kwh: float | None = None


TABLE = Table(np.array([T0, T0 + 13 * HOUR]), np.array([50.0, 100.0]))
DAY = (T0, T0 + 24 * HOUR)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return known_site.make(tmp_path_factory.mktemp("site"))


def test_a_kilowatt_hour(store: Store) -> None:
    table = charged(store, *DAY, Given(Constant(52.0), TABLE, 1.36, 0.25))
    rows = {(row["job_id"], row["node"]): row for row in table.to_pylist()}
    first = rows[1, "n1"]
    assert first["carbon_g"] == pytest.approx(52.0 * 1.36)
    assert first["carbon_varying_g"] == pytest.approx(50.0 * 1.36)
    assert first["cost"] == pytest.approx(0.25 * 1.36)


def test_when_a_node_drew_it_counts(store: Store) -> None:
    """Job 2 ran 12:00 to 15:00. On n1 all was drawn before 13:00; of n2 nothing is known, so it is even."""
    rows = {(row["job_id"], row["node"]): row for row in charged(store, *DAY, Given(curve=TABLE)).to_pylist()}
    assert rows[2, "n1"]["carbon_varying_g"] == pytest.approx(3 / 3.6 * 50.0, rel=1e-6)
    assert rows[2, "n2"]["carbon_varying_g"] == pytest.approx(1 / 3.6 * (50 + 100 + 100) / 3)


def test_what_the_table_does_not_cover_is_kept_and_told(store: Store) -> None:
    table = charged(store, *DAY, Given(Constant(10.0), TABLE))
    total = in_all(table)
    assert (total["jobs"], total["refused"], total["uncovered"]) == (5, 1, 1)  # 5 has no energy, 6 ends after it
    assert total["carbon_g"] == pytest.approx((3.6e6 + 4e6 + 5e5 + 1e-4) / 3.6e6 * 10)
    assert [row["carbon_varying_g"] is None for row in added_up(table, "user")] == [False, False, True]


def test_time_is_of_jobs_and_the_same_as_in_lists_of_them(store: Store) -> None:
    """ada: an hour on one node and three hours on two; half of cy's records are missing."""
    found = {row["group"]: row["elapsed_s"] / HOUR for row in added_up(charged(store, *DAY, Given()), "user")}
    assert found["ada"] == pytest.approx(4.0) and found["cy"] == pytest.approx(0.5)
    listed = {row["group"]: row["elapsed_s"] / HOUR for row in sums(store, Wanted(*DAY), "user")}
    assert found == pytest.approx(listed)


def test_no_factor_no_figure(store: Store) -> None:
    total = in_all(charged(store, *DAY, Given()))
    assert (total["carbon_g"], total["carbon_varying_g"], total["cost"]) == (None, None, None)


def test_the_mean_of_a_curve() -> None:
    low, high = np.array([12.0, 12.5, -1.0, 20.0]) * HOUR + T0, np.array([14.0, 12.75, 1.0, 23.0]) * HOUR + T0
    assert mean_over(TABLE, low, high).tolist() == pytest.approx([75.0, 50.0, np.nan, np.nan], nan_ok=True)


def test_a_month_with_its_last_day(tmp_path: Path) -> None:
    since_s, until_s = month_bounds_s("2026-11")
    assert (since_s, until_s) == (1_793_491_200.0, 1_796_083_200.0)
    store = Store(tmp_path)
    late = known_site.job(1, "ada", (until_s - T0) / HOUR - 2, 1.999, 10)
    store.append([late, known_site.job(2, "ada", (until_s - T0) / HOUR, 1, 20)], "n1")
    month = month_of_site(store, "2026-11", Given())
    assert [(row["group"], row["energy_uj"]) for row in month.groups["day"]] == [("2026-11-30", 10)]
    assert month_of_site(store, "2026-12", Given()).total["energy_uj"] == 20


def test_the_month_adds_up(store: Store) -> None:
    month = month_of_site(store, "2026-11", Given(Constant(52.0)))
    assert [(row["group"], row["energy_uj"]) for row in month.groups["account"]] == [
        ("phys", 7_600_000_000_000),
        ("chem", 500_000_000_000),
        ("", 100),
    ]
    assert sum(row["energy_uj"] for row in month.groups["user"]) == month.total["energy_uj"]
    assert month.nodes["total_uj"] == month.nodes["jobs_uj"] + month.nodes["idle_uj"] + month.nodes["system_uj"] > 0
    lines = month.csv().splitlines()
    assert lines[1].startswith("2026-11,all,,5,1,")
    assert sum(line.startswith("2026-11,state,") for line in lines) == 2
