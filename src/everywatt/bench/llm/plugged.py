"""Calls of clients, data sets and scorers that other packages wrote: what goes wrong in them is one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everywatt.core.errors import EverywattError, UsageError


@contextmanager
def border(what: str) -> Iterator[None]:
    """Raise UsageError for any exception of third-party code; errors of everywatt pass."""
    try:
        yield
    except EverywattError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(f"The plug-in {what} cannot be used: {said}.", cure="everywatt plugins") from error
