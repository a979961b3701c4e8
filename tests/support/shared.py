"""What is costly to make is made once for all workers of a test session."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def made_once(factory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make(folder)` filled, by whichever worker came first; nobody may change what is in it.

    factory  pytest's `tmp_path_factory`
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the workers' folders lie in the session's
    folder, done = base / f"shared-{name}", base / f"shared-{name}.done"
    with (base / f"shared-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()  # where an earlier try failed, this one fails at once
            make(folder)
            done.touch()
    return folder
