"""The recorder's loop: one thread, one select, a socket, many clients and tapes, one schedule."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import EverywattError
from everywatt.core.jsonio import plain
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.machine import Machine
from everywatt.recorder.pinpoint import Pinpoint
from everywatt.recorder.planned_reads import Cruise
from everywatt.recorder.planned_tracker import PlannedTracker
from everywatt.recorder.pool import Pool
from everywatt.recorder.request import RecordRequest
from everywatt.recorder.schedule import Schedule
from everywatt.recorder.session import Session
from everywatt.recorder.source import Source
from everywatt.recorder.wire import SEALING, Connection

LINGER_NS = 1_200_000_000
FED_LINGER_NS = 5 * NS // 2  # the same for a meter that is asked now and then
PATIENCE_S = 2.0  # a program waits to start while sensors are tried
YOUNG_NS = 10 * NS  # after that who is on a GPU is read once a second: the run is long enough
PAUSE_NS = NS // 10
SIGN_NS = NS // 5  # how often a client that waits is shown a sign of life
SUSPEND_NS = NS // 20
REST_NS = 10 * NS  # how long cards are still read after a run: the next one need not find their phase again
OPENING_NS = 350_000_000  # how long a client waits for a card's phase before it may start all the same
NARROW_NS = 10_000_000  # a publication that is known as well as this is placed
COMING_NS = 3 * NS  # how long at least it waits for what its first client, or one that is connected, has to say
DEAF_NS = NS // 2  # between two tries to accept a client for which there was no descriptor
LIGHT = frozenset({"span_open", "span_close", "point", "note"})
MOST_PAUSES = 1000  # on a machine that never lets it run the notes must come to an end


@dataclass
class Closing:
    """A tape that waits for its last publications before it is sealed."""

    connection: Connection
    id: Any
    deadline_ns: int
    sign_ns: int = 0


@dataclass
class Opening:
    """A tape whose client is answered when every tracked group has shown when it publishes."""

    connection: Connection
    id: Any
    reply: dict[str, Any]
    deadline_ns: int


@dataclass(eq=False)
class Tape:
    """A session, who opened it, and what the recorder had cost until then."""

    session: Session
    owner: Connection
    cpu_s: float
    reads: int
    wakes: int
    closing: Closing | None = None
    opening: Opening | None = None


@dataclass
class Server:
    """Serves `listener` until no tape has been open for `idle_s`, or until `stop`."""

    listener: socket.socket
    clock: Clock
    idle_s: float = 10.0
    extra: list[int] = field(default_factory=list)  # descriptors that only wake the loop
    may_leave: Callable[[], bool] = lambda: True
    gone: Callable[[], bool] = lambda: False
    log: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        now = self.clock.monotonic_ns()
        self.stop = False
        self.pool = Pool(self.clock)
        self.schedule = Schedule(now)
        self.pinpoint = Pinpoint(self.clock)
        self.connections: dict[int, Connection] = {}
        self.tapes: dict[int, Tape] = {}
        self.cruise = Cruise(self.clock, self.schedule, self._idle, self._read)
        self.reads = self.wakes = self.pauses = 0
        self._select = self.clock.select
        self._number = 0
        self._served = False
        self._idle_ns = now
        self._boot_ns = self.clock.boottime_ns() - now
        self._last_ns = self._look_ns = now
        self._readers: list[Any] = []
        self._hurried: set[Source] = set()
        self._resting: dict[Source, int] = {}  # sources without a tape, and until when they are read all the same
        self._deaf_ns = 0  # until when no client can be accepted
        self._pressing = False  # a span's edge wants a read that was not planned

    def run(self) -> None:
        """Serve until it is time to leave; then seal what is open."""
        while not self.stop:
            now = self.clock.monotonic_ns()
            wake = self._wake_ns(now)
            if not self.tapes and now >= self._leave_ns() and self._leaving():
                break
            self._wait(wake)
            self._tend()
            self._cruise()
        now = self.clock.monotonic_ns()
        for number in list(self.tapes):
            self.tapes[number].session.remark(now, "recorder", "The recorder was stopped before the tape was closed.")
            self._finish(number)
        self._let_go(list(self._resting))

    def _leaving(self) -> bool:
        """True where there is nothing to stay for; a client that is just coming keeps it for another round."""
        if self.may_leave():
            return True
        self._idle_ns = self.clock.monotonic_ns()
        return False

    def _wake_ns(self, now: int) -> int | None:
        times = [tape.session.flush_ns for tape in self.tapes.values()] or [self._leave_ns()]
        times += [self._deaf_ns] if self._deaf_ns else []
        times += [min(tape.closing.deadline_ns, tape.closing.sign_ns) for tape in self.tapes.values() if tape.closing]
        due = self.schedule.wake_ns()
        return min(times) if due is None else min(due, *times)

    def _leave_ns(self) -> int:
        """When to leave, unless a tape is opened before."""
        patience_ns = round(self.idle_s * NS)
        if self.connections or not self._served:  # a client is there, or on its way, and has not said yet
            patience_ns = max(patience_ns, COMING_NS)
        return self._idle_ns + patience_ns

    def _wait(self, wake: int | None) -> None:
        readers = self._listening()
        writers = [fd for fd, connection in self.connections.items() if connection.pending]
        timeout = None if wake is None else max(0.0, (wake - self.clock.monotonic_ns()) / NS)
        ready, writable, _ = self._select(readers, writers, (), timeout)
        self.wakes += 1
        self._mind_pause(wake)
        # Reads first: their time matters, a message's does not.
        self._tick()
        for item in ready:
            if item is self.listener:
                self._accept()
            elif item in self.connections:
                self._serve(self.connections[item])
            elif item in self.extra:
                os.read(item, 64)
        for fd in writable:
            if fd in self.connections:
                self.connections[fd].push()

    def _listening(self) -> list[Any]:
        """Whatever wakes the loop when it has something to say."""
        readers: list[Any] = [*self.connections, *self.extra]
        if self.listener.fileno() >= 0 and (not self._deaf_ns or self.clock.monotonic_ns() >= self._deaf_ns):
            self._deaf_ns = 0
            readers.append(self.listener)
        return readers

    def _cruise(self) -> None:
        """While nothing is to be expected until the next flush: read as planned till then, and look at it all there."""
        going = True
        while going and self.tapes and not self.stop:
            if any(tape.opening or tape.closing for tape in self.tapes.values()):
                return
            if any(connection.pending for connection in self.connections.values()):
                return
            self._readers = self._listening()
            going = self.cruise.go(min(tape.session.flush_ns for tape in self.tapes.values()))
            self._tend()

    def _idle(self, until_ns: int) -> bool:
        """Sleep until then; True where something has happened that nobody could foresee, or the machine was suspended.

        Spans and points that come meanwhile are no such thing, unless a card is to be read where a span begins or ends.
        """
        while True:
            self._last_ns = now = self.clock.monotonic_ns()
            ready = self._select(self._readers, (), (), (until_ns - now) / NS if until_ns > now else 0)[0]
            if not ready:
                return self.clock.boottime_ns() - self.clock.monotonic_ns() - self._boot_ns > SUSPEND_NS
            if not all(item in self.connections and self._serve_lightly(self.connections[item]) for item in ready):
                return True
            if self.clock.monotonic_ns() >= until_ns:
                return False  # reads come first

    def _serve_lightly(self, connection: Connection) -> bool:
        """Serve a client in the midst of a stretch; False where that changed more than a tape's spans and points."""
        messages = connection.pull()
        light = messages is not None and all(str(message.get("op")) in LIGHT for message in messages)
        if not light:
            self.cruise.settle()
        self._pressing = False
        self._respond(connection, messages)
        light = light and not self._pressing
        return light and not connection.pending and not any(tape.session.full for tape in self.tapes.values())

    def _mind_pause(self, wake: int | None) -> None:
        """A loop that wakes up far too late was stopped; a boot clock that ran ahead shows a suspend."""
        now, boot = self.clock.monotonic_ns(), self.clock.boottime_ns()
        asleep = boot - now - self._boot_ns
        if asleep > SUSPEND_NS:
            self._boot_ns = boot - now
            self._remark(now, "suspend", f"The machine was suspended for {asleep / NS:.1f} s.", seconds=asleep / NS)
            for tape in self.tapes.values():
                tape.session.anchor()
                for source in tape.session.sources:
                    tape.session.gap(source, self._last_ns, now, "suspend")
        late = 0 if wake is None else now - wake
        if self.tapes and late > PAUSE_NS and late > 3 * self.schedule.fastest_ns() and self.pauses < MOST_PAUSES:
            self.pauses += 1
            self._remark(now, "gap", f"The recorder did not run for {late / NS:.1f} s.", start_ns=wake, end_ns=now)
        self._last_ns = now

    def _remark(self, now: int, kind: str, text: str, **data: Any) -> None:
        for tape in self.tapes.values():
            tape.session.remark(now, kind, text, **data)

    # Reading.

    def _tick(self) -> None:
        for source in self.schedule.due(self.clock.monotonic_ns()):
            if isinstance(source, Source) and source in self.schedule.slots:
                self._read(source)
        self.schedule.align(self.clock.monotonic_ns())

    def _read(self, source: Source) -> None:
        began = self.clock.monotonic_ns()
        fine = source.read()
        self.reads += 1
        now = self.clock.monotonic_ns()
        late, missed = self.schedule.done(source, began, now)
        slot = self.schedule.slots[source]
        if slot.tracker is not None and source.tracker is None:
            slot.tracker, slot.deadline_ns = None, now + slot.period_ns
        if not fine and source.outage is not None:
            self.schedule.hold(source, now + source.outage.wait_ns)
            return
        source.count(late, missed)
        if now - began > slot.period_ns // 2:  # it may take a third of the time, no more
            self.schedule.hold(source, now + 2 * (now - began))

    def _tend(self) -> None:
        now = self.clock.monotonic_ns()
        for number, tape in list(self.tapes.items()):
            tape.session.tend(now)
            if tape.opening and (now >= tape.opening.deadline_ns or all(map(_placed, tape.session.sources))):
                opening, tape.opening = tape.opening, None
                if opening.connection.open:
                    opening.connection.put({"id": opening.id, "ok": True, **opening.reply})
            if tape.closing and (not tape.session.waiting or now >= tape.closing.deadline_ns):
                self._finish(number)
            elif tape.closing and now >= tape.closing.sign_ns:
                tape.closing.connection.sign("close")
                tape.closing.sign_ns = now + SIGN_NS
        for source in list(self._hurried):
            self._pace(source, now)
        self._let_go([source for source, until_ns in self._resting.items() if now >= until_ns])
        if now < self._look_ns or self.listener.fileno() < 0:
            return
        self._look_ns = now + NS // 5
        if self.gone():
            self.log("The socket was removed: no new clients can connect.")
            self.listener.close()
            self.idle_s = 0.0

    # Clients.

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: the client would be announced again at once
            self._deaf_ns = self.clock.monotonic_ns() + DEAF_NS
            return
        if sock.fileno() >= most_descriptors():
            sock.close()  # it goes on without a recorder
            return
        connection = Connection(sock)
        self.connections[sock.fileno()] = connection
        self._served = True
        self._idle_ns = self.clock.monotonic_ns()

    def _serve(self, connection: Connection) -> None:
        self._respond(connection, connection.pull())

    def _respond(self, connection: Connection, messages: list[dict[str, Any]] | None) -> None:
        for message in messages or ():
            self._answer(connection, message)
        if messages is None:
            self._hang_up(connection)

    def _hang_up(self, connection: Connection) -> None:
        self.connections = {fd: other for fd, other in self.connections.items() if other is not connection}
        connection.close()
        now = self.clock.monotonic_ns()
        for number, tape in list(self.tapes.items()):
            if tape.owner is connection:
                if tape.closing is None:
                    tape.session.remark(
                        now, "client", "Recording ended early: the measured program exited without closing it."
                    )
                self._finish(number)

    def _answer(self, connection: Connection, message: dict[str, Any]) -> None:
        id_ = message.get("id")
        try:
            reply = self._handle(connection, message)
        except EverywattError as error:
            reply = {"ok": False, "error": error.message, "cure": error.cure, "kind": type(error).__name__}
        except Exception as error:  # noqa: BLE001 - a client may send anything
            self.log(f"{message.get('op')}: {type(error).__name__}: {error}")
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}", "cure": None, "kind": "RecorderError"}
        if id_ is not None and reply is not None:
            connection.put({"id": id_, "ok": True, **reply})

    def _handle(self, connection: Connection, message: dict[str, Any]) -> dict[str, Any] | None:
        op = message["op"]
        if op == "open":
            return self._open(connection, message)
        number = int(message["tape"])
        tape = self.tapes[number]
        if op == "follow":
            pids = [int(pid) for pid in message["pids"]]
            for source in tape.session.sources:
                if source.info.table:
                    source.group.follow(pids)  # type: ignore[union-attr]
                    self._hurry(source)
            tape.session.followed(pids, message.get("cgroup"))
        elif op == "read":
            return {"exits": tape.session.read_tables()}
        elif op == "status":
            figures = tape.session.figures.items()
            return {
                **self._meter(tape),
                "rows": {name: f.rows for name, f in figures},
                "notes": tape.session.remarks[-50:],
            }
        elif op == "close":
            self._close(connection, tape, message)
            return None
        else:
            tape.session.apply(message)
            if op in ("span_open", "span_close"):
                now = self.clock.monotonic_ns()
                for source in tape.session.sources:
                    if source.tracker is not None and source.tracker.edge(int(message["at_ns"]), now):
                        self._pressing = True
                if message.get("edges"):
                    self.cruise.settle_plain(tape.session.sources)
                    self.pinpoint.after_edge(tape.session.sources)
        return {}

    def _open(self, connection: Connection, message: dict[str, Any]) -> dict[str, Any] | None:
        sys.path += [entry for entry in message.get("path") or () if entry not in sys.path]
        roots = {
            key: Path(value) for key, value in (message.get("roots") or {}).items() if key in ("sys", "proc", "dev")
        }
        machine = Machine(**{**_roots(Machine.here()), **roots}, clock=self.clock)
        asked = RecordRequest.from_dict(message)
        request = asked.for_sensors(machine, PATIENCE_S)
        cpu_s, cruise = time.process_time(), self.cruise
        reads, wakes = self.reads + cruise.reads, self.wakes + cruise.wakes
        period_ns = max(round(asked.period_s * NS), 1_000_000)
        sources, reports = self.pool.choose(message["targets"], request, asked.sensors, lambda: connection.sign("open"))
        try:
            session = Session(Path(message["tape"]), message.get("meta") or {}, period_ns, self.clock, machine.proc)
        except BaseException:
            for source in sources:
                if not source.listeners:
                    self.pool.drop(source)
            raise
        self._number += 1
        self.tapes[self._number] = Tape(session, connection, cpu_s, reads, wakes)
        for source in sources:
            connection.sign("open")
            self._enrol(session, source)
        if asked.pids or asked.cgroup:
            session.followed(asked.pids, asked.cgroup)
        if asked.reaper is None:
            self._share(session, asked.pids)
        groups = [source.info.to_dict() for source in sources]
        reply = {
            "tape": self._number,
            "groups": groups,
            "reports": plain(reports),
            "notes": session.remarks,
            "tenants": session.tenants or [],
            "pid": os.getpid(),
        }
        if all(map(_placed, sources)):
            return reply
        # Work that starts before a sensor's publications are placed would have an unsure beginning.
        deadline_ns = self.clock.monotonic_ns() + OPENING_NS
        self.tapes[self._number].opening = Opening(connection, message.get("id"), reply, deadline_ns)
        return None

    def _share(self, session: Session, program: tuple[int, ...]) -> None:
        """Programs that measure themselves at the same time on the same devices (ranks of a node) share the energy."""
        session.program = program
        mine = {source for source in session.sources if any(c.carries_energy for c in source.info.channels)}
        for other in [tape.session for tape in self.tapes.values() if tape.closing is None]:
            if program and other.program and other.program != program and mine & set(other.sources):
                other.share(session)
                session.share(other)

    def _hurry(self, source: Source) -> None:
        """Read a table that wants it more often for a while: a run has just begun."""
        if source.hurried is not None:
            now = self.clock.monotonic_ns()
            source.hurry_ns = now + YOUNG_NS
            self._hurried.add(source)
            self._pace(source, now)

    def _pace(self, source: Source, now: int) -> None:
        """Set how often a hurried source is read; when the time is over, or nobody listens, it is hurried no more."""
        if source in self.schedule.slots:
            self.schedule.change(source, source.asked_ns(), now)
        if now >= source.hurry_ns or source not in self.schedule.slots:
            self._hurried.discard(source)

    def _enrol(self, session: Session, source: Source) -> None:
        """Let a tape listen to a source, which delivers its first rows at once."""
        self._resting.pop(source, None)
        session.listen(source)
        now = self.clock.monotonic_ns()
        asked = source.asked_ns()
        if source not in self.schedule.slots:
            if source.info.tracked and not source.info.table and source.info.channels:
                source.tracker = PlannedTracker(source.info, asked, now)
            self.schedule.add(source, asked, now, source.tracker, source.info.sensor)
            self._read(source)
            self._hurry(source)
            return
        self.schedule.change(source, asked, now)
        if source.tracker is not None and source.last is not None:
            session.rows(source, [source.last])
        elif source.outage is None:
            source.read()
            self.reads += 1

    def _close(self, connection: Connection, tape: Tape, message: dict[str, Any]) -> None:
        now = self.clock.monotonic_ns()
        for source in tape.session.sources:
            if source.tracker is None and source.outage is None:
                source.read_whole()
                self.reads += 1
        tape.closing = Closing(connection, message.get("id"), now)
        if message.get("linger", True):
            tape.session.linger(now)
            tape.closing.deadline_ns = now + max(LINGER_NS, min(tape.session.patience_ns(), FED_LINGER_NS))

    def _finish(self, number: int) -> None:
        tape = self.tapes.pop(number)
        sources = tape.session.sources
        meter = self._meter(tape)
        closing = tape.closing
        why = tape.session.finish(meter, lambda: closing.connection.sign(SEALING) if closing is not None else None)
        now = self.clock.monotonic_ns()
        for source in sources:
            if source.listeners:
                self.schedule.change(source, source.asked_ns(), now)
            elif any(other.tracker is not None and other.tracker.locked for other in self.pool.together(source)):
                self._resting[source] = now + REST_NS
            else:
                self._let_go([source])
        if why:
            self.log(why)
        self._idle_ns = self.clock.monotonic_ns()
        if tape.closing is not None and tape.closing.connection.open:
            notes = tape.session.remarks + ([why] if why else [])
            path = str(tape.session.writer.path)
            tape.closing.connection.put(
                {"id": tape.closing.id, "ok": True, "path": path, "cost": meter, "notes": notes, "sealed": not why}
            )

    def _let_go(self, sources: list[Source]) -> None:
        """Read these no more: nobody listens to them, and nobody is expected to."""
        for source in sources:
            self._resting.pop(source, None)
            self.schedule.remove(source)
            self.pool.drop(source)

    def _meter(self, tape: Tape) -> dict[str, Any]:
        """What the recorder has cost since the tape was opened (shared by all tapes that were open)."""
        return {
            "cpu_s": round(time.process_time() - tape.cpu_s, 6),
            "seconds": (self.clock.monotonic_ns() - tape.session.started_ns) / NS,
            "rss_bytes": rss_bytes(),
            "reads": self.reads + self.cruise.reads - tape.reads,
            "wakes": self.wakes + self.cruise.wakes - tape.wakes,
            "tapes": len(self.tapes),
            "pid": os.getpid(),
        }


def _roots(machine: Machine) -> dict[str, Any]:
    return {"sys": machine.sys, "proc": machine.proc, "dev": machine.dev, "environ": machine.environ}


def most_descriptors() -> int:
    """From which descriptor on clients are turned away: the rest is for tapes and sensors. select() ends at 1024."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = 1024 if limit == resource.RLIM_INFINITY else min(limit, 1024)
    return most - min(most // 4, 64)


def rss_bytes() -> int | None:
    """Resident memory of this process, None where /proc does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - Path.open costs more than the read
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _placed(source: Source) -> bool:
    """Whether it is known when the source last published; True for one that has no schedule of its own, or is out."""
    if source.tracker is None or source.outage is not None or source.tracker.locked:
        return True
    return source.last is not None and source.last.late_ns - source.last.early_ns <= NARROW_NS
