"""Sessions, sources and the server on a clock that moves only when told to."""

from __future__ import annotations

import shutil
import socket
import sqlite3
from pathlib import Path

import pytest
from fake_clock import FakeClock

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row, fresh
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.recorder.server import OpenTape, Server
from everywatt.recorder.session import Session
from everywatt.recorder.source import Source
from everywatt.recorder.wire import Connection
from everywatt.tape.reader import Tape


class Counter:
    """10 W, in microjoules; `broken` makes it raise, `odd` gives nonsense."""

    info = GroupInfo(
        "c", "x", "cpu.0",
        (Channel("cpu.0.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, 1e-6, facts=Facts(period_s=0.001)),),
    )  # fmt: skip

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.broken = False
        self.odd: list[object] | None = None
        self.closed = False

    def read(self) -> list[Row]:
        if self.broken:
            raise SensorError("lost")
        if self.odd is not None:
            return self.odd  # type: ignore[return-value]
        now = self.clock.monotonic_ns()
        return [fresh(now, (now / 1000 * 10,), 1_000_000)]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def select(path: Path, sql: str) -> list[tuple]:
    db = sqlite3.connect(path)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def test_an_outage_is_two_notes_and_one_gap_however_many_reads_fail(tmp_path: Path, clock: FakeClock) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    group = Counter(clock)
    source = Source(group, clock)
    session.listen(source)
    assert source.read()
    group.broken = True
    waits = []
    for _ in range(100):
        clock.advance(0.1)
        assert not source.read()
        assert source.outage is not None
        waits.append(source.outage.wait_ns / NS)
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(waits) == 5.0
    group.broken = False
    clock.advance(0.1)
    assert source.read()
    assert session.finish({}) is None
    assert [text for _, text in select(tmp_path / "a.tape", "select kind, text from note where kind='sensor'")] == [
        "c cannot be read: lost",
        "c is back after 10.1 s (100 failed reads).",
    ]
    (gap,) = select(tmp_path / "a.tape", "select start_ns, end_ns from gap where kind='lost'")
    assert (gap[1] - gap[0]) / NS == pytest.approx(10.1)


def test_an_outage_that_goes_on_is_a_gap_to_the_end(tmp_path: Path, clock: FakeClock) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    group = Counter(clock)
    source = Source(group, clock)
    session.listen(source)
    source.read()
    group.broken = True
    clock.advance(0.1)
    source.read()
    clock.advance(2.0)
    session.finish({})
    (gap,) = select(tmp_path / "a.tape", "select end_ns - start_ns from gap where kind='lost'")
    assert gap[0] / NS == pytest.approx(2.1)


@pytest.mark.parametrize(
    "odd",
    [[None], [(1, 2)], [(1, 2, 3, (1.0, 2.0))], [("a", 1, 2, (1.0,))], [(5, 9, 3, (1.0,))], [(1, 2, 3, ("x",))], 7],
)
def test_rows_that_make_no_sense_are_an_outage(tmp_path: Path, clock: FakeClock, odd: list[object]) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    group = Counter(clock)
    group.odd = odd
    source = Source(group, clock)
    session.listen(source)
    assert not source.read()
    assert session.remarks[0].startswith("c cannot be read: ")
    session.finish({})


def test_infinite_and_missing_values_become_nan(tmp_path: Path, clock: FakeClock) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    group = Counter(clock)
    group.odd = [(2, 1, 2, (float("inf"),)), (3, 2, 3, (None,))]
    source = Source(group, clock)
    session.listen(source)
    assert source.read()
    assert source.last is not None
    assert source.last.values[0] != source.last.values[0]
    session.finish({})


def test_a_folder_that_is_removed_is_noted_and_recording_goes_on(tmp_path: Path, clock: FakeClock) -> None:
    folder = tmp_path / "run"
    session = Session(folder / "a.tape", {}, NS // 10, clock)
    source = Source(Counter(clock), clock)
    session.listen(source)
    for step in range(40):
        clock.advance(0.1)
        source.read()
        session.tend(clock.monotonic_ns())
        if step == 15:
            shutil.rmtree(folder)
    assert len([text for text in session.remarks if "could not be written" in text]) == 1
    session.finish({})


def test_quality_and_anchors_are_on_the_tape(tmp_path: Path, clock: FakeClock) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    source = Source(Counter(clock), clock)
    session.listen(source)
    for _ in range(1250):
        clock.advance(0.2)
        source.read()
        source.count(1, 1)
        session.tend(clock.monotonic_ns())
    session.finish({"cpu_s": 0.5})
    path = tmp_path / "a.tape"
    (quality,) = select(path, "select value from meta where key='quality'")
    assert '"requested_hz": 10.0' in quality[0]
    assert '"achieved_hz": 5.0' in quality[0]
    assert '"missed": 1250' in quality[0]
    assert select(path, "select value from meta where key='meter'") == [('{"cpu_s": 0.5}',)]
    assert select(path, "select count(*) from anchor") == [(1 + 4 + 1,)]
    assert select(path, "select text from note where kind='rate'") == [
        ("c: 10 rows/s were expected and 5 rows/s were recorded.",)
    ]


def test_a_suspend_is_seen_by_the_boot_clock(tmp_path: Path, clock: FakeClock) -> None:
    listener = socket.socket(socket.AF_UNIX)
    ours, theirs = socket.socketpair()
    server = Server(listener, clock)
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    server.tapes[1] = OpenTape(session, Connection(ours), server.cost())
    server._enrol(session, Source(Counter(clock), clock))
    clock.advance(0.1)
    server._note_pause(clock.monotonic_ns())
    assert session.remarks == []
    clock.suspended_ns += 3600 * NS
    server._note_pause(clock.monotonic_ns())
    server._note_pause(clock.monotonic_ns())
    assert session.remarks == ["The machine was suspended for 3600.0 s."]
    clock.utc_offset_ns += 3600 * NS  # a step of the wall clock moves nothing
    server._note_pause(clock.monotonic_ns() - 2 * NS)
    assert session.remarks[1:] == ["The recorder did not run for 2.0 s."]
    server._finish(1)
    assert select(tmp_path / "a.tape", "select kind from gap") == [("suspend",)]
    for sock in (listener, theirs):
        sock.close()


class Hoarder(Counter):
    """Says how it is read, and says something else later."""

    @property
    def trouble(self) -> str | None:
        return None if self.clock.monotonic_ns() < 5 * NS else "lines are kept back; single polls are used instead."


def test_what_a_group_says_of_its_own_reading_is_on_the_tape_once(tmp_path: Path, clock: FakeClock) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    source = Source(Hoarder(clock), clock)
    session.listen(source)
    while clock.monotonic_ns() < 6 * NS:
        assert source.read()
        clock.advance(0.5)
    assert source.read_raw(0, 2**62)
    source.process()
    session.finish({})
    assert select(tmp_path / "a.tape", "select text from note where kind='trouble'") == [
        ("lines are kept back; single polls are used instead.",)
    ]


class Broken(Counter):
    """Can be read, but cannot say how from some time on."""

    silent_ns = 0

    @property
    def trouble(self) -> str | None:
        if self.silent_ns and self.clock.monotonic_ns() >= self.silent_ns:
            raise RuntimeError("no handle")
        return None


def test_a_group_that_cannot_say_how_it_is_read_is_noted(tmp_path: Path, clock: FakeClock) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    group = Broken(clock)
    source = Source(group, clock)
    session.listen(source)
    group.silent_ns = clock.monotonic_ns() + 2 * NS
    for _ in range(8):
        assert source.read()
        clock.advance(0.5)
    session.finish({})
    assert select(tmp_path / "a.tape", "select text from note where kind='trouble'") == [("RuntimeError: no handle",)]


ONE_OF_TWO = "Group c has 1 channels, but a row has 2 values."


def test_inline_reads_with_other_channels_than_their_group_are_rejected_with_one_note(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Another program, or an earlier version of it, may find other channels than the recorder did."""
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    source = Source(Counter(clock), clock)
    session.listen(source)
    source.read()
    at_ns = clock.monotonic_ns()
    odd = [("c", at_ns, at_ns, at_ns, values) for values in ([1.0, 2.0], [None, 2.0])]
    odd += [("c", at_ns, at_ns, at_ns), ("c", at_ns, at_ns, at_ns, 7), 5]
    session.apply({"op": "span_open", "uid": "u", "name": "work", "at_ns": at_ns, "edges": odd})
    session.apply({"op": "span_close", "uid": "u", "at_ns": at_ns, "edges": [("c", at_ns, at_ns, at_ns, [3.0])]})
    session.own_rows("c", [Row(at_ns + 1, at_ns + 1, at_ns + 1, (1.0, 2.0))])
    session.tend(at_ns + 2 * NS)
    assert session.finish({}) is None
    with Tape.open(tmp_path / "a.tape") as tape:
        assert tape.edges(1) == [Row(at_ns, at_ns, at_ns, (3.0,))]
        assert [span.name for span in tape.spans()] == ["work"]
        said = [note.text for note in tape.notes() if note.kind == "tape"]
        assert tape.trouble == ()
    assert said == [text for text in session.remarks if text.startswith("The tape")]
    assert said.count(f"The tape rejected a row: {ONE_OF_TWO}") == 1
    assert len(said) == 4, "one for each kind of nonsense"


class Listed:
    """A table group of a plug-in."""

    info = GroupInfo("t", "x", "host", (), table=True)

    def __init__(self, table: object) -> None:
        self.table = table

    def read_table(self) -> object:
        return self.table

    def close(self) -> None: ...


@pytest.mark.parametrize("odd", [["x"], [{"pid": 1}, None], "rows", {"pid": 1}, 5])
def test_a_table_that_makes_no_sense_is_an_outage(tmp_path: Path, clock: FakeClock, odd: object) -> None:
    session = Session(tmp_path / "a.tape", {}, NS // 10, clock)
    group = Listed((clock.monotonic_ns(), odd))
    source = Source(group, clock)  # type: ignore[arg-type]
    session.listen(source)
    assert not source.read()
    assert session.remarks[0].startswith("t cannot be read: ")
    group.table = (clock.monotonic_ns() + 0.5, [{"pid": 1}])
    assert source.read()
    session.finish({})
    with Tape.open(tmp_path / "a.tape") as tape:
        assert [frame.rows for frame in tape.tables(1)] == [[{"pid": 1}]]
