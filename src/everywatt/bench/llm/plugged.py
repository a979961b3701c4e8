"""Clients, data sets and scorers of other packages, by entry point; what goes wrong in them is said in a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from everywatt.core.errors import EverywattError, UsageError


def plugged(group: str, name: str) -> Any:
    """What a package registers under that name; None where none does. UsageError where it does not load."""
    for entry in entry_points(group=group):
        if entry.name == name:
            with border(f"{name} ({entry.value})"):
                return entry.load()
    return None


def plugged_names(group: str) -> list[str]:
    """The names that packages register, in order."""
    return sorted({entry.name for entry in entry_points(group=group)})


@contextmanager
def border(what: str) -> Iterator[None]:
    """UsageError in place of whatever somebody else's code raises; errors of everywatt pass."""
    try:
        yield
    except EverywattError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(f"The plug-in {what} cannot be used: {said}.", cure="everywatt plugins") from error
