"""A file of JSON lines beside a tape: what is finished is on disk, and a kill loses no line that was written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everywatt.core.jsonio import dumps


class Lines:
    """The file, open for appending, which only its owner can read: it may hold prompts and answers.

    A line is one write, so a kill leaves whole lines, or half of the last.

    After a power loss lines of the last seconds may be missing: they are not synced one by one.
    """

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # half a line of a killed run: it stays, and is no line

    def write(self, data: Mapping[str, Any]) -> None:
        """Write one line."""
        rest = dumps(data).encode("utf-8", "replace") + b"\n"
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        """Sync and close the file."""
        os.fsync(self._fd)
        os.close(self._fd)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Every whole line, in order; none where there is no file. Half lines and what is no object are left out."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            yield data
