"""What a reader of the figure must know is told; what only a maintainer wants stays on the tape."""

from __future__ import annotations

import pytest
from tapes import ORIGIN_NS, UTC_NS, at, counter_group, gauge_group, rows, write_tape

from everywatt.core.channels import Channel, GroupInfo, Kind
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


def test_two_rows_of_a_further_segment_do_not_tell_the_rate(tmp_path):
    """A recorder that took over for a moment: its segment holds two rows a millisecond apart."""
    long = write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, rows(lambda t: 10.0 * t, 0, 2, 0.1))])
    short = write_tape(tmp_path / "b.tape", [(counter_group(), 0.1, rows(lambda t: 10.0 * t, 3, 3.001, 0.001))])
    with Tape.open(long) as one, Tape.open(short) as other:
        for tapes in ([one, other], [other, one]):
            (entry,) = quality(tapes)["groups"].values()
            assert entry["achieved_period_s"] == pytest.approx(0.1) and entry["rows"] == 23


def test_a_card_that_is_seen_in_part_without_utilisation_is_named(tmp_path):
    """Readings of a load in step with the sensor are those of a steady one, and nothing tells the two apart."""
    recorded = [(gauge_group(period_s=0.1, window_s=0.025), 0.1, rows(lambda t: 90.0, 0, 2, 0.1))]
    busy = GroupInfo("busy", "test", "gpu.0", (Channel("gpu.0.utilisation", "%", Kind.GAUGE, "gpu.0"),))
    witnessed = [*recorded, (busy, 0.1, rows(lambda t: 50.0, 0, 2, 0.1))]
    whole = [(gauge_group(period_s=0.1, window_s=0.1), 0.1, rows(lambda t: 90.0, 0, 2, 0.1))]
    found = []
    for number, groups in enumerate((recorded, witnessed, whole)):
        with Tape.open(write_tape(tmp_path / f"{number}.tape", groups)) as tape:
            found.append(quality([tape])["warnings"])
    assert found == [
        [
            "gpu.0: its power sensor looks at a part of each period, and no utilisation was recorded: a load in step "
            "with the sensor would look steady, and the interval does not cover one that looks idle"
        ],
        [],
        [],
    ]


def test_a_card_that_may_be_seen_in_part_is_named_too(tmp_path):
    recorded = [(gauge_group(period_s=0.1), 0.1, rows(lambda t: 90.0, 0, 2, 0.1))]
    with Tape.open(write_tape(tmp_path / "a.tape", recorded)) as tape:
        (warning,) = quality([tape])["warnings"]
    assert warning.startswith(
        "gpu.0: its power sensor may look at a part of each period, and no utilisation was recorded"
    )
