"""System calls that fail: the n-th of a process, those of one kind, or all for a while.

`watch` puts itself between the programs of a `VirtualTime` and the calls that open, write, sync, rename, make folders,
accept and send. Calls of the test itself are left alone, and files outside the test's folder (what Python imports, and
how often, depends on what ran before). SQLite's writes are counted at its statements.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from virtual_time import Killed, Process, VirtualTime

KINDS = ("open", "write", "fsync", "rename", "mkdir", "accept", "send")
_SQLITE = {errno.ENOSPC: "database or disk is full", errno.EMFILE: "unable to open database file"}
_WRITES = ("BEGIN", "COMMIT", "INSERT", "CREATE", "PRAGMA journal_mode", "PRAGMA wal_checkpoint")


@dataclass
class Fault:
    """Calls of processes whose name begins with `process` fail from the `nth` on (counted from 1), `times` of them.

    `kind` None: calls of every kind count. `number` is the errno; KILL ends the process there, LOST swallows a message.
    """

    process: str
    nth: int
    number: int
    kind: str | None = None
    times: int = 1
    calls: int = 0

    def strikes(self, process: Process, kind: str) -> bool:
        if not process.name.startswith(self.process) or self.kind not in (None, kind):
            return False
        self.calls += 1
        return self.nth <= self.calls < self.nth + self.times


KILL, LOST = -1, -2


class FaultyIo:
    """What is to fail, and what was called: (process, kind) in order."""

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str]] = []
        self._databases: dict[Process, list[tuple[Path, sqlite3.Connection]]] = {}

    def call(self, kind: str) -> bool:
        """Before a call: raises where it is to fail; False where it is to do nothing."""
        process = self.time.current.process
        if process is self.time.test:
            return True
        if process.killed:
            raise Killed
        self.calls.append((process.name, kind))
        for fault in self.faults:
            if fault.strikes(process, kind):
                if fault.number == KILL:
                    self.time.kill(process)
                    raise Killed
                if fault.number == LOST:
                    return False
                raise OSError(fault.number, os.strerror(fault.number))
        return True

    def statement(self, sql: str) -> None:
        """Before a statement of SQLite."""
        if sql.startswith(_WRITES):
            try:
                self.call("write")
            except OSError as error:
                raise sqlite3.OperationalError(_SQLITE.get(error.errno or 0, "disk I/O error")) from None

    def opened(self, path: Path, db: sqlite3.Connection) -> None:
        """A database was opened: a kill leaves its file and its log as they are."""
        process = self.time.current.process
        if process not in self._databases:
            self._databases[process] = []
            process.on_kill.append(lambda: self._leave(process))
        self._databases[process].append((path, db))

    def _leave(self, process: Process) -> None:
        for path, db in self._databases.pop(process, ()):
            # Closing would empty the log, which nobody does for a process that is killed.
            sides = [Path(f"{path}{side}") for side in ("", "-wal")]
            kept = [side.read_bytes() if side.exists() else None for side in sides]
            with suppress(sqlite3.Error):
                db.close()
            for side, data in zip(sides, kept, strict=True):
                if data is not None:
                    side.write_bytes(data)
                    self.stamp(side)
            Path(f"{path}-shm").unlink(missing_ok=True)

    def stamp(self, *paths: Path | str) -> None:
        """Files have the virtual time as their time of change."""
        for path in paths:
            with suppress(OSError):
                os.utime(path, ns=(self.time.utc_ns(), self.time.utc_ns()))


@contextmanager
def watch(time: VirtualTime, folder: Path) -> Iterator[FaultyIo]:
    """Put a `FaultyIo` between programs and system."""
    faulty, inside = FaultyIo(time), str(folder)

    class Database(sqlite3.Connection):
        path = ""

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            faulty.statement(sql)
            cursor = super().execute(sql, *arguments)
            if sql == "COMMIT":
                faulty.stamp(self.path, f"{self.path}-wal")
            return cursor

        def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            faulty.statement(sql)
            return super().executemany(sql, *arguments)

    connect = sqlite3.connect

    def open_database(path: Any, *words: Any, **options: Any) -> sqlite3.Connection:
        try:
            faulty.call("open")
        except OSError:
            raise sqlite3.OperationalError("unable to open database file") from None
        db = connect(path, *words, **{**options, "factory": Database, "check_same_thread": False})
        name = str(path).removeprefix("file:").partition("?")[0]
        db.path = name  # type: ignore[attr-defined]
        faulty.opened(Path(name), db)
        if time.current.process is not time.test:
            faulty.stamp(name)
        return db

    def watched(kind: str, function: Callable[..., Any], nothing: Callable[..., Any] | None = None) -> Any:
        def call(*words: Any, **options: Any) -> Any:
            return function(*words, **options) if faulty.call(kind) or nothing is None else nothing(*words)

        return call

    def opening(function: Callable[..., Any]) -> Any:
        def call(path: Any, mode: Any = "r", *words: Any, **options: Any) -> Any:
            if not isinstance(path, int) and os.fsdecode(path).startswith(inside):
                faulty.call("open")
            return function(path, mode, *words, **options)

        return call

    def replacing(function: Callable[..., Any]) -> Any:
        def call(source: Any, target: Any, **options: Any) -> Any:
            faulty.call("rename")
            function(source, target, **options)
            faulty.stamp(target)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", open_database)
        patch.setattr(os, "open", opening(os.open))
        for module in (io, builtins):
            patch.setattr(module, "open", opening(module.open))
        patch.setattr(os, "mkdir", watched("mkdir", os.mkdir))
        patch.setattr(os, "fsync", watched("fsync", os.fsync))
        patch.setattr(os, "replace", replacing(os.replace))
        patch.setattr(os, "rename", replacing(os.rename))
        patch.setattr(socket.socket, "accept", watched("accept", socket.socket.accept))
        send = socket.socket.send
        patch.setattr(socket.socket, "send", watched("send", send, lambda sock, data, *_: len(data)))
        yield faulty
