"""Chips against the wall, for each job."""

from dataclasses import replace
from pathlib import Path

import known_site
import numpy as np
import pytest
from known_site import HOUR, MJ, T0

from everywatt.core.errors import UsageError
from everywatt.meters.block import Block
from everywatt.meters.wall import meter_line
from everywatt.slurm.schema import JobOnNode, NodeHour
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.wall import NodeMeters, join_wall


def block(start_s: float, watts: list[list[float]], period_s: float = 60.0) -> Block:
    """Rows of a meter with one reading a minute; the first one covers nothing."""
    table = np.array(watts)
    count = len(table)
    at = ((start_s + np.arange(count) * period_s) * 1e9).astype(np.int64)
    return Block(at, np.ones(count, dtype=bool), np.full((count, 3), 230.0), np.zeros_like(table), table)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An hour of 1 MJ of chips: job 1 has 0.5 and 0.1 of idle, job 2 has 0.1; the rest is idle and system."""
    opened = Store(tmp_path)
    one = known_site.job(1, "ada", 10, 1, MJ // 2, idle_uj=MJ // 10)
    two = known_site.job(2, "bob", 10.5, 0.5, MJ // 10, idle_uj=0)
    opened.append([one, two], "n1")
    hour = NodeHour(
        int(T0 + 10 * HOUR), "n1", "cpu.0", "package", "rapl", MJ, 6 * MJ // 10, 3 * MJ // 10, MJ // 10, 1.0
    )
    opened.append_hours([replace(hour, from_s=T0 + 10 * HOUR, to_s=T0 + 11 * HOUR)], "n1")
    return opened


def test_each_job_gets_its_part_of_what_is_not_explained(store: Store) -> None:
    """Two supplies of 200 W: 1.44 MJ at the wall of 1 MJ of chips."""
    line = meter_line([block(T0 + 9 * HOUR, [[150.0, 250.0]] * 181)])
    assert line is not None
    changed, (node,) = join_wall(store, {"n1": line}, T0, T0 + 24 * HOUR)
    assert {job.job_id: job.wall_uj for job in changed} == {1: round(0.6 * 1.44 * MJ), 2: round(0.1 * 1.44 * MJ)}
    assert (node.chips_j, node.wall_j, node.jobs) == (1e6, pytest.approx(1.44e6), 2)
    assert node.unexplained == pytest.approx(0.44 / 1.44)
    assert node.jobs_j == pytest.approx(0.7 * 1.44e6)
    store.append(changed, "wall")
    assert join_wall(store, {"n1": line}, T0, T0 + 24 * HOUR)[0] == []
    assert {row["wall_uj"] for row in store.jobs(0, 2e9).to_pylist()} == {864_000_000_000, 144_000_000_000}


def test_a_gap_of_the_meter_is_no_figure(store: Store) -> None:
    line = meter_line([block(T0 + 9 * HOUR, [[400.0]] * 75)])
    assert line is not None
    changed, (node,) = join_wall(store, {"n1": line}, T0, T0 + 24 * HOUR)
    assert (changed, node.hours, node.hours_left_out) == ([], 0, 1)
    assert "none of its hours" in node.why


def test_the_wrong_plug_is_noticed(store: Store) -> None:
    line = meter_line([block(T0 + 9 * HOUR, [[100.0]] * 181)])
    assert line is not None
    assert "mapped to another node" in join_wall(store, {"n1": line}, T0, T0 + 24 * HOUR)[1][0].why


def test_only_the_time_that_chips_were_booked_counts(store: Store) -> None:
    """The agent started at 10:30, when the wall rose from 100 to 500 W."""
    hour = NodeHour(int(T0 + 10 * HOUR), "n1", "cpu.0", "package", "rapl", MJ // 2, 0, MJ // 2, 0, 1.0)
    store.append_hours([replace(hour, from_s=T0 + 10.5 * HOUR, to_s=T0 + 11 * HOUR, written_s=9e9)], "n1")
    line = meter_line([block(T0 + 9 * HOUR, [[100.0]] * 91 + [[500.0]] * 90)])
    assert line is not None
    _, (node,) = join_wall(store, {"n1": line}, T0, T0 + 24 * HOUR)
    assert node.wall_j == pytest.approx(500 * 1800)


def test_no_reading_no_line() -> None:
    assert meter_line([]) is None
    assert JobOnNode(1, "n", 0.0, 1.0).wall_uj is None


def meter_file(path: Path, start_s: float, watts: list[tuple[float, float]]) -> Path:
    """Rows of two plugs, one a minute, with voltage on phase 1 alone."""
    head = "#timestamp,#frame_is_ok,#U1,#U2,#U3,#current1,#activepow1,#current2,#activepow2\n"
    rows = [f"{start_s + 60 * n:.9f},true,230.0,0.0,0.0,0.1,{a},0.1,{b}\n" for n, (a, b) in enumerate(watts)]
    path.write_text(head + "".join(rows))
    return path


def test_rows_of_a_plug_while_it_fed_another_node_are_not_of_this_one(tmp_path: Path) -> None:
    """Plug 1 feeds n1 from 10:00 on; before that it fed n2. A job that began at 9:30 has no wall then."""
    file = meter_file(tmp_path / "meter.csv", T0 + 9 * HOUR, [(400.0, 50.0)] * 181)
    (tmp_path / "map.toml").write_text(
        '[[plug]]\nplug = 1\nnode = "n1"\nfrom = 2026-11-15T10:00:00Z\n'
        '[[plug]]\nplug = 1\nnode = "n2"\nuntil = 2026-11-15T09:00:00Z\n'
        '[[plug]]\nplug = 2\nnode = "n2"\nfrom = 2026-11-15T09:00:00Z\n'
    )
    meters = NodeMeters([file], tmp_path / "map.toml")
    hours = np.array([T0 + 9 * HOUR, T0 + 10 * HOUR])
    joules, share = meters.walls((T0 + 10 * HOUR, T0 + 11 * HOUR))["n1"].seen(hours, hours + HOUR)
    assert share.tolist() == [0.0, pytest.approx(1.0, abs=0.02)] and joules[1] == pytest.approx(400 * HOUR, rel=0.02)


@pytest.mark.parametrize(("feed", "why"), [("plug = 7", "does not exist"), ("plug = 1\nphase = 2", "voltage is 0.0 V")])
def test_a_map_that_does_not_fit_the_meter_is_refused(tmp_path: Path, feed: str, why: str) -> None:
    file = meter_file(tmp_path / "meter.csv", T0, [(400.0, 50.0)] * 5)
    (tmp_path / "map.toml").write_text(f'[[plug]]\n{feed}\nnode = "n1"\n')
    with pytest.raises(UsageError, match=why):
        NodeMeters([file], tmp_path / "map.toml").walls((T0, T0 + HOUR))
