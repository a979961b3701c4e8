"""Import a third-party library, or name the extra that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from everywatt.core.errors import MissingExtra


def library(name: str, extra: str) -> Any:
    """The module `name`; MissingExtra where its package is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # A module that the library itself misses is the library's own trouble, and its own message is better.
        if error.name is not None and error.name.split(".")[0] == name.split(".")[0]:
            raise MissingExtra(name.split(".")[0], extra) from error
        raise
