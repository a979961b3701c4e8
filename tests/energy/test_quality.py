"""What a reader of the figure must know is told; what only a maintainer wants stays on the tape."""

from __future__ import annotations

import pytest
from tapes import ORIGIN_NS, UTC_NS, at, counter_group, rows

from everywatt.core.clocks import Anchor
from everywatt.core.spans import Note
from everywatt.energy.quality import quality
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter


def warnings_of(path, kind, text):
    writer = TapeWriter(path, {"host": {"name": "box"}, "period_s": 0.1})
    writer.anchor(Anchor(ORIGIN_NS, UTC_NS, ORIGIN_NS, 0))
    writer.append(writer.add_group(counter_group(), 0.1), rows(lambda t: 10.0 * t, 0, 2, 0.1))
    writer.note(Note(at(1), kind, text))
    writer.note(Note(at(1), kind, text))
    with Tape.open(writer.seal()) as tape:
        return quality([tape])["warnings"]


@pytest.mark.parametrize("kind", ["sensor", "suspend", "client", "recorder", "tape", "gap", "lost", "cuda", "error"])
def test_trouble_is_told_once(tmp_path, kind):
    assert warnings_of(tmp_path / "a.tape", kind, "something happened") == ["something happened"]


@pytest.mark.parametrize("kind", ["spool", "span", "out-of-order"])
def test_housekeeping_is_not(tmp_path, kind):
    assert warnings_of(tmp_path / "a.tape", kind, "something was tidied up") == []
