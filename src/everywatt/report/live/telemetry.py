"""An old telemetry log of a batch project as a live source: one JSON object a line, of each work item's start and end.

Fields: chunk_id, gpu_index, gpu_name, status (start, success, failure), timestamp, finished_at, runtime_s, and details
with attempt, backoff_s, and gpu_metrics (before and after: utilization, memory_used_mb, memory_total_mb). Such a log
has no power, so none is shown. Our own journal (batch.jsonl) is read the same way. Only what was appended is read at
each look, a line that is not complete yet waits, and of a long log the end comes first and the rest is counted behind.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.core.device import Device, is_gpu
from everywatt.core.files import usable
from everywatt.core.format import format_duration
from everywatt.report.live.snapshot import Amount, BatchNow, DeviceNow, Snapshot, WorkNow

FIRST_BYTES = 4 << 20
MOST_AT_ONCE = 16 << 20
LONGEST_LINE = 1 << 20


class Lines:
    """The complete lines that a file got since the last look. Of a long file the end comes first."""

    def __init__(self, path: Path, first_bytes: int = FIRST_BYTES) -> None:
        self.path = path
        self._first_bytes = first_bytes
        self._began = False
        self._inode: int | None = None
        self._restart(0)

    def _restart(self, offset: int) -> None:
        self._offset, self._rest, self._cut_first = offset, b"", offset > 0
        self._older, self._older_end, self._older_rest = 0, offset, b""

    @property
    def uncounted_bytes(self) -> int:
        """How much of the file lies before what was read."""
        return max(0, self._older_end - self._older)

    def look(self) -> list[bytes]:
        """New lines, without their ends. A file that was cut or replaced is read from its start."""
        with usable(self.path, "read"), self.path.open("rb") as file:
            self._place(file.seek(0, 2), self.path.stat().st_ino)
            file.seek(self._offset)
            data = file.read(MOST_AT_ONCE)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._cut_first and lines:
            self._cut_first = False
            self._older_end += len(lines[0]) + 1  # the line that began before belongs to what is older
            del lines[0]
        return [line for line in lines if line.strip()]

    def behind(self, most_bytes: int) -> list[bytes]:
        """Older lines, from the file's start on; nothing once they meet what `look` began with."""
        if self._cut_first or self._older >= self._older_end:
            return []
        with usable(self.path, "read"), self.path.open("rb") as file:
            file.seek(self._older)
            data = file.read(min(most_bytes, self._older_end - self._older))
        self._older = self._older + len(data) if data else self._older_end
        *lines, self._older_rest = (self._older_rest + data).split(b"\n")
        self._older_rest = self._older_rest[-LONGEST_LINE:]  # a line longer than that is no event
        return [line for line in lines if line.strip()]

    def _place(self, size: int, inode: int) -> None:
        if not self._began:
            self._restart(max(0, size - self._first_bytes))
        elif size < self._offset or inode != self._inode:
            self._restart(0)
        self._began, self._inode = True, inode


TAIL = 15
TREND = 24
BEHIND_S = 0.25
"""How long each poll may spend on the backlog, so that the view stays responsive."""
BEHIND_BYTES = 1 << 20
MIB = 2**20
WORDS = {"done": "success", "failed": "failure", "interrupted": "stopped"}


@dataclass(slots=True)
class CardUse:
    """What a card did: the least, mean and most of its utilisation (%), its peak memory, and the newest of both."""

    use: deque[float] = field(default_factory=lambda: deque(maxlen=TREND))
    memory: deque[float] = field(default_factory=lambda: deque(maxlen=TREND))
    low: float = 100.0
    total: float = 0.0
    high: float = 0.0
    count: int = 0
    most_bytes: float = 0.0

    def look(self, use: float | None, memory_bytes: float | None, *, old: bool = False) -> None:
        """One more pair of values, None where one is not known; an `old` one is not the newest."""
        if use is not None:
            self.low, self.high = min(self.low, use), max(self.high, use)
            self.total, self.count = self.total + use, self.count + 1
            if not old:
                self.use.append(use)
        if memory_bytes is not None:
            self.most_bytes = max(self.most_bytes, memory_bytes)
            if not old:
                self.memory.append(memory_bytes)

    @property
    def spread(self) -> tuple[float, float, float] | None:
        """The least, mean and most of its utilisation; None where it was never read."""
        return (self.low, self.total / self.count, self.high) if self.count else None


@dataclass(slots=True)
class _Worker:
    name: str
    gpu: int | None
    title: str = ""
    events: int = 0
    success: int = 0
    failure: int = 0
    retries: int = 0
    runtimes: int = 0
    runtime_s: float = 0.0
    card: CardUse = field(default_factory=CardUse)
    memory_total_bytes: float | None = None
    status: str = ""
    item: str = ""
    updated: str = ""
    retry_trend: deque[float] = field(default_factory=lambda: deque(maxlen=TREND))

    def take(self, event: Mapping[str, Any], *, old: bool = False) -> None:
        """Count one event; an `old` one, from behind, is not the last that happened."""
        raw = event.get("details")
        details: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        status = str(event.get("status", ""))
        self.events += 1
        self.title = str(event.get("gpu_name") or self.title)
        self.success += status == "success"
        self.failure += status == "failure"
        attempt = _number(details.get("attempt"))
        # Attempts are numbers from 1: a further one is one retry, whatever its number.
        again = status == "start" and attempt is not None and attempt > 1
        self.retries += again
        runtime_s = _number(event.get("runtime_s"))
        if runtime_s is not None and status != "start":
            self.runtimes, self.runtime_s = self.runtimes + 1, self.runtime_s + runtime_s
        metrics = details.get("gpu_metrics")
        for when in ("before", "after"):
            if isinstance(metrics, Mapping) and isinstance(metrics.get(when), Mapping):
                self._measure(metrics[when], old)
        if not old:
            self.status, self.item = status, str(event.get("chunk_id", ""))
            self.updated = str(event.get("finished_at") or event.get("timestamp") or "")
            if status == "start":
                self.retry_trend.append(float(again))

    def _measure(self, metrics: Mapping[str, Any], old: bool) -> None:
        used, total = _number(metrics.get("memory_used_mb")), _number(metrics.get("memory_total_mb"))
        self.card.look(_number(metrics.get("utilization")), None if used is None else used * MIB, old=old)
        if total is not None and not old:
            self.memory_total_bytes = total * MIB

    def now(self) -> WorkNow:
        return WorkNow(
            self.name,
            self.events,
            self.success,
            self.failure,
            self.retries,
            self.runtime_s / self.runtimes if self.runtimes else None,
            self.card.spread,
            self.card.most_bytes or None,
            self.status,
            self.item,
            self.updated,
            use_trend=tuple(self.card.use),
            memory_trend=tuple(self.card.memory),
            retry_trend=tuple(self.retry_trend),
        )

    def device(self) -> DeviceNow | None:
        if self.gpu is None:
            return None
        return DeviceNow(
            self.name,
            self.title,
            energy=Amount(refused="the log has no power"),
            utilisation_pct=self.card.use[-1] if self.card.use else None,
            memory_bytes=self.card.memory[-1] if self.card.memory else None,
            memory_total_bytes=self.memory_total_bytes,
        )


class TelemetrySource:
    """Snapshots of a batch log, with the last `tail` events."""

    def __init__(self, path: Path, *, first_bytes: int = FIRST_BYTES, tail: int = TAIL) -> None:
        self._lines = Lines(path, first_bytes)
        self._workers: dict[int | None, _Worker] = {}
        self._tail: deque[str] = deque(maxlen=tail)
        self._bad = 0
        self._items: set[str] = set()
        self._ended: dict[str, str] = {}
        self._running: set[str] = set()
        self._began_s = time.monotonic()

    @property
    def title(self) -> str:
        return f"batch log {self._lines.path.name}"

    def poll(self) -> Snapshot:
        """What was appended since the last poll, and some of what lies behind."""
        self.read()
        return Snapshot(
            source=self.title,
            at_ns=time.time_ns(),
            elapsed_s=time.monotonic() - self._began_s,
            devices=tuple(device for worker in self._sorted() if (device := worker.device()) is not None),
            total=Amount(refused="the log has no power"),
            work=self.work(),
            tail=self.tail(),
            notes=self.notes(),
        )

    def read(self) -> None:
        """Take what was appended, then older lines for a moment."""
        deadline_s = time.monotonic() + BEHIND_S
        self._take(self._lines.look(), old=False)
        while time.monotonic() < deadline_s and (lines := self._lines.behind(BEHIND_BYTES)):
            self._take(lines, old=True)

    def work(self) -> tuple[WorkNow, ...]:
        """The workers, the CPU's first."""
        return tuple(worker.now() for worker in self._sorted())

    def tail(self) -> tuple[str, ...]:
        """The last events, as sentences."""
        return tuple(self._tail)

    def _sorted(self) -> list[_Worker]:
        return [self._workers[key] for key in sorted(self._workers, key=lambda key: -1 if key is None else key)]

    def _take(self, lines: list[bytes], *, old: bool) -> None:
        for line in lines:
            event = _event(line)
            if event is None:
                self._bad += 1
            elif "item" in event:
                self._items.add(event["item"])
            elif "status" in event:
                self._count(event, old)
                gpu = event.get("gpu_index")
                key = gpu if isinstance(gpu, int) else None
                name = "cpu" if key is None else f"gpu.{key}"
                self._workers.setdefault(key, _Worker(name, key)).take(event, old=old)
                if not old:
                    self._tail.append(_sentence(event, name))

    def _count(self, event: Mapping[str, Any], old: bool) -> None:
        """Which items run and which have ended; what is read from behind changes nothing that is known already."""
        item = str(event.get("chunk_id"))
        if event.get("status") == "start":
            if not old:
                self._running.add(item)
            return
        self._running.discard(item)
        if event.get("final"):
            self._ended.setdefault(item, str(event["status"])) if old else self._ended.update({item: event["status"]})

    def batch(self, joules: float | None) -> BatchNow | None:
        """How far the batch is, with the joules that it took so far; None for a log that does not list its items."""
        if not self._items:
            return None
        statuses = [self._ended.get(item) for item in self._items]
        done, failed = statuses.count("success"), statuses.count("failure")
        left = len(self._items) - done - failed
        runtimes = sum(worker.runtimes for worker in self._workers.values())
        runtime_s = sum(worker.runtime_s for worker in self._workers.values())
        running = len(self._running & self._items)
        eta_s = runtime_s / runtimes * left / running if runtimes and running else None
        return BatchNow(len(self._items), done, failed, running, eta_s, joules / done if joules and done else None)

    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        found = []
        if left := self._lines.uncounted_bytes:
            found.append(f"the first {max(1, round(left / MIB))} MiB of the log are not counted yet")
        if self._bad:
            found.append(f"{self._bad} lines of the log are not events")
        if not found and not self._workers:
            found.append("the log has no events yet")
        return tuple(found)

    def close(self) -> None:
        """Nothing is kept open."""


def _event(line: bytes) -> dict[str, Any] | None:
    """An event of the log, {} for another line of our journal, None for any other line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    return _of_journal(record) if "kind" in record else record if "status" in record else None


def _of_journal(record: Mapping[str, Any]) -> dict[str, Any]:
    """A line of batch.jsonl as an event of the old layout."""
    kind, device = record.get("kind"), str(record.get("device", ""))
    if kind == "item":
        return {"item": str(record.get("id"))}
    if kind not in ("start", "end"):
        return {}
    raw = record.get("ended")
    ended: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    return {
        "chunk_id": record.get("id"),
        "gpu_index": Device.parse(device).index if is_gpu(device) else None,
        "status": "start" if kind == "start" else WORDS.get(str(record.get("status")), str(record.get("status"))),
        "final": bool(record.get("final")),
        "timestamp": record.get("at"),
        "runtime_s": ended.get("runtime_s"),
        "details": {"attempt": record.get("attempt")},
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _sentence(event: Mapping[str, Any], worker: str) -> str:
    when = str(event.get("finished_at") or event.get("timestamp") or "")[11:19]
    runtime_s = _number(event.get("runtime_s"))
    took = f" in {format_duration(runtime_s)}" if runtime_s is not None else ""
    return f"{when} {event.get('status')!s:<8} {worker:<6} {event.get('chunk_id')}{took}"
