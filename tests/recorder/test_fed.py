"""Groups that are fed from elsewhere: how often their rows are expected, and how long a tape waits for the last."""

from __future__ import annotations

from fake_clock import FakeClock

from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Row
from everywatt.core.clocks import NS
from everywatt.recorder.session import Session
from everywatt.recorder.source import Source


class Plug:
    """A meter that is asked every two seconds."""

    def __init__(self, every_s: float | None) -> None:
        channel = Channel("wall.power", "W", Kind.GAUGE, "wall", Domain.WALL)
        self.info = GroupInfo(f"plug-{every_s}", "plug", "wall", (channel,))
        if every_s is not None:
            self.rows_every_s = every_s

    def read(self) -> list[Row]:
        return []

    def close(self) -> None:
        pass


def test_rows_are_expected_as_often_as_they_come():
    clock = FakeClock()
    assert Source(Plug(2.0), clock).expected_s(NS // 10) == 2.0
    assert Source(Plug(None), clock).expected_s(NS // 10) == 0.1
    assert Source(Plug(0.05), clock).expected_s(NS // 10) == 0.1


def test_a_tape_waits_for_the_row_that_covers_its_end(tmp_path):
    clock = FakeClock()
    session = Session(tmp_path / "run.tape", {}, NS // 10, clock)
    fed, plain = Source(Plug(2.0), clock), Source(Plug(None), clock)
    session.listen(fed)
    session.listen(plain)
    assert session.patience_ns() == 4 * NS
    end = clock.monotonic_ns()
    session.linger(end)
    assert session.waiting == {fed.info.name}
    fed.hand_on([Row(end, end - NS, end, (100.0,))])
    assert session.waiting, "published before the end"
    fed.hand_on([Row(end + NS, end + NS // 2, end + NS, (100.0,))])
    assert not session.waiting
    assert session.finish({}) is None
