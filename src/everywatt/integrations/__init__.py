"""everywatt inside other people's tools. Each adapter imports its library when it is used, not before.

from everywatt.integrations.transformers import EverywattCallback   # Hugging Face Trainer
from everywatt.integrations.lightning import EverywattCallback      # Lightning
from everywatt.integrations.keras import EverywattCallback          # Keras 3
from everywatt.integrations.mlflow import log_run                   # MLflow
from everywatt.integrations.wandb import log_run                    # Weights & Biases
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def callback_of(module: str, make: Callable[[], type]) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose EverywattCallback is made when it is asked for: its base is a library's."""

    def get(name: str) -> Any:
        if name != "EverywattCallback":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        made = make()
        made.__module__, made.__qualname__ = module, "EverywattCallback"
        return made

    return get
