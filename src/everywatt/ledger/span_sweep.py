"""Which span is innermost when, and who gets what of each stretch between two edges; ten thousand spans at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from everywatt.core.spans import Span
from everywatt.tape.columns import Flags, Floats, Ints

Line = tuple[Ints, Floats]  # instants, and what had been used by then

MOST_PAIRS = 1_000_000


@dataclass(frozen=True, slots=True)
class Pieces:
    """Stretches of time, each with the number of the span that is innermost in it; several may overlap."""

    owner: Ints
    start_ns: Ints
    end_ns: Ints

    def within(self, start_ns: int, end_ns: int) -> Pieces:
        """What lies between two instants."""
        start, end = np.maximum(self.start_ns, start_ns), np.minimum(self.end_ns, end_ns)
        kept = end > start
        return Pieces(self.owner[kept], start[kept], end[kept])


def innermost(starts_ns: Ints, ends_ns: Ints, parents: Sequence[int]) -> Pieces:
    """Where each span is open and nothing below it is. `parents` are numbers of spans, -1 for none."""
    children = _children(parents)
    covered: dict[int, tuple[Ints, Ints]] = {}  # where something below a span is open
    owner, start, end = [], [], []
    for number in _deepest_first(parents, children):
        below = children.get(number, ())
        if not below:
            free = (starts_ns[number : number + 1], ends_ns[number : number + 1])
        else:
            inner = [covered[child] for child in below if child in covered]
            index = np.array(below, dtype=np.int64)
            covered[number] = merged(
                np.concatenate([starts_ns[index], *(one[0] for one in inner)]),
                np.concatenate([ends_ns[index], *(one[1] for one in inner)]),
            )
            free = _left_free(int(starts_ns[number]), int(ends_ns[number]), *covered[number])
        owner.append(np.full(len(free[0]), number, dtype=np.int64))
        start.append(free[0])
        end.append(free[1])
    nothing = np.zeros(0, dtype=np.int64)
    pieces = Pieces(*(np.concatenate([nothing, *arrays]) for arrays in (owner, start, end)))
    kept = pieces.end_ns > pieces.start_ns
    return Pieces(pieces.owner[kept], pieces.start_ns[kept], pieces.end_ns[kept])


def _children(parents: Sequence[int]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for number, parent in enumerate(parents):
        if parent >= 0:
            children.setdefault(parent, []).append(number)
    return children


def _deepest_first(parents: Sequence[int], children: dict[int, list[int]]) -> list[int]:
    order: list[int] = []
    young = [number for number, parent in enumerate(parents) if parent < 0]
    while young:
        order += young
        young = [child for parent in young for child in children.get(parent, ())]
    if len(order) < len(parents):
        raise ValueError("spans contain each other")
    return order[::-1]


def merged(starts_ns: Ints, ends_ns: Ints) -> tuple[Ints, Ints]:
    """Disjoint stretches that cover the same time, in order."""
    order = np.argsort(starts_ns, kind="stable")
    starts, reach = starts_ns[order], np.maximum.accumulate(ends_ns[order])
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    return starts[first], reach[np.concatenate((first[1:], [True]))]


def _left_free(start_ns: int, end_ns: int, taken_starts: Ints, taken_ends: Ints) -> tuple[Ints, Ints]:
    starts = np.concatenate(([start_ns], np.clip(taken_ends, start_ns, end_ns)))
    ends = np.concatenate((np.clip(taken_starts, start_ns, end_ns), [end_ns]))
    return starts, ends


@dataclass(frozen=True, slots=True)
class Stretches:
    """The time between two instants, cut wherever a piece starts or ends."""

    pieces: Pieces
    edges_ns: Ints
    first: Ints  # for each piece its first stretch, and the one after its last
    after: Ints
    open: Ints  # how many pieces are open in each stretch

    @classmethod
    def cut(cls, pieces: Pieces, start_ns: int, end_ns: int) -> Stretches:
        """Cut at the edges of the pieces, and at the two instants."""
        pieces = pieces.within(start_ns, end_ns)
        edges = np.unique(
            np.concatenate((pieces.start_ns, pieces.end_ns, np.array([start_ns, end_ns], dtype=np.int64)))
        )
        first, after = np.searchsorted(edges, pieces.start_ns), np.searchsorted(edges, pieces.end_ns)
        steps = np.bincount(first, minlength=len(edges)) - np.bincount(after, minlength=len(edges))
        return cls(pieces, edges, first, after, np.cumsum(steps)[:-1])

    def outside(self, joules: Floats) -> float:
        """Joules of the stretches in which nothing is open."""
        return float(joules[self.open == 0].sum())

    def equally(self, joules: Floats, owners: int) -> Floats:
        """Joules of each owner: a stretch is shared equally by the pieces that are open in it."""
        each = np.divide(joules, self.open, out=np.zeros(len(joules)), where=self.open > 0)
        so_far = np.concatenate(([0.0], np.cumsum(each)))
        amounts = so_far[self.after] - so_far[self.first]
        return np.bincount(self.pieces.owner, amounts, minlength=owners).astype(np.float64)

    def by_use(
        self, joules: Floats, owners: int, process: Ints, use: Callable[[int], Line | None]
    ) -> tuple[Floats, float]:
        """Joules of each owner, and how many of them were shared by use.

        `process` has the number of the process behind each owner, `use` gives what such a process had used over time.
        A stretch is shared by what the processes used in it, and equally by the pieces of one process; where the use of
        one is not known, or no process used anything, equally by the pieces.
        """
        amounts, measured = np.zeros(owners), 0.0
        lines: dict[int, Line | None] = {}
        for low, high in self._chunks():
            piece, stretch = self._pairs(low, high)
            behind = process[self.pieces.owner[piece]]
            for number in np.unique(behind):
                if int(number) not in lines:
                    lines[int(number)] = use(int(number))
            weights, by_use = self._weights(stretch - low, behind, high - low, low, lines)
            shares = joules[stretch] * weights
            amounts += np.bincount(self.pieces.owner[piece], shares, minlength=owners)
            measured += float(shares[by_use].sum())
        return amounts, measured

    def _chunks(self) -> list[tuple[int, int]]:
        """Runs of stretches in which about a million pieces are open in all."""
        total = np.cumsum(self.open)
        cuts = [0]
        while cuts[-1] < len(total):
            before = total[cuts[-1] - 1] if cuts[-1] else 0
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(total, before + MOST_PAIRS, side="right"))))
        return list(pairwise(cuts))

    def _pairs(self, low: int, high: int) -> tuple[Ints, Ints]:
        """Every (piece, stretch) with the piece open in the stretch, for stretches from `low` to before `high`."""
        first, after = np.maximum(self.first, low), np.minimum(self.after, high)
        count = np.maximum(after - first, 0)
        piece = np.repeat(np.arange(len(count)), count)
        begin = np.cumsum(count) - count
        return piece, first[piece] + np.arange(len(piece)) - begin[piece]

    def _weights(
        self, stretch: Ints, behind: Ints, stretches: int, low: int, lines: dict[int, Line | None]
    ) -> tuple[Floats, Flags]:
        """The share of each pair in its stretch, and whether it follows from use."""
        numbers, group = np.unique(behind, return_inverse=True)
        keys, pair_key, count = np.unique(stretch * len(numbers) + group, return_inverse=True, return_counts=True)
        at, who = keys // len(numbers), keys % len(numbers)
        used = np.full(len(keys), np.nan)
        for index, number in enumerate(numbers):
            line = lines[int(number)]
            if line is not None:
                mine = who == index
                edges = self.edges_ns[low + at[mine]], self.edges_ns[low + at[mine] + 1]
                used[mine] = np.maximum(np.interp(edges[1], *line) - np.interp(edges[0], *line), 0.0)
        whole = np.bincount(at, used, minlength=stretches)
        known = np.isfinite(whole) & (whole > 0)
        by_use = known[stretch]
        open_ = self.open[low : low + stretches]
        share = np.divide(used, count * whole[at], out=np.zeros(len(keys)), where=known[at])
        return np.where(by_use, share[pair_key], 1.0 / np.maximum(open_[stretch], 1)), by_use


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
