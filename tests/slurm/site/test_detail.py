"""One job in full."""

import known_site
import pytest

from everywatt.core.errors import UsageError
from everywatt.slurm.site.detail import Details, bars, find, hints, parse_id, slurm_difference
from everywatt.slurm.site.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return known_site.make(tmp_path_factory.mktemp("site"))


def test_ids_as_slurm_prints_them() -> None:
    assert [parse_id(text) for text in ("123", "123_4", "123+0")] == [(123, "", None), (123, "_", 4), (123, "+", 0)]
    for wrong in ("", "x", "1.batch", "-1", "1_", "1'; --"):
        with pytest.raises(UsageError, match="is not a job id"):
            parse_id(wrong)


def test_a_job_is_the_sum_of_its_nodes(store: Store) -> None:
    (found,) = find(store, "2")
    assert (found.energy_uj, found.elapsed_s, found.missing) == (4 * known_site.MJ, 3 * 3600, 0)
    assert found.by_node() == [("n1", 3 * known_site.MJ), ("n2", known_site.MJ)]
    assert found.by_device() == [("n1 gpu.0", 2 * known_site.MJ), ("n1 cpu.0", known_site.MJ)]


def test_a_task_is_found_by_its_array(store: Store) -> None:
    assert [job.first.job_id for job in find(store, "3_4")] == [7]
    assert [job.first.job_id for job in find(store, "3")] == [7]
    assert find(store, "3_5") == find(store, "99") == []


def test_steps_and_what_is_in_none(store: Store) -> None:
    (found,) = find(store, "1")
    steps = [("0", 2_900_000_000_000), ("batch", 600_000_000_000), ("(no step)", 100_000_000_000)]
    assert found.by_step() == steps


def test_hints_name_what_stood_still(store: Store) -> None:
    (lazy,), (gpu,), (torn,) = (find(store, number) for number in ("1", "2", "6"))
    assert hints(lazy) == [
        "2.0 of 16 CPUs used on average.",
        "At most 4.0 GiB of the requested 64.0 GiB of memory were used.",
        "350.0 kJ went into allocated hardware that was not used.",
    ]
    assert hints(gpu) == [
        "GPU 1 of n1 drew 61.00 W idle for 3 h 00 min.",
        "600.0 kJ went into allocated hardware that was not used.",
    ]
    assert hints(torn) == ["1 of its nodes have no record.", "Only 50.0 % of it was observed."]


def test_beside_what_slurm_counted(store: Store) -> None:
    (lazy,), (gpu,) = (find(store, number) for number in ("1", "2"))
    counted, difference = slurm_difference(lazy) or (0.0, 0.0)
    assert (counted, difference) == (5e6, pytest.approx(4.0 / 5.0 - 1))
    assert slurm_difference(gpu) is None


def test_bars_end_in_a_line_of_the_rest() -> None:
    lines = bars([("a", 4_000_000), ("bb", 2_000_000), ("c", 1), ("d", 1)], width=4, most=2)
    assert [line.split() for line in lines][:2] == [["a", "####", "4.000", "J"], ["bb", "##", "2.000", "J"]]
    assert "(2 more)" in lines[2]
    assert bars([]) == []


def test_the_sum_of_tasks_has_an_interval(store: Store) -> None:
    one, two, refused = (find(store, number)[0] for number in ("1", "2", "5"))
    assert Details([one, two, refused]).tables()[0].notes == ("3 jobs: 7.60 MJ ± 0.66, 1 without",)
