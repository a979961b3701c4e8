"""Ranks of one node that measure the same devices: each figure says so, and a sum counts the node once."""

import json

import pytest
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.api.run import sum_runs
from everywatt.cli.main import main

RANKS = 8


@pytest.fixture
def ranks(tmp_path):
    """Eight programs that record a package of 60 W and a card of 100 W, each for 20 s, half a second apart."""
    with VirtualWorld(tmp_path, cpu="constant:60W", gpu="constant:100W") as world:
        runs = []

        def rank(number):
            world.sleep(0.5 * number)
            with Meter(f"rank{number}", sensors=["virtual"], pids=[1000 + number], tags={"job": "train"}) as meter:
                world.sleep(20)
            runs.append(meter.run)

        tasks = [world.program("rank", lambda number=number: rank(number)) for number in range(RANKS)]
        for task in tasks:
            task.join(120.0)
        yield sorted(runs, key=lambda run: run.started)


def test_each_figure_says_that_it_is_shared(ranks):
    for run in ranks:
        assert any(f"{RANKS - 1} other programs" in note for note in run.energy().notes), run.energy().notes


def test_printed_figures_say_that_they_are_shared(ranks, capsys):
    for run in ranks:
        assert str(run.energy()).endswith(f"coverage 100 % · shared with {RANKS - 1} other programs")
    assert main(["list", "--sum", "job"]) == 0
    assert "counts once" in capsys.readouterr().out


def test_sums_count_the_node_once(ranks, capsys):
    begin, end = ranks[0].started, ranks[-1].started
    seconds = (end - begin).total_seconds() + ranks[-1].duration_s
    whole = sum_runs(ranks)
    assert whole.joules == pytest.approx(160 * seconds, rel=0.02)
    assert any("counts once" in note for note in whole.notes)
    assert main(["list", "--sum", "job", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["sums"]
    assert row["runs"] == RANKS and row["energy"]["joules"] == pytest.approx(160 * seconds, rel=0.02)


def test_a_program_that_measures_alone_shares_nothing(tmp_path):
    with VirtualWorld(tmp_path, cpu="constant:60W") as world:
        runs = []
        for _ in range(2):
            with Meter("alone", sensors=["virtual"], pids=[1000]) as meter:
                world.sleep(3)
            runs.append(meter.run)
        assert all("shared_with" not in run.meta for run in runs)
        assert sum_runs(runs).joules == pytest.approx(runs[0].energy().value + runs[1].energy().value)
