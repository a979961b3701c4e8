"""Queries over long times: sums beyond 64 bits, the first jobs of an order, and totals from the heads of files."""

import random
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import known_site
import pyarrow.parquet as pq
import pytest
from known_site import HOUR, T0

from everywatt.footprint.carbon import Factors
from everywatt.slurm.schema import NodeHour
from everywatt.slurm.site.monthly import period_of_site
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.totals import SORTS, Wanted, jobs, node_sums, sums

DAY = 24.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Ten days of jobs on one to three nodes, some refused, whose nodes end on different days."""
    chance = random.Random(7)
    made = Store(tmp_path_factory.mktemp("store"))
    rows = []
    for number in range(1, 120):
        nodes = chance.choice((1, 1, 1, 2, 3))
        start = chance.uniform(0, 10 * DAY)
        for node in range(nodes):
            uj = None if chance.random() < 0.1 else chance.randrange(10**12)
            one = known_site.job(number, chance.choice("ab"), start, chance.uniform(0, 9), uj, nodes=nodes)
            rows.append(replace(one, node=f"n{node}", waste_uj=None if uj is None else uj // 3))
    made.append([replace(row, user="a" if row.job_id % 3 else "b") for row in rows], "n1")
    for day in range(7):
        made.compact(date(2026, 11, 15) + timedelta(days=day))
    return made


@pytest.mark.parametrize("sort", SORTS)
def test_the_first_jobs_are_the_first_of_all(store: Store, sort: str) -> None:
    for wanted in (
        Wanted(T0, T0 + 15 * 86_400),
        Wanted(T0 + 3 * 86_400 + 5, T0 + 6 * 86_400),
        Wanted(T0, T0 + 15 * 86_400, user="b", node="n1"),
    ):
        limit, all_of_them = 20, jobs(store, wanted, sort)
        found = jobs(store, wanted, sort, limit)
        assert len(found) == min(limit, len(all_of_them))
        by_key = {(row["job_id"], row["restart"]): row for row in all_of_them}
        assert all(row == by_key[row["job_id"], row["restart"]] for row in found)
        value = {"energy": "energy_uj", "time": "elapsed_s", "waste": "waste_uj", "id": "job_id"}.get(sort)
        value = value or {"start": "start_s", "user": "user"}.get(sort, "end_s")
        assert [row[value] for row in found] == [row[value] for row in all_of_them[:limit]]


def test_months_and_days_are_those_of_the_ends(store: Store) -> None:
    wanted = Wanted(T0, T0 + 15 * 86_400)
    one_by_one = store.jobs(wanted.since_s, wanted.until_s).to_pylist()
    for by, length in (("month", 7), ("day", 10)):
        expected: dict[str, int] = {}
        for row in one_by_one:
            name = (date(1970, 1, 1) + timedelta(days=row["end_s"] // 86_400)).isoformat()[:length]
            expected[name] = expected.get(name, 0) + (row["energy_uj"] or 0)
        found = sums(store, wanted, by)
        assert {row["group"]: row["energy_uj"] or 0 for row in found} == expected
        assert [row["group"] for row in found] == sorted(expected, reverse=True)


def test_a_year_of_a_large_site_has_more_microjoules_than_64_bits(tmp_path: Path) -> None:
    store = Store(tmp_path)
    most = 2**62
    store.append([known_site.job(n, "ada", n, 1, most, account="x", idle_uj=most) for n in (1, 2, 3)], "n1")
    at = int(T0 + HOUR)
    store.append_hours(
        [NodeHour(at, f"n{n}", "cpu.0", "package", "rapl", most, most, 0, 0, 1.0) for n in range(3)], "n1"
    )
    wanted = Wanted(T0, T0 + 86_400)
    assert [row["energy_uj"] for row in sums(store, wanted, "user")] == [3 * most]
    assert node_sums(store, T0, T0 + 86_400)["total_uj"] == 3 * most
    assert period_of_site(store, (T0, T0 + 86_400), "day", Factors()).total["energy_uj"] == 3 * most


def test_totals_of_compact_days_are_not_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day in range(4):
        rows = [replace(row, hour_s=int(row.hour_s + day * 86_400)) for row in known_site.hours()]
        store.append_hours(rows, "n1")
    bounds = [(T0, T0 + 4 * 86_400), (T0 + 11 * HOUR, T0 + 2 * 86_400 + 12 * HOUR), (T0 + 3599, T0 + 86_400), (T0, T0)]
    before = [node_sums(store, *bound) for bound in bounds]
    for day in range(3):
        assert store.compact(date(2026, 11, 15) + timedelta(days=day), "nodes")
    assert len(store.day_sums(*bounds[0])) == 3 and list(store.day_sums(*bounds[1])) == [date(2026, 11, 16)]
    assert [node_sums(store, *bound) for bound in bounds] == before
    # A late record makes a day one that has to be read; so does a file of an earlier version.
    store.append_hours([replace(known_site.hours()[0], node="n2")], "n2")
    assert len(store.day_sums(*bounds[0])) == 2
    old = tmp_path / "nodes" / "date=2026-11-16" / "compact.parquet"
    pq.write_table(pq.read_table(old).replace_schema_metadata(None), old)
    assert list(store.day_sums(*bounds[0])) == [date(2026, 11, 17)]
    more = known_site.hours()[0].total_uj
    assert node_sums(store, *bounds[0])["total_uj"] == before[0]["total_uj"] + more
