"""Recordings in virtual time: the product's recorder and client, on a machine with a known truth."""

from __future__ import annotations

import os
import random
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from virtual_machine import CARD_NS, CARD_PHASE_NS, Counter
from virtual_world import VirtualWorld

from everywatt.core.channels import GroupInfo
from everywatt.core.clocks import NS
from everywatt.core.errors import RunExists, UsageError
from everywatt.recorder.channel import Inline
from everywatt.recorder.client import Recording, record
from everywatt.tape.reader import Tape
from everywatt.tape.run_store import segment_after


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VirtualWorld]:
    with VirtualWorld(tmp_path, cpu="constant:10W", gpu="constant:10W") as made:
        yield made
        made.wait_gone()


def start(world: VirtualWorld, name: str = "run/host-0001.tape", **options) -> Recording:
    return record(world.folder / name, meta={"tag": "t"}, sensors=["virtual"], **options)


def kill_recorder(world: VirtualWorld) -> None:
    assert world.recorder is not None
    world.kill(world.recorder)


def table(path: Path, sql: str) -> list[tuple]:
    db = sqlite3.connect(path)  # plain SQL: the file's own words, not the reader's
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def notes(path: Path) -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in table(path, "select kind, text from note order by id")]


def publications(path: Path, group: str) -> list[tuple[int, int, int]]:
    with Tape.open(path) as tape:
        number = next(g.id for g in tape.groups if g.info.name == group)
        return [tuple(row[:3]) for frame in tape.frames(number) for row in frame.rows()]


def test_a_recording_holds_the_truth(world) -> None:
    recording = start(world, pids=[os.getpid()])
    uid = recording.span_open("work", attributes={"n": 1})
    recording.log({"loss": 0.5, "phase": "warm"}, span=uid)
    world.sleep(0.5)
    end = recording.span_close(uid, attributes={"done": True})
    closed = recording.close()
    assert closed.path == world.folder / "run/host-0001.tape"
    assert [group.name for group in recording.groups] == [
        "virtual.package",
        "virtual.card",
        "virtual.temperature",
        "use.processes",
    ]
    (span,) = table(closed.path, "select name, start_ns, end_ns, attributes from span")
    assert span[0] == "work"
    assert span[2] == end
    assert span[3] == '{"n": 1, "done": true}'
    edges = table(closed.path, "select read_ns, data from edge order by id")
    assert [edge[0] for edge in edges] == [span[1], span[2]]
    joules = [struct.unpack("<d", edge[1])[0] * 1e-6 for edge in edges]
    # The counter is brought up to date every millisecond.
    assert joules[1] - joules[0] == pytest.approx(10 * (span[2] - span[1]) / 1e9, abs=0.0101)
    assert table(closed.path, "select name, value from point order by id") == [("loss", "0.5"), ("phase", '"warm"')]
    assert closed.cost["reads"] > 5
    (last,) = table(closed.path, "select max(last_ns) from frame where grp=2")
    assert last[0] >= end - 1_000_000


def test_publications_are_bracketed(world) -> None:
    recording = start(world)
    world.sleep(60.0)
    closed = recording.close()
    found = publications(closed.path, "virtual.card")
    late = [row for row in found if row[0] > found[0][0] + 1_200_000_000]
    assert len(late) >= 580
    for _, early, late_ns in late:
        error = ((early + late_ns) / 2 - CARD_PHASE_NS + CARD_NS / 2) % CARD_NS - CARD_NS / 2
        assert abs(error) <= (late_ns - early) / 2 + 1e5
    assert sorted(late_ns - early for _, early, late_ns in late)[len(late) // 2] <= 3_000_000
    # One read for each publication, and a few to keep the lock.
    reads = [at for at in world.machine.reads["virtual.card"] if at > found[0][0] + 1_200_000_000]
    assert len(reads) <= 1.1 * len(late)


@pytest.mark.parametrize(("most_s", "seed"), [(0.03, 0), (0.4, 0), (1.0, 0), (1.0, 8)])
def test_publications_are_bracketed_by_a_recorder_that_is_held_up(world, most_s: float, seed: int) -> None:
    """As on a busy machine: now and then it has no turn for a while. What it then reads was published some time ago."""
    chance = random.Random(seed)
    recording = start(world)
    world.sleep(3.0)
    for _ in range(200):
        world.sleep(chance.expovariate(1 / 0.15))
        held_s = chance.uniform(0.0, most_s)
        world.time.stop(world.recorder, held_s)
        world.sleep(held_s)
    found = joules_and_brackets(recording.close().path, "virtual.card")
    assert len(found) > 150
    assert [row for row in found if not holds_its_publication(world.machine, *row)] == []


def joules_and_brackets(path: Path, group: str) -> list[tuple[int, int, int, float]]:
    with Tape.open(path) as tape:
        number = next(g.id for g in tape.groups if g.info.name == group)
        return [(*row[:3], row.values[0] * 1e-6) for frame in tape.frames(number) for row in frame.rows()]


def holds_its_publication(machine, read_ns: int, early_ns: int, late_ns: int, joules: float) -> bool:
    """Whether the bracket of a row holds the instant at which the card published its value."""
    at_ns = (read_ns - CARD_PHASE_NS) // CARD_NS * CARD_NS + CARD_PHASE_NS
    while machine.energy_j("gpu", machine.origin_ns, at_ns) > joules + 1e-5:
        at_ns -= CARD_NS
    return early_ns - 1e5 <= at_ns <= late_ns + 1e5


def test_processes_are_followed_for_each_tape_apart(world) -> None:
    first, second = start(world, "a/h-0001.tape", pids=[11]), start(world, "b/h-0001.tape", pids=[22])
    first.follow([33])
    first.status()
    paths = [first.close(linger=False).path, second.close(linger=False).path]
    seen = []
    for path in paths:
        with Tape.open(path) as tape:
            number = next(group.id for group in tape.groups if group.info.table)
            seen.append({row["pid"] for frame in tape.tables(number) for row in frame.rows} - {101, 102})
    assert seen == [{11, 33}, {22}]


def test_two_clients_share_one_recorder_that_reads_once(world) -> None:
    first = start(world, "a/host-0001.tape")
    second = start(world, "b/host-0001.tape", pids=[1])
    assert len(world.recorders) == 1
    world.sleep(1.0)
    before = len(world.machine.reads["virtual.package"])
    world.sleep(1.0)
    assert len(world.machine.reads["virtual.package"]) - before == pytest.approx(10, abs=1)
    one, two = first.close(), second.close()
    assert one.cost["pid"] == two.cost["pid"] == os.getpid()
    assert table(two.path, "select count(*) from tframe")[0][0] >= 1
    assert table(two.path, "select count(*) from frame where grp=1")[0][0] >= 1


def test_programs_that_start_at_once_get_one_recorder(world) -> None:
    closed = []

    def program(number: int) -> None:
        recording = start(world, f"{number}/h-0001.tape")
        world.sleep(0.3)
        closed.append(recording.close())

    programs = [world.program("program", lambda number=number: program(number)) for number in range(4)]
    for one in programs:
        one.join(30.0)
        assert one.error is None
    assert len(closed) == 4
    assert len(world.recorders) == 1


def test_ten_thousand_spans_and_one_never_closed(world) -> None:
    recording = start(world)
    outer = recording.span_open("outer")
    for number in range(10_000):
        recording.span_close(recording.span_open("s", parent=outer, attributes={"n": number}))
        if number % 100 == 0:
            world.sleep(0.01)
    closed = recording.close(linger=False)
    assert table(closed.path, "select count(*), count(end_ns) from span") == [(10_001, 10_000)]
    assert table(closed.path, f"select count(*) from span where parent is not null and parent != '{outer}'") == [(0,)]


def test_what_cannot_be_is_refused(world) -> None:
    with pytest.raises(UsageError, match="no sensor 'nonsense'"):
        record(world.folder / "x.tape", meta={}, sensors=["nonsense"])
    with pytest.raises(UsageError, match="period"):
        record(world.folder / "x.tape", meta={}, sensors=["virtual"], period_s=0)
    recording = start(world)
    with pytest.raises(RunExists):
        start(world)
    recording.close(linger=False)


def test_a_dead_recorder_is_replaced_and_the_gap_is_on_the_tape(world) -> None:
    recording = start(world)
    outer = recording.span_open("outer", attributes={"n": 1})
    world.sleep(1.3)
    kill_recorder(world)
    recording.span_close(recording.span_open("inner", parent=outer))
    assert recording.path == world.folder / "run/host-0002.tape"
    recording.span_close(outer)
    closed = recording.close(linger=False)
    assert closed.path.name == "host-0002.tape"
    assert any("ended unexpectedly" in text for kind, text in notes(closed.path) if kind == "gap")
    with Tape.open(world.folder / "run/host-0001.tape") as first:
        spans = {span.name: span for span in first.spans()}
    assert spans["outer"].end_ns is None
    again = dict(table(closed.path, "select name, start_ns from span"))
    assert set(again) == {"outer", "inner"}
    assert again["outer"] == spans["outer"].start_ns
    assert table(closed.path, "select count(*) from span where end_ns is null") == [(0,)]


def test_a_span_that_finds_its_recorder_dead_when_it_ends_is_whole_in_the_segment_after(world) -> None:
    recording = start(world)
    uid = recording.span_open("only")
    kill_recorder(world)
    end_ns = recording.span_close(uid)
    closed = recording.close(linger=False)
    assert table(closed.path, "select name, end_ns from span") == [("only", end_ns)]


def test_a_look_replaces_a_dead_recorder_and_costs_nothing_while_it_lives(world) -> None:
    recording = start(world)
    before_ns = world.now_ns
    recording.look()
    assert world.now_ns == before_ns, "it does not even ask for the time"
    assert recording.path.name == "host-0001.tape"
    kill_recorder(world)
    recording.look()
    assert recording.path.name == "host-0002.tape"
    assert sum(process.alive for process, _ in world.recorders) == 1
    recording.close(linger=False)


def with_channels(monkeypatch: pytest.MonkeyPatch, *names: str) -> GroupInfo:
    """From here on the package's counter has these channels."""
    channel = Counter.info.channels[0]
    info = replace(Counter.info, channels=tuple(replace(channel, name=name) for name in names))
    monkeypatch.setattr(Counter, "info", info)
    return info


@pytest.mark.parametrize("names", [("cpu.0.package.energy", "cpu.0.dram.energy"), ("cpu.0.dram.energy",), ()])
def test_a_program_that_finds_other_channels_than_the_recorder_does_not_read_them(world, monkeypatch, names) -> None:
    opened = Inline.opened

    def finds_others(*arguments: Any) -> Inline:
        with monkeypatch.context() as within:
            with_channels(within, *names)
            return opened(*arguments)

    monkeypatch.setattr(Inline, "opened", finds_others)
    recording = start(world)
    recording.span_close(recording.span_open("work"))
    closed = recording.close(linger=False)
    said = "virtual.package is not read where spans start and end: this program finds other channels of it."
    assert said in closed.notes
    assert ("recorder", said) in notes(closed.path)
    assert table(closed.path, "select count(*) from edge") == [(0,)]
    with Tape.open(closed.path) as tape:
        assert [span.name for span in tape.spans()] == ["work"]


@pytest.mark.parametrize("when", ["closed", "open", "marked"])
def test_reads_of_a_group_that_has_changed_do_not_go_to_the_next_recorder(world, monkeypatch, when: str) -> None:
    recording = start(world)
    uid = recording.span_open("work")
    world.sleep(0.5)
    mark = recording.mark()
    if when == "closed":
        recording.span_close(uid, mark=mark)
    kill_recorder(world)
    with_channels(monkeypatch, "cpu.0.dram.energy")
    if when == "closed":
        recording.look()
    else:
        recording.span_close(uid, mark=mark if when == "marked" else None)
    recording.span_close(recording.span_open("later"))
    closed = recording.close(linger=False)
    assert closed.path.name == "host-0002.tape"
    ((since_ns,),) = table(closed.path, "select json_extract(data, '$.end_ns') from note where kind='gap'")
    # Read when the second recorder was there, and where the later span starts and ends.
    assert table(closed.path, f"select count(*), min(read_ns) >= {since_ns} from edge") == [(3, 1)]
    assert table(closed.path, "select name from span") == [("work",), ("later",)]


def test_status_replaces_a_dead_recorder_too(world) -> None:
    recording = start(world)
    kill_recorder(world)
    assert recording.status()["rows"]["virtual.package"] >= 1
    assert recording.close(linger=False).path.name == "host-0002.tape"


def test_a_killed_recorder_loses_at_most_one_flush(world) -> None:
    """At any moment: at most one flush interval (1 s, and a little) is missing, and the tape opens."""
    rng = random.Random(3)
    for number in range(20):
        path = world.folder / f"k{number}/host-0001.tape"
        recording = record(path, meta={}, sensors=["virtual"])
        wait_s = rng.random() * rng.choice((0.2, 2.5))
        world.sleep(wait_s)
        killed_ns = world.now_ns
        kill_recorder(world)
        Tape.open(path).close()
        if wait_s > 1.3:
            reads = [row[0] for row in publications(path, "virtual.package")]
            assert max(reads) > killed_ns - 1_200_000_000
            assert len(reads) >= 0.99 * (max(reads) - min(reads)) / 1e8
        recording.close(linger=False)


@pytest.mark.parametrize("wait_s", [0.05, 0.4, 1.6])
def test_a_killed_program_leaves_a_sealed_tape(world, wait_s: float) -> None:
    def program() -> None:
        recording = start(world)
        task.process.on_kill.append(recording._channel.close)
        recording.span_open("forever")
        while True:
            recording.span_close(recording.span_open("s"))
            world.sleep(0.01)

    task = world.program("program", program)
    path = world.folder / "run/host-0001.tape"
    world.until(path.exists)
    world.sleep(0.4 + wait_s)
    world.kill(task.process)
    world.wait_gone()
    assert table(path, "select count(*) from seal") == [(1,)]
    assert ("client", "Recording ended early: the measured program exited without closing it.") in notes(path)
    assert table(path, "select count(*) from span where end_ns is null")[0][0] >= 1
    assert table(path, "select count(*) from frame where grp=1")[0][0] >= 1


def test_a_recorder_that_is_told_to_leave_seals_first(world) -> None:
    recording = start(world)
    path = recording.path
    world.recorders[0][1].stop = True
    world.wait_gone()
    assert table(path, "select count(*) from seal") == [(1,)]
    assert any("was stopped" in text for _, text in notes(path))
    assert recording.close(linger=False).path.name == "host-0002.tape"


def test_a_stopped_recorder_shows_as_a_gap(world) -> None:
    recording = start(world)
    world.sleep(0.4)
    world.time.stop(world.recorder, 1.2)
    for _ in range(50):
        recording.span_close(recording.span_open("meanwhile"))
    world.sleep(1.5)
    closed = recording.close()
    assert any(kind == "gap" and "did not run" in text for kind, text in notes(closed.path))
    gaps = table(closed.path, "select start_ns, end_ns, kind from gap where grp=1")
    assert [kind for _, _, kind in gaps] == ["missed"]
    assert (gaps[0][1] - gaps[0][0]) / 1e9 == pytest.approx(1.2, abs=0.15)
    assert table(closed.path, "select count(*) from span where end_ns is not null") == [(50,)]


def test_a_suspended_machine_shows_as_a_gap_and_utc_goes_on(world) -> None:
    recording = start(world)
    world.sleep(2.0)
    utc_ns = world.time.utc_ns()
    world.time.suspend(3600.0)
    world.sleep(2.0)
    closed = recording.close()
    assert ("suspend", "The machine was suspended for 3600.0 s.") in notes(closed.path)
    assert {kind for (kind,) in table(closed.path, "select kind from gap")} == {"suspend"}
    with Tape.open(closed.path) as tape:
        assert tape.to_utc_ns(tape.extent_ns()[1]) - utc_ns == pytest.approx(3602 * NS, abs=0.5 * NS)


@pytest.mark.parametrize("what", ["the device is lost", "garbage", "vanish"])
def test_a_broken_sensor_is_one_note_and_a_gap(world, what: str) -> None:
    recording = start(world)
    world.sleep(0.3)
    world.machine.broken["virtual.package"] = what
    recording.span_close(recording.span_open("while it is broken"))
    world.sleep(1.2)
    world.machine.broken.clear()
    world.until(lambda: any("is back" in note for note in recording.status()["notes"]), 6)
    closed = recording.close(linger=False)
    about = [text for kind, text in notes(closed.path) if kind == "sensor"]
    assert len(about) == 2
    assert "virtual.package cannot be read" in about[0]
    assert "is back after" in about[1]
    kinds = table(closed.path, "select kind, end_ns - start_ns from gap where grp=1")
    assert any(kind == "lost" and length > 1_000_000_000 for kind, length in kinds)
    assert table(closed.path, "select count(*) from span where end_ns is not null") == [(1,)]


def test_a_slow_sensor_is_noted_once(world) -> None:
    world.machine.slow_ns["virtual.package"] = 1_300_000_000
    recording = start(world)
    world.machine.slow_ns.clear()
    closed = recording.close(linger=False)
    assert [text for kind, text in notes(closed.path) if kind == "slow-read"] == [
        "Reading virtual.package took 1.3 s and delayed other sensors."
    ]


def test_spans_that_come_all_the_time_lose_no_tick(world) -> None:
    recording = start(world)
    for number in range(60):
        with_edges = recording.span_open(f"step {number}")
        world.sleep(0.03)
        recording.span_close(with_edges)
    closed = recording.close(linger=False)
    assert table(closed.path, "select count(*) from span where end_ns is not null") == [(60,)]
    assert table(closed.path, "select count(*) from gap") == [(0,)]


@pytest.mark.parametrize("period_s", [0.01, 0.1])
def test_ticks_keep_their_deadlines(world, period_s: float) -> None:
    recording = start(world, period_s=period_s)
    world.sleep(10.0)
    closed = recording.close(linger=False)
    reads = [row[0] for row in publications(closed.path, "virtual.package")]
    assert len(reads) == pytest.approx(10 / period_s, rel=0.05)
    # The grid is moved once, to where the card does not publish.
    steps = [b - a for a, b in pairwise(reads)]
    assert sum(abs(step - period_s * NS) <= 0.002 * NS for step in steps) >= 0.98 * len(steps)


def test_the_next_segment_is_the_first_free_name(tmp_path: Path) -> None:
    (tmp_path / "host-0002.tape").touch()
    assert segment_after(tmp_path / "host-0001.tape").name == "host-0003.tape"
    assert segment_after(tmp_path / "run.tape").name == "run-0002.tape"
