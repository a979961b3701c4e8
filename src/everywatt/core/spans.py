"""Spans: named windows of time with attributes and a parent. Points: values logged at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from everywatt.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A named window. `end_ns` is None while it is open, or where it was never closed."""

    id: str
    name: str
    start_ns: int
    end_ns: int | None = None
    parent: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float | None:
        """Seconds from start to end."""
        return None if self.end_ns is None else (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Point:
    """A value that the program logged (loss, accuracy) at one instant."""

    at_ns: int
    name: str
    value: float | str
    span: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something the recorder saw: a gap, a late tick, a lost device, a warning. `kind` is a word, `text` a sentence."""

    at_ns: int
    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
