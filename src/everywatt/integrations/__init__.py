"""everywatt inside other people's tools. Each adapter imports its library when it is used, not before.

from everywatt.integrations.transformers import EverywattCallback   # Hugging Face Trainer
from everywatt.integrations.lightning import EverywattCallback      # Lightning
from everywatt.integrations.keras import EverywattCallback          # Keras 3
from everywatt.integrations.mlflow import log_run                   # MLflow
from everywatt.integrations.wandb import log_run                    # Weights & Biases
"""

from __future__ import annotations

from collections.abc import Callable
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


def callback_of(module: str, make: Callable[[], type]) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose EverywattCallback is made when it is asked for: its base is a library's."""

    def get(name: str) -> Any:
        if name != "EverywattCallback":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        made = make()
        made.__module__, made.__qualname__ = module, "EverywattCallback"
        return made

    return get
