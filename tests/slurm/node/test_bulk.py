"""A day by whole arrays is the ledger's own arithmetic, hour by hour, to the microjoule."""

import numpy as np
import pytest

from everywatt.ledger.split.amounts import apportion
from everywatt.ledger.split.split import Level, Uses, split
from everywatt.slurm.node.bulk import Device, NodeDay, apportion_rows, book_day, split_hours
from everywatt.slurm.schema import JobOnNode

T0 = 1_794_700_800.0
TICKS = 360
LEVELS = [Level(50.0), Level(50.0, 12.0, 3.0, 0.5), Level(900.0, 0.0, 1.0, 0.2)]


def random_uses(rng: np.random.Generator, ticks: int, owners: int) -> Uses:
    count = ticks * 2
    return Uses(rng.integers(0, ticks, count), rng.integers(0, owners, count), rng.uniform(0, 10, count))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(4))
def test_hours_at_once_are_hours_one_by_one(seed: int, level: Level) -> None:
    rng = np.random.default_rng(seed)
    ticks, owners = 3 * TICKS, 5
    joules, observed = rng.uniform(300, 1500, ticks), np.full(ticks, 10.0)
    uses, holders = random_uses(rng, ticks, owners), random_uses(rng, ticks // 2, owners)
    found = split_hours(joules, observed, TICKS, level, uses, holders, owners)
    for hour in range(3):

        def inside(part: Uses, hour: int = hour) -> Uses:
            keep = part.stretch // TICKS == hour
            return Uses(part.stretch[keep] - hour * TICKS, part.owner[keep], part.amount[keep])

        window = slice(hour * TICKS, (hour + 1) * TICKS)
        one = split(joules[window], observed[window], level, inside(uses), inside(holders), owners)
        assert found.own_j[hour] == pytest.approx(one.active_j + one.held_j, rel=1e-12, abs=1e-9)
        assert found.idle_j[hour] == pytest.approx(one.idle_j, rel=1e-12, abs=1e-6)
        assert found.nobody_j[hour] == pytest.approx(one.nobody_j, rel=1e-12, abs=1e-9)
        assert found.owned_s[hour] == pytest.approx(one.owned_s, rel=1e-12, abs=1e-9)


def test_rows_are_apportioned_as_one_by_one() -> None:
    rng = np.random.default_rng(1)
    weights, whole = rng.uniform(0, 5, (50, 7)), rng.integers(0, 10**9, 50)
    assert apportion_rows(whole, weights).tolist() == [
        apportion(int(w), row) for w, row in zip(whole, weights, strict=True)
    ]
    assert apportion_rows(np.array([5]), np.zeros((1, 3))).tolist() == [[0, 0, 0]]


def test_a_day_with_a_known_answer() -> None:
    """Two jobs on a machine of 4 CPUs that idles at 40 W: 60 W more, by use 3:1, for an hour; then nobody."""
    package = Device("cpu.0", "package", "rapl", Level(40.0))
    joules = np.concatenate((np.full(TICKS, 1000.0), np.full(TICKS, 400.0)))[:, None]
    day = NodeDay("n1", T0, 10.0, (package,), joules, 4.0)
    jobs = [JobOnNode(1, "n1", T0, T0 + 3600, cpus=2.0), JobOnNode(2, "n1", T0, T0 + 7200, cpus=1.0)]
    stretch = np.repeat(np.arange(TICKS), 2)
    uses = Uses(stretch, np.tile([0, 1], TICKS), np.tile([15.0, 5.0], TICKS))
    made, hours = book_day(day, jobs, {"cpu.0": uses})
    assert [job.energy_uj for job in made] == [162_000_000_000, 54_000_000_000]
    assert [job.idle_uj for job in made] == [72_000_000_000, 36_000_000_000 * 2]
    assert [(row.total_uj, row.jobs_uj, row.idle_uj, row.system_uj) for row in hours] == [
        (360_000_000_000, 216_000_000_000, 144_000_000_000, 0),
        (144_000_000_000, 0, 144_000_000_000, 0),
    ]
    assert [job.coverage for job in made] == [1.0, 1.0]


def test_ticks_that_were_not_seen_are_not_zero() -> None:
    package = Device("cpu.0", "package", "rapl", Level(40.0))
    joules = np.full((TICKS, 1), 1000.0)
    joules[: TICKS // 2] = np.nan
    job = JobOnNode(1, "n1", T0, T0 + 3600, cpus=1.0)
    uses = Uses(np.arange(TICKS), np.zeros(TICKS, dtype=np.int64), np.ones(TICKS))
    (made,), (hour,) = book_day(NodeDay("n1", T0, 10.0, (package,), joules, 1.0), [job], {"cpu.0": uses})
    assert (made.energy_uj, made.coverage, hour.total_uj, hour.coverage) == (108_000_000_000, 0.5, 180_000_000_000, 0.5)
