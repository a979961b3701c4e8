"""CUDA events as span edges: where the GPU was when it reached that point of its stream, without a synchronise.

A kernel runs long after Python has launched it, so the host's clock says little about when GPU work began and ended. An
event that is recorded on the stream does. Events only know the time between each other, so now and then a reference
event is recorded on a stream of its own, whose moment on the host's clock is known to microseconds; an edge lies
between two references and its time follows from the elapsed times to both, so that a clock that drifts does no harm.
Spans reach the tape when their edges are known: every few seconds, and at the end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everywatt.core.clocks import NS, SystemClock

if TYPE_CHECKING:
    from everywatt.recorder.client import Recording

REFERENCE_EVERY_NS = 10 * NS
REFERENCE_RETRY_NS = NS // 10
REFERENCE_WAIT_NS = 200_000
NS_PER_MS = 1e6


@dataclass(slots=True)
class Edge:
    """One edge of a span: the host's time when it was marked, the event, and the time that was found for it."""

    host_ns: int
    event: Any = None
    at_ns: int | None = None

    @property
    def known(self) -> bool:
        """True where nothing is left to wait for."""
        return self.event is None

    def settle(self, at_ns: int | None) -> None:
        """The event is done with; without a time for it the host's own stands."""
        self.event, self.at_ns = None, at_ns

    @property
    def time_ns(self) -> int:
        """Its time on CLOCK_MONOTONIC."""
        return self.host_ns if self.at_ns is None else self.at_ns


@dataclass(frozen=True, slots=True)
class Reference:
    """An event and the moment on the host's clock at which it happened."""

    event: Any
    at_ns: int


@dataclass(slots=True)
class Timeline:
    """Events of one device: its newest reference, when the next is due, and the edges whose time is not known yet."""

    stream: Any
    last: Reference
    due_ns: int
    waiting: list[Edge] = field(default_factory=list)


def unavailable(torch: Any) -> str | None:
    """Why CUDA events cannot be used here, or None where they can."""
    if torch is None:
        return "torch is not imported"
    try:
        return None if torch.cuda.is_available() else "torch finds no CUDA device"
    except Exception as error:  # noqa: BLE001 - a broken driver may raise anything
        return f"torch.cuda does not respond ({error})"


class CudaClock:
    """Marks edges on the current CUDA stream and finds their times on the host's clock afterwards."""

    def __init__(self, torch: Any, *, now_ns: Callable[[], int] = SystemClock.monotonic_ns) -> None:
        self._torch = torch
        self._now_ns = now_ns
        self._timelines: dict[int, Timeline] = {}
        self.rounds = 0  # how often edges were settled

    def mark(self) -> Edge:
        """An edge here: an event on the current stream; host time inside a graph capture, which takes no such event."""
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return Edge(self._now_ns())
        timeline = self._timeline(cuda.current_device())
        event = cuda.Event(enable_timing=True)
        edge = Edge(self._now_ns(), event)
        event.record()
        timeline.waiting.append(edge)
        return edge

    def _timeline(self, device: int) -> Timeline:
        """The device's timeline; the first use waits for its reference, later ones never wait."""
        found = self._timelines.get(device)
        if found is None:
            stream = self._torch.cuda.Stream()
            reference = self._reference(stream, wait=True)
            assert reference is not None
            found = self._timelines[device] = Timeline(stream, reference, reference.at_ns + REFERENCE_EVERY_NS)
        elif self._now_ns() >= found.due_ns:
            self._anchor(found)
        return found

    def _reference(self, stream: Any, *, wait: bool) -> Reference | None:
        """An event on an idle stream of our own, so that it does not queue behind the program's work.

        It happened between its recording and the answer that it is complete; three tries, the tightest counts. Without
        `wait`, one that is not complete within a fraction of a millisecond is left: a later edge tries again.
        """
        best: tuple[int, Reference] | None = None
        for _ in range(3):
            event = self._torch.cuda.Event(enable_timing=True)
            before = self._now_ns()
            event.record(stream)
            if wait:
                event.synchronize()
            else:
                while not event.query():
                    if self._now_ns() - before > REFERENCE_WAIT_NS:
                        return None if best is None else best[1]
            after = self._now_ns()
            if best is None or after - before < best[0]:
                best = (after - before, Reference(event, (before + after) // 2))
        assert best is not None
        return best[1]

    def _anchor(self, timeline: Timeline, *, wait: bool = False) -> None:
        """Take a new reference and settle the edges that are complete and lie before it."""
        reference = self._reference(timeline.stream, wait=wait)
        now_ns = self._now_ns()
        if reference is None:
            timeline.due_ns = now_ns + REFERENCE_RETRY_NS
            return
        timeline.due_ns = now_ns + REFERENCE_EVERY_NS
        self.rounds += 1
        old, timeline.last = timeline.last, reference
        span_ms = old.event.elapsed_time(reference.event)
        rate = (reference.at_ns - old.at_ns) / (span_ms * NS_PER_MS) if span_ms > 0 else 1.0
        left = []
        for edge in timeline.waiting:
            if not edge.event.query():
                left.append(edge)
                continue
            elapsed_ms = old.event.elapsed_time(edge.event)
            edge.settle(old.at_ns + round(elapsed_ms * NS_PER_MS * rate))
        timeline.waiting = left

    def finish(self) -> None:
        """Settle every edge: here, at the end, it waits for the GPU."""
        for timeline in self._timelines.values():
            for edge in timeline.waiting:
                edge.event.synchronize()
            self._anchor(timeline, wait=True)


@dataclass(slots=True)
class _Open:
    name: str
    parent: str | None
    attributes: dict[str, Any]
    start: Edge
    end: Edge | None = None


class CudaSpans:
    """Spans with CUDA edges for one recording; stands where a Recording stands for `span_open` and `span_close`.

    Where events cannot be used, the spans are plain ones and a note on the tape says why.
    """

    def __init__(
        self, sink: Recording, torch: Any = None, *, now_ns: Callable[[], int] = SystemClock.monotonic_ns
    ) -> None:
        self._sink = sink
        self._lock = threading.RLock()
        self._open: dict[str, _Open] = {}
        self._now_ns = now_ns
        torch = sys.modules.get("torch") if torch is None else torch
        self._clock: CudaClock | None = None
        self._rounds = 0
        why = unavailable(torch)
        if why is None:
            self._clock = CudaClock(torch, now_ns=now_ns)
        else:
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self._clock = None
        self._sink.note("cuda", f"CUDA edges are not available: {why}")

    def _mark(self) -> Edge:
        if self._clock is None:
            return Edge(self._now_ns())
        try:
            return self._clock.mark()
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; the program goes on with host times
            self._settle_all()
            self._give_up(f"{type(error).__name__}: {error}")
            return Edge(self._now_ns())

    def _settle_all(self) -> None:
        """Events can no longer be asked: what is open falls back to the host's times."""
        for entry in self._open.values():
            for edge in (entry.start, entry.end):
                if edge is not None and not edge.known:
                    edge.settle(None)

    def span_open(self, name: str, *, parent: str | None = None, attributes: Mapping[str, Any] | None = None) -> str:
        """Open a span whose start is this point of the current CUDA stream; gives its id."""
        with self._lock:
            if self._clock is None:
                return self._sink.span_open(name, parent=parent, attributes=attributes)
            uid = self._sink.span_id()
            self._open[uid] = _Open(name, parent, dict(attributes or {}), self._mark())
            self._deliver_settled()
            return uid

    def span_close(self, uid: str, *, attributes: Mapping[str, Any] | None = None) -> int:
        """Close a span at this point of the current CUDA stream; gives the host's time."""
        with self._lock:
            entry = self._open.get(uid)
            if entry is None:
                return self._sink.span_close(uid, attributes=attributes)
            entry.attributes.update(attributes or {})
            entry.end = self._mark()
            self._deliver_settled()
            return entry.end.host_ns

    def _deliver_settled(self) -> None:
        """Look through the open spans only when there is news, since a program may have thousands."""
        if self._clock is None or self._clock.rounds != self._rounds:
            self._rounds = 0 if self._clock is None else self._clock.rounds
            self._deliver()

    def _deliver(self) -> None:
        """Send the spans whose both edges are known."""
        done = [(u, e) for u, e in self._open.items() if e.start.known and e.end is not None and e.end.known]
        for uid, entry in done:
            del self._open[uid]
            self._send(uid, entry)

    def _send(self, uid: str, entry: _Open) -> None:
        start_ns = entry.start.time_ns
        both = entry.start.at_ns is not None and (entry.end is None or entry.end.at_ns is not None)
        kind = "cuda" if both else "host"
        self._sink.span_open(
            entry.name, parent=entry.parent, attributes={**entry.attributes, "edges": kind}, at_ns=start_ns, uid=uid
        )
        if entry.end is not None:
            # Two events in one stream are in order; two streams, or a host edge, need not be.
            self._sink.span_close(uid, at_ns=max(start_ns, entry.end.time_ns))

    def finish(self) -> None:
        """At the end of the recording: wait for the GPU once, and send what is left; open spans stay open."""
        with self._lock:
            if self._clock is not None:
                try:
                    self._clock.finish()
                except Exception as error:  # noqa: BLE001 - a driver may raise anything; host times remain
                    self._give_up(f"{type(error).__name__}: {error}")
            self._settle_all()
            self._deliver()
            for uid, entry in list(self._open.items()):
                self._send(uid, entry)
            self._open.clear()
