"""The runs of a folder: found, looked up by name, and read for the list, each only once until its files change.

Report documents are made in a thread, shared by all who ask for the same one, and kept while memory lasts.

Nothing is written: unlike `everywatt.load`, what a killed recorder left is opened as it is and not sealed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everywatt.api.power import power_line
from everywatt.api.run import Run, opened
from everywatt.core.errors import EverywattError, RunNotFound
from everywatt.core.format import format_duration, format_energy
from everywatt.core.jsonio import declared, dumps, plain
from everywatt.energy.sources import addable, sources
from everywatt.footprint.carbon import Factors
from everywatt.report.html.data import report_document
from everywatt.report.live.tape_source import QUIET_S
from everywatt.report.web.assets import JSON, Asset, fingerprint
from everywatt.tape.reader import Tape
from everywatt.tape.run_store import list_runs, segments

Signature = tuple[tuple[str, int, int, int], ...]

LOOK_AGAIN_S = 0.5
SPARK_POINTS = 40
SPARK_BELOW_BYTES = 4 << 20  # the line of a longer run takes longer to read than a list should
MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Listed:
    """One run of the list. `row` is what the page shows; None: not read yet."""

    key: str
    path: Path
    signature: Signature
    row: Mapping[str, Any] | None = None


class RunIndex:
    """The runs of `home`. Safe from any thread."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock = threading.Lock()
        self._found: dict[str, Listed] = {}
        self._looked_s = float("-inf")

    def path_of(self, key: str) -> Path:
        """Where the run called `key` is: looked up in the list, never made from the name. Raises RunNotFound."""
        with self._lock:
            self._look()
            found = self._found.get(key)
        if found is None:
            raise RunNotFound("There is no run of that name.")
        return found.path

    def rows(self, budget_s: float = float("inf")) -> tuple[list[dict[str, Any]], int]:
        """The list, newest first, and how many of it are not read yet because the time was up."""
        deadline_s = time.monotonic() + budget_s
        with self._lock:
            self._look()
            for key in reversed(self._found):
                listed = self._found[key]
                if listed.row is None:
                    self._found[key] = Listed(key, listed.path, listed.signature, read_row(listed.path))
                    if time.monotonic() > deadline_s:
                        break
            found = list(reversed(self._found.values()))
        pending = sum(listed.row is None for listed in found)
        return [{"key": one.key, **(one.row or {"pending": True}), "live": is_live(one)} for one in found], pending

    def _look(self) -> None:
        """See what is there; what has not changed keeps its row."""
        if time.monotonic() - self._looked_s < LOOK_AGAIN_S:
            return
        found: dict[str, Listed] = {}
        try:
            paths = list_runs(self.home)
        except OSError:
            paths = []
        for path in paths:
            key = key_of(path)
            now, before = signature(path), self._found.get(key)
            found[key] = before if before is not None and before.signature == now else Listed(key, path, now)
        self._found = found
        self._looked_s = time.monotonic()


def key_of(path: Path) -> str:
    """What a run is called in addresses: its file's name, with signs in place of bytes that are no text."""
    return os.fsencode(path.name).decode("utf-8", "replace")


def signature(path: Path) -> Signature:
    """What changes when a run does: name, time, size and inode of its tapes and of their logs."""
    found = []
    for tape in segments(path):
        for file in (tape, tape.with_name(f"{tape.name}-wal")):
            try:
                stat = file.stat()
            except OSError:
                continue
            found.append((file.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def is_live(listed: Listed) -> bool:
    """Whether it is recording: not sealed, and changed recently."""
    if listed.row is not None and listed.row.get("sealed"):
        return False
    newest_ns = max((entry[1] for entry in listed.signature), default=0)
    return any(entry[0].endswith("-wal") for entry in listed.signature) and time.time_ns() - newest_ns < QUIET_S * 1e9


def open_run(path: Path, *, verify: bool | None = None) -> Run:
    """The run, opened as it is. Raises TapeError or RunNotFound."""
    return opened(path, lambda file: Tape.open(file, verify=verify))


def close_run(run: Run) -> None:
    for tape in run.tapes:
        tape.close()


def read_row(path: Path) -> dict[str, Any]:
    """What the list shows of a run; where it cannot be read, why."""
    run = None
    try:
        run = open_run(path, verify=False)
        return dict(plain(_row(run)))
    except EverywattError as error:
        return {"name": _name(path), "trouble": error.message}
    except Exception as error:  # noqa: BLE001 - a file from anywhere: one that breaks the reader must not hide the others
        return {"name": _name(path), "trouble": f"The file cannot be read: {type(error).__name__}."}
    finally:
        if run is not None:
            close_run(run)


def _name(path: Path) -> str:
    return path.stem if path.is_file() else path.name


def _row(run: Run) -> dict[str, Any]:
    energy, meta, duration_s = run.energy(), run.meta, run.duration_s
    tags = meta.get("tags")
    command = meta.get("command")
    return {
        "name": run.name,
        "started": run.started.isoformat(timespec="seconds"),
        "duration_s": duration_s,
        "duration": format_duration(duration_s),
        **declared(energy, "joules low high"),
        "shown": format_energy(energy) if energy.joules is not None else None,
        **declared(energy, "refused scope pedigree coverage"),
        "tags": {_cut(key): _cut(value) for key, value in tags.items()} if isinstance(tags, Mapping) else {},
        "command": _cut(shlex.join(map(str, command)) if isinstance(command, list) else command or ""),
        "host": _cut(_host(meta)),
        "note": _cut(meta.get("note") or ""),
        "sealed": all(tape.sealed for tape in run.tapes),
        "spark": sparkline(run, duration_s),
    }


def _cut(text: object) -> str:
    words = str(text)
    return words if len(words) <= MOST_TEXT else words[: MOST_TEXT - 1] + "…"


def _host(meta: Mapping[str, Any]) -> str:
    host = meta.get("host")
    return str(host.get("name", "") if isinstance(host, Mapping) else host or "")


def sparkline(run: Run, duration_s: float) -> list[float | None] | None:
    """Mean power in equal steps of time; None where that is not cheap to know."""
    if len(run.tapes) != 1 or duration_s <= 0 or run.tapes[0].path.stat().st_size > SPARK_BELOW_BYTES:
        return None
    (windows,) = run.windows()
    edges_ns = np.linspace(windows[0][0], windows[-1][1], SPARK_POINTS + 1).astype(np.int64)
    lines = [power_line(source) for source in addable(sources(run.tapes[0]))]
    if not lines or None in lines:
        return None
    watts = np.sum([line.means(edges_ns) for line in lines if line is not None], axis=0)
    return [round(float(value), 3) if np.isfinite(value) else None for value in watts]


MOST_RUNS = 16
MOST_BYTES = 64 << 20
AT_ONCE = 2


class Documents:
    """Report documents by the runs they are about."""

    def __init__(self, factors: Factors | None = None) -> None:
        self._factors = factors
        self._kept: OrderedDict[str, Asset] = OrderedDict()
        self._making: dict[str, asyncio.Task[Asset]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def of(self, paths: Sequence[Path]) -> Asset:
        """The document over these runs as their files are now. Raises what opening them raises."""
        etag = fingerprint([(str(path), signature(path)) for path in paths])
        if etag in self._kept:
            self._kept.move_to_end(etag)
            return self._kept[etag]
        if etag not in self._making:
            task = self._making[etag] = asyncio.ensure_future(self._make(etag, tuple(paths)))
            task.add_done_callback(lambda done: self._making.pop(etag, None))
            # A viewer that leaves does not cancel it for the others, nor leave an unobserved exception.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._making[etag])

    async def _make(self, etag: str, paths: Sequence[Path]) -> Asset:
        async with self._room:
            document = Asset(await asyncio.to_thread(write, paths, self._factors), JSON, etag)
        self._keep(document)
        return document

    def _keep(self, document: Asset) -> None:
        self._kept[document.etag] = document
        while len(self._kept) > 1 and sum(len(one.body) for one in self._kept.values()) > MOST_BYTES:
            self._kept.popitem(last=False)


def write(paths: Sequence[Path], factors: Factors | None = None) -> bytes:
    """The report document over runs, as `everywatt report` puts it into its file."""
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        for path in paths:
            run = open_run(path)
            stack.callback(close_run, run)
            runs.append(run)
        command = ["everywatt", "report", *(run.name for run in runs)]
        return dumps(report_document(runs, factors=factors, command=command)).encode("utf-8", "replace")
