"""The recorder's own loop, without clients: one session that is replaced by the hour."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from everywatt.core.clocks import NS, Clock
from everywatt.recorder.server import Server, Tape
from everywatt.recorder.session import Session
from everywatt.recorder.source import Source
from everywatt.recorder.wire import Connection
from everywatt.sensors.base import Report, Request

AIM_NS = 10 * NS


class Loop(Server):
    """Reads sources for one session until `stop`. `each_round` is called after every wake-up."""

    def __init__(self, clock: Clock, wake_fd: int | None, each_round: Callable[[int], None]) -> None:
        with socket.socket() as nobody:
            pass
        # A socket that is closed: nobody can connect, and the loop leaves it out.
        super().__init__(nobody, clock, extra=[] if wake_fd is None else [wake_fd])
        self._each_round = each_round
        self._aim_ns = 0

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

    def _enrol(self, session: Session, source: Source) -> None:
        """All groups of one period are read in one go: taking turns is for those that others wake up for anyway."""
        super()._enrol(session, source)
        slot = self.schedule.slots[source]
        if slot.period_ns <= session.period_ns and slot.offset_ns:
            slot.offset_ns = 0
            if slot.tracker is None:
                slot.deadline_ns = self.schedule.after(slot, self.clock.monotonic_ns())

    def stop_after(self, at_ns: int) -> int | None:
        """When plain groups are read next after an instant; None where there are none."""
        slots = [slot for slot in self.schedule.slots.values() if slot.tracker is None and not slot.offset_ns]
        return min((self.schedule.after(slot, at_ns) for slot in slots), default=None)

    def _aim(self, now_ns: int) -> None:
        """Let cards that publish often be read where everything else is."""
        self._aim_ns = now_ns + AIM_NS
        for slot in self.schedule.slots.values():
            if slot.tracker is not None:
                slot.tracker.aim(self.schedule.after(slot, now_ns))

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
        now_ns = self.clock.monotonic_ns()
        if now_ns >= self._aim_ns:
            self._aim(now_ns)
        self._each_round(now_ns)

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
