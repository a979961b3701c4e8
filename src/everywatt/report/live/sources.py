"""Where snapshots come from, and what SOURCE means: an agent's address, a batch's telemetry log, or a run."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from everywatt.core.errors import UsageError
from everywatt.report.live.snapshot import Snapshot

LOG_ENDINGS = (".jsonl", ".ndjson")


class LiveSource(Protocol):
    """One thing to look at. It is polled once an interval and closed at the end."""

    @property
    def title(self) -> str:
        """What it is, for the head of the screen."""
        ...

    def poll(self) -> Snapshot:
        """How things stand now."""
        ...

    def close(self) -> None:
        """Let go of files, and of what was only made to look at."""
        ...


def open_source(
    source: str,
    interval_s: float,
    *,
    by: str | None = None,
    gpus: tuple[str, ...] = (),
    home: Path | None = None,
    tail: int,
    token_file: Path | None = None,
    ca: Path | None = None,
) -> LiveSource:
    """The live source that a word on the command line means. Raises RunNotFound where it means nothing.

    `token_file` and `ca` are for an agent that wants a token, or whose certificate is not the system's to trust.
    """
    from everywatt.report.live.agent_source import Access, AgentSource
    from everywatt.report.live.tape_source import JOURNAL, BatchSource, TapeSource
    from everywatt.report.live.telemetry import TelemetrySource

    if source.startswith(("http://", "https://")):
        return AgentSource(source, interval_s, gpus=gpus, access=Access.of(token_file, ca))
    if token_file is not None or ca is not None:
        raise UsageError(
            "--token-file and --ca require an agent as SOURCE.", cure="everywatt monitor https://host:port"
        )
    if source.endswith(LOG_ENDINGS) and Path(source).is_file():
        return TelemetrySource(Path(source), tail=tail)
    from everywatt.core.config import resolve
    from everywatt.tape.run_store import existing_home, find_run

    path = find_run(source, existing_home(home or resolve().home))
    is_batch = path.is_dir() and (path / JOURNAL).is_file()
    tapes = TapeSource(path, interval_s, by=None if is_batch else by, gpus=gpus)
    return BatchSource(path, tapes, tail=tail) if is_batch else tapes
