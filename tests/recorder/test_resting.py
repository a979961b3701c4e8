"""Cards are read for a while after the last tape, so that the next run need not find their phase again."""

import socket
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock

from everywatt.recorder.server import REST_NS, OpenTape, Server


class Source:
    """A source as the server sees it when nobody listens any more."""

    def __init__(self, locked: bool | None, outage: object = None) -> None:
        self.tracker = None if locked is None else SimpleNamespace(locked=locked, due=None)
        self.outage = outage
        self.listeners: list[object] = []
        self.open = True

    def close(self) -> None:
        self.open = False


@pytest.fixture
def server():
    with socket.socket() as listener:
        yield Server(listener, FakeClock())


def finished(server: Server, *sensors: list[Source], tables: tuple[Source, ...] = ()) -> None:
    """A tape that listened to these sensors' sources, and to tables of its own, has been closed."""
    for number, sources in enumerate(sensors):
        server.pool.entries[str(number)] = SimpleNamespace(sources=list(sources))  # type: ignore[assignment]
    everything = [*(source for sources in sensors for source in sources), *tables]
    for source in everything:
        server.schedule.add(source, 1, 0)
    session = SimpleNamespace(sources=everything, finish=lambda meter, written: None, started_ns=0)
    server.tapes[1] = OpenTape(session, None, server.cost())  # type: ignore[arg-type]
    server._finish(1)


def test_a_sensor_with_a_schedule_of_its_own_stays_open_with_all_its_groups(server) -> None:
    counter, gauge, plain, table = Source(True), Source(None), Source(None), Source(None)
    finished(server, [counter, gauge], [plain], tables=(table,))
    assert [one.open for one in (counter, gauge, plain, table)] == [True, True, False, False]
    assert set(server.schedule.slots) == {counter, gauge}
    server.clock.advance(REST_NS / 2e9)
    server._tend()
    assert counter.open and gauge.open
    server.clock.advance(REST_NS / 1e9)
    server._tend()
    assert not counter.open and not gauge.open and not server.schedule.slots and not server.pool.entries


def test_a_card_whose_phase_is_still_looked_for_stays_open_unless_it_is_out(server) -> None:
    searching, out = Source(False), Source(False, outage=object())
    finished(server, [searching], [out])
    assert searching.open and not out.open


def test_it_is_closed_when_the_recorder_leaves(server) -> None:
    counter = Source(True)
    finished(server, [counter])
    server.stop = True
    server.run()
    assert not counter.open
