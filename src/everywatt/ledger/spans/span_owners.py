"""Spans as columns: which of them are owners, who is above whom, in which devices and for which process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from everywatt.core.spans import Span
from everywatt.ledger.spans.span_sweep import Ints, Pieces, innermost


@dataclass(frozen=True)
class SpanOwners:
    """The spans that take part, as columns."""

    spans: tuple[Span, ...]
    starts_ns: Ints
    ends_ns: Ints
    parents: tuple[int, ...]
    process: Ints
    devices: tuple[frozenset[str] | None, ...]
    cut: dict[frozenset[str] | None, Pieces] = field(default_factory=dict)

    def pieces(self, device: str) -> Pieces:
        """Where each span is innermost among those that take part in a device; the same for most devices."""
        chosen = [number for number, named in enumerate(self.devices) if named is None or takes_part(device, named)]
        key = None if len(chosen) == len(self.spans) else frozenset({str(number) for number in chosen})
        if key not in self.cut:
            self.cut[key] = self._innermost(chosen)
        return self.cut[key]

    def _innermost(self, chosen: Sequence[int]) -> Pieces:
        place = {number: index for index, number in enumerate(chosen)}
        parents = [place.get(self._parent(number, place), -1) for number in chosen]
        index = np.array(chosen, dtype=np.int64)
        found = innermost(self.starts_ns[index], self.ends_ns[index], parents)
        return Pieces(index[found.owner], found.start_ns, found.end_ns)

    def _parent(self, number: int, place: Mapping[int, int]) -> int:
        """The nearest one above that takes part."""
        above = self.parents[number]
        while above >= 0 and above not in place:
            above = self.parents[above]
        return above


def takes_part(device: str, named: frozenset[str]) -> bool:
    """Whether a device is among those named: `gpu.0` by itself or as `gpu`, `cpu.0 core` as `cpu.0` too."""
    return bool({device, device.split(" ")[0], device.split(".")[0]} & named)


def span_owners(spans: Sequence[Span], open_until_ns: int) -> SpanOwners:
    """The spans that are owners: not the one around everything, unless it is the only one, and not idle stretches."""
    inner = [span for span in spans if span.attributes.get("role") not in ("run", "idle")]
    chosen = tuple(inner or [span for span in spans if span.attributes.get("role") != "idle"])
    place = {span.id: number for number, span in enumerate(chosen)}
    parents = [place.get(span.parent or "", -1) for span in chosen]
    starts = np.array([span.start_ns for span in chosen], dtype=np.int64)
    ends = np.array([open_until_ns if span.end_ns is None else span.end_ns for span in chosen], dtype=np.int64)
    process = np.array([_pid(span) for span in chosen], dtype=np.int64)
    return SpanOwners(
        chosen,
        starts,
        np.maximum(starts, ends),
        tuple(_without_circles(parents)),
        process,
        tuple(_devices(s) for s in chosen),
    )


def _without_circles(parents: list[int]) -> list[int]:
    """A tape from elsewhere may say that spans are each other's parents; the circle is cut."""
    sound = [False] * len(parents)
    for number in range(len(parents)):
        path: list[int] = []
        on_path: set[int] = set()
        at = number
        while at >= 0 and not sound[at]:
            if at in on_path:
                parents[path[-1]] = -1
                break
            path.append(at)
            on_path.add(at)
            at = parents[at]
        for one in path:
            sound[one] = True
    return parents


def _pid(span: Span) -> int:
    """The process that a span names; 0, the recorded program itself, where it names none."""
    pid = span.attributes.get("pid")
    return pid if isinstance(pid, int) and 0 < pid < 2**31 else 0


def _devices(span: Span) -> frozenset[str] | None:
    named = span.attributes.get("devices")
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list | tuple) or not named:
        return None
    return frozenset(str(name) for name in named)
