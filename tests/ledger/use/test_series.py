"""Channels over a whole tape, and stretches of windows."""

import numpy as np
import pytest
from machines import Process, write_machine
from tapes import at

from everywatt.energy import loading
from everywatt.energy.sources import addable, sources
from everywatt.ledger.split.split import cut, remainder
from everywatt.ledger.use import account
from everywatt.ledger.use.usage import HOST_BUSY, Series, find_series
from everywatt.tape.reader import Tape


def instants(*seconds):
    return np.array([at(second) for second in seconds], dtype=np.int64)


def test_a_counter_between_instants_and_beyond_its_last_reading(tmp_path):
    path = write_machine(tmp_path / "x.tape", {"cpu.0": [50.0] * 10}, [Process(5, [0.5] * 10)], seconds=10)
    tape = Tape.open(path)
    busy = find_series(tape, HOST_BUSY)
    busy.update(tape)
    busy.update(tape)  # nothing new
    assert len(busy.at_ns) == 101
    used = busy.used(instants(1, 2.5, 9, 50), instants(2, 2.75, 11, 60))
    assert used[:3] == pytest.approx([0.5, 0.125, 1.0])
    assert np.isnan(used[3])
    assert find_series(tape, "no.such") is None


def test_a_counter_that_starts_again_loses_what_it_had_only_once():
    counter = Series.__new__(Series)
    counter.at_ns, counter.values = instants(0, 1, 2, 3), np.array([10.0, 11.0, 0.5, 1.0])
    counter._rising = np.empty(0)
    assert counter.used(instants(0), instants(3)) == pytest.approx([1.5])


def test_windows_are_cut_at_the_readings_inside():
    pieces = cut([(5, 25), (30, 35)], [0, 10, 20, 30, 40])
    assert pieces.starts_ns.tolist() == [5, 10, 20, 30]
    assert pieces.ends_ns.tolist() == [10, 20, 25, 35]
    assert pieces.place.tolist() == [0, 1, 2, 3]
    assert len(cut([(5, 5)], [0, 10])) == 0
    assert cut([(-5, 5)], [0, 10]).place.tolist() == [-1, 0]


def test_steps_of_a_counter_do_not_become_use():
    whole = np.array([1.01, 0.99] * 500)
    assert remainder(whole, np.ones(1000), 0.1).sum() == pytest.approx(0.01, abs=1e-9)
    assert np.maximum(whole - 1, 0).sum() == pytest.approx(5.0)
    assert remainder(np.array([1.0, np.nan, 5.0]), np.array([2.0, 1.0, 1.0]), 0.1).tolist() == [0.0, 0.0, 3.9]


def test_idle_cells_of_a_long_tape_come_from_the_heads_of_its_frames(tmp_path, monkeypatch):
    watts = [20.0] * 1800 + [80.0] * 1800
    tape = Tape.open(write_machine(tmp_path / "x.tape", {"cpu.0": watts}, [], seconds=3600))
    source = addable(sources(tape))[0]
    exact, rough = account.Cells(), account.Cells()
    exact.update(source)
    monkeypatch.setattr(loading, "MANY_ROWS", 1000)
    rough.update(source)
    assert exact.joules.sum() == pytest.approx(1800 * 20 + 1800 * 80)
    inside = rough.observed_s > 0
    assert 0.8 < inside.mean() <= 1
    assert rough.joules[inside].sum() == pytest.approx(exact.joules[inside].sum(), rel=0.01)
    assert rough.joules[:800] == pytest.approx(20.0)
