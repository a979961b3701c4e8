"""Windows of a tape that is being written are those of the whole tape, in whatever order they are asked for."""

import random

import numpy as np
import pytest
from tapes import at, counter_group, rows

from everywatt.core.clocks import FakeClock
from everywatt.tape import growing
from everywatt.tape.columns import load_columns
from everywatt.tape.growing import grown_columns
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter


@pytest.mark.parametrize("most", [30, 200, 60_000])
def test_every_window_is_that_of_the_tape(tmp_path, monkeypatch, most):
    monkeypatch.setattr(growing, "MOST_ROWS", most)
    monkeypatch.setattr(growing, "KEPT_ROWS", most // 3)
    writer = TapeWriter(tmp_path / "live.tape", {}, clock=FakeClock())
    group = writer.add_group(counter_group(), 0.1)
    ticks, chance, names = rows(lambda t: 30 * t, 0, 99.9, 0.1), random.Random(5), None
    tape = None
    for start in range(0, len(ticks), 20):
        writer.append(group, ticks[start : start + 20])
        writer.flush()
        tape = tape or Tape.open(writer.path)
        names = names or [channel.name for channel in tape.group(group).info.channels]
        for first in (0, max(start - 15, 0), chance.randrange(start + 20)):
            begin, end = at(first / 10), at((first + chance.randrange(1, 60)) / 10)
            found = grown_columns(tape, group, names, begin, end)
            wanted = load_columns(tape, group, names, begin, end, tight=True).between(begin, end)
            assert found.published.tolist() == wanted.published.tolist() and len(found) > 0
            for name in names:
                np.testing.assert_array_equal(found.values[name], wanted.values[name])
                np.testing.assert_array_equal(found.accumulated[name], wanted.accumulated[name])
    writer.abandon()
