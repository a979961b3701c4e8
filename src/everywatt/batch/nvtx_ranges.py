"""Items as NVTX ranges, where `nvtx` is installed: `nsys profile everywatt batch …` then shows them by name."""

from __future__ import annotations

import importlib
from typing import Any

DOMAIN = "everywatt"


class Ranges:
    """One open range at most for each lane. Does nothing where `nvtx` is not installed."""

    def __init__(self) -> None:
        self._nvtx: Any = None
        self._open: dict[int, Any] = {}
        try:
            self._nvtx = importlib.import_module("nvtx")
        except Exception:  # noqa: BLE001 - a library's border: a broken one must not stop a batch
            self._nvtx = None

    def open(self, lane: int, name: str) -> None:
        """An item begins."""
        self.close(lane)
        if self._nvtx is not None:
            self._open[lane] = self._nvtx.start_range(message=name, domain=DOMAIN)

    def close(self, lane: int) -> None:
        """What is open on the lane ends."""
        handle = self._open.pop(lane, None)
        if handle is not None:
            self._nvtx.end_range(handle)
