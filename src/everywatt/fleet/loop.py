"""The recorder's own loop, without clients: one session that is replaced by the hour."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from everywatt.core.clocks import Clock
from everywatt.recorder.server import Server, Tape
from everywatt.recorder.session import Session
from everywatt.recorder.source import Source
from everywatt.recorder.wire import Connection
from everywatt.sensors.base import Report, Request


class Loop(Server):
    """Reads sources for one session until `stop`. `each_round` is called after every wake-up."""

    def __init__(self, clock: Clock, wake_fd: int | None, each_round: Callable[[int], None]) -> None:
        with socket.socket() as nobody:
            pass
        # A socket that is closed: nobody can connect, and the loop leaves it out.
        super().__init__(nobody, clock, extra=[] if wake_fd is None else [wake_fd])
        self._each_round = each_round

    def choose(
        self, targets: Mapping[str, str], request: Request, wanted: Sequence[str] | None
    ) -> tuple[list[Source], list[Report]]:
        """Open the sensors."""
        return self.pool.choose(targets, request, wanted)

    def begin(self, session: Session, sources: Sequence[Source]) -> None:
        """Record these from now on; each delivers its first rows at once."""
        self._hold(session)
        for source in sources:
            self._enrol(session, source)

    def replace(self, session: Session) -> None:
        """Go on with a session that listens to the same sources."""
        self._hold(session)

    def _hold(self, session: Session) -> None:
        nobody = cast(Connection, None)  # who opened it: this process
        self.tapes = {1: Tape(session, nobody, time.process_time(), self.reads, self.wakes)}

    def run(self) -> None:
        """Until `stop`; what is open stays open."""
        while not self.stop:
            self._wait(self._wake_ns(self.clock.monotonic_ns()))
            self._tend()
            self._cruise()

    def _tend(self) -> None:
        super()._tend()
        self._each_round(self.clock.monotonic_ns())

    def meter(self) -> dict[str, Any]:
        """What recording has cost since the session began."""
        return self._meter(self.tapes[1])

    def close(self) -> None:
        """Let go of all sensors."""
        for tape in self.tapes.values():
            for source in tape.session.sources:
                self.schedule.remove(source)
                self.pool.drop(source)
        self.tapes = {}
