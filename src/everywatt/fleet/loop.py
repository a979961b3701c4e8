"""The recorder's own loop, without clients: one session that is replaced by the hour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from everywatt.core.clocks import NS, Clock
from everywatt.recorder.read_loop import ReadLoop
from everywatt.recorder.session import Session
from everywatt.recorder.source import Source

if TYPE_CHECKING:
    from everywatt.recorder.wire import Use

AIM_NS = 10 * NS


class Loop(ReadLoop):
    """Reads sources for one session until `stop`. `each_round` is called after every wake-up."""

    def __init__(self, clock: Clock, wake_fd: int | None, each_round: Callable[[int], None]) -> None:
        super().__init__(clock, [] if wake_fd is None else [wake_fd])
        self._each_round = each_round
        self._aim_ns = 0
        self._session: Session | None = None
        self._before = self.cost()

    @property
    def sessions(self) -> list[Session]:
        """The one that is written now."""
        return [] if self._session is None else [self._session]

    def begin(self, session: Session, sources: Sequence[Source]) -> None:
        """Record these from now on; each delivers its first rows at once."""
        self.replace(session)
        for source in sources:
            self._enrol(session, source)

    def replace(self, session: Session) -> None:
        """Go on with a session that listens to the same sources."""
        self._session, self._before = session, self.cost()

    def _enrol(self, session: Session, source: Source) -> None:
        """All groups of one period are read in one go: taking turns is for those that others wake up for anyway."""
        super()._enrol(session, source)
        slot = self.schedule.slots[source]
        if slot.period_ns <= session.period_ns and slot.offset_ns:
            slot.offset_ns = 0
            if source.tracker is None:
                slot.deadline_ns = self.schedule.after(slot, self.clock.monotonic_ns())

    def stop_after(self, at_ns: int) -> int | None:
        """When plain groups are read next after an instant; None without plain groups."""
        slots = [slot for source, slot in self.schedule.slots.items() if source.tracker is None and not slot.offset_ns]
        return min((self.schedule.after(slot, at_ns) for slot in slots), default=None)

    def _aim(self, now_ns: int) -> None:
        """Let cards that publish often be read where everything else is."""
        self._aim_ns = now_ns + AIM_NS
        for source, slot in self.schedule.slots.items():
            if source.tracker is not None:
                source.tracker.aim(self.schedule.after(slot, now_ns))

    def run(self) -> None:
        """Until `stop`; what is open stays open."""
        while not self.stop:
            self._wait(self._wake_ns())
            self._tend()
            self._read_ahead()

    def _tend(self) -> None:
        super()._tend()
        now_ns = self.clock.monotonic_ns()
        if now_ns >= self._aim_ns:
            self._aim(now_ns)
        self._each_round(now_ns)

    def cost_of_session(self) -> Use:
        """What recording has cost since the session began."""
        assert self._session is not None
        return self.meter(self._session, self._before)

    def close(self) -> None:
        for session in self.sessions:
            for source in session.sources:
                self.schedule.slots.pop(source, None)
                self.pool.drop(source)
        self._session = None
