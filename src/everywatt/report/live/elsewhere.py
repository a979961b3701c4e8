"""What SOURCE means: an agent's address, a batch's telemetry log, or a run."""

from __future__ import annotations

from pathlib import Path

from everywatt.report.live.agent_source import AgentSource
from everywatt.report.live.sources import LiveSource
from everywatt.report.live.tape_source import TapeSource
from everywatt.report.live.telemetry import TelemetrySource

LOG_ENDINGS = (".jsonl", ".ndjson")


def open_source(
    source: str, interval_s: float, *, by: str | None = None, gpus: tuple[str, ...] = (), home: Path | None = None
) -> LiveSource:
    """The live source that a word on the command line means. Raises RunNotFound where it means nothing."""
    if source.startswith(("http://", "https://")):
        return AgentSource(source, interval_s, gpus=gpus)
    if source.endswith(LOG_ENDINGS) and Path(source).is_file():
        return TelemetrySource(Path(source))
    from everywatt.core.config import resolve
    from everywatt.tape.run_store import existing_home, find_run

    return TapeSource(find_run(source, existing_home(home or resolve().home)), interval_s, by=by, gpus=gpus)
