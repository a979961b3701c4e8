"""What a message does in the midst of a planned stretch."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from everywatt.core.clocks import SystemClock
from everywatt.recorder.server import Server


@dataclass
class Caller:
    """A client that has said something."""

    messages: list[dict[str, Any]]
    pending: bool = False
    told: list[dict[str, Any]] = field(default_factory=list)

    def pull(self) -> list[dict[str, Any]]:
        return self.messages

    def put(self, message: dict[str, Any]) -> None:
        self.told.append(message)


@pytest.fixture
def server():
    with socket.socket() as listener:
        yield Server(listener, SystemClock())


def heard(server: Server, op: str, wanted: bool) -> bool:
    """Whether a stretch goes on after a message, where a card wants to be read at a span's edge, or does not."""
    tracker = SimpleNamespace(edge=lambda at_ns, now_ns: wanted)
    session = SimpleNamespace(apply=lambda message: None, sources=[SimpleNamespace(tracker=tracker)], full=False)
    server.tapes[1] = SimpleNamespace(session=session)  # type: ignore[assignment]
    return server._serve_lightly(Caller([{"op": op, "tape": 1, "at_ns": 5, "name": "x"}]))  # type: ignore[arg-type]


def test_a_span_ends_a_planned_stretch_where_a_card_is_read_at_its_edge(server) -> None:
    """Else the read would come with the next stop, up to 100 ms late."""
    assert heard(server, "span_open", True) is False
    assert heard(server, "span_close", True) is False
    assert heard(server, "span_open", False) is True
    assert heard(server, "point", True) is True
