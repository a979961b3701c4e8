"""Where a tape is written: local or network filesystem, the spool, moving a finished file without overwriting."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from everywatt.core.errors import RunExists, TapeError
from everywatt.core.platforms import O_CLOEXEC, user_id

if TYPE_CHECKING:
    from everywatt.tape.writer import TapeWriter

WRITERS: WeakSet[TapeWriter] = WeakSet()
"""Those of this process."""
MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("nfs", "cifs", "smb", "lustre", "beegfs", "fhgfs", "gpfs", "9p", "ceph", "afs", "coda", "ncpfs", "orangefs"),
    *("pvfs2", "panfs", "wekafs", "virtiofs", "vboxsf", "prl_fs", "ocfs2", "gfs2", "quobyte", "acfs", "davfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.ceph", "fuse.juicefs", "fuse.rclone"),
    *("fuse.quobyte", "fuse.davfs", "fuse.lustre", "fuse.beegfs"),
)


def filesystem(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The filesystem type of the mount that holds `path` (which need not exist yet); None if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    target = os.path.realpath(path)
    best, kind = -1, None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) < 5 or not rest[0]:
            continue
        point = _unescape(fields[4])
        inside = point == "/" or target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), rest[0]
    return kind


def _unescape(text: str) -> str:
    """mountinfo writes blanks, tabs, line ends and backslashes as octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def is_network(kind: str | None) -> bool:
    """True where SQLite's log cannot be trusted: other hosts share the files but not the memory."""
    return kind is not None and kind.lower().startswith(_NETWORK)


def spool_name() -> str:
    return f"everywatt-spool-{user_id()}"


def spool_folder(spool: Path | None) -> Path:
    """A local folder of the user's own for tapes that will be moved."""
    import tempfile  # brings half a megabyte that a local tape never needs

    folder = spool or Path(tempfile.gettempdir()) / spool_name()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != user_id():
        raise TapeError(f"The spool {folder} belongs to another user.", cure="set TMPDIR to a folder that you own")
    return folder


def spare_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.spare")


def hold_space(path: Path, size: int) -> Path:
    """Hold `size` bytes of the disk of a tape; gives the file to remove when they are needed. It may not exist."""
    spare = spare_file(path)
    if size:
        with contextlib.suppress(OSError):  # a disk that is full already
            fd = os.open(spare, os.O_CREAT | os.O_EXCL | os.O_WRONLY | O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
    return spare


def sync_file(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, survive a power loss."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def move_into_place(source: Path, target: Path) -> None:
    """Copy `source` beside `target`, sync it and give it its name; never overwrite. `source` goes last."""
    import shutil

    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, source.stat().st_mode & 0o777))
        shutil.copyfile(source, part)
        sync_file(part)
        _name_without_overwriting(part, target)
        with contextlib.suppress(OSError):
            sync_file(target.parent)
    except OSError as error:
        raise TapeError(
            f"The sealed tape could not be moved to {target}: {error.strerror or error}.", cure=f"cp {source} {target}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    source.unlink()


def _name_without_overwriting(part: Path, target: Path) -> None:
    try:
        os.link(part, target)
        return
    except OSError:
        pass  # no hard links on this filesystem, or it is there: the next line checks
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        raise RunExists(
            f"{target} exists already, and recordings are never overwritten. The tape is kept in the spool."
        ) from None
    part.replace(target)
