"""Sums of jobs: what is not known is not nothing, and a part is not the whole."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import known_site
import numpy as np
import pytest
from known_site import MJ, T0

from everywatt.footprint.carbon import Factors, Intensity
from everywatt.slurm.schema import NodeHour
from everywatt.slurm.site.carbon import added_up, with_factors
from everywatt.slurm.site.detail import find
from everywatt.slurm.site.figures import JobList, JobSums, RunningJobs, amount, cells, energy_of, nodes_of, short
from everywatt.slurm.site.monthly import month_of_user
from everywatt.slurm.site.store import Store, day_of
from everywatt.slurm.site.totals import Wanted, jobs, node_sums, sums

DAY = Wanted(T0, T0 + 86_400)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return known_site.make(tmp_path)


def test_a_group_of_refused_jobs_has_no_energy(store: Store) -> None:
    store.append([known_site.job(8, "dan", 3, 1, None, state="TIMEOUT", refused="too short")], "n1")
    rows = {row["group"]: row for row in sums(store, DAY, "state")}
    assert (rows["TIMEOUT"]["energy_uj"], short(rows["TIMEOUT"]), rows["TIMEOUT"]["refused"]) == (None, "refused", 1)
    assert "refused" in energy_of(rows["TIMEOUT"]) and energy_of(rows["TIMEOUT"])["joules"] is None
    assert rows["COMPLETED"]["energy_uj"] > 0, "what is known of a group is added up"
    assert list(rows)[-1] == "TIMEOUT"


@pytest.mark.parametrize("state", ["FAILED,COMPLETED", "failed, compl", "FAILED,COMPLETED,"])
def test_several_states(store: Store, state: str) -> None:
    found = {row["state"] for row in jobs(store, replace(DAY, state=state))}
    assert found == {"FAILED", "COMPLETED"}


def test_the_wall_of_a_job_is_that_of_all_its_nodes(store: Store) -> None:
    _, first, second, *_ = known_site.jobs()
    store.append([replace(first, wall_uj=4 * MJ, written_s=2e9)], "n1")
    assert next(row for row in jobs(store, DAY) if row["job_id"] == 2)["wall_uj"] is None
    store.append([replace(second, wall_uj=2 * MJ, written_s=2e9)], "n2")
    assert next(row for row in jobs(store, DAY) if row["job_id"] == 2)["wall_uj"] == 6 * MJ


def test_the_list_and_the_job_in_full_say_the_same_of_a_node_without_figures(store: Store) -> None:
    first = known_site.job(8, "dan", 3, 1, 5, nodes=2, cpus=4.0, cpu_s=100.0)
    second = known_site.job(8, "dan", 3, 1, None, nodes=2, node="n2", refused="too short", cpus=4.0, pedigree="")
    store.append([first], "n1")
    store.append([second], "n2")
    row = next(row for row in jobs(store, DAY) if row["job_id"] == 8)
    (detail,) = find(store, "8")
    assert (row["energy_uj"], row["refused"], row["pedigree"]) == (None, "too short", "counter")
    assert row["cpu_s"] is None, "of 8 CPUs not 100 s were used, but not less"
    assert "  energy      refused, coverage 100 %, cpu" in detail.lines()
    assert not any(line.startswith("  CPU") for line in detail.lines())


def test_what_a_curve_does_not_cover_is_counted_in_jobs(store: Store) -> None:
    def uncovered(curve: object) -> dict[str, int]:
        factors = SimpleNamespace(intensity=None, curve=curve, pue=None, price_per_kwh=None)
        table = with_factors(store.jobs(T0, T0 + 86_400), None, factors)
        return {row["group"]: row["uncovered"] for row in added_up(table, "user")}

    assert uncovered(None) == {"ada": 0, "bob": 0, "cy": 0}, "there is no curve"
    morning = SimpleNamespace(start_s=np.array([T0]), end_s=T0 + 12 * 3600, g_per_kwh=np.array([50.0]))
    # Job 2 of ada ran on two nodes; of bob's two jobs one has no energy.
    assert uncovered(morning) == {"ada": 1, "bob": 1, "cy": 1}


def test_what_nodes_drew_says_how_much_of_it_was_observed(tmp_path: Path) -> None:
    """A card that only a gauge measures was not observed for half of its half hour; the package was, for an hour."""
    store, at = Store(tmp_path), int(T0)
    card = NodeHour(at, "n1", "gpu.0", "gpu", "nvml", 9 * MJ, 9 * MJ, 0, 0, 0.5, at, at + 1800.0)
    package = NodeHour(at, "n1", "cpu.0", "package", "rapl", MJ, 0, MJ, 0, 1.0, at, at + 3600.0)
    known = {"total_low_uj": MJ * 9 // 10, "total_high_uj": MJ * 2, "idle_high_uj": MJ * 11 // 10}
    package = replace(package, **known)  # the card's record is of an earlier version
    store.append_hours([card, package], "n1")
    for _ in range(2):  # by its rows, then by the head of its file
        found = node_sums(store, T0, T0 + 86_400)
        assert nodes_of(found)["coverage"] == pytest.approx((0.5 * 1800 + 3600) / 5400)
        (line,) = JobSums("user", [], found).tables()[-1].notes
        assert line.endswith("system 0.000 MJ (coverage 83.3 %)")
        ends = {name: nodes_of(found)[name] for name in ("total_low_j", "total_high_j", "jobs_low_j", "idle_high_j")}
        assert ends == dict.fromkeys(ends)
        store.compact(day_of(T0), "nodes")
    assert nodes_of(node_sums(store, T0 + 86_400, T0 + 2 * 86_400))["coverage"] is None, "nothing is known of that day"


def test_what_nodes_drew_adds_up_as_it_is_printed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    joules = {"total": (3893, 3290, 4530), "jobs": (798, 700, 897), "idle": (3056, 2460, 3700), "system": (39, 15, 102)}
    ends = {f"{name}_{end}_uj": j * 10**6 for name, of in joules.items() for end, j in zip(("low", "high"), of[1:])}
    amounts = [of[0] * 10**6 for of in joules.values()]
    store.append_hours([replace(NodeHour(int(T0), "n1", "cpu.0", "package", "rapl", *amounts, 1.0), **ends)], "n1")
    (line,) = JobSums("user", [], node_sums(store, T0, T0 + 86_400)).tables()[-1].notes
    assert line == (
        "nodes in these hours: 3893 J (3290 … 4530) = "
        "jobs 798 J (700 … 897), idle 3056 J (2460 … 3700), system 39 J (15 … 102)"
    )


def test_jobs_of_a_node_are_listed_with_what_that_node_drew(store: Store) -> None:
    at = int(T0)
    store.append_hours([NodeHour(at, f"n{n}", "gpu.7", "gpu", "nvml", n * MJ, 0, n * MJ, 0, 1.0) for n in (8, 9)], "x")
    assert node_sums(store, T0, T0 + 86_400, "n9")["total_uj"] == 9 * MJ


def test_a_list_of_jobs_says_its_sum_and_what_of_it_is_not_whole(store: Store) -> None:
    nodes = node_sums(store, T0, T0 + 86_400)
    listed, drawn = (table.notes[0] for table in JobList(jobs(store, DAY), DAY, nodes).tables()[1:])
    assert listed == "5 jobs from start to end: 8.10 MJ ± 0.71, 1 refused, 1 incomplete (everywatt slurm validate)"
    assert drawn.startswith("nodes in these hours: ")
    ada = replace(DAY, user="ada")
    assert JobList(jobs(store, ada), ada, nodes).tables()[1].notes == ("2 jobs from start to end: 7.60 MJ ± 0.66",)
    on_n1 = replace(DAY, node="n1")  # of each job a part, whose other nodes are left out and not missing
    assert JobList(jobs(store, on_n1), on_n1, nodes).tables()[1].notes == ("5 jobs on n1: 7.10 MJ ± 0.71, 1 refused",)
    by_user = JobSums("user", sums(store, DAY, "user"), nodes).tables()
    assert by_user[1].notes == ("all jobs from start to end: 8.10 MJ ± 0.71, 1 refused",)
    assert len(JobSums("user", [], nodes).tables()) == 2, "nothing to add up"


def test_the_sum_of_jobs_that_were_seen_in_part_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([known_site.job(n, "dan", 3, 1, 2 * MJ, coverage=part) for n, part in ((8, 0.5), (9, 1.0))], "n1")
    for listed in (JobList(jobs(store, DAY), DAY), JobSums("user", sums(store, DAY, "user"), {})):
        assert listed.tables()[1].notes[0].endswith(" (coverage 75.0 %)")


def test_coverage_has_one_name(store: Store) -> None:
    (row,) = (row for row in jobs(store, DAY) if row["user"] == "cy")
    assert short(row) == "0.100 mJ ± 0.010 (coverage 50.0 %)"


def test_what_follows_from_the_energy_has_the_digits_of_its_interval(store: Store) -> None:
    factors = Factors(Intensity(56.0, "given"))
    facts = month_of_user(store, "ada", factors, T0 + 86_400, 0).facts()
    assert facts[:2] == ["7.60 MJ ± 0.66 (2110 Wh)", "118 g CO2e"]


def test_an_idle_share_says_its_coverage_where_no_energy_beside_it_does() -> None:
    row = {"energy_uj": None, "coverage": 0.705, "idle_uj": 100_000_000, "idle_low_uj": 90_000_000}
    row["idle_high_uj"] = 110_000_000
    assert amount(row, "idle_uj") == "100 J ± 10 (coverage 70.5 %)"
    assert amount({**row, "energy_uj": 1}, "idle_uj") == "100 J ± 10"


def test_waste_has_the_digits_that_its_idle_share_leaves() -> None:
    row = {"idle_uj": 1_000_000, "idle_low_uj": 900_000, "idle_high_uj": 1_900_000, "waste_uj": 500_000}
    assert cells(row, ["waste"]) == ["0.50 J"]
    assert cells({**row, "idle_low_uj": None}, ["waste"]) == ["0.5000 J"]
    assert cells({**row, "waste_uj": None}, ["waste"]) == [None]


def test_a_job_that_runs_says_how_much_of_it_was_observed() -> None:
    row = dict.fromkeys(("account", "power_w", "idle_j", "idle_low_j", "idle_high_j", "waste_j"))
    row |= {"job_id": "1", "user": "ada", "nodes": ["n1"], "elapsed_s": 10.0, "coverage": 0.6}
    row |= {"energy_j": 100.0, "low_j": 90.0, "high_j": 150.0}
    (shown,) = RunningJobs([row], None, T0).tables()[0].rows
    assert "100 J −10/+50 (coverage 60.0 %)" in shown


def test_what_nodes_drew_keeps_its_interval_when_days_are_compact(store: Store) -> None:
    before = node_sums(store, T0, T0 + 86_400)
    store.compact(day_of(T0), "nodes")
    assert before["total_low_uj"] and node_sums(store, T0, T0 + 86_400) == before
