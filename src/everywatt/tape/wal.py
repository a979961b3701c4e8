"""Is the log beside a live tape whole? SQLite itself stops at the first damaged entry without a word."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Final

_MAGIC: Final = (0x377F0682, 0x377F0683)
_HEADER: Final = struct.Struct(">8I")
_ENTRY: Final = struct.Struct(">6I")
_INDEX_AT: Final = 16
_TRIES: Final = 4


def is_cut(path: Path) -> bool:
    """True where the log of the tape at `path`, which another process has open, holds more transactions than SQLite
    reads.

    A writer that is at work may have written a transaction and not yet told its readers, so a doubt is looked at again.
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(0.02)
        written = _committed(Path(f"{path}-wal"))
        read = _indexed(Path(f"{path}-shm"))
        if written is not None and (read is None or written <= read):
            return False
    return True


def _indexed(path: Path) -> int | None:
    """How many entries of the log are in use, by the index that readers share."""
    try:
        with path.open("rb") as file:
            file.seek(_INDEX_AT)
            return int(struct.unpack("=I", file.read(4))[0])
    except (OSError, struct.error):
        return None


def _committed(path: Path) -> int | None:
    """The number of the last entry that ends a transaction; None where the log's head is damaged."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            if not head:
                return 0
            if len(head) < _HEADER.size or not _head_is_right(head):
                return None
            page_bytes = _HEADER.unpack(head)[2]
            salts = _HEADER.unpack(head)[4:6]
            last = number = 0
            while len(entry := file.read(_ENTRY.size)) == _ENTRY.size:
                number += 1
                _, pages, *found = _ENTRY.unpack(entry)
                if tuple(found[:2]) == salts and pages:
                    last = number
                file.seek(page_bytes, 1)
            return last
    except OSError:
        return 0


def _head_is_right(head: bytes) -> bool:
    magic, _, page_bytes, *_, first, second = _HEADER.unpack(head)
    if magic not in _MAGIC or page_bytes < 512:
        return False
    words = struct.unpack(">6I" if magic & 1 else "<6I", head[:24])
    a = b = 0
    for left, right in zip(words[::2], words[1::2], strict=True):
        a = (a + left + b) & 0xFFFFFFFF
        b = (b + right + a) & 0xFFFFFFFF
    return (a, b) == (first, second)
