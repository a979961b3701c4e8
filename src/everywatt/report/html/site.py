"""A month of a Slurm site as one page: the look of a run's report, no scripts, nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from everywatt.core.format import format_count, format_money
from everywatt.core.tables import Cell, Column, Table
from everywatt.ledger.engine import UJ
from everywatt.report.html.figures import table_html
from everywatt.report.html.page import card, still_page
from everywatt.slurm.site.figures import WHOLE, amount, cells, columns, nodes_line, rounded, short, waste
from everywatt.slurm.site.monthly import Month

WIDTH = 720
MOST = 40
FOOTER = (
    "<footer>Days and months are UTC; a job belongs to the day of its end. Intervals are 95 %. "
    "Waste is the part of the idle share that a job did not use.</footer>"
)
TITLES = {"user": "By user", "account": "By account", "state": "By final state", "partition": "By partition"}


def site_page(month: Month, factors: Sequence[str] = (), currency: str = "") -> str:
    """The page of a month; `factors` are lines that say with what carbon and cost were made."""
    return still_page(f"Jobs of {month.month}", month_cards(month, factors, currency) + FOOTER)


def month_cards(month: Month, factors: Sequence[str] = (), currency: str = "") -> str:
    """The content of the page of a month."""
    cards = [
        card("Total", _hero(month, factors, currency)),
        card("By day", _days(month)),
        *(card(text, _group(name, month, currency)) for name, text in TITLES.items()),
        card("Jobs with the highest energy", _jobs(month.costliest)),
    ]
    return "".join(cards)


def _hero(month: Month, factors: Sequence[str], currency: str) -> str:
    total = month.total
    figures = [("Jobs", str(total["jobs"]), _records(total["refused"], "without a figure"))]
    if total["energy_uj"] is not None:
        figures.append((f"Energy of jobs {WHOLE}", short(total), rounded(total, "Wh", total["energy_uj"] / UJ / 3600)))
    figures.append(("Idle energy of allocations", amount(total, "idle_uj") or "-", "by allocation"))
    figures.append(("Waste", waste(total) or "-", "allocated but not used"))
    if total["wall_uj"] is not None:
        figures.append(("At the wall", amount(total, "wall_uj") or "-", "jobs on nodes with a meter"))
    if total["carbon_g"] is not None:
        figures.append(("Carbon", rounded(total, "g CO2e", total["carbon_g"]), "one intensity for the grid"))
    if total["carbon_varying_g"] is not None:
        left = _records(total["uncovered"], "outside the table") or "intensity at the time"
        figures.append(("Carbon over time", rounded(total, "g CO2e", total["carbon_varying_g"]), left))
    if total["cost"] is not None:
        figures.append(("Cost", format_money(total["cost"], currency), ""))
    cells = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}"
        f'<span class="about">{html.escape(about)}</span></dd></div>'
        for name, value, about in figures
    )
    proof = nodes_note(month.nodes) if month.nodes else ""
    factor_notes = "".join(f'<p class="notes">{html.escape(line)}</p>' for line in factors)
    return f'<dl class="figures">{cells}</dl>{proof}{factor_notes}'


def nodes_note(nodes: Mapping[str, int], of: str | None = None) -> str:
    """What nodes drew, and its parts, which add up to it."""
    if not nodes["total_uj"]:
        return '<p class="notes">No node recorded energy in this period.</p>'
    return f'<p class="notes">{html.escape(nodes_line(nodes, of))}</p>'


def _days(month: Month) -> str:
    """A column for each day, at its place in the month, and the same as a table."""
    rows = month.groups["day"]
    if not rows:
        return "<p>No job ended in this period.</p>"
    most = max(rows, key=lambda row: row["energy_uj"] or 0)
    largest = most["energy_uj"] or 1
    step = WIDTH / len(month.days)
    places = {day.isoformat(): place for place, day in enumerate(month.days)}
    bars = []
    for row in rows:
        height = 120 * max(row["energy_uj"] or 0, 0) / largest
        about = html.escape(f"{row['group']}: {short(row)}, {row['jobs']} jobs")
        bars.append(
            f'<rect x="{places[row["group"]] * step + 1:.1f}" y="{130 - height:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}" rx="2" fill="#0072b2"><title>{about}</title></rect>'
        )
    # The first and the last begin and end at the edge: large letters of a phone would be cut off there.
    ends = {0: (0.0, "start"), len(month.days) - 1: (float(WIDTH), "end")}
    below = 'y="134" dominant-baseline="hanging" font-size="9"'
    marks = "".join(
        f'<text x="{x:.1f}" {below} text-anchor="{anchor}" class="tick">{text}</text>'
        for place, text in _marks(month.days)
        for x, anchor in [ends.get(place, ((place + 0.5) * step, "middle"))]
    )
    table = table_html(
        Table.of("day", "jobs", "energy", rows=[[row["group"], row["jobs"], short(row)] for row in rows], right=(1, 2))
    )
    return (
        f'<svg viewBox="0 -20 {WIDTH} 180" width="100%" class="days" role="img" aria-label="Energy by day">'
        f'<path d="M0 130.5H{WIDTH}" class="axis" fill="none"/>'
        f'<text x="0" y="8" font-size="9" class="tick most">{html.escape(short(most))}</text>'
        f"{''.join(bars)}{marks}</svg>"
        f"<details><summary>Table of days</summary>{table}</details>"
    )


def _records(count: int, what: str) -> str:
    return f"{format_count(count, 'record')} {what}" if count else ""


def _marks(days: Sequence[date]) -> list[tuple[int, str]]:
    """Where the axis has a day's number: the first, the last, and every fifth that is not beside one of them."""
    last = len(days) - 1
    months = len({day.month for day in days}) > 1
    return [
        (place, f"{day:%m-%d}" if months else str(day.day))
        for place, day in enumerate(days)
        if place in (0, last) or (day.day % 5 == 0 and 2 < place < last - 2)
    ]


def _group(by: str, month: Month, currency: str) -> str:
    rows = month.groups[by]
    common = ("energy", "jobs", "time", "idle share", "waste")  # energy where a phone shows it
    heads: list[str | Column] = [by, *columns(*common)]
    total = month.total
    carbon = [name for name in ("carbon_g", "carbon_varying_g") if total[name] is not None]
    names = {"carbon_g": "carbon", "carbon_varying_g": "carbon over time"}
    heads += [Column(names[name], align="right") for name in carbon]
    heads += [Column(f"cost {currency}".strip(), align="right")] if total["cost"] is not None else []
    shown: list[list[Cell]] = []
    for row in rows[:MOST]:
        line = [
            row["group"] or "(none)",
            *cells(row, common),
            *(None if row[name] is None else rounded(row, "g CO2e", row[name]) for name in carbon),
        ]
        line += [None if row["cost"] is None else format_money(row["cost"])] if total["cost"] is not None else []
        shown.append(line)
    more = f'<p class="notes">{len(rows) - MOST} more are in the CSV.</p>' if len(rows) > MOST else ""
    return table_html(Table.of(*heads, rows=shown, title=TITLES[by])) + more


def _jobs(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("job", "user", "energy", "time", "state", "waste", "CPU", "GPU", "name")
    return table_html(Table.of(*columns(*heads), rows=[cells(row, heads) for row in rows]))
