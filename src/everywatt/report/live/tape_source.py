"""A run as a live source: its tapes are followed while they are written, or looked at as they ended."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from everywatt.api.run import Run
from everywatt.core.clocks import NS
from everywatt.core.device import Device, is_gpu
from everywatt.core.errors import EverywattError, RunNotFound, TapeError
from everywatt.ledger.use.usage import find_series
from everywatt.report.live.gather import HISTORY, Gatherer, left_out
from everywatt.report.live.owners import LedgerOwners, RunningOwners
from everywatt.report.live.snapshot import DeviceNow, Snapshot, WorkNow
from everywatt.report.live.telemetry import TAIL, CardUse, TelemetrySource
from everywatt.tape.following import Follower
from everywatt.tape.reader import Tape
from everywatt.tape.run_store import segments

LOOK_FOR_MORE_S = 3.0
SILENT_S = 15.0
QUIET_S = 30.0  # a recorder writes every few seconds


class TapeSource:
    """Snapshots of a run at `path`. `by` asks for owners; `gpus` shows only these cards.

    A finished run can be moved in with `seek`.
    """

    def __init__(self, path: Path, interval_s: float, *, by: str | None = None, gpus: tuple[str, ...] = ()) -> None:
        self.path = path
        self._interval_s = interval_s
        self._gpus = gpus
        self._gatherer = Gatherer(interval_s)
        self._quick = RunningOwners(by) if by else None
        self._ledger = LedgerOwners(by) if by else None
        self._follower: Follower | None = None
        self._read: list[Path] = []
        self._looked_s = 0.0
        self._seek_ns: int | None = None
        self._trouble: list[str] = []
        for file in segments(path):
            self._begin(file)
        if self._follower is None:
            raise RunNotFound("; ".join(self._trouble) or f"{path} contains no tape.", cure="everywatt list")

    @property
    def title(self) -> str:
        """The run's name."""
        return f"run {self.path.stem if self.path.is_file() else self.path.name}"

    @property
    def tape(self) -> Tape:
        """The newest tape."""
        assert self._follower is not None
        return self._follower.tape

    @property
    def seekable(self) -> bool:
        """Whether nothing more will come, so that other instants can be looked at."""
        return self._follower is not None and self._follower.finished

    def _begin(self, file: Path) -> None:
        self._read.append(file)
        try:
            tape = Tape.open(file, verify=False)
            tape.extent_ns()
        except TapeError as error:
            self._trouble.append(str(error))
            return
        self._take(Follower(tape, back_ns=round(HISTORY * self._interval_s * NS)))

    def _take(self, follower: Follower) -> None:
        self._gatherer.adopt(follower.tape)
        self._gatherer.feed(follower.look())
        before, self._follower = self._follower, follower
        if before is not None and before.tape is not follower.tape:
            before.close()

    def poll(self) -> Snapshot:
        """What came since the last poll."""
        assert self._follower is not None
        if not self._follower.finished:
            with contextlib.suppress(TapeError):  # it is being replaced just now: the next poll sees it
                self._gatherer.feed(self._follower.look())
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_FOR_MORE_S:
            self._looked_s = now_s
            for file in segments(self.path):
                if file not in self._read:
                    self._begin(file)
        self._gatherer.bounds.update(self._gatherer.tape_s, now=self.seekable and self._seek_ns is None)
        return self._snapshot()

    def _snapshot(self) -> Snapshot:
        gatherer, tape = self._gatherer, self.tape
        here = _this_boot(tape)
        live = not self.seekable and not self._left()
        now_ns = time.monotonic_ns() if here and live else gatherer.last_ns
        devices = tuple(d for d in gatherer.devices(now_ns) if shown(d.name, self._gpus))
        notes = [*self._trouble, *left_out(devices), *gatherer.bounds.notes]
        silent_s = (now_ns - gatherer.last_ns) / NS
        if live and silent_s > SILENT_S:
            notes.append(f"nothing written for {silent_s:.0f} s")
        asker = self._quick if live else self._ledger
        owners = None
        if asker is not None:
            owners = asker.ask(Run(self.path, [tape]), gatherer.lines, *self._owner_window())
        host = str(tape.meta.get("host", {}).get("name", ""))
        found = gatherer.snapshot(self.title, devices, host, notes, tape.to_utc_ns(now_ns))
        return replace(found, owners=owners, live=live)

    def _left(self) -> bool:
        """Whether nothing was written for so long that its recorder must have been killed."""
        newest_s = 0.0
        for side in ("", "-wal"):
            with contextlib.suppress(OSError):
                newest_s = max(newest_s, Path(f"{self.tape.path}{side}").stat().st_mtime)
        return time.time() - newest_s > QUIET_S

    def _owner_window(self) -> tuple[int, int]:
        """All of a finished run (as far as it was moved to), else up to now."""
        start_ns, end_ns = self.tape.extent_ns()
        return start_ns, end_ns if self._seek_ns is None else self._seek_ns

    def seek(self, seconds: float) -> None:
        """Move by so many seconds in a finished run; it stops at its ends."""
        if not self.seekable:
            return
        first_ns, last_ns = self.tape.extent_ns()
        at_ns = (last_ns if self._seek_ns is None else self._seek_ns) + round(seconds * NS)
        self._seek_ns = max(first_ns, min(at_ns, last_ns))
        self._gatherer = Gatherer(self._interval_s)
        with contextlib.suppress(EverywattError):
            self._take(
                Follower(self.tape, back_ns=round(HISTORY * self._interval_s * NS), until_ns=self._seek_ns),
            )

    def close(self) -> None:
        """Let go of the tape."""
        if self._follower is not None:
            self._follower.close()


def shown(device: str, gpus: tuple[str, ...]) -> bool:
    """Whether `--gpus` lets a device through: other devices than cards always are."""
    return not gpus or not is_gpu(device) or Device.parse(device).name in gpus


def _this_boot(tape: Tape) -> bool:
    """Whether the tape's clock is this machine's: written here and since the last boot."""
    if tape.meta.get("host", {}).get("name") != os.uname().nodename:
        return False
    anchors = tape.anchors()
    if not anchors:
        return False
    apart_ns = (time.time_ns() - time.monotonic_ns()) - (anchors[-1].utc_ns - anchors[-1].monotonic_ns)
    return abs(apart_ns) < 60 * NS


JOURNAL = "batch.jsonl"


def _catch_up(card: CardUse, tape: Tape, device: str) -> None:
    """What the tape had before the view began."""
    for name in ("utilisation", "memory"):
        series = find_series(tape, f"{device}.{name}")
        if series is not None:
            series.update(tape)
            for value in series.values[np.isfinite(series.values)].tolist():
                card.look(*((value, None) if name == "utilisation" else (None, value)))


class BatchSource:
    """Snapshots of a batch's folder. Only what was appended to its journal and its tape is read at each poll."""

    def __init__(self, path: Path, tapes: TapeSource, *, tail: int = TAIL) -> None:
        self._tapes = tapes
        self._journal = TelemetrySource(path / JOURNAL, tail=tail)
        self._seen: dict[str, CardUse] = {}

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
                self._seen[name] = CardUse()
                _catch_up(self._seen[name], self._tapes.tape, name)
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
            utilisation_pct=seen.spread,
            memory_max_bytes=seen.most_bytes or None,
            power_w=device.power_w,
            joules=device.energy.joules,
            use_trend=tuple(seen.use),
            memory_trend=tuple(seen.memory),
        )

    def close(self) -> None:
        """Let go of the tape."""
        self._tapes.close()
