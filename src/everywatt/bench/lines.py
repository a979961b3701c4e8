"""A file of JSON lines beside a tape: what is finished is on disk, and a kill loses no line that was written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everywatt.api.run import Run
from everywatt.core.jsonio import dumps


class Lines:
    """The file, open for appending; only its owner can read it, as it may hold prompts and answers.

    A line is one write, so a kill leaves whole lines, or half of the last. On a full disk lines wait for room: the work
    is worth more than its record.

    After a power loss lines of the last seconds may be missing: they are not synced one by one.
    """

    def __init__(self, file: Path, mode: int = 0o600) -> None:
        self.path = file
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
        size = os.fstat(self._fd).st_size
        torn = size and os.pread(self._fd, 1, size - 1) != b"\n"
        self._unwritten = b"\n" if torn else b""  # half a line of a killed run stays, and is no line

    def write(self, data: Mapping[str, Any]) -> None:
        """Write one line, after those that wait."""
        self._unwritten += _encoded(data) + b"\n"
        self._flush()

    def close(self) -> str:
        """Sync and close the file; gives a sentence where something could not be written, else nothing."""
        why = self._flush()
        try:
            os.fsync(self._fd)
        except OSError as error:
            why = why or error.strerror or str(error)
        os.close(self._fd)
        return why and f"{self.path} could not be written ({why})"

    def _flush(self) -> str:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
        except OSError as error:
            return error.strerror or str(error)
        return ""


def _encoded(data: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # the name of a file that is no text has to come back as it was
        return json.dumps(data, allow_nan=False).encode()
    except (TypeError, ValueError):
        return dumps(data).encode()


def numbered_lines(file: Path, torn: list[int] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every object with the number of its line; `torn` gets the numbers of lines that are no JSON. Raises OSError."""
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        try:
            data = json.loads(line) if line.strip() else None
        except ValueError:
            if torn is not None:
                torn.append(number)
            continue
        if isinstance(data, dict):
            yield number, data


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Every whole line, in order; none where there is no file. Half lines and what is no object are left out."""
    try:
        for _, data in numbered_lines(file):
            yield data
    except OSError:
        return


def folder_of(run: Run) -> Path:
    """The folder of a run, where a benchmark keeps its records."""
    return run.path if run.path.is_dir() else run.path.parent
