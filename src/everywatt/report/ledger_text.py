"""A ledger as a table for a terminal, whose rows add up to the last digit printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.format import format_watts, shared_unit
from everywatt.core.tables import Cell, Column, Table
from everywatt.ledger.engine import UJ, apportion
from everywatt.ledger.idle import WORDS as IDLE_WORDS
from everywatt.ledger.owners import Entry, Ledger, OwnerKind

LABEL_CHARACTERS = 48
SPECIAL = (OwnerKind.IDLE, OwnerKind.METER, OwnerKind.OTHER, OwnerKind.UNATTRIBUTED)


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The ledger of a run; `top` owners are printed one by one."""

    name: str
    ledger: Ledger
    top: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with all owners."""
        return {"name": self.name, **self.ledger.to_dict()}

    def tables(self) -> list[Table]:
        """The total, a row for each owner, and how idle power was found."""
        notes = [*_idle_lines(self.ledger), *(f"! {note}" for note in self.ledger.notes)]
        table = ledger_table(self.ledger, self.top, notes)
        return [Table.lines(f"{self.name}   {self.ledger.total}"), table]


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
    amounts_uj = [sum(entry.microjoules for entry in group) for _, group in folded]
    amounts, unit, decimals = printed(amounts_uj, ledger.total.budget)
    intervals = [
        _interval(_budget(group), uj, sum(amounts_uj), decimals)
        for (_, group), uj in zip(folded, amounts_uj, strict=True)
    ]
    rows: list[list[Cell]] = []
    for (label, group), amount, interval, share in zip(folded, amounts, intervals, _percents(amounts_uj), strict=True):
        rows.append([label, f"{amount} {unit}", interval, share, *_use(group), _method(group)])
    whole = f"{sum(map(float, amounts)):.{decimals}f} {unit}"
    interval = _interval(ledger.total.budget, sum(amounts_uj), sum(amounts_uj), decimals)
    rows.append(["total", whole, interval, "100.0 %", "", "", "", ""])
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
    folded = [(short_label(entry), [entry]) for entry in shown]
    if rest:
        folded.append((f"{len(rest)} more", rest))
    return folded + [(short_label(entry), [entry]) for entry in special]


def short_label(entry: Entry) -> str:
    """The owner's label on one line, cut where it is long, with the pid of a process."""
    label = " ".join(entry.owner.label.split())
    pid = entry.details.get("pid")
    end = f" [{pid}]" if entry.owner.kind is OwnerKind.PROCESS and pid else ""
    room = LABEL_CHARACTERS - len(end)
    return (label if len(label) <= room else f"{label[: room - 1]}…") + end


def printed(amounts_uj: Sequence[int], budget: Budget | None = None) -> tuple[list[str], str, int]:
    """Amounts in one unit with one number of decimals, such that what is printed adds up; the unit; the decimals.

    They have one digit more than the interval of their sum leaves it, so that small owners are not all 0.
    """
    whole_uj = sum(amounts_uj)
    factor, unit = shared_unit(whole_uj / UJ, "J")
    size = abs(whole_uj) / UJ / factor
    decimals = max(0, min(4 - math.floor(math.log10(size)), 6)) if size > 0 else 0
    half = max(budget.sides()) / factor if budget is not None else 0.0
    if half > 0:
        decimals = min(decimals, max(0, 2 - math.floor(math.log10(half))))
    decimals = 0 if unit == "µJ" else decimals
    steps = round(whole_uj / UJ / factor * 10**decimals)
    if whole_uj <= 0 or min(amounts_uj) < 0:
        shown = [round(amount / UJ / factor * 10**decimals) for amount in amounts_uj]
    else:
        shown = apportion(steps, amounts_uj)
    return [f"{amount / 10**decimals:.{decimals}f}" for amount in shown], unit, decimals


def _percents(amounts_uj: Sequence[int]) -> list[str]:
    if sum(amounts_uj) <= 0 or min(amounts_uj) < 0:
        return ["-"] * len(amounts_uj)
    return [f"{amount / 10:.1f} %" for amount in apportion(1000, amounts_uj)]


def owner_amounts(entries: Sequence[Entry], top: int) -> list[tuple[str, str]]:
    """Label and amount with its 95 % interval, `4.170 J (1.020 … 9.580)`, of the `top` owners and the special ones.

    Amounts have one unit and add up.
    """
    folded = fold(entries, top)
    amounts_uj = [sum(entry.microjoules for entry in group) for _, group in folded]
    amounts, unit, decimals = printed(amounts_uj, _budget(entries))
    width, found = max(map(len, amounts)), []
    for (label, group), amount, uj in zip(folded, amounts, amounts_uj, strict=True):
        ends = _interval(_budget(group), uj, sum(amounts_uj), decimals)
        found.append((label, f"{amount:>{width}} {unit}{f' ({ends})' if ends else ''}"))
    return found


def _budget(group: Sequence[Entry]) -> Budget:
    return Budget.sum(entry.energy.budget for entry in group)


def _interval(budget: Budget, amount_uj: int, whole_uj: int, decimals: int) -> str:
    """Both ends of the 95 % interval of an amount, in the unit of the whole, rounded outwards."""
    energy = Energy(amount_uj / UJ, budget)
    factor, step = shared_unit(whole_uj / UJ, "J")[0], 10.0**decimals
    below, above = (side / factor for side in energy.sides())
    if not below + above:
        return ""
    value = amount_uj / UJ / factor
    low, high = math.floor(max(value - below, 0.0) * step) / step, math.ceil((value + above) * step) / step
    return f"{low:.{decimals}f} … {high:.{decimals}f}"


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
