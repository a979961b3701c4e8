"""A filesystem that never answers: a FUSE mount whose server reads no request, as an NFS server that is away."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_DETACH, _FORCE = 2, 1  # MNT_DETACH, MNT_FORCE


@contextmanager
def hung_mount(folder: Path) -> Iterator[Path]:
    """Whoever looks into this folder waits until the end of the block, and cannot be interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other"
        if libc.mount(b"hung", os.fsencode(folder), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            yield folder
        finally:
            libc.umount2(os.fsencode(folder), _DETACH | _FORCE)
    finally:
        os.close(handle)  # whoever waits gets an error now


def can_mount_fuse() -> bool:
    """Whether such a folder can be made here: it needs root and /dev/fuse."""
    try:
        with TemporaryDirectory() as folder, hung_mount(Path(folder) / "hung"):
            return True
    except OSError:
        return False
