"""The lines of a growing file: the newest at once, the older ones a piece at a time behind them, none twice."""

from __future__ import annotations

from pathlib import Path

from everywatt.core.errors import UsageError

FIRST_BYTES = 4 << 20
MOST_AT_ONCE = 16 << 20
LONGEST_LINE = 1 << 20


class Lines:
    """The complete lines that a file got since the last look. Of a long file the end comes first."""

    def __init__(self, path: Path, first_bytes: int = FIRST_BYTES) -> None:
        self.path = path
        self._first_bytes = first_bytes
        self._began = False
        self._inode: int | None = None
        self._restart(0)

    def _restart(self, offset: int) -> None:
        self._offset, self._rest, self._cut_first = offset, b"", offset > 0
        self._older, self._older_end, self._older_rest = 0, offset, b""

    @property
    def uncounted_bytes(self) -> int:
        """How much of the file lies before what was read."""
        return max(0, self._older_end - self._older)

    def look(self) -> list[bytes]:
        """New lines, without their ends. A file that was cut or replaced is read from its start."""
        try:
            with self.path.open("rb") as file:
                self._place(file.seek(0, 2), self.path.stat().st_ino)
                file.seek(self._offset)
                data = file.read(MOST_AT_ONCE)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}.") from error
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._cut_first and lines:
            self._cut_first = False
            self._older_end += len(lines[0]) + 1  # the line that began before belongs to what is older
            del lines[0]
        return [line for line in lines if line.strip()]

    def behind(self, most_bytes: int) -> list[bytes]:
        """Older lines, from the file's start on; nothing once they meet what `look` began with."""
        if self._cut_first or self._older >= self._older_end:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self._older)
                data = file.read(min(most_bytes, self._older_end - self._older))
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}.") from error
        self._older = self._older + len(data) if data else self._older_end
        *lines, self._older_rest = (self._older_rest + data).split(b"\n")
        self._older_rest = self._older_rest[-LONGEST_LINE:]  # a line longer than that is no event
        return [line for line in lines if line.strip()]

    def _place(self, size: int, inode: int) -> None:
        if not self._began:
            self._restart(max(0, size - self._first_bytes))
        elif size < self._offset or inode != self._inode:
            self._restart(0)
        self._began, self._inode = True, inode
