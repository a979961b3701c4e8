"""A ledger as a table for a terminal, whose rows add up to the last digit printed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.format import format_count, format_watts, shared_unit
from everywatt.core.tables import Cell, Column, Table
from everywatt.ledger.engine import UJ, apportion
from everywatt.ledger.idle import WORDS as IDLE_WORDS
from everywatt.ledger.owners import Entry, Ledger, OwnerKind

LABEL_CHARACTERS = 48
# An amount of fewer steps of the last digit has a unit of its own: 0.0003 MJ is 312 J.
LEGIBLE = 10
MOST_OF_UNIT = 10_000  # and has it no longer where its interval would be more of them: 1 µJ (0 … 423303570 µJ)
SPECIAL = (OwnerKind.IDLE, OwnerKind.METER, OwnerKind.OTHER, OwnerKind.UNATTRIBUTED)


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The ledger of a run, whose name may be empty; `top` owners are printed one by one."""

    name: str
    ledger: Ledger
    top: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **self.ledger.to_dict()}

    def tables(self) -> list[Table]:
        """The total, a row for each owner, and how idle power was found."""
        grouped = by_reason(self.ledger.notes, self.ledger.idle)
        notes = [*_idle_lines(self.ledger), *(f"! {note}" for note in grouped)]
        table = ledger_table(self.ledger, self.top, notes)
        return [Table.lines(f"{self.name}   {self.ledger.total}".lstrip()), table]


def shown_name(name: str) -> str:
    """A name that was given by others, on one line; one of nothing but spaces can be seen."""
    return " ".join(name.split()) or "(blank)"


def by_reason(lines: Iterable[str], devices: Container[str]) -> list[str]:
    """Lines `device: reason`; those with the same reason as one, which names its devices."""
    found: dict[tuple[str, bool], list[str]] = {}
    for line in lines:
        device, _, reason = line.partition(": ")
        known = device in devices
        found.setdefault((reason if known else line, known), []).append(device)
    return [f"{', '.join(of)}: {reason}" if known else reason for (reason, known), of in found.items()]


def _idle_lines(ledger: Ledger) -> list[str]:
    """`idle cpu.0: 20.6 W ± 0.5, measured`: one line a device."""
    lines = []
    for device, idle in ledger.idle.items():
        held = f", {format_watts(idle['held_watts'])} more while held" if idle.get("held_watts") else ""
        watts = format_watts(idle["watts"], min(idle["watts"], idle["spread_w"]), idle["spread_w"])
        lines.append(f"idle {device}: {watts}, {method_words(idle['method'])}{held}")
    return lines


def ledger_table(ledger: Ledger, top: int | None = None, notes: Sequence[str] = ()) -> Table:
    """The `top` most expensive owners, the others together, the special ones, and the total."""
    folded = fold(ledger.entries, top)
    *owners, whole = _amounts([group for _, group in folded], ledger.total.budget)
    shares = _percents([_microjoules(group) for _, group in folded])
    rows: list[list[Cell]] = []
    for (label, group), (number, unit, ends), share in zip(folded, owners, shares, strict=True):
        rows.append([label, f"{number} {unit}", ends, share, *_use(group), _method(group)])
    rows.append(["total", f"{whole.number} {whole.unit}", whole.ends, "100.0 %", "", "", "", ""])
    return Table.of(
        *("OWNER", Column("ENERGY", "J"), Column("95 % INTERVAL", "J"), Column("SHARE", "%")),
        *(Column("CPU TIME", "s", spare=4), Column("GPU TIME", "s", spare=3)),
        *(Column("MEMORY", "B", spare=1), Column("METHOD", spare=2)),
        rows=rows,
        notes=notes,
    )


def fold(entries: Sequence[Entry], top: int | None) -> list[tuple[str, list[Entry]]]:
    """Labels with the entries behind each; beyond `top` ordinary owners the rest are one row."""
    ordinary = [entry for entry in entries if entry.owner.kind not in SPECIAL]
    special = [entry for entry in entries if entry.owner.kind in SPECIAL]
    shown = ordinary if top is None else ordinary[:top]
    rest = ordinary[len(shown) :]
    names = Counter(entry.owner.label for entry in ordinary)
    folded = [(short_label(entry, alone=names[entry.owner.label] == 1), [entry]) for entry in shown]
    if rest:
        folded.append((f"{len(rest)} more" if shown else format_count(len(rest), "owner"), rest))
    return folded + [(short_label(entry), [entry]) for entry in special]


def short_label(entry: Entry, *, alone: bool = True) -> str:
    """The owner's label on one line, cut where it is long, with the pid of a process.

    A span of several with its name, not `alone`, has its attributes: `epoch (number=2)`.
    """
    label = shown_name(entry.owner.label)
    if not alone and entry.owner.kind is OwnerKind.SPAN and (found := entry.details.get("attributes")):
        label = shown_name(f"{label} ({', '.join(f'{name}={value}' for name, value in found.items())})")
    pid = entry.details.get("pid")
    end = f" [{pid}]" if entry.owner.kind is OwnerKind.PROCESS and pid else ""
    room = LABEL_CHARACTERS - len(end)
    return (label if len(label) <= room else f"{label[: room - 1]}…") + end


class Amount(NamedTuple):
    """`2.9391`, `MJ`, and both ends of the 95 % interval in that unit, which they name where it is not the total's."""

    number: str
    unit: str
    ends: str


def _amounts(groups: Sequence[Sequence[Entry]], budget: Budget) -> list[Amount]:
    """The amount of each group and, last, of all: in one unit with one number of decimals, so that they add up.

    They have one digit more than the interval of their sum leaves it. An amount of which less than two digits would be
    left has a unit of its own, with the digits of its own interval, unless that reaches far beyond that unit.
    """
    amounts_uj, energies = [_microjoules(group) for group in groups], [_energy(group) for group in groups]
    whole_uj = sum(amounts_uj)
    whole = Energy(whole_uj / UJ, budget)
    scale = scale_of(whole.value, max(budget.sides()), 3)
    own = {
        place: found
        for place, (energy, uj) in enumerate(zip(energies, amounts_uj, strict=True))
        if 0 < uj / scale.step_uj < LEGIBLE and (found := _own_scale(energy, scale)) is not None
    }
    steps = iter(steps_of([uj for place, uj in enumerate(amounts_uj) if place not in own], scale))
    amounts = []
    for place, (energy, uj) in enumerate(zip(energies, amounts_uj, strict=True)):
        mine = own.get(place, scale)
        count = round(uj / mine.step_uj) if place in own else next(steps)
        amount = mine.amount(count, energy.low, energy.high)
        amounts.append(amount._replace(ends=f"{amount.ends} {mine.unit}") if place in own and amount.ends else amount)
    return [*amounts, scale.amount(round(whole_uj / scale.step_uj), whole.low, whole.high)]


class Scale(NamedTuple):
    """A unit and the decimals that are printed in it."""

    factor: float
    unit: str
    decimals: int

    @property
    def step_uj(self) -> float:
        return self.factor * UJ / 10.0**self.decimals

    def amount(self, steps: int, low_j: float | None, high_j: float | None) -> Amount:
        """So many steps of the last digit, with the interval of the amount, rounded outwards."""
        low, high = ((end or 0.0) * UJ / self.step_uj for end in (low_j, high_j))
        ends = f"{self._text(math.floor(max(low, 0.0)))} … {self._text(math.ceil(high))}" if high > low else ""
        return Amount(self._text(steps), self.unit, ends)

    def _text(self, steps: int) -> str:
        return f"{steps / 10**self.decimals:.{self.decimals}f}"


def scale_of(joules: float, half_j: float, digits: int) -> Scale:
    """Five significant digits of an amount at most, and so many of its half-width."""
    factor, unit = shared_unit(joules, "J")
    size, half = abs(joules) / factor, half_j / factor
    decimals = max(0, min(4 - math.floor(math.log10(size)), 6)) if size > 0 and unit != "µJ" else 0
    if half > 0:
        decimals = min(decimals, max(0, digits - 1 - math.floor(math.log10(half))))
    return Scale(factor, unit, decimals)


def _own_scale(energy: Energy, common: Scale) -> Scale | None:
    """The unit of one amount alone; None where that is the common one, or too small for the amount's interval."""
    own = scale_of(energy.value, max(energy.budget.sides()), 2)
    return own if own.unit != common.unit and (energy.high or 0.0) < MOST_OF_UNIT * own.factor else None


def steps_of(amounts_uj: Sequence[int], scale: Scale) -> list[int]:
    """The amounts in steps of the last digit that add up to their sum in such steps."""
    if sum(amounts_uj) <= 0 or min(amounts_uj) < 0:
        return [round(amount / scale.step_uj) for amount in amounts_uj]
    return apportion(round(sum(amounts_uj) / scale.step_uj), amounts_uj)


def _percents(amounts_uj: Sequence[int]) -> list[str]:
    """Shares that add up, but for those too small to be printed as a number."""
    whole_uj = sum(amounts_uj)
    if whole_uj <= 0 or min(amounts_uj) < 0:
        return ["-"] * len(amounts_uj)
    large = [amount for amount in amounts_uj if not 0 < 2000 * amount < whole_uj]
    shares = iter(apportion(round(1000 * sum(large) / whole_uj), large))
    tenths = [0 if 0 < 2000 * amount < whole_uj else next(shares) for amount in amounts_uj]
    return [f"{n / 10:.1f} %" if n or not amount else "< 0.1 %" for n, amount in zip(tenths, amounts_uj, strict=True)]


def owner_amounts(entries: Sequence[Entry], top: int) -> list[tuple[str, str]]:
    """Label and amount with its 95 % interval, `4.170 J (1.020 … 9.580)`, of the `top` owners and the special ones."""
    folded = fold(entries, top)
    amounts = _amounts([group for _, group in folded], _energy(entries).budget)[:-1]
    numbers, units = (max(len(one[part]) for one in amounts) for part in (0, 1))
    return [
        (label, f"{number:>{numbers}} {unit:<{units}}{f' ({ends})' if ends else ''}".rstrip())
        for (label, _), (number, unit, ends) in zip(folded, amounts, strict=True)
    ]


def _energy(group: Sequence[Entry]) -> Energy:
    budget = Budget.sum(entry.energy.budget for entry in group)
    return Energy(_microjoules(group) / UJ, budget, most_j=sum(entry.energy.most_j for entry in group))


def _microjoules(group: Sequence[Entry]) -> int:
    return sum(entry.microjoules for entry in group)


def _use(group: Sequence[Entry]) -> list[Cell]:
    cells: list[Cell] = []
    for name in ("cpu_s", "gpu_s"):
        known = [entry.use[name] for entry in group if name in entry.use]
        cells.append(sum(known) if known else "")
    known = [entry.use["rss_bytes"] for entry in group if "rss_bytes" in entry.use]
    return [*cells, sum(known) if known and len(group) == 1 else ""]


def _method(group: Sequence[Entry]) -> str:
    return method_words(group[0].method) if len({entry.method for entry in group}) == 1 else ""


def method_words(method: str) -> str:
    """How energy was split or idle power was found, in words: `quietest time + assumed` for `quiet+prior`."""
    return " + ".join(dict.fromkeys(IDLE_WORDS.get(word, word) for word in method.split("+")))
