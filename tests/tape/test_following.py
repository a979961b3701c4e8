"""A follower tells every row once: while the tape is written, when it is sealed, and where it is long."""

import pytest
from fake_clock import FakeClock
from tapes import at, counter_group, rows

from everywatt.tape.following import Follower
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter


@pytest.fixture
def writer(tmp_path):
    made = TapeWriter(tmp_path / "live.tape", {"host": {"name": "box"}}, clock=FakeClock())
    yield made
    made.abandon()


def published(news) -> list[int]:
    return [row.early_ns for part in news for row in part.rows]


def test_rows_are_told_once_as_they_come_and_through_sealing(writer):
    group = writer.add_group(counter_group(), 0.1)
    ticks = rows(lambda t: 30 * t, 0, 9.9, 0.1)
    writer.append(group, ticks[:30])
    writer.flush()
    follower = Follower(Tape.open(writer.path))
    told = published(follower.look())
    assert told == [row.early_ns for row in ticks[:30]]
    assert published(follower.look()) == []
    for start in (30, 45):
        writer.append(group, ticks[start : start + 15])
        writer.flush()
        told += published(follower.look())
    assert not follower.finished
    writer.append(group, ticks[60:])
    writer.seal()
    told += published(follower.look())
    assert follower.finished
    assert told == [row.early_ns for row in ticks]
    assert published(follower.look()) == []


def test_a_group_that_comes_later_is_seen(writer):
    first = writer.add_group(counter_group(), 0.1)
    writer.append(first, rows(lambda t: t, 0, 1, 0.1))
    writer.flush()
    follower = Follower(Tape.open(writer.path))
    follower.look()
    second = writer.add_group(counter_group("cpu.1"), 0.1)
    writer.append(second, rows(lambda t: t, 0, 1, 0.1))
    writer.flush()
    news = follower.look()
    assert [part.group.info.device for part in news] == ["cpu.1"]
    assert len(published(news)) == 11


def test_until_is_as_if_the_tape_ended_there(writer):
    group = writer.add_group(counter_group(), 0.1)
    writer.append(group, rows(lambda t: t, 0, 20, 0.1))
    writer.seal()
    told = published(Follower(Tape.open(writer.path), until_ns=at(5)).look())
    assert told[0] == at(0) and told[-1] == at(5)
