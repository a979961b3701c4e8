"""The journal: what became of each item, as JSON lines in the run's folder.

A line is written by one call, at the end of the file, so a kill loses no line that was written and a torn last one is
recognised. The newest state of an item is its last line. Beside it, workers write the end of each command as soon as
they see it (`EXITS`): an item that ended while the batch was being killed is then known to be done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everywatt.batch.items import Item
from everywatt.bench.experiment import JsonLines, numbered_lines, read_lines
from everywatt.core.device import Device as TapeDevice
from everywatt.core.errors import RunNotFound, UsageError
from everywatt.core.jsonio import ToDict, declared

JOURNAL = "batch.jsonl"
EXITS = "batch-exits.jsonl"
DONE, FAILED, INTERRUPTED = "done", "failed", "interrupted"
PENDING, RUNNING = "pending", "running"
ORDER = "PCI_BUS_ID"  # CUDA's own is by speed, and a number would mean another board than on the tape
LOOK_S = 0.05  # a reader that asks whether a batch is in progress holds the lock for less


@dataclass(frozen=True, slots=True)
class Device(ToDict):
    """Where items run. `visible` is its CUDA_VISIBLE_DEVICES, "" for the CPU; `name` is its name on the tape.

    `host` is empty unless it is a device of a job array. A journal does not keep `visible`.
    """

    JSON = "device=name name=title uuid memory_bytes"

    name: str
    visible: str = ""
    title: str = ""
    uuid: str = ""
    memory_bytes: float | None = None
    host: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Device:
        name, title, uuid, host = (str(data.get(key) or "") for key in ("device", "name", "uuid", "host"))
        return cls(name, "", title, uuid, data.get("memory_bytes"), host)

    def to_dict(self) -> dict[str, Any]:
        return {**ToDict.to_dict(self), **({"host": self.host} if self.host else {})}

    @property
    def index(self) -> str:
        """What `{gpu}` becomes: the number of the board in PCI bus order; empty for the CPU."""
        return TapeDevice.parse(self.name).name if self.is_gpu else ""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU or a part of one."""
        return TapeDevice.parse(self.name).is_gpu

    def environment(self) -> dict[str, str]:
        """What a command there has to see: this device alone."""
        return {"CUDA_VISIBLE_DEVICES": self.visible, "CUDA_DEVICE_ORDER": ORDER}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of an item: where, in which span, and how it ended. `status` is running, done, failed or interrupted.

    `host` and `task` are empty unless the item ran in a task of a job array.
    """

    number: int
    device: str
    lane: int
    span: str | None = None
    status: str = RUNNING
    at: str = ""
    ended: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""
    task: str = ""

    @property
    def exit_code(self) -> int | None:
        """Of the command; 128+n where signal n ended it; None while it runs or where it was lost."""
        return self.ended.get("exit_code")

    @property
    def runtime_s(self) -> float | None:
        """Seconds from its start to its end."""
        return self.ended.get("runtime_s")

    @property
    def oom(self) -> str | None:
        """Whose memory ran out, None where none did."""
        return self.ended.get("oom")


@dataclass(slots=True)
class State:
    """What is known of one item."""

    item: Item
    status: str = PENDING
    attempts: list[Attempt] = field(default_factory=list)
    file: Mapping[str, Any] | None = None

    @property
    def device(self) -> str | None:
        return self.attempts[-1].device if self.attempts else None


@dataclass(slots=True)
class History:
    """A journal as read: the command, the items with their states, the lanes' devices, and sentences on what is off.

    options    what the command line said, by the names of options; None where an earlier version wrote the journal
    source     where the items were read from, as given
    collected  the submissions of a job array whose results are in it
    late       items whose end is known from their worker alone
    """

    command: list[str] = field(default_factory=list)
    options: dict[str, Any] | None = None
    source: str | None = None
    states: dict[str, State] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    collected: set[str] = field(default_factory=set)
    late: list[State] = field(default_factory=list)


class Journal(JsonLines):
    """Appends lines; safe against a kill between any two of them."""

    def __init__(self, folder: Path) -> None:
        import fcntl  # Windows has no such module, and reads journals too

        super().__init__(folder / JOURNAL, 0o644)
        for wait_s in (LOOK_S, None):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if wait_s is None:
                    os.close(self._fd)
                    raise UsageError(f"{folder.name} is in use by another everywatt batch.") from None
                time.sleep(wait_s)

    def batch(
        self,
        command: Sequence[str],
        items: Sequence[Item],
        devices: Sequence[Device],
        *,
        options: Mapping[str, Any] | None = None,
        source: str | None = None,
    ) -> None:
        """A session begins; the items are those that the journal does not have yet.

        They come first: a journal with the line of the batch has all of its items, wherever it was killed.
        """
        more: dict[str, Any] = {"options": dict(options)} if options is not None else {}
        more |= {"source": source} if source is not None else {}
        listed = [one.to_dict() for one in devices]
        for item in items:
            self.write({"kind": "item", **item.to_dict()})
        self.write({"kind": "batch", "at": now(), "command": list(command), "devices": listed, **more})

    def start(self, item: Item, attempt: Attempt) -> None:
        data = declared(attempt, "attempt=number device lane span")
        data |= {key: value for key, value in (("host", attempt.host), ("task", attempt.task)) if value}
        self.write({"kind": "start", "at": attempt.at or now(), "id": item.id, **data})

    def end(
        self, item: Item, number: int, status: str, ended: Mapping[str, Any], *, final: bool, device: str = ""
    ) -> None:
        """An attempt has ended; `final`: the item will not be tried again in this session."""
        data = {"attempt": number, "status": status, "final": final, "device": device, "ended": dict(ended)}
        self.write({"kind": "end", "at": now(), "id": item.id, **data})

    def collected(self, part: str) -> None:
        """What the tasks of a submission have come to is here now."""
        self.write({"kind": "collected", "at": now(), "part": part})

    def close(self) -> str:
        """Have everything on the disk; gives a sentence where that is not possible, else nothing."""
        why = super().close()
        return why and f"{why}: a resumed batch will run some items again."


def in_progress(folder: Path) -> bool:
    """Whether a process works on the batch: it holds the lock of its journal. True where that cannot be known."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        with (folder / JOURNAL).open("rb") as journal:
            fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def read_journal(folder: Path) -> History:
    """The contents of a run's journal. RunNotFound if it has no journal: it is not a batch."""
    history, torn = History(), list[int]()
    try:
        records = list(numbered_lines(folder / JOURNAL, torn))
    except OSError:
        raise RunNotFound(f"{folder} is not a batch: it has no {JOURNAL}.", cure="everywatt list") from None
    history.trouble += [f"line {number} of the journal is incomplete and was skipped" for number in torn]
    for number, record in records:
        try:
            _apply(history, record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            history.trouble.append(f"line {number} of the journal is damaged and was skipped: {error!r}")
    _apply_exits(history, folder / EXITS)
    return history


def _apply_exits(history: History, path: Path) -> None:
    """An attempt without an end whose worker saw it succeed is done. One that failed stays open, to be tried again."""
    if not any(state.status == RUNNING for state in history.states.values()):
        return
    for record in read_lines(path):
        state = history.states.get(str(record.get("id")))
        if state is None or state.status != RUNNING or record.get("exit_code") != 0 or record.get("timed_out"):
            continue
        last = state.attempts[-1]
        if last.number == record.get("attempt"):
            ended: dict[str, Any] = {key: record[key] for key in ("exit_code", "runtime_s", "cpu_s") if key in record}
            state.attempts[-1] = replace(last, status=DONE, ended=ended)
            state.status = DONE
            history.late.append(state)


def _apply(history: History, record: Mapping[str, Any]) -> None:
    kind = record.get("kind")
    if kind == "batch":
        history.command = [str(word) for word in record.get("command", ())]
        known = {_identity(one) for one in history.devices}
        listed = [Device.from_dict(one) for one in record.get("devices", ())]
        history.devices += [one for one in listed if _identity(one) not in known]
        if isinstance(record.get("options"), dict):
            history.options = record["options"]
        history.source = record.get("source", history.source)
        return
    if kind == "collected":
        history.collected.add(str(record.get("part")))
        return
    if kind == "item":
        item = Item.from_dict(record)
        history.states.setdefault(item.id, State(item)).item = item
        return
    state = history.states.get(str(record.get("id")))
    if state is None:
        return
    if kind == "start":
        attempt = Attempt(
            int(record["attempt"]),
            str(record["device"]),
            int(record["lane"]),
            record.get("span"),
            at=str(record.get("at", "")),
            host=str(record.get("host", "")),
            task=str(record.get("task", "")),
        )
        state.attempts.append(attempt)
        state.status = RUNNING
    elif kind == "end":
        for place, attempt in enumerate(state.attempts):
            if attempt.number == record["attempt"]:
                state.attempts[place] = replace(attempt, status=record["status"], ended=record.get("ended", {}))
                state.file = state.attempts[place].ended.get("file") or state.file
        status = str(record["status"])
        state.status = status if record.get("final") or status in (DONE, INTERRUPTED) else PENDING


def _identity(device: Device) -> tuple[str, str, str]:
    return device.host, device.name, device.uuid


def now() -> str:
    """UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
