"""An old telemetry log of a batch project as a live source: one JSON object a line, of each work item's start and end.

Fields: chunk_id, gpu_index, gpu_name, status (start, success, failure), timestamp, finished_at, runtime_s, and details
with attempt, backoff_s, and gpu_metrics (before and after: utilization, memory_used_mb, memory_total_mb). Such a log
has no power, so none is shown. Only what was appended is read at each look, a line that is not complete yet waits, and
of a long log only the end is read at first.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.core.errors import UsageError
from everywatt.report.live.snapshot import Amount, DeviceNow, Snapshot, WorkNow

FIRST_BYTES = 4 << 20
MOST_AT_ONCE = 16 << 20
TAIL = 15
MIB = 2**20


class Lines:
    """The complete lines that a growing file got since the last look."""

    def __init__(self, path: Path, first_bytes: int = FIRST_BYTES) -> None:
        self.path = path
        self.skipped_bytes = 0
        self._first_bytes = first_bytes
        self._offset = 0
        self._began = False
        self._rest = b""
        self._cut_first = False
        self._inode: int | None = None

    def look(self) -> list[bytes]:
        """New lines, without their ends. A file that was cut or replaced is read from its start."""
        try:
            with self.path.open("rb") as file:
                stat = file.seek(0, 2)
                self._place(stat, self.path.stat().st_ino)
                file.seek(self._offset)
                data = file.read(MOST_AT_ONCE)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}.") from error
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._cut_first and lines:
            self._cut_first = False
            del lines[0]
        return [line for line in lines if line.strip()]

    def _place(self, size: int, inode: int) -> None:
        if self._began and (size < self._offset or inode != self._inode):
            self._offset, self._rest, self.skipped_bytes = 0, b"", 0
        if not self._began:
            self._offset = self.skipped_bytes = max(0, size - self._first_bytes)
            self._cut_first = self._offset > 0
        self._began, self._inode = True, inode


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
    use: list[float] = field(default_factory=lambda: [100.0, 0.0, 0.0])  # least, sum, most
    uses: int = 0
    last_use: float | None = None
    memory_bytes: float | None = None
    memory_max_bytes: float | None = None
    memory_total_bytes: float | None = None
    status: str = ""
    item: str = ""
    updated: str = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """Count one event."""
        told = event.get("details")
        details: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        self.events += 1
        self.status, self.item = str(event.get("status", "")), str(event.get("chunk_id", ""))
        self.updated = str(event.get("finished_at") or event.get("timestamp") or "")
        self.title = str(event.get("gpu_name") or self.title)
        self.success += self.status == "success"
        self.failure += self.status == "failure"
        attempt = _number(details.get("attempt"))
        # Attempts are numbers from 1: a further one is one retry, whatever its number.
        self.retries += self.status == "start" and attempt is not None and attempt > 1
        runtime_s = _number(event.get("runtime_s"))
        if runtime_s is not None and self.status != "start":
            self.runtimes, self.runtime_s = self.runtimes + 1, self.runtime_s + runtime_s
        metrics = details.get("gpu_metrics")
        for when in ("before", "after"):
            if isinstance(metrics, Mapping) and isinstance(metrics.get(when), Mapping):
                self._measure(metrics[when])

    def _measure(self, metrics: Mapping[str, Any]) -> None:
        use = _number(metrics.get("utilization"))
        if use is not None:
            self.use = [min(self.use[0], use), self.use[1] + use, max(self.use[2], use)]
            self.uses, self.last_use = self.uses + 1, use
        used, total = _number(metrics.get("memory_used_mb")), _number(metrics.get("memory_total_mb"))
        if used is not None:
            self.memory_bytes = used * MIB
            self.memory_max_bytes = max(self.memory_max_bytes or 0.0, self.memory_bytes)
        if total is not None:
            self.memory_total_bytes = total * MIB

    def now(self) -> WorkNow:
        """As faces show it."""
        return WorkNow(
            self.name,
            self.events,
            self.success,
            self.failure,
            self.retries,
            self.runtime_s / self.runtimes if self.runtimes else None,
            (self.use[0], self.use[1] / self.uses, self.use[2]) if self.uses else None,
            self.memory_max_bytes,
            self.status,
            self.item,
            self.updated,
        )

    def device(self) -> DeviceNow | None:
        """The card that it works on."""
        if self.gpu is None:
            return None
        return DeviceNow(
            self.name,
            self.title,
            energy=Amount(refused="the log has no power"),
            utilisation_pct=self.last_use,
            memory_bytes=self.memory_bytes,
            memory_total_bytes=self.memory_total_bytes,
        )


class TelemetrySource:
    """Snapshots of a batch log."""

    def __init__(self, path: Path, *, first_bytes: int = FIRST_BYTES) -> None:
        self._lines = Lines(path, first_bytes)
        self._workers: dict[int | None, _Worker] = {}
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._bad = 0
        self._began_s = time.monotonic()

    @property
    def title(self) -> str:
        """The log's name."""
        return f"batch log {self._lines.path.name}"

    def poll(self) -> Snapshot:
        """What was appended since the last poll."""
        for event in self._events():
            gpu = event.get("gpu_index")
            key = gpu if isinstance(gpu, int) else None
            name = "cpu" if key is None else f"gpu.{key}"
            self._workers.setdefault(key, _Worker(name, key)).take(event)
            self._tail.append(_sentence(event, name))
        workers = [self._workers[key] for key in sorted(self._workers, key=lambda key: -1 if key is None else key)]
        return Snapshot(
            source=self.title,
            at_ns=time.time_ns(),
            elapsed_s=time.monotonic() - self._began_s,
            devices=tuple(device for worker in workers if (device := worker.device()) is not None),
            total=Amount(refused="the log has no power"),
            work=tuple(worker.now() for worker in workers),
            tail=tuple(self._tail),
            notes=tuple(self._notes()),
        )

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._lines.look():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            if isinstance(event, dict) and "status" in event:
                yield event
            else:
                self._bad += 1

    def _notes(self) -> Iterator[str]:
        if self._lines.skipped_bytes:
            yield f"the first {self._lines.skipped_bytes / MIB:.0f} MiB of the log are not counted"
        if self._bad:
            yield f"{self._bad} lines of the log are no events"

    def close(self) -> None:
        """Nothing is kept open."""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _sentence(event: Mapping[str, Any], worker: str) -> str:
    when = str(event.get("finished_at") or event.get("timestamp") or "")[11:19]
    runtime_s = _number(event.get("runtime_s"))
    took = f" in {runtime_s:.1f} s" if runtime_s is not None else ""
    return f"{when} {event.get('status')!s:<8} {worker:<6} {event.get('chunk_id')}{took}"
