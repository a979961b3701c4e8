"""Wait for what a test needs, however long it takes, instead of sleeping for as long as it usually takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 240.0  # below the limit of a whole test; a machine with eight test suites on two cores stays far below it
LOOK_S = 0.02


def until(ready: Callable[[], T], what: str = "", limit_s: float = LIMIT_S) -> T:
    """What `ready()` gives as soon as that is true; AssertionError where it is not after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (found := ready()):
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what or ready}"
        time.sleep(LOOK_S)
    return found
