"""Batches in virtual time, on a machine whose joules are known: energies, waits between tries, kills, the probe."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from virtual_batch import Ran, lanes
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.batch.items import Item
from everywatt.batch.journal import Device, read_journal
from everywatt.batch.measuring import figures
from everywatt.batch.probe import Plan, Probe
from everywatt.batch.runner import FINISH, KILL, Settings
from everywatt.batch.session import take_up, what_is_left, work_off

CARD = Device("gpu.0", visible="0")
COMMAND = ("work", "{input}")


@pytest.fixture
def world(tmp_path):
    with VirtualWorld(tmp_path, cpu="constant:40W", gpu="square:50W,250W,0.7s") as made:
        yield made


class Batch:
    """A batch that ran: its outcome, figures by item, and the spans of attempts in their order."""

    def __init__(self, world, command, items, devices=(CARD,), history=None, ready=None, **settings):
        self.world = world
        made = [Item(number, name, name) for number, name in enumerate(items)]
        meter = Meter("batch", sensors=["virtual"], append=history and history.folder)
        meter.start()
        self.lanes = []

        def lane(*words):
            self.lanes.append(lanes(world, command)(*words))
            return self.lanes[-1]

        self.outcome = work_off(
            what_is_left(made, history and history.journal),
            list(devices),
            replace(Settings(COMMAND), **settings),
            meter,
            folder=lambda: world.folder,
            history=history and history.journal,
            ready=ready and (lambda runner: ready(self, runner)),
            lane=lane,
        )
        self.folder = self.outcome.folder
        self.journal = read_journal(self.folder)
        self.found = figures(self.outcome.run, self.journal)
        self.items = {item.state.item.id: item for item in self.found.items}
        self.spans = [span for span in self.outcome.run.spans if span.attributes.get("role") == "item"]

    def truth_j(self, *, cpu=True):
        """By item: what the card drew while it ran, and the package with it."""
        found = {}
        for span in self.spans:
            joules = self.world.machine.energy_j("gpu", span.start_ns, span.end_ns)
            joules += self.world.machine.energy_j("cpu", span.start_ns, span.end_ns) if cpu else 0.0
            found[span.name] = found.get(span.name, 0.0) + joules
        return found


def test_joules_of_items_are_the_truth(world):
    names = [f"item {number}" for number in range(12)]
    done = Batch(world, lambda words: Ran(2.0 + 1.37 * int(words[1].split()[1])), names)
    for name, truth_j in done.truth_j().items():
        energy = done.items[name].energy
        assert energy.joules == pytest.approx(truth_j, rel=0.003), name
        assert energy.low <= truth_j <= energy.high, name
    assert done.found.adds_up
    for before, after in pairwise(done.spans):
        assert 0 <= after.start_ns - before.end_ns < 5_000_000, "the next item begins when one ends"
    for number, name in enumerate(names):
        assert done.items[name].last.attempt.runtime_s == pytest.approx(2.0 + 1.37 * number, abs=1e-3)


def test_an_item_that_was_started_a_little_later_is_no_straggler(world):
    done = Batch(world, lambda words: Ran(float(words[1])), ["0.0020", "0.0021", "0.0022", "0.0023", "0.0080", "0.5"])
    assert [item.state.item.id for item in done.found.stragglers()] == ["0.5"]


def test_what_failed_is_tried_again_after_a_wait_that_doubles(world):
    calls = []

    def work(words):
        calls.append(words[1])
        return Ran(1.0, 0 if words[1] != "bad" else 3, "oops")

    done = Batch(world, work, ["bad", "good"], max_retries=3, backoff_s=10.0)
    assert calls == ["bad", "good", "bad", "bad", "bad"], "the other one runs meanwhile"
    bad = [span for span in done.spans if span.name == "bad"]
    waits = [(after.start_ns - before.end_ns) / 1e9 for before, after in pairwise(bad)]
    assert waits == pytest.approx([10, 20, 40], abs=0.01)
    assert [one.attempt.ended.get("backoff_s") for one in done.items["bad"].attempts] == [10, 20, 40, None]
    assert done.items["bad"].energy.joules == pytest.approx(done.truth_j()["bad"], rel=0.01), "of all four"


def test_a_wait_is_a_minute_at_most(world):
    done = Batch(world, lambda words: Ran(1.0, 1), ["a"], max_retries=8, backoff_s=1.0)
    waits = [(after.start_ns - before.end_ns) / 1e9 for before, after in pairwise(done.spans)]
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=0.01)


@pytest.mark.parametrize("how", [FINISH, KILL])
def test_a_batch_that_is_stopped_finishes_or_kills_and_goes_on_later(world, how):
    def stop(batch, runner):
        world.time.at(world.now_ns + 25_000_000_000, lambda: runner.stop(how))

    done = Batch(world, lambda words: Ran(10.0), "abcde", ready=stop)
    assert done.outcome.stopped
    statuses = [state.status for state in done.journal.states.values()]
    assert statuses == ["done", "done", "done" if how == FINISH else "interrupted", "pending", "pending"]
    last = done.spans[-1]
    assert last.duration_s == pytest.approx(10.0 if how == FINISH else 25 - 20, abs=0.1)
    done.journal = take_up(done.folder, COMMAND)
    again = Batch(world, lambda words: Ran(10.0), "abcde", history=done)
    assert {item.state.status for item in again.found.items} == {"done"} and again.found.adds_up
    assert [span.name for span in again.spans] == list("abcde" if how == FINISH else "abccde")


def test_a_worker_that_is_killed_is_replaced_and_its_item_runs_again(world):
    def kill(batch, runner):
        world.time.at(world.now_ns + 15_000_000_000, lambda: world.kill(batch.lanes[0].worker))

    done = Batch(world, lambda words: Ran(10.0), "abc", ready=kill)
    assert [one.attempt.status for one in done.items["b"].attempts] == ["interrupted", "done"]
    first, second = (span for span in done.spans if span.name == "b")
    assert first.duration_s == pytest.approx(5.0, abs=0.1) and second.duration_s == pytest.approx(10.0, abs=0.01)
    assert done.items["b"].energy.joules == pytest.approx(done.truth_j()["b"], rel=0.01)


def test_an_attempt_that_takes_too_long_has_failed(world):
    done = Batch(world, lambda words: Ran(3600.0 if words[1] == "long" else 5.0), ["long", "short"], timeout_s=60.0,
                 max_retries=0)  # fmt: skip
    assert {name: item.state.status for name, item in done.items.items()} == {"long": "failed", "short": "done"}
    assert done.spans[0].duration_s == pytest.approx(60.0, abs=0.01)


def test_the_probe_finds_the_largest_size_and_the_cheapest(tmp_path):
    """3 s + s²/30 s of 100 W is 300 J/s + 3.3 J·s a unit, least at s = √90; more than 21 does not fit."""

    def work(words):
        size = int(words[1])
        return Ran(0.5, 1, "CUDA out of memory") if size > 21 else Ran(3 + size * size / 30)

    with VirtualWorld(tmp_path, gpu="constant:100W") as world:
        meter = Meter("probe", sensors=["virtual"])
        meter.start()
        settings = Settings(("work", "{size}"), max_retries=0)
        probe = Probe(CARD, settings, Plan(), meter, meter.recording.path.parent, lane=lanes(world, work))
        probe.work()
        found = probe.result(meter.stop())
    assert (found.largest.fits, found.largest.fails, found.ended) == (21, 22, "found")
    assert found.cheapest in (9, 10)
    for one in found.sizes:
        seconds = 3 + one.size**2 / 30 if one.fits else 0.5
        assert one.energy.joules == pytest.approx(100 * seconds, rel=0.01), one.size
        assert one.runtime_s == pytest.approx(seconds, abs=1e-3)
