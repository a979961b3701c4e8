"""Where snapshots come from. A source is polled once an interval and closed at the end."""

from __future__ import annotations

from typing import Protocol

from everywatt.report.live.snapshot import Snapshot


class LiveSource(Protocol):
    """One thing to look at."""

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
