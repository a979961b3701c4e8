"""A tape that is being written: what was decoded is kept, and the answers are those of a fresh look."""

import numpy as np
import pytest
from machines import HOST, PROCESSES, Process, process_rows, write_machine
from tapes import ORIGIN_NS, UTC_NS, at, counter_group
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.api.run import Run, load
from everywatt.core.channels import Row
from everywatt.core.clocks import Anchor
from everywatt.ledger.use import account
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter

WORKERS = [Process(101, [0.0] * 5 + [1.0] * 15, name="a"), Process(102, [0.0] * 8 + [0.5] * 12, began=8, name="b")]


class Growing:
    """A tape with one package (20 W and 40 W a busy CPU) that is written second by second."""

    def __init__(self, path):
        self.writer = TapeWriter(path, {"host": {"name": "box", "cpus": 4}, "period_s": 0.1})
        self.writer.anchor(Anchor(ORIGIN_NS, UTC_NS, ORIGIN_NS, 0))
        self.numbers = [
            self.writer.add_group(*group) for group in ((counter_group(), 0.1), (HOST, 0.1), (PROCESSES, 1.0))
        ]
        self.told, self.second, self.joules, self.busy = {}, 0, 100.0, 0.0

    def grow(self, until):
        for second in range(self.second, until):
            rate = sum(p.rates[second] for p in WORKERS if p.began <= second)
            for step in range(10):
                when = at(second + step / 10)
                self.writer.append(self.numbers[0], [Row(when, when, when, (self.joules,))])
                self.writer.append(self.numbers[1], [Row(when, when, when, (self.busy, 4 * when / 1e9 - self.busy))])
                self.joules, self.busy = self.joules + 2 + 4 * rate, self.busy + rate / 10
            self.writer.append_table(self.numbers[2], at(second), process_rows(WORKERS, second, self.told))
        self.second = until
        self.writer.flush()


def amounts(ledger):
    return {entry.owner.id: entry.microjoules for entry in ledger.entries}


def test_what_was_kept_and_what_came_since_make_the_same_ledger(tmp_path, monkeypatch):
    tape = Growing(tmp_path / "x.tape")
    tape.grow(7)
    live = load(tmp_path / "x.tape")
    fed = []
    feed = account.ProcessUse.feed
    monkeypatch.setattr(
        account.ProcessUse, "feed", lambda self, at_ns, rows: (fed.append(at_ns), feed(self, at_ns, rows))
    )
    for until in (7, 12, 12, 20):
        tape.grow(until)
        live.tapes[0].refresh()
        seen = live.ledger(between=(5.0, until - 2.0))
        assert seen.checks.hold
        count = len(fed)
        assert amounts(seen) == amounts(Run(live.path, [Tape.open(live.path)]).ledger(between=(5.0, until - 2.0)))
        del fed[count:]
    assert fed == [at(second) for second in range(20) if second < 20]  # each frame once
    assert seen.entry("a").energy.value == pytest.approx(13 * 40, rel=0.03)
    tape.writer.abandon()


def test_just_after_the_last_reading_processes_go_on_as_they_were(tmp_path):
    tape = Growing(tmp_path / "x.tape")
    tape.grow(20)
    ledger = load(tmp_path / "x.tape").ledger(between=(18.0, 19.8))
    assert ledger.unattributed_share < 0.01
    assert ledger.entry("a").use["cpu_s"] == pytest.approx(1.8, rel=0.02)
    tape.writer.abandon()


def test_a_thousand_spans_of_one_name_are_one_ledger(tmp_path):
    workers = [Process(101, [0.5] * 100, name="a")]
    spans = [("query", 0.1 * k, 0.1 * k + 0.05, {}) for k in range(1000)]
    run = load(write_machine(tmp_path / "x.tape", {"cpu.0": [50.0] * 100}, workers, seconds=100, spans=spans))
    ledger = run.ledger(span="query", baseline=30.0)
    assert ledger.checks.hold and ledger.checks.missing_uj == 0
    assert ledger.entry("a").energy.value == pytest.approx(1000, rel=1e-3)
    assert ledger.entry("idle").energy.value == pytest.approx(1500, rel=1e-3)


def test_an_owners_interval_holds_the_truth(tmp_path):
    """Idle found on the tape, noisy power: the joules that the load really took are inside 95 times of 100."""
    inside, trials, widths = 0, 40, []
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        watts = 50 + rng.normal(0, 3, 30) + np.where(np.arange(30) >= 15, 20.0, 0.0)
        worker = [Process(101, [0.0] * 15 + [1.0] * 15, name="a")]
        run = load(write_machine(tmp_path / f"{seed}.tape", {"cpu.0": watts.tolist()}, worker, seconds=30))
        energy = run.ledger().entry("a").energy
        widths.append(energy.half_width)
        inside += energy.low <= 300 + (watts[15:] - 70).sum() <= energy.high
        run.tapes[0].close()
    assert inside >= 0.9 * trials
    assert np.mean(widths) < 40  # of 300 J; the scatter of idle alone makes 23


def test_a_run_of_some_milliseconds_has_owners(tmp_path):
    """Shorter than any cell that idle is found in: its own mean power is what an assumed idle level is taken from."""
    with VirtualWorld(tmp_path, cpu="constant:60W") as world:
        with Meter("short", sensors=["virtual"]) as meter:
            world.sleep(0.04)
        ledger = meter.run.ledger()
        assert ledger.idle["cpu.0"]["method"] in ("prior", "lowest")
        assert ledger.unattributed_share < 1
        assert ledger.checks.missing_uj == 0
        world.wait_gone()
