"""Server-sent events: what a viewer gets, as text, to a client that has to keep up or go."""

from __future__ import annotations

import asyncio
import contextlib

from everywatt.net.guard import Message, Receive, Send
from everywatt.report.web.live import END, Hub, Viewer

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
