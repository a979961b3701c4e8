"""A batch that is being worked off: its recording for power and energy, its journal for what became of the items."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from everywatt.ledger.use.series import find
from everywatt.report.live.snapshot import DeviceNow, Snapshot, WorkNow
from everywatt.report.live.tape_source import TapeSource
from everywatt.report.live.telemetry import TAIL, TREND, TelemetrySource
from everywatt.tape.reader import Tape

JOURNAL = "batch.jsonl"


@dataclass(slots=True)
class _Seen:
    """What a card did."""

    use: deque[float] = field(default_factory=lambda: deque(maxlen=TREND))
    memory: deque[float] = field(default_factory=lambda: deque(maxlen=TREND))
    low: float = 100.0
    total: float = 0.0
    high: float = 0.0
    count: int = 0
    most_bytes: float = 0.0

    def look(self, use: float | None, memory_bytes: float | None) -> None:
        """One more pair of values; None where one is not known."""
        if use is not None:
            self.use.append(use)
            self.low, self.high = min(self.low, use), max(self.high, use)
            self.total, self.count = self.total + use, self.count + 1
        if memory_bytes is not None:
            self.memory.append(memory_bytes)
            self.most_bytes = max(self.most_bytes, memory_bytes)

    def catch_up(self, tape: Tape, device: str) -> None:
        """What the tape had before anybody looked."""
        for name, place in (("utilisation", 0), ("memory", 1)):
            series = find(tape, f"{device}.{name}")
            if series is not None:
                series.update(tape)
                for value in series.values[np.isfinite(series.values)].tolist():
                    self.look(*((value, None) if place == 0 else (None, value)))


class BatchSource:
    """Snapshots of a batch's folder. Only what was appended to its journal and its tape is read at each poll."""

    def __init__(self, path: Path, tapes: TapeSource, *, tail: int = TAIL) -> None:
        self._tapes = tapes
        self._journal = TelemetrySource(path / JOURNAL, tail=tail)
        self._seen: dict[str, _Seen] = {}

    @property
    def title(self) -> str:
        """The run's name."""
        return f"batch {self._tapes.title}"

    @property
    def seekable(self) -> bool:
        """Whether nothing more will come."""
        return self._tapes.seekable

    def seek(self, seconds: float) -> None:
        """Move in a finished recording; the items stay as they ended."""
        self._tapes.seek(seconds)

    def poll(self) -> Snapshot:
        """What came since the last poll."""
        shown = self._tapes.poll()
        self._journal.read()
        devices = {device.name: device for device in shown.devices}
        for name, device in devices.items():
            if name not in self._seen:
                self._seen[name] = _Seen()
                self._seen[name].catch_up(self._tapes.tape, name)
            elif shown.live:
                self._seen[name].look(device.utilisation_pct, device.memory_bytes)
        work = tuple(self._with_card(one, devices.get(one.worker)) for one in self._journal.work())
        notes = (*shown.notes, *self._journal.notes())
        batch = self._journal.batch(shown.total.joules)
        return replace(shown, source=self.title, work=work, tail=self._journal.tail(), batch=batch, notes=notes)

    def _with_card(self, work: WorkNow, device: DeviceNow | None) -> WorkNow:
        if device is None:
            return work
        seen = self._seen[device.name]
        return replace(
            work,
            utilisation_pct=(seen.low, seen.total / seen.count, seen.high) if seen.count else None,
            memory_max_bytes=seen.most_bytes or None,
            power_w=device.power_w,
            joules=device.energy.joules,
            use_trend=tuple(seen.use),
            memory_trend=tuple(seen.memory),
        )

    def close(self) -> None:
        """Let go of the tape."""
        self._tapes.close()
