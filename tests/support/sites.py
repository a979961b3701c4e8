"""Folders of runs for the live page, and the page over them without a server."""

from __future__ import annotations

import shutil
from pathlib import Path

from reports import write_run
from snapshots import snapshot
from tapes import at, counter_group, rows

from everywatt.core.channels import Domain
from everywatt.core.clocks import Anchor
from everywatt.core.spans import Span
from everywatt.tape.writer import TapeWriter

EVIL_RUN = "<script>window.evil = 2<|script>"
"""A name that a file may have; a slash it may not."""
HOST = "127.0.0.1:8765"
UTC_NS = 1_700_000_000 * 10**9


def small_run(folder: Path, number: int, *, project: str = "alpha", watts: float = 40.0, seconds: float = 2.0) -> Path:
    """A folder with one sealed tape of one package, `number` hours after the first."""
    folder.mkdir(parents=True)
    meta = {
        "host": {"name": "box"},
        "command": ["python", f"job{number}.py"],
        "tags": {"project": project, "size": "large" if number % 2 else "small"},
        "period_s": 0.1,
    }
    writer = TapeWriter(folder / "box-0001.tape", meta)
    writer.anchor(Anchor(at(0), UTC_NS + number * 3600 * 10**9, at(0), 0))
    group = writer.add_group(counter_group("cpu.0", Domain.PACKAGE, quantum=6e-5, max_w=200.0), 0.1)
    writer.append(group, rows(lambda t: watts * t, 0.0, seconds, 0.1))
    writer.span_open(Span("s0", "run", at(0), None, None, {}))
    writer.span_close("s0", at(seconds))
    writer.flush()
    writer.seal()
    return folder


def write_home(home: Path, count: int = 3) -> Path:
    """Runs of 40 W, 41 W, …; one that is a file with something of everything, one with an evil name, one broken."""
    for number in range(count):
        project = ("alpha", "beta", "gamma")[number % 3]
        small_run(home / f"20261115-{number:06d}-job", number, project=project, watts=40.0 + number)
    write_run(home / "whole.tape")
    shutil.copy(home / "whole.tape", home / f"{EVIL_RUN}.tape")
    (home / "broken.tape").write_bytes(b"this is not a tape")
    return home


class FakeSource:
    """A live source whose power counts up."""

    def __init__(self, polls: int | None = None) -> None:
        self.polls = 0
        self.closed = False
        self._most = polls

    title = "this machine"

    def poll(self):
        self.polls += 1
        live = self._most is None or self.polls < self._most
        return snapshot(2, total_w=100.0 + self.polls, live=live)

    def close(self) -> None:
        self.closed = True


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and bytes: equal before and after where nothing was written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
