"""A provider of jobs for agents of tests: what this very user does is job 4711."""

from __future__ import annotations

import os

from everywatt.fleet.jobs import Job


class Provider:
    """By the user alone."""

    def job_of(self, cgroup: str | None, pid: int, uid: int | None) -> Job | None:
        return Job("4711", "ada", "physics", "gpu") if uid == os.getuid() else None

    def refresh(self, now_ns: int) -> bool:
        return False

    def close(self) -> None:
        pass
