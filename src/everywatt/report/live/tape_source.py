"""A run as a live source: its tapes are followed while they are written, or looked at as they ended.

Energies are those of the run, as every other command has them: without what was recorded before its first span, such as
idle power, and of one that has ended also without what came after its last.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from everywatt.api.run import Run, opened
from everywatt.core.clocks import NS
from everywatt.core.device import Device, is_gpu
from everywatt.core.energy import Energy, total
from everywatt.core.errors import EverywattError, RunNotFound, TapeError
from everywatt.core.machine import Machine
from everywatt.energy.sources import sources
from everywatt.energy.window import source_energies
from everywatt.fleet.segments import written_s
from everywatt.ledger.use.usage import find_series
from everywatt.report.live.gather import HISTORY, Gatherer, left_out
from everywatt.report.live.owners import LedgerOwners, RunningOwners
from everywatt.report.live.snapshot import Amount, DeviceNow, Snapshot, WorkNow
from everywatt.report.live.telemetry import TAIL, CardUse, TelemetrySource
from everywatt.tape.following import Follower
from everywatt.tape.reader import Tape
from everywatt.tape.run_store import segments

LOOK_FOR_MORE_S = 3.0
SILENT_S = 15.0
AGAIN = 1.25  # how much longer a tape is when it is looked at again for what was before the run
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
        self._ended: tuple[Any, Snapshot] | None = None
        self._before: dict[Path, tuple[float, dict[str, float]]] = {}
        self._before_s = 0.0
        self._trouble: list[str] = []
        for file in segments(path):
            self._begin(file)
        if self._follower is None:
            raise RunNotFound("; ".join(self._trouble) or f"{path} contains no tape.", cure="everywatt list")

    @property
    def title(self) -> str:
        return f"run {self.path.stem if self.path.is_file() else self.path.name}"

    @property
    def tape(self) -> Tape:
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
        self._before_s = 0.0
        self._gatherer.feed(follower.look())
        before, self._follower = self._follower, follower
        if before is not None and before.tape is not follower.tape:
            before.close()

    def poll(self) -> Snapshot:
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
        return self._snapshot()

    def _snapshot(self) -> Snapshot:
        gatherer, tape = self._gatherer, self.tape
        if self.seekable or time.time() - written_s(self.tape.path) > QUIET_S:  # its recorder must have been killed
            return self._of_run()
        gatherer.bounds.update(gatherer.tape_s)
        here = _this_boot(tape)
        now_ns = time.monotonic_ns() if here else gatherer.last_ns
        notes = [*gatherer.bounds.notes]
        silent_s = (now_ns - gatherer.last_ns) / NS
        if silent_s > SILENT_S:
            notes.append(f"nothing written for {silent_s:.0f} s")
        found = self._without_before(self._gathered(now_ns, notes))
        if self._quick is None:
            return found
        self._quick.proc = Machine.here().proc if here else None
        owners = self._quick.ask(Run(self.path, [tape]), gatherer.lines, tape.extent_ns()[0], gatherer.last_ns)
        return replace(found, owners=owners)

    def _gathered(self, now_ns: int, notes: Sequence[str]) -> Snapshot:
        devices = tuple(d for d in self._gatherer.devices(now_ns) if shown(d.name, self._gpus))
        host, notes = self.tape.host, (*self._trouble, *left_out(devices), *notes)
        return self._gatherer.snapshot(self.title, devices, host, notes, self.tape.to_utc_ns(now_ns))

    def _without_before(self, found: Snapshot) -> Snapshot:
        """Without what was recorded before the run began, which is looked for again as its tape grows."""
        if self._gatherer.tape_s >= self._before_s:
            self._before_s = self._gatherer.tape_s * AGAIN
            self._before[self.tape.path] = _before_run(Run(self.path, [self.tape]))
        before = self._before.values()
        joules = {device.name: sum(one.get(device.name, 0.0) for _, one in before) for device in found.devices}
        return replace(
            found,
            devices=tuple(replace(one, energy=_less(one.energy, joules[one.name])) for one in found.devices),
            total=_less(found.total, sum(joules[device.name] for device in found.devices if device.in_total)),
            elapsed_s=max(0.0, found.elapsed_s - sum(seconds for seconds, _ in before)),
        )

    def _of_run(self) -> Snapshot:
        """The run as it ended, or as it stood where it was moved to; worked out once."""
        state = self._seek_ns, self.tape.version, len(self._read)
        if self._ended is None or self._ended[0] != state:
            run = opened(self.path, lambda file: Tape.open(file, verify=False))
            try:
                self._ended = state, self._figures(run)
            finally:
                for tape in run.tapes:
                    tape.close()
        return self._ended[1]

    def _figures(self, run: Run) -> Snapshot:
        between, length_s = None, run.duration_s
        if self._seek_ns is not None:
            begins = (_after_s(run, *first) for first in zip(run.tapes, run.windows(), strict=True) if first[1])
            between = min(begins, default=0.0), _after_s(run, self.tape, [(self._seek_ns, 0)])
            length_s = max(0.0, between[1] - between[0])
        whole = run.energy(between=between)
        found = self._gathered(self._gatherer.last_ns, whole.notes)
        parts = {device.name: run.energy(between=between, device=device.name) for device in found.devices}
        if self._gpus:
            counted = {device.name: parts[device.name] for device in found.devices if device.in_total}
            whole = total(counted, scope=whole.scope)
        return replace(
            found,
            devices=tuple(replace(device, energy=_amount(parts[device.name])) for device in found.devices),
            total=_amount(whole),
            elapsed_s=length_s,
            owners=None if self._ledger is None else self._ledger.of_run(run, between),
            live=False,
        )

    def seek(self, seconds: float) -> None:
        """Move by so many seconds in a finished run; it stops at its ends."""
        if not self.seekable:
            return
        first_ns, last_ns = self.tape.extent_ns()
        at_ns = (last_ns if self._seek_ns is None else self._seek_ns) + round(seconds * NS)
        at_ns = max(first_ns, min(at_ns, last_ns))
        self._seek_ns = at_ns if at_ns < last_ns else None
        self._gatherer = Gatherer(self._interval_s)
        with contextlib.suppress(EverywattError):
            self._take(Follower(self.tape, back_ns=round(HISTORY * self._interval_s * NS), until_ns=at_ns))

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()


def _before_run(run: Run) -> tuple[float, dict[str, float]]:
    """How long the only tape of a run had been recorded when its first span began, and the joules of each source."""
    (tape,), ((*windows,),) = run.tapes, run.windows()
    low_ns, start_ns = tape.extent_ns()[0], min((start for start, _ in windows), default=0)
    if start_ns <= low_ns:
        return 0.0, {}
    found = {source.label: source_energies(source, [(low_ns, start_ns)]).joules or 0.0 for source in sources(tape)}
    return (start_ns - low_ns) / NS, found


def _less(amount: Amount, joules: float) -> Amount:
    if amount.joules is None or not joules:
        return amount
    low, high = (None if end is None else max(0.0, end - joules) for end in (amount.low, amount.high))
    return replace(amount, joules=max(0.0, amount.joules - joules), low=low, high=high)


def _after_s(run: Run, tape: Tape, windows: Sequence[tuple[int, int]]) -> float:
    """Seconds from the start of the run's recording to where the first of these windows of a tape begins."""
    at_ns, first = windows[0][0], run.tapes[0]
    if len(run.tapes) == 1:
        return (at_ns - first.extent_ns()[0]) / NS
    return (tape.to_utc_ns(at_ns) - first.to_utc_ns(first.extent_ns()[0])) / NS


def _amount(energy: Energy) -> Amount:
    return Amount(energy.joules, energy.low, energy.high, energy.pedigree, energy.coverage, energy.refused)


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
        return f"batch {self._tapes.title}"

    @property
    def seekable(self) -> bool:
        return self._tapes.seekable

    def seek(self, seconds: float) -> None:
        """Move in a finished recording; the items stay as they ended."""
        self._tapes.seek(seconds)

    def poll(self) -> Snapshot:
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
        self._tapes.close()
