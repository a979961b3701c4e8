"""Folders that can be written; files replaced whole: readers, and a kill at any moment, see the old or the new one."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress

from everywatt.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def can_make(folder: Path) -> bool:
    """True where the folder can be written, or made below one that can."""
    found = existing(folder)
    return found.is_dir() and os.access(found, os.W_OK | os.X_OK)


@contextmanager
def usable(path: Path | str, use: str) -> Iterator[None]:
    """UsageError with the name of a file where it cannot be used in this block; `use` is `read` or `written`."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be {use}: {error.strerror}.") from error


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends; after an error it is removed.

    With `durable` the new content is on disk before.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        if durable:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def replace_text(path: Path, text: str, *, mode: int | None = None, durable: bool = False) -> None:
    with replacing(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8")
        if mode is not None:
            part.chmod(mode)
