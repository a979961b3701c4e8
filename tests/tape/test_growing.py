"""What is read of a tape while it is written is what is read of it afterwards."""

from pathlib import Path

import numpy as np
import pytest
from fake_clock import FakeClock
from tapes import at, counter_group, rows

from everywatt.tape import columns
from everywatt.tape.columns import Columns, grown_columns, load_columns
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter


def same(one: Columns, other: Columns) -> None:
    for name in ("read", "early", "late", "published"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in ("values", "accumulated", "observed_ns"):
        assert getattr(one, name).keys() == getattr(other, name).keys()
        for key, column in getattr(one, name).items():
            assert np.array_equal(column, getattr(other, name)[key], equal_nan=True), (name, key)
    assert one.carried == other.carried


@pytest.mark.parametrize("kept", [20_000, 40, 10])
def test_a_live_tape_is_read_as_if_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(columns, "MOST_GROWN_ROWS", kept * 2)
    monkeypatch.setattr(columns, "KEPT_ROWS", kept)
    writer = TapeWriter(tmp_path / "live.tape", {"host": {"name": "box"}}, clock=FakeClock())
    group = writer.add_group(counter_group(), 0.1)
    ticks = rows(lambda t: 30 * t, 0, 19.9, 0.1)
    tape, names = None, [channel.name for channel in counter_group().channels]
    versions = set()
    for start in range(0, len(ticks), 10):
        writer.append(group, ticks[start : start + 10])
        writer.flush()
        tape = tape or Tape.open(writer.path)
        tape.refresh()
        versions.add(tape.version)
        for window in ((0.0, 25.0), (max(start / 10 - 2.0, 0.0), start / 10 + 1.0), (0.31, 0.75)):
            low, high = map(at, window)
            found = grown_columns(tape, tape.groups[0].id, names, low, high)
            same(found, load_columns(tape, tape.groups[0].id, names, low, high, tight=True).between(low, high))
    assert len(versions) == 20
    writer.abandon()
