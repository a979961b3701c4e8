"""What goes into a tape comes out of it."""

import os
import random
import sqlite3

import pytest
from fake_clock import FakeClock

from everywatt.core.errors import RunExists, TapeError, UsageError
from everywatt.core.spans import Span
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter


def totals(tape):
    columns = load_columns(tape, 1, ["gpu.0.energy", "gpu.0.power"])
    return columns.accumulated["gpu.0.energy"][-1], columns.accumulated["gpu.0.power"][-1]


@pytest.mark.parametrize("seal", [True, False])
def test_a_small_tape_is_read_back(lab, tmp_path, seal):
    small = lab.write_small(tmp_path / "run" / "a.tape", seal=seal)
    with Tape.open(small.path) as tape:
        assert tape.sealed is seal
        assert bool(tape.trouble) is not seal
        assert tape.meta["tag"] == "small"
        assert totals(tape) == (small.counts, small.value_ns)
        (span,) = tape.spans()
        assert (span.id, span.name, span.start_ns, span.parent) == ("s1", "run", small.start_ns, None)
        assert span.duration_s == pytest.approx(6.0)
        assert span.attributes == {"k": 1, "done": True}
        assert tape.points()[0].value == 1 / 10
        assert [(note.kind, note.text, note.data) for note in tape.notes()] == [("late", "A tick was late.", {"ms": 3})]
        assert tape.edges(1) == [lab.row(small.start_ns + 6 * 10**9, 5.0, 1.0, 2.0)]
        assert [t.rows[0]["cpu_s"] for t in tape.tables(2)] == [0.9, 1.9, 2.9, 3.9, 4.9, 5.9]
        assert [
            t.rows[0]["cpu_s"] for t in tape.tables(2, small.start_ns + 2 * 10**9, small.start_ns + 25 * 10**8)
        ] == [
            1.9,
            2.9,
        ]
        assert tape.extent_ns() == (small.start_ns, small.start_ns + 6 * 10**9)
        offset = FakeClock().utc_offset_ns
        assert tape.to_utc_ns(small.start_ns + 12345) == small.start_ns + 12345 + offset
        assert tape.from_utc_ns(small.start_ns + 12345 + offset) == small.start_ns + 12345
        assert tape.group(1).info.channels[0].facts.wrap == 2.0**20
    if seal:
        assert os.listdir(small.path.parent) == ["a.tape"]


def test_recordings_are_never_overwritten(lab, tmp_path):
    (tmp_path / "a.tape").write_text("mine")
    with pytest.raises(RunExists):
        TapeWriter(tmp_path / "a.tape", {})
    assert (tmp_path / "a.tape").read_text() == "mine"


def test_a_reader_follows_a_live_tape_into_its_seal(lab, tmp_path):
    clock = FakeClock()
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=clock)
    group = writer.add_group(lab.group(lab.counter(), lab.gauge()), 0.1)
    writer.flush()
    tape = Tape.open(tmp_path / "a.tape")
    assert len(load_columns(tape, group, ["gpu.0.energy"])) == 0
    for i in range(20):
        writer.append(group, [lab.row(10**12 + i * lab.period_ns, i * 5.0, 1.0)])
        writer.flush()
        tape.refresh()
        assert load_columns(tape, group, ["gpu.0.energy"]).accumulated["gpu.0.energy"][-1] == i * 5.0
    writer.seal()
    tape.refresh()
    assert tape.sealed and tape.trouble == ()
    assert load_columns(tape, group, ["gpu.0.energy"]).accumulated["gpu.0.energy"][-1] == 95.0
    tape.close()
    assert sorted(os.listdir(tmp_path)) == ["a.tape"]


def test_rows_out_of_order_are_left_out_and_counted(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    group = writer.add_group(lab.group(lab.counter()), 0.1)
    at = 10**12
    writer.append(group, [lab.row(at + 2, 20.0), lab.row(at + 1, 10.0)])  # sorted within one call
    writer.append(group, [lab.row(at + 2, 21.0), lab.row(at, 0.0), lab.row(at + 3, 30.0)])
    tape = Tape.open(writer.seal())
    columns = load_columns(tape, group, ["gpu.0.energy"])
    assert columns.values["gpu.0.energy"].tolist() == [10, 20, 30]
    assert tape.meta["dropped_rows"] == {"gpu.0": 2}
    assert [note.kind for note in tape.notes()] == ["out-of-order"]


def test_rows_that_do_not_fit_their_group_are_refused_and_change_nothing(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    group = writer.add_group(lab.group(lab.counter()), 0.1)
    at = 10**12
    for odd in ((), (1.0, 2.0)):
        with pytest.raises(UsageError, match="has 1 channels, but a row has"):
            writer.edge(group, lab.row(at, *odd))
        with pytest.raises(UsageError, match="has 1 channels, but a row has"):
            writer.append(group, [lab.row(at, 1.0), lab.row(at + 1, *odd)])
    with pytest.raises(UsageError, match="no group 5"):
        writer.edge(5, lab.row(at, 1.0))
    writer.edge(group, lab.row(at, 3.0))
    writer.append(group, [lab.row(at + 2, 4.0)])
    with Tape.open(writer.seal()) as tape:
        assert tape.edges(group) == [lab.row(at, 3.0)]
        assert load_columns(tape, group, ["gpu.0.energy"]).values["gpu.0.energy"].tolist() == [4.0]


def test_sealing_makes_frames_of_many_rows(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    channels = [lab.counter(), *(lab.gauge(f"c{i}", None) for i in range(39))]
    group = writer.add_group(lab.group(*channels), 0.1)
    for i in range(250):
        writer.append(group, [lab.row(10**12 + (10 * i + k) * lab.period_ns, float(i), *[1.0] * 39) for k in range(10)])
        writer.flush()
    tape = Tape.open(writer.seal())
    assert [frame.n for frame in tape.frames(group)] == [1020, 1020, 460]
    at = tape.frames(group)[1].first_ns
    assert [frame.seq for frame in tape.frames(group, at, at + 1)] == [1, 2, 3]
    assert [frame.seq for frame in tape.frames(group, at - 1, at - 1)] == [1, 2]


def test_wrong_use_is_told(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {})
    group = writer.add_group(lab.group(lab.counter()), 0.1)
    with pytest.raises(UsageError, match="1 channels"):
        writer.append(group, [lab.row(1, 1.0, 2.0)])
    with pytest.raises(UsageError, match="no group 5"):
        writer.append(5, [lab.row(1, 1.0)])
    with pytest.raises(UsageError, match="above 0"):
        writer.add_group(lab.group(lab.counter()), 0.0)
    writer.span_close("never", 5)
    path = writer.seal()
    with pytest.raises(TapeError, match="closed"):
        writer.flush()
    assert "never" in Tape.open(path).notes()[0].text


def test_ten_thousand_spans(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    for i in range(10_000):
        writer.span_open(Span(f"s{i}", "query", i, parent="s0" if i else None))
    writer.flush()
    for i in range(9_999):
        writer.span_close(f"s{i}", i + 10)
    spans = Tape.open(writer.seal()).spans()
    assert [span.end_ns for span in spans] == [*range(10, 10_009), None]


def test_it_is_plain_sqlite(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    db = sqlite3.connect(small.path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert db.execute("PRAGMA application_id").fetchone() == (0x45574154,)
    assert db.execute("SELECT sum(n) FROM frame").fetchone() == (60,)


def written_bytes():
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])


def test_an_hour_of_forty_channels_at_ten_hertz_writes_less_than_60_mb(lab, tmp_path):
    clock = FakeClock()
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=clock)
    channels = [[lab.counter(f"c{g}"), *(lab.gauge(f"g{g}.{k}") for k in range(3))] for g in range(10)]
    groups = [writer.add_group(lab.group(*some, name=f"g{i}"), 0.1) for i, some in enumerate(channels)]
    random_ = random.Random(1)
    counts = [0] * 10
    before = written_bytes()
    for _ in range(120):
        for _ in range(10):
            clock.advance(0.1)
            for i, group in enumerate(groups):
                counts[i] += random_.randrange(8_000, 12_000)
                values = (random_.gauss(100_000, 5_000) // 1, random_.randrange(101) * 1.0, random_.random() * 300)
                writer.append(group, [lab.row(clock.now_ns + random_.randrange(300_000), float(counts[i]), *values)])
        writer.flush()
    assert (written_bytes() - before) * 30 < 60e6
    writer.abandon()


def test_an_abandoned_tape_is_whole_and_says_that_it_is_not_sealed(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    group = writer.add_group(lab.group(lab.counter()), 0.1)
    writer.append(group, [lab.row(10**12 + i, float(i)) for i in range(5)])
    writer.abandon()
    writer.abandon()
    assert os.listdir(tmp_path) == ["a.tape"]
    with Tape.open(tmp_path / "a.tape") as tape:
        assert tape.trouble == ("a.tape was closed without being sealed.",)
        assert len(load_columns(tape, group, ["gpu.0.energy"])) == 5
