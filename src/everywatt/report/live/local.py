"""This machine as a live source: a recording on a tape of its own, that is replaced before it grows and then removed.

The recorder is shared, so that another tape costs little, and two tapes that overlap hold the same rows: the view goes
from one to the next without losing any.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everywatt.api.provenance import provenance
from everywatt.api.run import Run
from everywatt.core.channels import Kind
from everywatt.core.clocks import NS
from everywatt.core.errors import NoSensor, RecorderError, TapeError, UsageError
from everywatt.core.machine import Machine
from everywatt.recorder.client import Recording, record
from everywatt.recorder.request import RecordRequest
from everywatt.report.live.gather import Gatherer, left_out
from everywatt.report.live.owners import LedgerOwners, OwnersAsker, RunningOwners
from everywatt.report.live.snapshot import Snapshot
from everywatt.sensors.procfs import parse_meminfo, slurp
from everywatt.tape.following import Follower
from everywatt.tape.reader import Tape

ROTATE_S = 300.0
OFTEN_S = 0.1
FIRST_ROWS_S = 30.0  # a sensor with a slow first answer (IPMI, SNMP) or a busy machine takes some seconds
PREFIX = "everywatt-monitor-"


class LocalSource:
    """Snapshots of this machine.

    interval_s   how long a stretch one power stands for
    asked        what is recorded, and how often sensors are read
    by           owners by process, container, user or job; None: no owners
    once         it will be asked once, so owners come from a whole ledger
    keep         the folder of a run that the recording is to be kept in; None: it is removed at the end
    meta         more to be kept with the run
    rotate_s     a temporary tape is replaced by a new one after so long
    """

    def __init__(
        self,
        interval_s: float,
        asked: RecordRequest,
        *,
        by: str | None = None,
        once: bool = False,
        keep: Path | None = None,
        meta: Mapping[str, Any] | None = None,
        rotate_s: float = ROTATE_S,
    ) -> None:
        self._interval_s = interval_s
        self._asked = replace(asked, everything=by is not None or keep is not None)
        self._rotate_s = rotate_s if keep is None else float("inf")
        self._keep, self._meta = keep, dict(meta or {})
        self._owners: OwnersAsker | None = None
        if by:
            self._owners = LedgerOwners(by) if once else RunningOwners(by, proc=Machine.here().proc)
        remove_left_behind()
        self._folder = keep or Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._count = 0
        self._recording: Recording | None = None
        self._follower: Follower | None = None
        try:
            self._recording = self._record()
            if asked.period_s > OFTEN_S and publishes_more_often(self._recording, asked.period_s):
                # Between two readings of a power sensor nothing is counted: it is read as often as it publishes.
                self._asked = replace(self._asked, period_s=OFTEN_S)
                self._recording.close(linger=False)
                self._recording = self._record()
            self._gatherer = Gatherer(interval_s, memory_total_bytes=memory_totals(self._recording.reports))
            self._follow(self._recording, continues=False)
        except BaseException:
            self.close()
            raise

    @property
    def title(self) -> str:
        return "this machine" if self._keep is None else f"this machine, recording {self._keep.name}"

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What the sensors said when they were probed."""
        return [] if self._recording is None else self._recording.reports

    def _record(self) -> Recording:
        self._count += 1
        recording = record(
            self._folder / f"{socket.gethostname()}-{self._count:04d}.tape",
            self._asked,
            meta=provenance(None, period_s=self._asked.period_s, live=True, run=self._folder.name, **self._meta),
        )
        refuse_missing_cards(recording, self._asked.devices)
        refuse_without_power(recording)
        return recording

    def _follow(self, recording: Recording, *, continues: bool) -> None:
        """Read the recording's tape from its start."""
        deadline_s = time.monotonic() + FIRST_ROWS_S
        while True:
            try:
                tape = Tape.open(recording.path, verify=False)
                if any(not group.info.table and tape.frames(group.id) for group in tape.groups):
                    break
                tape.close()
            except TapeError as error:
                if time.monotonic() > deadline_s:
                    raise RecorderError(f"The recorder wrote nothing: {error}") from error
            if time.monotonic() > deadline_s:
                raise RecorderError("The recorder wrote nothing.", cure="everywatt doctor")
            time.sleep(0.05)
        before, self._follower = self._follower, Follower(tape)
        self._gatherer.adopt(tape, continues=continues)
        if before is not None:
            before.close()
        self._began_s = time.monotonic()

    def poll(self) -> Snapshot:
        assert self._recording is not None and self._follower is not None
        self._mind_recorder()
        if time.monotonic() - self._began_s > self._rotate_s:
            self._rotate()
        self._gatherer.feed(self._follower.look())
        self._gatherer.bounds.update(self._gatherer.tape_s)
        return self._snapshot()

    def _mind_recorder(self) -> None:
        """A recorder that ended is replaced; the recording then goes on in another file."""
        assert self._recording is not None and self._follower is not None
        if self._recording.path != self._follower.tape.path or self._follower.tape.sealed:
            self._follow(self._recording, continues=False)
            return
        if time.monotonic_ns() - self._gatherer.last_ns > 5 * max(self._interval_s, 1.0) * NS:
            self._recording.status()

    def _rotate(self) -> None:
        """Begin another tape, go over to it, and remove the old one."""
        assert self._recording is not None and self._follower is not None
        young = self._record()
        old, self._recording = self._recording, young
        self._gatherer.feed(self._follower.look())
        self._follow(young, continues=True)
        old.close(linger=False)
        if self._owners is not None:
            with contextlib.suppress(TapeError), contextlib.closing(Tape.open(old.path, verify=False)) as left:
                self._owners.finish(left, self._gatherer.lines, self._gatherer.last_ns)
        for file in self._folder.glob(f"{old.path.name}*"):
            file.unlink(missing_ok=True)

    def _snapshot(self) -> Snapshot:
        gatherer = self._gatherer
        assert self._follower is not None and self._recording is not None
        now_ns = time.monotonic_ns()
        devices = gatherer.devices(now_ns)
        owners = None
        if self._owners is not None:
            tape = self._follower.tape
            run = Run(tape.path, [tape])
            owners = self._owners.ask(run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
        notes = (*left_out(devices), *gatherer.bounds.notes, *self._recording.notes)
        found = gatherer.snapshot(self.title, devices, socket.gethostname(), notes, time.time_ns())
        return replace(found, owners=owners)

    def close(self) -> None:
        """End the recording, and remove its tape unless it is to be kept."""
        if self._follower is not None:
            self._follower.close()
        if self._recording is not None:
            with contextlib.suppress(RecorderError, OSError):
                self._recording.close(linger=self._keep is not None)
        if self._keep is None:
            shutil.rmtree(self._folder, ignore_errors=True)


def refuse_missing_cards(recording: Recording, gpus: str | None) -> None:
    """UsageError where a card that is asked for by its number is not recorded; the recording is closed first."""
    words = [word.strip() for word in (gpus or "").split(",") if word.strip()]
    found = {channel.device.split()[0] for group in recording.groups for channel in group.channels}
    missing = [w for w in words if not w.upper().startswith(("GPU-", "MIG-")) and f"gpu.{w}" not in found]
    if missing:
        recording.close(linger=False)
        raise UsageError(f"There is no card {missing[0]} on this machine.", cure="everywatt sensors")


def refuse_without_power(recording: Recording) -> None:
    """NoSensor where nothing that is recorded carries energy; the recording is closed first."""
    if any(channel.carries_energy for group in recording.groups for channel in group.channels):
        return
    why = [str(report.get("why")) for report in recording.reports if report.get("power") and report.get("why")]
    recording.close(linger=False)
    raise NoSensor(f"No sensor on this machine measures power. {' '.join(why)}".strip(), cure="everywatt doctor")


def publishes_more_often(recording: Recording, period_s: float) -> bool:
    """Whether some device has no counter, and a power sensor that publishes more often than it would be read."""
    for group in recording.groups:
        carrying = [channel for channel in group.channels if channel.carries_energy]
        if not carrying or any(channel.kind is Kind.COUNTER for channel in carrying):
            continue
        if any(group.tracked or (c.facts.period_s or period_s) < period_s for c in carrying):
            return True
    return False


def memory_totals(reports: Sequence[Mapping[str, Any]], machine: Machine | None = None) -> dict[str, float]:
    """Bytes of memory of each card, and of the host."""
    totals: dict[str, float] = {}
    for report in reports:
        for device in report.get("devices") or ():
            if device.get("device") and device.get("memory_bytes"):
                totals[str(device["device"])] = float(device["memory_bytes"])
    try:
        found = parse_meminfo(slurp((machine or Machine.here()).proc / "meminfo", 512)).get("MemTotal")
    except (OSError, ValueError):
        found = None
    if found:
        totals["host"] = float(found)
    return totals


def remove_left_behind(folder: Path | None = None) -> None:
    """Remove tapes of views that were killed: their process is gone, so nothing else will."""
    for place in (folder or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        pid = place.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and place.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(place, ignore_errors=True)
