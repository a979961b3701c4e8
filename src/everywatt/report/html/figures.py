"""Figures and tables in the words of a page: plain data, and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from typing import Any

from everywatt.core.energy import Energy
from everywatt.core.format import format_energy, format_percent, print_quantity
from everywatt.core.tables import Table
from everywatt.report.html.page import card, still_page


def shown_energy(energy: Energy) -> dict[str, Any]:
    """An energy as JSON has it, with the words that a person reads: value, unit and spread apart."""
    data = {**energy.to_dict(), "shown": format_energy(energy)}
    if energy.joules is not None:
        data["big"] = print_quantity(energy.joules, "J", *energy.sides())._asdict()
        data["coverage_shown"] = format_percent(energy.coverage)
    return data


MISSING = "–"


def table_view(table: Table) -> dict[str, Any]:
    """What the page's script draws: title, heads, rows of words, and the places of columns of numbers."""
    return {"title": table.title, "heads": table.headers, "rows": table.cells(MISSING), "numbers": table.right}


def table_html(table: Table, links: Sequence[str] = ()) -> str:
    """The table as HTML, the first cell of each row as its heading; with `links`, these addresses behind it."""
    kinds = [' class="number"' if column.right else "" for column in table.columns]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(table.headers, kinds, strict=True))
    body = "".join(
        f"<tr><th{kinds[0]}>{_linked(row[0], link)}</th>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row[1:], kinds[1:], strict=True))
        + "</tr>"
        for row, link in zip_longest(table.cells(MISSING), links, fillvalue="")
    )
    kind = "scroll jobs" if links else "scroll"
    # A wide table is scrolled by keyboard where it can be focused, and is then read out by this name.
    name = escape(table.title or ", ".join(filter(None, table.headers)) or "facts")
    region = f'<div class="{kind}" tabindex="0" role="region" aria-label="{name}">'
    head = f"<thead><tr>{head}</tr></thead>" if any(table.headers) else ""
    return f"{region}<table>{head}<tbody>{body}</tbody></table></div>"


def _linked(text: str, link: str) -> str:
    return f'<a href="{escape(link)}">{escape(text)}</a>' if link else escape(text)


def table_document(*tables: Table) -> str:
    """A page of tables, each with its title and its notes; it needs neither a script nor the network."""
    cards = []
    for table in tables:
        notes = "".join(f'<p class="notes">{escape(note)}</p>' for note in table.notes)
        cards.append(card(table.title if len(tables) > 1 else "", table_html(table) + notes))
    return still_page(tables[0].title, "".join(cards))
