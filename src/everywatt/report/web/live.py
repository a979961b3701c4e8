"""Live views for many at once: one source, polled while there are viewers, and stopped with the last one.

A viewer gets server-sent events, and has to keep up or go.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from everywatt.core.errors import EverywattError
from everywatt.core.jsonio import dumps
from everywatt.net.guard import Message, Receive, Send
from everywatt.report.live.board import per_token
from everywatt.report.live.faces import energy_text
from everywatt.report.live.format import Figure, spread, watts
from everywatt.report.live.snapshot import LiveSource, Snapshot

INTERVAL_S: Final = 1.0
GRACE_S: Final = 2.0  # a page that is loaded again is the same viewer
POINTS: Final = 600
MOST_OWNERS: Final = 30
WAITING: Final = 8

Event = tuple[str, str]
END: Final[Event] = ("", "")


class Viewer:
    """One viewer. What it does not receive in time is dropped, oldest first, so it delays no one else."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=WAITING)
        self._ready = asyncio.Event()
        self._ended = False

    def put(self, kind: str, data: str) -> None:
        self._events.append((kind, data))
        self._ready.set()

    def end(self) -> None:
        self._ended = True
        self._ready.set()

    async def next(self, timeout_s: float) -> Event | None:
        """The next event; END after the last; None where nothing came in time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        if self._events:
            event = self._events.popleft()
            if not self._events and not self._ended:
                self._ready.clear()
            return event
        return END if self._ended else None


class Hub:
    """One source and its viewers. Lives in one event loop; the source lives in one thread."""

    def __init__(
        self, make: Callable[[], LiveSource], *, interval_s: float = INTERVAL_S, grace_s: float = GRACE_S
    ) -> None:
        self._make = make
        self._interval_s, self._grace_s = interval_s, grace_s
        self._viewers: set[Viewer] = set()
        self._points: deque[dict[str, Any]] = deque(maxlen=POINTS)
        self._seed: dict[str, Any] | None = None
        self._latest: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @property
    def running(self) -> bool:
        """Whether the source is open, or being closed."""
        return self._task is not None and not self._task.done()

    def join(self) -> Viewer:
        """Look too. The first one starts the source; others get what the first ones have seen."""
        viewer = Viewer()
        if self._closing:
            viewer.end()
            return viewer
        if self._seed is not None and self._latest is not None:
            viewer.put("start", self._start())
            viewer.put("snapshot", self._latest)
        self._viewers.add(viewer)
        if not self.running:
            self._task = asyncio.ensure_future(self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        viewer.end()

    async def close(self) -> None:
        """Disconnect all viewers and release the source."""
        self._closing = True
        for viewer in [*self._viewers]:
            self.leave(viewer)
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._viewers and not self._closing:
            # A thread of its own: a source that hangs holds up only those who look at it.
            with ThreadPoolExecutor(1, "everywatt-live") as thread:
                await self._session(thread)

    async def _session(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        source: LiveSource | None = None
        try:
            source = await loop.run_in_executor(thread, self._make)
            await self._poll(thread, source)
        except EverywattError as error:
            self._dismiss("trouble", {"error": error.message, "cure": error.cure})
        except Exception as error:  # noqa: BLE001 - sensors and tapes of any kind: viewers see it, others continue
            self._dismiss("trouble", {"error": f"The live view failed: {type(error).__name__}: {error}", "cure": None})
        finally:
            self._seed, self._latest = None, None
            self._points.clear()
            if source is not None:
                await loop.run_in_executor(thread, source.close)

    async def _poll(self, thread: ThreadPoolExecutor, source: LiveSource) -> None:
        loop = asyncio.get_running_loop()
        due_s = empty_s = time.monotonic()
        while not self._closing and (self._viewers or time.monotonic() - empty_s < self._grace_s):
            snapshot = await loop.run_in_executor(thread, source.poll)
            self._tell(snapshot)
            if not snapshot.live:
                self._dismiss("end", {})
                return
            due_s = max(due_s + self._interval_s, time.monotonic())
            while not self._closing and (left_s := due_s - time.monotonic()) > 0:
                if self._viewers:
                    empty_s = time.monotonic()
                elif time.monotonic() - empty_s >= self._grace_s:
                    return
                await asyncio.sleep(min(left_s, 0.1))

    def _tell(self, snapshot: Snapshot) -> None:
        self._latest = dumps(shortened(snapshot))
        first = self._seed is None
        if first:
            self._seed = seed(snapshot, self._interval_s)
        self._points.append(point(snapshot))
        start = self._start() if first else ""
        for viewer in self._viewers:
            if first:
                viewer.put("start", start)
            viewer.put("snapshot", self._latest)

    def _start(self) -> str:
        return dumps({**(self._seed or {}), "points": list(self._points)})

    def _dismiss(self, kind: str, data: dict[str, Any]) -> None:
        text = dumps(data)
        for viewer in [*self._viewers]:
            viewer.put(kind, text)
            self.leave(viewer)


class Hubs:
    """The hubs of a server, by what they show. There are never more than `most_hubs`, nor more than `most_viewers`."""

    def __init__(self, *, most_hubs: int = 8, most_viewers: int = 32) -> None:
        self._most_hubs, self._most_viewers = most_hubs, most_viewers
        self._hubs: dict[str, Hub] = {}

    @property
    def viewers(self) -> int:
        return sum(hub.viewers for hub in self._hubs.values())

    def join(self, key: str, make: Callable[[], LiveSource]) -> tuple[Hub, Viewer] | None:
        """Look at `key`; None where there is no room."""
        self._hubs = {name: hub for name, hub in self._hubs.items() if hub.running or hub.viewers}
        if self.viewers >= self._most_viewers or (key not in self._hubs and len(self._hubs) >= self._most_hubs):
            return None
        hub = self._hubs.setdefault(key, Hub(make))
        return hub, hub.join()

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(hub.close() for hub in self._hubs.values()))


NOT_KNOWN = "–"
CHARTED: Final = ("name", "power_w", "utilisation_pct", "temperature_c", "clock_mhz", "memory_bytes")


def point(snapshot: Snapshot) -> dict[str, Any]:
    """What charts keep of `shortened`: t is UTC in seconds."""
    data = snapshot.to_dict()
    devices = [{name: device[name] for name in CHARTED} for device in data["devices"]]
    return {"t": snapshot.at_ns / 1e9, "power_w": snapshot.total_w, "devices": devices, "host": data["host"]}


def seed(snapshot: Snapshot, interval_s: float) -> dict[str, Any]:
    """What was before the first instant: power at equal steps, oldest first, the last of them now."""
    return {
        "interval_s": interval_s,
        "t": snapshot.at_ns / 1e9,
        "history": {device.name: list(device.history_w) for device in snapshot.devices},
        "total_history": list(snapshot.history_w),
    }


def shortened(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as `monitor --json` has it, with words for figures, and the largest owners."""
    data = snapshot.to_dict()
    data["t"] = snapshot.at_ns / 1e9
    devices = ((device.power_w, device.energy) for device in snapshot.devices)
    for row, (power_w, amount) in [
        (data, (snapshot.total_w, snapshot.total)),
        *zip(data["devices"], devices, strict=True),
    ]:
        row["energy"]["shown"] = energy_text(amount)
        row["power_shown"] = _watts(power_w, amount)
    data["averages_shown"] = _alike([_watts(power_w, snapshot.total) for power_w in snapshot.averages_w])
    for row, model in zip(data.get("models", ()), snapshot.models, strict=False):
        row["shown"] = per_token(model)
    if snapshot.owners is not None:
        owners = data["owners"]
        owing = [entry for entry in snapshot.owners.entries if entry.power_w or entry.joules]
        owners["count"] = len(owing)
        owners["entries"] = [
            {**one.to_dict(), "shown": energy_text(one), "power_shown": _watts(one.power_w, one)}
            for one in owing[:MOST_OWNERS]
        ]
    return data


def _alike(texts: list[str]) -> str:
    """Figures beside one another, with their unit once where they have one."""
    units = {text.rpartition(" ")[2] for text in texts} - {NOT_KNOWN}
    if len(units) != 1:
        return " · ".join(texts) if units else NOT_KNOWN
    (unit,) = units
    return " · ".join(text.removesuffix(f" {unit}") for text in texts) + f" {unit}"


def _watts(power_w: float | None, energy: Figure) -> str:
    return NOT_KNOWN if power_w is None else watts(power_w, spread(energy))


HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
BEAT_S = 15.0
STUCK_S = 20.0


def encode(kind: str, data: str) -> bytes:
    """One event. JSON text has no line ends, so it is one line."""
    return f"event: {kind}\ndata: {data}\n\n".encode()


class EventStream:
    """The ASGI answer to one viewer of a hub. It leaves the hub however it ends."""

    def __init__(self, hub: Hub, viewer: Viewer, *, beat_s: float = BEAT_S, stuck_s: float = STUCK_S) -> None:
        self._hub, self._viewer = hub, viewer
        self._beat_s, self._stuck_s = beat_s, stuck_s

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(self._until_gone(receive))
        try:
            with contextlib.suppress(TimeoutError):  # whoever takes nothing for so long is let go
                await self._stream(send)
        finally:
            watch.cancel()
            self._hub.leave(self._viewer)

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._hub.leave(self._viewer)

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        while (event := await self._viewer.next(self._beat_s)) != END:
            body = b": here\n\n" if event is None else encode(*event)
            async with asyncio.timeout(self._stuck_s):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        async with asyncio.timeout(self._stuck_s):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
