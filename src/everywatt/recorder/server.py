"""The recorder's socket: many clients and their tapes in one read loop."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import EverywattError
from everywatt.core.jsonio import plain
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.machine import Machine
from everywatt.recorder.read_loop import Cost, ReadLoop
from everywatt.recorder.request import RecordRequest
from everywatt.recorder.session import Session
from everywatt.recorder.source import Source
from everywatt.recorder.wire import SEALING, Connection

if TYPE_CHECKING:
    from everywatt.recorder.wire import Message, Reply

LINGER_NS = 1_200_000_000
FED_LINGER_NS = 5 * NS // 2  # the same for a meter that is asked now and then
PATIENCE_S = 2.0  # a program waits to start while sensors are tried
SIGN_NS = NS // 5  # how often a client that waits is shown a sign of life
REST_NS = 10 * NS  # how long cards are still read after a run: the next one need not wait for their phase
OPENING_NS = 350_000_000  # how long a client waits for a card's phase before it may start all the same
NARROW_NS = 10_000_000  # a publication that is known as well as this is placed
COMING_NS = 3 * NS  # how long at least it waits for what its first client, or one that is connected, has to say
DEAF_NS = NS // 2  # between two tries to accept a client for which there was no descriptor
LIGHT = frozenset({"span_open", "span_close", "point", "note"})


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
    reply: Reply
    deadline_ns: int


@dataclass(eq=False)
class OpenTape:
    """A session, who opened it, and what the recorder had cost until then."""

    session: Session
    owner: Connection
    before: Cost
    closing: Closing | None = None
    opening: Opening | None = None


class Server(ReadLoop):
    """Serves `listener` until no tape has been open for `idle_s`, or until `stop`."""

    def __init__(
        self,
        listener: socket.socket,
        clock: Clock,
        idle_s: float = 10.0,
        *,
        may_leave: Callable[[], bool] = lambda: True,
        gone: Callable[[], bool] = lambda: False,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(clock)
        self.listener = listener
        self.idle_s = idle_s
        self.may_leave, self.gone, self.log = may_leave, gone, log
        self.connections: dict[int, Connection] = {}
        self.tapes: dict[int, OpenTape] = {}
        self._number = 0
        self._served = False
        self._idle_ns = self._look_ns = clock.monotonic_ns()
        self._deaf_ns = 0  # until when no client can be accepted
        self._pressing = False  # a span's edge wants a read that was not planned

    @property
    def sessions(self) -> list[Session]:
        return [tape.session for tape in self.tapes.values()]

    def run(self) -> None:
        """Serve until it is time to leave; then seal what is open."""
        while not self.stop:
            wake = self._wake_ns()
            if not self.tapes and self.clock.monotonic_ns() >= self._leave_ns() and self._leaving():
                break
            self._wait(wake)
            self._tend()
            self._read_ahead()
        now = self.clock.monotonic_ns()
        for number in list(self.tapes):
            self.tapes[number].session.remark(now, "recorder", "The recorder was stopped before the tape was closed.")
            self._finish(number)
        self._let_go(list(self._resting))

    def _leaving(self) -> bool:
        """True if the recorder may exit; a client that is just connecting delays that by another round."""
        if self.may_leave():
            return True
        self._idle_ns = self.clock.monotonic_ns()
        return False

    def _wake_ns(self) -> int | None:
        times = [super()._wake_ns(), self._deaf_ns or None, None if self.tapes else self._leave_ns()]
        times += [min(tape.closing.deadline_ns, tape.closing.sign_ns) for tape in self.tapes.values() if tape.closing]
        return min(at_ns for at_ns in times if at_ns is not None)

    def _leave_ns(self) -> int:
        """When to leave, unless a tape is opened before."""
        patience_ns = round(self.idle_s * NS)
        if self.connections or not self._served:  # a client is there, or on its way, and has not said yet
            patience_ns = max(patience_ns, COMING_NS)
        return self._idle_ns + patience_ns

    def _listening(self) -> tuple[list[Any], list[Any]]:
        readers: list[Any] = [*self.connections, *self.extra]
        if self.listener.fileno() >= 0 and (not self._deaf_ns or self.clock.monotonic_ns() >= self._deaf_ns):
            self._deaf_ns = 0
            readers.append(self.listener)
        return readers, [fd for fd, connection in self.connections.items() if connection.pending]

    def _hear(self, ready: Sequence[Any], writable: Sequence[Any]) -> None:
        super()._hear(ready, writable)
        for item in ready:
            if item is self.listener:
                self._accept()
            elif item in self.connections:
                self._respond(self.connections[item], self.connections[item].pull())
        for fd in writable:
            if fd in self.connections:
                self.connections[fd].push()

    def _hear_lightly(self, ready: Sequence[Any]) -> bool:
        return all(item in self.connections and self._serve_lightly(self.connections[item]) for item in ready)

    def _may_plan(self) -> bool:
        waits = any(tape.opening or tape.closing for tape in self.tapes.values())
        return not waits and not any(connection.pending for connection in self.connections.values())

    def _serve_lightly(self, connection: Connection) -> bool:
        """Serve a client in the midst of a stretch; False where that changed more than a tape's spans and points."""
        messages = connection.pull()
        light = messages is not None and all(str(message.get("op")) in LIGHT for message in messages)
        if not light:
            self.planned.process()
        self._pressing = False
        self._respond(connection, messages)
        light = light and not self._pressing
        return light and not connection.pending and not any(tape.session.full for tape in self.tapes.values())

    def _tend(self) -> None:
        super()._tend()
        now = self.clock.monotonic_ns()
        for number, tape in list(self.tapes.items()):
            if tape.opening and (now >= tape.opening.deadline_ns or all(map(_placed, tape.session.sources))):
                opening, tape.opening = tape.opening, None
                if opening.connection.open:
                    opening.connection.put({"id": opening.id, "ok": True, **opening.reply})
            if tape.closing and (not tape.session.waiting or now >= tape.closing.deadline_ns):
                self._finish(number)
            elif tape.closing and now >= tape.closing.sign_ns:
                tape.closing.connection.sign("close")
                tape.closing.sign_ns = now + SIGN_NS
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

    def _respond(self, connection: Connection, messages: list[Message] | None) -> None:
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

    def _answer(self, connection: Connection, message: Message) -> None:
        id_ = message.get("id")
        reply: Reply | None
        try:
            reply = self._handle(connection, message)
        except EverywattError as error:
            reply = {"ok": False, "error": error.message, "cure": error.cure, "kind": type(error).__name__}
        except Exception as error:  # noqa: BLE001 - a client may send anything
            self.log(f"{message.get('op')}: {type(error).__name__}: {error}")
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}", "cure": None, "kind": "RecorderError"}
        if id_ is not None and reply is not None:
            connection.put({"id": id_, "ok": True, **reply})

    def _handle(self, connection: Connection, message: Message) -> Reply | None:
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
            rows = {name: figures.rows for name, figures in tape.session.figures.items()}
            use, notes = self.meter(tape.session, tape.before), tape.session.remarks[-50:]
            return cast("Reply", {**use, "rows": rows, "notes": notes})
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
                    self.planned.process(tape.session.sources)  # newer rows are coming
                    self.pinpoint.after_edge(tape.session.sources)
        return {}

    def _open(self, connection: Connection, message: Message) -> Reply | None:
        sys.path += [entry for entry in message.get("path") or () if entry not in sys.path]
        roots: dict[str, Any] = {
            key: Path(value) for key, value in (message.get("roots") or {}).items() if key in ("sys", "proc", "dev")
        }
        machine = replace(Machine.here(), **roots, clock=self.clock)
        asked = RecordRequest.from_dict(message)
        request = asked.for_sensors(machine, PATIENCE_S)
        before = self.cost()
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
        self.tapes[self._number] = OpenTape(session, connection, before)
        for source in sources:
            connection.sign("open")
            self._enrol(session, source)
        if asked.pids or asked.cgroup:
            session.followed(asked.pids, asked.cgroup)
        if asked.reaper is None:
            self._share(session, asked.pids)
        groups = [source.info.to_dict() for source in sources]
        reply: Reply = {
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

    def _close(self, connection: Connection, tape: OpenTape, message: Message) -> None:
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
        meter = self.meter(tape.session, tape.before)
        closing = tape.closing
        why = tape.session.finish(meter, lambda: closing.connection.sign(SEALING) if closing is not None else None)
        now = self.clock.monotonic_ns()
        for source in sources:
            if source.listeners:
                self.schedule.change(source, source.asked_ns(), now)
            elif any(other.tracker is not None and other.outage is None for other in self.pool.together(source)):
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


def most_descriptors() -> int:
    """From which descriptor on clients are turned away: the rest is for tapes and sensors. select() ends at 1024."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = 1024 if limit == resource.RLIM_INFINITY else min(limit, 1024)
    return most - min(most // 4, 64)


def _placed(source: Source) -> bool:
    """Whether it is known when the source last published; True for one that has no schedule of its own, or is out."""
    if source.tracker is None or source.outage is not None or source.tracker.locked:
        return True
    return source.last is not None and source.last.late_ns - source.last.early_ns <= NARROW_NS
