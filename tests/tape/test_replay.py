"""A tape as a live sensor: the same channels and the same totals."""

import pytest
from fake_clock import FakeClock

from everywatt.core.machine import Machine
from everywatt.sensors import registry
from everywatt.sensors.base import Request, State
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape
from everywatt.tape.replay import Replay
from everywatt.tape.writer import TapeWriter


def request(clock, **options):
    return Request(machine=Machine(clock=clock), options={"replay": options})


def play_through(source, target, clock, period_s, speed=1.0):
    """Read the replayed groups on a schedule into another tape."""
    sensor = Replay(request(clock, tape=str(source), speed=speed))
    assert sensor.probe().state is State.USABLE
    writer = TapeWriter(target, {}, clock=clock)
    groups = [(group, writer.add_group(group.info, 0.1 / speed)) for group in sensor.groups()]
    for _ in range(int(12 / period_s / speed)):
        for group, number in groups:
            if group.info.table:
                at_ns, rows = group.read_table()
                if rows:
                    writer.append_table(number, at_ns, rows)
            else:
                writer.append(number, group.read())
        clock.advance(period_s)
    for group, _ in groups:
        group.close()
    return writer.seal()


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_totals_are_those_of_the_tape(lab, tmp_path, speed):
    small = lab.write_small(tmp_path / "a.tape", rows=100)
    clock = FakeClock(now_ns=77_777_777_777)
    path = play_through(small.path, tmp_path / "b.tape", clock, 0.07, speed)
    with Tape.open(small.path) as old, Tape.open(path) as new:
        names = ["gpu.0.energy", "gpu.0.power", "gpu.0.utilisation"]
        before, after = load_columns(old, 1, names), load_columns(new, 1, names)
        assert [c.name for c in new.groups[0].info.channels] == names
        assert len(after) == 100
        assert after.accumulated["gpu.0.energy"][-1] == small.counts
        if speed == 1.0:
            for name in names[:2]:
                assert after.accumulated[name].tolist() == before.accumulated[name].tolist()
                assert after.observed_ns[name].tolist() == before.observed_ns[name].tolist()
            assert after.published[0] == 77_777_777_777
        else:
            assert after.accumulated["gpu.0.power"][-1] == pytest.approx(small.value_ns, rel=1e-9)
        assert after.values["gpu.0.utilisation"].tolist() == before.values["gpu.0.utilisation"].tolist()
        assert [t.rows for t in new.tables(2)] == [t.rows for t in old.tables(2)]


def test_rows_come_when_they_fall_due(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    clock = FakeClock()
    group, _ = Replay(request(clock, tape=str(small.path))).groups()
    assert not group.info.tracked and group.info.sensor == "replay"
    counts = []
    for _ in range(4):
        counts.append(len(group.read()))
        clock.advance(0.25)
    # The first row was read a millisecond after the tape's start.
    assert counts == [0, 3, 2, 3]
    clock.advance(100)
    assert len(group.read()) == 52 and group.read() == []


def test_what_cannot_be_replayed_says_why(lab, tmp_path):
    clock = FakeClock()
    assert Replay(request(clock)).probe().state is State.ABSENT
    report = Replay(request(clock, tape=str(tmp_path / "none.tape"))).probe()
    assert report.state is State.UNUSABLE and "no file" in report.why
    empty = TapeWriter(tmp_path / "empty.tape", {}).seal()
    assert "no value" in Replay(request(clock, tape=str(empty))).probe().why
    small = lab.write_small(tmp_path / "a.tape")
    assert "above 0" in Replay(request(clock, tape=str(small.path), speed=0)).probe().why


def test_the_registry_knows_it(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    targets = {"replay": registry.known({})["replay"]}
    choice = registry.choose(targets, request(FakeClock(), tape=str(small.path)), ["replay"])
    assert [group.info.name for group in choice.groups] == ["gpu.0", "use.processes"]
    (report,) = choice.reports
    assert report.usable and report.samples["gpu.0.power"] == 100.0
