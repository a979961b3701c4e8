"""A ledger as a table for a terminal, whose rows add up to the last digit printed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from everywatt.core.units import format_bytes
from everywatt.ledger.owners import Entry, Ledger, OwnerKind
from everywatt.ledger.split.amounts import UJ, apportion

HEADERS = ("OWNER", "ENERGY", "± (95 %)", "SHARE", "CPU TIME", "GPU TIME", "MEMORY", "HOW")
RIGHT = (1, 2, 3, 4, 5, 6)
LABEL_CHARACTERS = 48
SPECIAL = (OwnerKind.IDLE, OwnerKind.METER, OwnerKind.OTHER, OwnerKind.UNATTRIBUTED)
_UNITS = ((1e9, "MJ", 1e6), (1e5, "kJ", 1e3), (0.1, "J", 1.0), (1e-4, "mJ", 1e-3), (0.0, "µJ", 1e-6))


def ledger_rows(ledger: Ledger, top: int | None = None) -> list[list[str]]:
    """Rows for `HEADERS`: the `top` most expensive owners, the others together, the special ones, and the total."""
    folded = fold(ledger.entries, top)
    amounts, unit, decimals = printed([sum(entry.microjoules for entry in group) for _, group in folded])
    shares = _percents([sum(entry.microjoules for entry in group) for _, group in folded])
    rows = []
    for (label, group), amount, share in zip(folded, amounts, shares, strict=True):
        rows.append(
            [label, f"{amount} {unit}", _half_width(group, unit, decimals), share, *_use(group), _method(group)]
        )
    whole = f"{sum(map(float, amounts)):.{decimals}f} {unit}"
    below, above = ledger.total.sides()
    rows.append(["total", whole, _in_unit((below + above) / 2, unit, decimals), "100.0 %", "", "", "", ""])
    return rows


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


def printed(amounts_uj: Sequence[int]) -> tuple[list[str], str, int]:
    """Amounts in one unit with one number of decimals, such that what is printed adds up; the unit; the decimals."""
    whole_uj = sum(amounts_uj)
    unit, factor = next((unit, factor) for least, unit, factor in _UNITS if abs(whole_uj) / UJ >= least)
    size = abs(whole_uj) / UJ / factor
    decimals = max(0, min(4 - math.floor(math.log10(size)), 6)) if size > 0 else 0
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


def _half_width(group: Sequence[Entry], unit: str, decimals: int) -> str:
    budget = group[0].energy.budget
    for entry in group[1:]:
        budget = budget + entry.energy.budget
    below, above = budget.sides()
    return _in_unit((below + above) / 2, unit, decimals)


def _in_unit(joules: float, unit: str, decimals: int) -> str:
    factor = next(factor for _, name, factor in _UNITS if name == unit)
    return f"{joules / factor:.{decimals}f}"


def _use(group: Sequence[Entry]) -> list[str]:
    cells = []
    for name in ("cpu_s", "gpu_s"):
        known = [entry.use[name] for entry in group if name in entry.use]
        cells.append(f"{sum(known):.2f} s" if known else "")
    known = [entry.use["rss_bytes"] for entry in group if "rss_bytes" in entry.use]
    return [*cells, format_bytes(sum(known)) if known and len(group) == 1 else ""]


def _method(group: Sequence[Entry]) -> str:
    return group[0].method if len({entry.method for entry in group}) == 1 else ""
