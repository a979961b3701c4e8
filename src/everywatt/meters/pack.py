"""A finished journal becomes files of the archive: `python -m everywatt.meters.pack ARCHIVE METER JOURNAL [HH:MM]`.

A process of its own, so that a capture never waits for it. Killed in its midst, it is simply done again. With an
hour, zips as Lab-IA has them are written too, of days that turn at that hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path

from everywatt.core.errors import EverywattError, RunExists
from everywatt.core.plugins import ARCHIVE_COPIES, load_plugin
from everywatt.meters.archive import read_archive, store
from everywatt.meters.block import Oddities
from everywatt.meters.journal import journal_blocks
from everywatt.tape.places import sync_file


def pack(archive: Path, meter: str, journal: Path, zip_turn: tuple[int, int] | None = None) -> list[Path]:
    """Store a journal's rows and take the journal away; gives the new files. Nothing if another process has it.

    zip_turn  the hour and minute at which a day turns, where zips in Lab-IA's layout are wanted too
    """
    with journal.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        try:
            files = store(archive, meter, journal_blocks(journal, Oddities()))
        except RunExists:
            if not _there(archive, meter, journal):
                raise
            files = []
        if zip_turn is not None:
            write_zips = load_plugin(ARCHIVE_COPIES, "labia-zip")
            files += write_zips(archive, meter, zip_turn, lambda: journal_blocks(journal, Oddities()))
        for path in files:
            sync_file(path)
            sync_file(path.parent)
        journal.unlink()
    return files


def _there(archive: Path, meter: str, journal: Path) -> bool:
    """True where all rows of a journal are in the archive: its packing was killed after the last step but one."""
    mine = sum(len(block) for block in journal_blocks(journal, Oddities()))
    edges = [block.utc_ns for block in journal_blocks(journal, Oddities())]
    if not edges:
        return True
    stored = read_archive(archive, meter, int(edges[0][0]), int(edges[-1][-1]) + 1)
    return sum(len(block) for block in stored) == mine


def main(argv: list[str]) -> int:
    """Pack one journal; 0 where that is done."""
    archive, meter, journal = Path(argv[0]), argv[1], Path(argv[2])
    hour, _, minute = argv[3].partition(":") if len(argv) > 3 else ("", "", "")
    zip_turn = (int(hour), int(minute)) if hour else None
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        for path in pack(archive, meter, journal, zip_turn):
            print(path, flush=True)
    except (EverywattError, OSError) as error:
        print(f"{journal} was kept: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
