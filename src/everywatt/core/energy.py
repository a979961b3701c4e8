"""The figure: joules with an interval, a scope, a pedigree and a coverage, or a refusal with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add
from typing import Any, overload

from everywatt.core.budget import Budget, quotient_interval
from everywatt.core.errors import MeasurementRefused, ScopeError
from everywatt.core.format import format_energy, format_percent, format_ratio
from everywatt.core.jsonio import ToDict
from everywatt.core.lazy_dataclass import dataclass

# The middle of a note `7 other programs recorded …`, of which a printed figure has the beginning.
SHARED = " recorded the same devices meanwhile"


@dataclass(frozen=True, slots=True)
class Energy:
    """An amount of energy with its uncertainty.

    `joules` is None if the figure was refused; then `refused` has the reason, and arithmetic raises MeasurementRefused.
    `low` and `high` bound the 95 % interval. `parts` are the devices that add up to it. `signed` marks what may be
    negative (a difference, net energy); the interval of anything else ends at zero. `sampling_only` marks an interval
    that does not hold the sensor's gain and offset, because they are not known. `most_j` is where the
    interval of a part ends because that of its whole does.

    >>> run.energy().joules        # doctest: +SKIP
    412.3
    """

    joules: float | None
    budget: Budget = field(default_factory=Budget)
    scope: str = ""
    pedigree: str = ""
    coverage: float = 1.0
    parts: tuple[tuple[str, Energy], ...] = ()
    notes: tuple[str, ...] = ()
    refused: str | None = None
    signed: bool = False
    sampling_only: bool = False
    most_j: float = math.inf

    @classmethod
    def refuse(cls, why: str, *, scope: str = "", coverage: float = 0.0, notes: Iterable[str] = ()) -> Energy:
        """An energy without a figure, with the reason."""
        return cls(None, scope=scope, coverage=coverage, notes=tuple(notes), refused=why)

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval in joules."""
        return None if self.joules is None else self.joules - self.sides()[0]

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval in joules."""
        return None if self.joules is None else self.joules + self.sides()[1]

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval, in joules."""
        return None if self.joules is None else sum(self.sides()) / 2

    def sides(self) -> tuple[float, float]:
        """How far the 95 % interval reaches below and above the figure, in joules."""
        if self.signed or self.joules is None or self.joules < 0:
            return self.budget.sides()
        below, above = self.budget.sides(self.joules) if self.joules else self.budget.sides()
        return min(below, self.joules), min(above, max(self.most_j - self.joules, 0.0))

    @property
    def measured(self) -> bool:
        """Whether there is a figure, and no part of it is modelled."""
        return self.joules is not None and "modelled" not in self.pedigree

    @property
    def value(self) -> float:
        """Joules; raises MeasurementRefused if there is no figure."""
        if self.joules is None:
            raise MeasurementRefused(self.refused or "No energy was measured.")
        return self.joules

    def part(self, name: str) -> Energy:
        """The energy of one device, e.g. `gpu.0`; KeyError if it is not a part."""
        return dict(self.parts)[name]

    def __add__(self, other: Energy) -> Energy:
        return sum_energies((self, other)) if isinstance(other, Energy) else NotImplemented

    def __radd__(self, other: int) -> Energy:
        # `sum(energies)` starts with 0, which has every scope.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Energy) -> Energy:
        if not isinstance(other, Energy):
            return NotImplemented
        self._same_scope(other, "subtract")
        parts = tuple((name, part if part.joules is None else part * -1.0) for name, part in other.parts)
        return sum_energies((self, replace(other * -1.0, parts=parts)))

    def __mul__(self, factor: float) -> Energy:
        parts = tuple((name, part * factor) for name, part in self.parts if part.joules is not None)
        signed = self.signed or factor < 0
        most_j = self.most_j * factor if factor > 0 else math.inf
        budget = self.budget.scaled(factor)
        return replace(self, joules=self.value * factor, budget=budget, parts=parts, signed=signed, most_j=most_j)

    __rmul__ = __mul__

    @overload
    def __truediv__(self, divisor: Energy) -> Ratio: ...
    @overload
    def __truediv__(self, divisor: float) -> Energy: ...
    def __truediv__(self, divisor: float | Energy) -> Energy | Ratio:
        return self.ratio(divisor) if isinstance(divisor, Energy) else self * (1.0 / divisor)

    def ratio(self, other: Energy) -> Ratio:
        """This figure divided by another, as `/` does; errors that both share (a card's gain) cancel."""
        self._same_scope(other, "compare")
        top, bottom = self.value, other.value
        if bottom == 0:
            raise MeasurementRefused("A ratio to zero joules is not defined.")
        value = top / bottom
        low, high = quotient_interval(top, self.budget, bottom, other.budget)
        if value > 0 and not (self.signed or other.signed):  # neither can be negative, nor can their ratio
            return Ratio(value, max(low, 0.0), high)
        return Ratio(value, low if math.isfinite(high) else -math.inf, high)

    def _same_scope(self, other: Energy, verb: str) -> None:
        if self.scope != other.scope:
            raise ScopeError(
                f"Cannot {verb} energy of '{self.scope}' with energy of '{other.scope}': they cover different scopes."
            )

    def __str__(self) -> str:
        if self.joules is None:
            return format_energy(self)
        return " · ".join(
            [
                format_energy(self, level="95 %, sampling only" if self.sampling_only else "95 %"),
                self.scope or "?",
                self.pedigree or "?",
                f"coverage {format_percent(self.coverage)}",
                *(f"shared with {note.partition(SHARED)[0]}" for note in self.notes if SHARED in note),
            ]
        )

    # At a prompt, where the fields of a dataclass would fill the screen.
    __repr__ = __str__

    def _repr_html_(self) -> str:
        import html

        if self.joules is None:
            return f"<b>no energy</b>: {html.escape(self.refused or '')}"
        head = f"<b>{html.escape(str(self))}</b>"
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(part))}</td></tr>" for name, part in self.parts
        )
        table = f"<table>{rows}</table>" if len(self.parts) > 1 else ""
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return f"<div>{head}{table}{notes}</div>"

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON form of every energy in everywatt's output."""
        data: dict[str, Any] = {
            "joules": self.joules,
            "low": self.low,
            "high": self.high,
            "scope": self.scope,
            "pedigree": self.pedigree,
            "coverage": round(self.coverage, 6),
            "parts": {name: part.to_dict() for name, part in self.parts},
            "notes": list(self.notes),
        }
        if self.sampling_only:
            data["sampling_only"] = True
        if self.refused is not None:
            data["refused"] = self.refused
        return data


@dataclass(frozen=True, slots=True)
class Ratio(ToDict):
    """A quotient of two energies with its 95 % interval; `high` is infinite where the divisor may be zero."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return format_ratio(self.value, self.low, self.high)

    __repr__ = __str__


def join_labels(labels: Iterable[str]) -> str:
    """`counter` and `integrated` become `counter+integrated`; each word once, in order of appearance."""
    words = [word for label in labels for word in label.split("+") if word]
    return "+".join(dict.fromkeys(words))


def sum_energies(energies: Iterable[Energy], *, join_scopes: bool = False) -> Energy:
    """The sum of energies of one scope: what adding them one after another gives, in linear time.

    With `join_scopes` they may cover different things, and the sum names all of them. A refused one raises
    MeasurementRefused, as `+` does; ValueError where there is nothing to add.
    """
    found = list(energies)
    if len(found) < 2:
        if not found:
            raise ValueError("there are no energies to add")
        return found[0]
    first = found[0]
    for one in found:
        if one.scope != first.scope and not join_scopes:
            first._same_scope(one, "add")
    parts: dict[str, list[Energy]] = {}
    for name, part in first.parts:
        parts[name] = [part]
    for one in found[1:]:
        for name, part in one.parts:
            same = parts.setdefault(name, [])
            if not same:
                same.append(part if part.joules is None else part * 1.0)
            elif part.joules is not None:
                if same[0].joules is None:
                    same[0] = part * 1.0
                else:
                    same.append(part)
    scope = join_labels(dict.fromkeys(one.scope for one in found)) if join_scopes else first.scope
    added = tuple((name, sum_energies(same, join_scopes=join_scopes)) for name, same in parts.items())
    return _whole(found, reduce(add, [one.value for one in found]), scope, added)


def _whole(found: Sequence[Energy], joules: float, scope: str, parts: tuple[tuple[str, Energy], ...]) -> Energy:
    """The sum of these, whose joules have been added up: all that follows from them by itself."""
    return Energy(
        joules,
        Budget.sum(one.budget for one in found),
        scope,
        join_labels(dict.fromkeys(one.pedigree for one in found)),
        min(one.coverage for one in found),
        parts,
        tuple(dict.fromkeys(note for one in found for note in one.notes)),
        signed=any(one.signed for one in found),
        sampling_only=any(one.sampling_only for one in found),
    )


def total(parts: Mapping[str, Energy], *, scope: str, notes: Iterable[str] = ()) -> Energy:
    """The sum over disjoint devices. Refused parts are left out and named in the notes."""
    counted = [part for part in parts.values() if part.joules is not None]
    missing = [f"{name}: {part.refused}" for name, part in parts.items() if part.joules is None]
    if not counted:
        why = "; ".join(missing) or "no sensor delivered energy"
        return Energy.refuse(why, scope=scope, notes=notes)
    whole = _whole(counted, math.fsum(part.value for part in counted), scope, tuple(parts.items()))
    coverage = whole.coverage * len(counted) / len(parts)
    return replace(whole, coverage=coverage, notes=tuple(dict.fromkeys((*notes, *whole.notes, *missing))))


def over_time(whole: Energy, figures: Sequence[Energy], seconds: Sequence[float]) -> Energy:
    """The sum of the figures of windows of these lengths with their coverage: the share of all that time.

    A window without a figure was not observed.
    """
    asked_s = sum(seconds)
    if len(figures) < 2 or asked_s <= 0:
        return whole
    seen_s = sum(one.coverage * length for one, length in zip(figures, seconds, strict=True) if one.joules is not None)
    parts = []
    for name, part in whole.parts:
        has = [(dict(one.parts).get(name), one, length) for one, length in zip(figures, seconds, strict=True)]
        own = [(one if same is None else same, length) for same, one, length in has if same or one.joules is None]
        parts.append((name, over_time(part, [one for one, _ in own], [length for _, length in own])))
    return replace(whole, coverage=seen_s / asked_s, parts=tuple(parts))


def combine(figures: Sequence[tuple[str, Energy]], seconds: Sequence[float] | None = None) -> Energy:
    """The sum over (host, energy) pairs.

    On one host with one scope the parts are added device by device; otherwise each host's figure is a part of its own,
    and the scope names what all of them cover. With `seconds`, the lengths of their windows, coverage is the share of a
    host's time; without, and of several hosts, it is the least.
    """
    if len(figures) == 1:
        return figures[0][1]
    counted = [number for number, (_, energy) in enumerate(figures) if energy.joules is not None]
    if not counted:
        return figures[0][1]
    missing = [f"{host}: {energy.refused}" for host, energy in figures if energy.joules is None]
    groups: dict[tuple[str, str], list[int]] = {}
    for number in counted:
        groups.setdefault((figures[number][0], figures[number][1].scope), []).append(number)
    by_host: dict[str, Energy] = {}
    for (host, _), numbers in groups.items():
        energy = sum_energies(figures[number][1] for number in numbers)
        if seconds is not None:
            same = [
                n for n, (other, one) in enumerate(figures) if n in numbers or (other == host and one.joules is None)
            ]
            energy = over_time(energy, [figures[n][1] for n in same], [seconds[n] for n in same])
        by_host[f"{host} #{counted.index(numbers[0]) + 1}" if host in by_host else host] = energy
    if len(by_host) == 1:
        return replace(energy, notes=(*energy.notes, *missing))
    scopes = sorted({scope for _, scope in groups})
    notes = [*missing, *(["hosts or segments cover different scopes"] if len(scopes) > 1 else [])]
    return total(by_host, scope=join_labels(scopes), notes=notes)
