"""One source for all who look: started by the first, ended with the last, and nobody waits for the slow."""

import asyncio
import json
import threading

import pytest
from sites import FakeSource

from everywatt.core.errors import NoSensor
from everywatt.report.live.snapshot import Amount, DeviceNow, OwnerNow, Owners, Snapshot
from everywatt.report.web.live import END, WAITING, EventStream, Hub, Hubs, point, shortened


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def hub_of(sources, **more):
    def make():
        sources.append(FakeSource(**more))
        return sources[-1]

    return Hub(make, interval_s=0.02, grace_s=0.1)


async def taken(viewer, count):
    return [await viewer.next(5.0) for _ in range(count)]


async def idle(hub):
    while hub.running:
        await asyncio.sleep(0.01)


def test_two_viewers_share_one_source_that_ends_with_the_last():
    sources = []

    async def main():
        hub = hub_of(sources)
        first = hub.join()
        start, snapshot, *_ = await taken(first, 3)
        assert start[0] == "start" and snapshot[0] == "snapshot"
        assert json.loads(start[1])["total_history"] == [241.0] * 60
        second = hub.join()
        start, snapshot = await taken(second, 2)
        assert start[0] == "start" and len(json.loads(start[1])["points"]) >= 2, "what the first has seen"
        assert json.loads(snapshot[1])["power_w"] > 100
        hub.leave(first)
        assert (await first.next(1.0)) is not None
        await taken(second, 3)
        assert len(sources) == 1 and not sources[0].closed
        hub.leave(second)
        await idle(hub)
        assert sources[0].closed
        polls = sources[0].polls
        await asyncio.sleep(0.1)
        assert sources[0].polls == polls

    run(main())


def test_a_viewer_who_comes_back_at_once_finds_the_same_recording():
    sources = []

    async def main():
        hub = Hub(lambda: sources.append(FakeSource()) or sources[-1], interval_s=0.02, grace_s=5.0)
        viewer = hub.join()
        await taken(viewer, 2)
        hub.leave(viewer)
        await asyncio.sleep(0.1)
        await taken(hub.join(), 2)
        assert len(sources) == 1
        await hub.close()
        assert sources[0].closed

    run(main())


def test_one_who_comes_while_it_is_being_closed_gets_a_new_one():
    sources, gate = [], threading.Event()

    class Slow(FakeSource):
        def close(self):
            gate.wait(10)
            super().close()

    async def main():
        hub = Hub(lambda: sources.append(Slow()) or sources[-1], interval_s=0.02, grace_s=0.0)
        viewer = hub.join()
        await taken(viewer, 2)
        hub.leave(viewer)
        await asyncio.sleep(0.2)
        late = hub.join()
        gate.set()
        assert (await late.next(5.0))[0] == "start"
        assert len(sources) == 2 and sources[0].closed
        await hub.close()

    run(main())


def test_a_slow_viewer_loses_the_oldest_and_holds_nobody_up():
    sources = []

    async def main():
        hub = hub_of(sources)
        slow, quick = hub.join(), hub.join()
        await taken(quick, 4 * WAITING)
        kept = await taken(slow, WAITING)
        powers = [json.loads(data)["power_w"] for kind, data in kept if kind == "snapshot"]
        assert len(powers) == WAITING and powers == sorted(powers) and powers[0] > 101
        await hub.close()

    run(main())


def test_the_end_of_a_run_is_told():
    sources = []

    async def main():
        hub = hub_of(sources, polls=3)
        viewer = hub.join()
        kinds = [kind for kind, _ in await taken(viewer, 6)]
        assert kinds == ["start", "snapshot", "snapshot", "snapshot", "end", ""]
        await idle(hub)
        assert sources[0].closed and hub.viewers == 0

    run(main())


@pytest.mark.parametrize(
    "error", [NoSensor("Nothing measures power.", cure="everywatt doctor"), ZeroDivisionError("x")]
)
def test_trouble_is_told(error):
    def make():
        raise error

    async def main():
        hub = Hub(make)
        viewer = hub.join()
        kind, data = await viewer.next(5.0)
        assert kind == "trouble" and str(getattr(error, "message", "ZeroDivisionError")) in json.loads(data)["error"]
        assert await viewer.next(1.0) == END
        await idle(hub)

    run(main())


def test_there_is_room_for_so_many_and_no_more():
    async def main():
        hubs = Hubs(most_hubs=2, most_viewers=3)
        joined = [hubs.join(key, FakeSource) for key in ("", "", "a", "")]
        assert joined[3] is None and hubs.viewers == 3
        hub, viewer = joined[0]
        hub.leave(viewer)
        assert hubs.join("b", FakeSource) is None, "two sources are the most"
        assert hubs.join("a", FakeSource) is not None
        await hubs.close()
        assert hubs.viewers == 0

    run(main())


def test_points_and_snapshots_are_short():
    snapshot = FakeSource().poll()
    assert {one["name"]: one["power_w"] for one in point(snapshot)["devices"]}["gpu.1"] == 101.0
    data = shortened(snapshot)
    assert data["energy"]["shown"] == "14.46 kJ ± 0.25" and data["owners"]["count"] == len(data["owners"]["entries"])


def test_averages_have_one_unit():
    some = [Snapshot("here", 0, 9.0, averages_w=watts) for watts in ((53.7, 48.2, None), (12e3, 9.0, 8.0), (None,) * 3)]
    assert [shortened(one)["averages_shown"] for one in some] == [
        "53.70 · 48.20 · – W",
        "12.00 kW · 9.000 W · 8.000 W",
        "–",
    ]


def test_watts_have_the_digits_that_their_energy_has():
    wide = Amount(425.0, 348.0, 539.0)
    device = DeviceNow("cpu.0", power_w=53.7012, averages_w=(53.7012, None, None), energy=wide)
    owner = OwnerNow("process", "4711:1", "train", 0.09311, 1.0, low=0.0, high=9.0)
    snapshot = Snapshot(
        "here", 0, 9.0, (device,), 53.7012, (53.7012, 48.21, None), wide, owners=Owners("owner", (owner,))
    )
    data = shortened(snapshot)
    assert data["power_shown"] == "54 W" and data["averages_shown"].startswith("54 ")
    assert data["devices"][0]["power_shown"] == "54 W"
    assert data["owners"]["entries"][0]["power_shown"] == "≈ 93 mW"
    assert shortened(Snapshot("here", 0, 9.0))["power_shown"] == "–"


def stream(hub, viewer, *, gone=None, send_s=0.0, **more):
    """What the client gets, until it is gone."""
    sent = []

    async def receive():
        if gone is None:
            await asyncio.sleep(60)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.sleep(send_s)

    return sent, EventStream(hub, viewer, **more)({"type": "http"}, receive, send)


def test_events_are_written_as_text():
    async def main():
        hub = hub_of([], polls=2)
        sent, done = stream(hub, hub.join())
        await done
        assert sent[0]["status"] == 200 and (b"content-type", b"text/event-stream; charset=utf-8") in sent[0]["headers"]
        text = b"".join(message["body"] for message in sent[1:]).decode()
        assert [line for line in text.splitlines() if line.startswith("event: ")] == [
            "event: start", "event: snapshot", "event: snapshot", "event: end",
        ]  # fmt: skip
        assert all(json.loads(line[6:]) is not None for line in text.splitlines() if line.startswith("data: "))
        assert sent[-1]["more_body"] is False

    run(main())


def test_a_client_that_goes_leaves_the_hub():
    async def main():
        sources, gone = [], asyncio.Event()
        hub = hub_of(sources)
        _, done = stream(hub, hub.join(), gone=gone)
        task = asyncio.ensure_future(done)
        await asyncio.sleep(0.1)
        gone.set()
        await task
        await idle(hub)
        assert hub.viewers == 0 and sources[0].closed

    run(main())


def test_a_client_that_takes_nothing_is_let_go():
    async def main():
        hub = hub_of([])
        _, done = stream(hub, hub.join(), send_s=60.0, stuck_s=0.1)
        await done
        await idle(hub)
        assert hub.viewers == 0

    run(main())


def test_a_silent_source_is_kept_warm():
    async def main():
        hub = Hub(FakeSource, interval_s=60.0)
        sent, done = stream(hub, hub.join(), beat_s=0.05)
        task = asyncio.ensure_future(done)
        await asyncio.sleep(0.3)
        await hub.close()
        await task
        assert b": here\n\n" in [message.get("body") for message in sent]

    run(main())
