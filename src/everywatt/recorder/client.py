"""What a measured program holds: an open tape, spans, points, notes.

The recorder writes the tape; this side sends small messages and reads cheap counters itself where a span starts and
ends. A recorder that dies is replaced, and the recording goes on in a further segment. Where none can be started, the
tape is written here, with the counters that can be read at span edges.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from everywatt.core.channels import GroupInfo, Row
from everywatt.core.errors import EverywattError, RecorderError, RunExists, TapeError, UsageError
from everywatt.core.jsonio import plain, text
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.machine import Machine
from everywatt.core.spans import Span
from everywatt.recorder.channel import Inline, Local, Patience, Remote, import_path, reach
from everywatt.recorder.request import RecordRequest, whole_paths
from everywatt.recorder.wire import SEALING
from everywatt.sensors import registry
from everywatt.sensors.base import Request, TableRow
from everywatt.tape.run_store import segment_after

if TYPE_CHECKING:
    from everywatt.recorder.wire import Message, Reply, Use

_REFUSALS: dict[str, type[EverywattError]] = {"RunExists": RunExists, "TapeError": TapeError, "UsageError": UsageError}
MOST_REVIVALS = 20
MOST_TOP_SPANS = 1000
MOST_CHARS = 1 << 18  # of what a program says at once (32,000 numbers): more would take noticeable time
LOOKS = 20  # every so many looks, ten seconds of `everywatt run`, the recorder is asked whether it is alive
# A recorder flushes every second, that of the small profile every 10 s: what it heard before is on the tape.
UNWRITTEN_NS = 12_000_000_000

_live: weakref.WeakSet[Recording] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Closed:
    """A finished tape: where it is, what recording it cost (CPU seconds, memory, reads), what was noted."""

    path: Path
    cost: Use
    notes: tuple[str, ...]


class Mark(NamedTuple):
    """An instant (monotonic ns) and the rows of cheap counters that were read there."""

    at_ns: int
    edges: tuple[tuple[str, Row], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """A recording and where it goes; kept to ask the same of another recorder."""

    path: Path
    meta: Mapping[str, Any]
    targets: Mapping[str, str]
    asked: RecordRequest
    machine: Machine

    @property
    def request(self) -> Request:
        """What is asked of the sensors that this program reads itself."""
        return self.asked.for_sensors(self.machine)

    def message(self) -> Message:
        machine = self.machine
        own: Message = {
            "op": "open",
            "tape": str(self.path),
            "meta": plain(self.meta, MOST_CHARS),
            "targets": dict(self.targets),
            "path": import_path(),
            "roots": {"sys": str(machine.sys), "proc": str(machine.proc), "dev": str(machine.dev)},
        }
        return cast("Message", {**self.asked.to_dict(), **own})


def record(
    path: Path | str,
    asked: RecordRequest | None = None,
    *,
    meta: Mapping[str, Any],
    machine: Machine | None = None,
    **parameters: Any,
) -> Recording:
    """Start recording to the new file `path`, as `asked`; `parameters` are single fields of a RecordRequest.

    Raises RunExists, TapeError or UsageError where what is asked for cannot be. Trouble with the recorder itself raises
    nothing: the tape is then written by this process, and `notes` says what is lost by that.
    """
    asked = replace(asked or RecordRequest(), **parameters)
    asked = replace(asked, options=whole_paths(asked.options))
    machine = machine or Machine.here()
    target = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
    return Recording(Order(target, dict(meta), registry.known(machine.environ), asked, machine))


class Recording:
    """An open tape. Safe from any thread. In a forked child it does nothing, since the tape is the parent's.

    reports   what every sensor said of itself; notes is what was remarked so far
    tenants   rows of `nvml.processes` when the tape was opened: who was on the GPUs already
    paths     the segments that it was written to; the last one is `path`
    top_spans the spans without a parent, as this side knows them: a tape on a full disk may lack their ends
    """

    def __init__(self, order: Order) -> None:
        self.path = order.path
        self.paths = [order.path]
        self.top_spans: dict[str, Span] = {}
        self.groups: tuple[GroupInfo, ...] = ()
        self.reports: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.tenants: Sequence[TableRow] = ()
        self.recorder_pid = 0
        self.recorder_is_new = False
        self._order = order
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._spans: dict[str, Message] = {}
        self._count = 0
        self._revivals = 0
        self._closed: Closed | None = None
        self._clock = order.machine.clock
        self._patience = Patience(self._clock)
        self._late: Remote | None = None  # a recorder that was given up for its silence, and may answer later
        self._looks = 0
        self._edges: tuple[list[Any], list[Any]] = [], []  # the first and the last that were sent
        self._changed_ns: dict[str, int] = {}  # when groups got other channels, with another recorder
        self._prefix = f"{self._pid:x}-{self._clock.monotonic_ns():x}"
        self._inline = Inline((), self._clock)
        self._channel: Remote | Local = self._connect(order)
        _live.add(self)

    def _connect(self, order: Order) -> Remote | Local:
        """A recorder that has opened the tape, else this process itself."""
        why = ""
        for _ in range(3):
            try:
                remote = Remote(reach(self._patience), self._patience)
            except (EverywattError, OSError) as error:
                why = str(error)
                break
            try:
                reply = remote.request(order.message())
            except (OSError, EOFError) as error:
                why = f"The recorder did not respond: {error or type(error).__name__}."
                if os.path.lexists(order.path):  # it got as far as that
                    order = self._move_on(order, "replaces")
                if isinstance(error, TimeoutError):
                    self._late = remote
                    break
                remote.close()  # it was just leaving
                continue
            if not reply.get("ok"):
                remote.close()
                kind = _REFUSALS.get(str(reply.get("kind")), RecorderError)
                raise kind(str(reply.get("error")), cure=reply.get("cure"))
            remote.tape = int(reply["tape"])
            self.groups = tuple(GroupInfo.from_dict(group) for group in reply["groups"])
            self.reports = list(reply["reports"])
            self.notes += reply.get("notes", ())
            self.tenants = reply.get("tenants", ())
            self.recorder_pid, self.recorder_is_new = int(reply.get("pid", 0)), int(reply["tape"]) == 1
            self._inline.close()
            self._inline = Inline.opened(self.groups, order.targets, order.request)
            for name in sorted(self._inline.differing):
                said = f"{name} is not read where spans start and end: this program finds other channels of it."
                self.notes.append(said)
                with contextlib.suppress(OSError):  # dead again: the next message will find out
                    remote.send({"op": "note", "at_ns": self._clock.monotonic_ns(), "kind": "recorder", "text": said})
            return remote
        return self._here(order, why)

    def _move_on(self, order: Order, how: str = "continues") -> Order:
        """The same order for the next free segment, which goes on from the last one or `replaces` it."""
        self.path = segment_after(order.path)
        self.paths.append(self.path)
        self._order = replace(order, path=self.path, meta={**order.meta, how: order.path.name})
        return self._order

    def _here(self, order: Order, why: str) -> Local:
        """Write the tape in this process: counters at span edges only."""
        wanted = order.asked.sensors
        if self._late is not None:
            ours = {name for name, target in order.targets.items() if target.startswith("everywatt.")}
            wanted = tuple(name for name in wanted or order.targets if name not in ours or name in registry.INLINE)
        none = self._late is not None and not wanted  # for `choose` an empty tuple means all of them
        choice = registry.Choice((), ()) if none else registry.choose(order.targets, order.request, wanted)
        kept = [group for group in choice.groups if group.info.inline]
        left = [group for group in choice.groups if not group.info.inline]
        for group in left:
            group.close()
        self.groups = tuple(group.info for group in kept)
        self.reports = [plain(report) for report in choice.reports]
        self._inline.close()
        self._inline = Inline(kept, self._clock)
        without = f" Not recorded: {', '.join(group.info.name for group in left)}." if left else ""
        self.notes.append(
            f"There is no recorder process, so only counters are read, where spans start and end.{without} {why}"
        )
        return Local(order.path, {**order.meta, "in_process": True}, self.groups, self._clock, self.notes)

    # Spans and points.

    def span_id(self) -> str:
        """An id for a span that will be opened later, with `at_ns`."""
        with self._lock:
            self._count += 1
            return f"{self._prefix}-{self._count:x}"

    def span_open(
        self,
        name: str,
        *,
        parent: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        at_ns: int | None = None,
        uid: str | None = None,
    ) -> str:
        """Open a span; gives its id. It starts when the cheap counters have been read, or at `at_ns`.

        `uid` is an id from `span_id`, for a span that others already name as their parent.
        """
        with self._lock:
            uid = uid or self.span_id()
            name = text(name, MOST_CHARS)
            message: Message = {"op": "span_open", "uid": uid, "name": name, "parent": parent}
            if attributes:
                message["attributes"] = plain(attributes, MOST_CHARS)
            if self._idle():
                return uid
            edges = self._inline.read() if at_ns is None else ()
            message["at_ns"] = (
                at_ns if at_ns is not None else edges[-1][1].read_ns if edges else self._clock.monotonic_ns()
            )
            self._spans[uid] = message
            if parent is None and len(self.top_spans) < MOST_TOP_SPANS:
                self.top_spans[uid] = Span(uid, name, message["at_ns"], attributes=message.get("attributes") or {})
            self._send(message, edges)
        return uid

    def mark(self) -> Mark:
        """This instant with the cheap counters as they are now, for a span that is closed a little later."""
        with self._lock:
            edges = tuple(self._inline.read()) if not self._idle() else ()
        return Mark(edges[0][1].read_ns if edges else self._clock.monotonic_ns(), edges)

    def span_close(
        self,
        uid: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        at_ns: int | None = None,
        mark: Mark | None = None,
    ) -> int:
        """Close a span; gives when it ended (monotonic ns): where the cheap counters were read, `mark`, or `at_ns`."""
        with self._lock:
            edges: Sequence[tuple[str, Row]] = ()
            if mark is not None:
                at_ns, edges = mark
            elif at_ns is None and not self._idle():
                edges = self._inline.read()
            end_ns = at_ns if at_ns is not None else edges[0][1].read_ns if edges else self._clock.monotonic_ns()
            message: Message = {"op": "span_close", "uid": uid, "at_ns": end_ns}
            if uid in self.top_spans:
                self.top_spans[uid] = replace(self.top_spans[uid], end_ns=end_ns)
            if attributes:
                message["attributes"] = plain(attributes, MOST_CHARS)
            # Known until the message is out: a recorder that takes the place of a dead one has to open it first.
            self._send(message, edges)
            self._spans.pop(uid, None)
        return end_ns

    def log(self, values: Mapping[str, float | str], *, span: str | None = None, at_ns: int | None = None) -> None:
        """Store values (loss, accuracy) beside the energy, at this instant or at `at_ns`."""
        at_ns = self._clock.monotonic_ns() if at_ns is None else at_ns
        with self._lock:
            for name, value in values.items():
                name, value = text(name, MOST_CHARS), plain(value, MOST_CHARS)
                self._send({"op": "point", "at_ns": at_ns, "name": name, "value": value, "span": span})

    def note(self, kind: str, sentence: str) -> None:
        """Store a remark; `kind` is a word."""
        said = text(sentence, MOST_CHARS)
        with self._lock:
            self._send({"op": "note", "at_ns": self._clock.monotonic_ns(), "kind": kind, "text": said})

    def follow(self, pids: Sequence[int], *, cgroup: str | None = None) -> None:
        """Follow these root processes too; `cgroup` is the folder of a group that was made for them."""
        with self._lock:
            asked = self._order.asked
            known = tuple(dict.fromkeys((*asked.pids, *pids)))
            self._order = replace(self._order, asked=replace(asked, pids=known, cgroup=cgroup or asked.cgroup))
            self._send({"op": "follow", "pids": list(pids), "cgroup": cgroup})

    def read_tables(self, timeout_s: float = 0.2) -> Reply | None:
        """Have the processes read once more, now: {"exits": whether exit records are complete}.

        None where the recorder is gone or has not answered in time; it is not replaced for that.
        """
        with self._lock:
            if self._idle():
                return None
            try:
                return self._channel.request({"op": "read"}, timeout_s)
            except (OSError, EOFError):
                return None

    # The recorder.

    def look(self) -> None:
        """Replace a recorder that is gone. Costs one system call: for a program that only waits, now and then."""
        with self._lock:
            if self._idle():
                return
            self._return_to_recorder()
            heard = True
            try:
                heard = self._channel.heard()
            except (OSError, EOFError):
                self._revive()
            self._looks = 0 if heard else self._looks + 1
            if self._looks == LOOKS:
                with contextlib.suppress(OSError):  # the next look will find out
                    self._channel.ask({"op": "status"})
            elif self._looks == 2 * LOOKS:
                self._revive("The recorder shows no sign of life.")

    def status(self) -> dict[str, Any]:
        """Rows so far by group and the recorder's own cost. Replaces a recorder that is gone."""
        with self._lock:
            reply = self._ask({"op": "status"})
            return {key: value for key, value in reply.items() if key not in ("id", "ok")}

    def close(self, *, linger: bool = True) -> Closed:
        """Seal the tape. `linger` waits (1.2 s at most) for the publication that covers the last moment."""
        if self._pid != os.getpid():
            raise RecorderError("This recording belongs to the parent process, which closes it.")
        with self._lock:
            if self._closed is None:
                reply = self._ask({"op": "close", "linger": linger})
                if reply.get("sealed") is False:  # a full disk, say: others must know how the spans ended
                    self._revive("The recorder could not write the tape.")
                    self._channel.close()
                if not reply.get("ok", True):
                    self.notes.append(str(reply.get("error")))
                self.notes += [note for note in reply.get("notes", ()) if note not in self.notes]
                path = Path(reply.get("path", self.path))
                self._closed = Closed(path, reply.get("cost", {}), tuple(self.notes))
                self._channel.close()
                self._inline.close()
                _live.discard(self)
            if self._late is not None:
                self._late.close()
            return self._closed

    def _idle(self) -> bool:
        return self._closed is not None or self._pid != os.getpid()

    def _send(self, message: Message, edges: Sequence[tuple[str, Row]] = ()) -> None:
        """Fire and forget. A recorder that is gone is replaced first."""
        if self._idle():
            return
        if edges:
            message = {**message, "edges": [(name, *row) for name, row in edges]}
            self._edges = self._edges[0] or message["edges"], message["edges"]
        if self._return_to_recorder() and message["op"] == "span_open":
            return  # it has been opened again with the others
        try:
            self._hand_over(message)
        except OSError:
            self._revive()
            if message["op"] != "span_open":  # one that was opened just now has been opened again with the others
                with contextlib.suppress(OSError):  # dead again: the next message will find out
                    self._hand_over(message)

    def _hand_over(self, message: Message) -> None:
        """Send a message, without reads of channels that the recorder before this one had found."""
        if self._changed_ns and message.get("edges"):
            edges = [edge for edge in message["edges"] if edge[1] >= self._changed_ns.get(edge[0], 0)]
            message = {**message, "edges": edges}
        self._channel.send(message)

    def _ask(self, message: Message) -> Reply:
        for _ in range(2):
            if self._idle():
                return {}
            try:
                return self._channel.request(message)
            except TimeoutError as error:
                if isinstance(self._channel, Remote) and self._channel.sign == SEALING:
                    return {"ok": False, "error": "The recorder is still sealing the tape."}
                self._revive(f"The recorder gave {error}.")
            except (OSError, EOFError) as error:
                unsent = isinstance(self._channel, Remote) and self._channel.trouble is error
                self._revive(f"The recorder cannot be sent anything: {error}." if unsent else "")
        return {"ok": False, "error": "The recorder died repeatedly."}

    def _return_to_recorder(self) -> bool:
        """Go on with the recorder that was given up, where it answers again (or has ended, so that one can start)."""
        if self._late is None or self._patience.left_s <= 0:
            return False
        try:
            if not self._late.heard():
                return False
        except (OSError, EOFError):
            pass  # it has ended: another one can be started
        self._late.close()
        self._late = None
        self._revive(said="The recorder answers again")
        return True

    def _revive(self, silent: str = "", said: str = "The recorder ended unexpectedly") -> None:
        """Go on in a further segment with another recorder; spans that are open are opened there again.

        `silent` says that the recorder is there and does not answer: this process goes on without it.
        """
        if isinstance(self._channel, Local):
            self._channel.send(self._now("recorder", said))
        died_ns = self._channel.heard_ns
        if silent and isinstance(self._channel, Remote):
            self._late = self._channel
        else:
            self._channel.close()
        self._revivals += 1
        before = {group.name: group.layout for group in self.groups}
        self._move_on(self._order)
        try:
            if self._revivals > MOST_REVIVALS:
                silent = "The recorder died repeatedly."
            self._channel = self._here(self._order, silent) if silent else self._connect(self._order)
        except EverywattError as error:  # the folder is gone, say: the program goes on without its tape
            self.notes.append(f"The recording could not continue: {error}")
            self._closed = Closed(self.path, {}, tuple(self.notes))
            return
        now_ns = self._clock.monotonic_ns()
        changed = [group.name for group in self.groups if before.get(group.name, group.layout) != group.layout]
        self._changed_ns |= dict.fromkeys(changed, now_ns)
        said = f"{(silent or said).rstrip('.')}; nothing was recorded for up to {(now_ns - died_ns) / 1e9:.1f} s."
        self.notes.append(said)
        messages = list(self._spans.values())
        # It may never have written what it was sent last: how spans ended, and the counters there.
        since_ns = 0 if silent else died_ns - UNWRITTEN_NS
        ended = False
        for span in self.top_spans.values():  # one that is just being closed is among the open ones
            if span.end_ns is not None and span.end_ns > since_ns and span.id not in self._spans:
                again: Message = {"op": "span_open", "uid": span.id, "name": span.name, "at_ns": span.start_ns}
                messages += [again, {"op": "span_close", "uid": span.id, "at_ns": span.end_ns}]
                again["attributes"] = span.attributes
                ended = True
        if silent and messages:
            messages[0] = {**messages[0], "edges": self._edges[0]}
        if messages and (silent or ended):
            messages[-1] = {**messages[-1], "edges": [*messages[-1].get("edges", ()), *self._edges[1]]}
        messages.append({**self._now("gap", said), "data": {"start_ns": died_ns, "end_ns": now_ns}})
        with contextlib.suppress(OSError):  # dead again: the next message will find out
            for message in messages:
                self._hand_over(message)

    def _now(self, kind: str, said: str) -> Message:
        """A note with the cheap counters as they are."""
        edges = [(name, *row) for name, row in self._inline.read()]
        return {"op": "note", "at_ns": self._clock.monotonic_ns(), "kind": kind, "text": said, "edges": edges}

    def _forget(self) -> None:
        """In a forked child: let go of the parent's socket, and of locks that other threads held."""
        self._lock = threading.RLock()
        self._channel.forget()
        if self._late is not None:
            self._late.forget()


def _after_fork() -> None:
    for recording in list(_live):
        recording._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
