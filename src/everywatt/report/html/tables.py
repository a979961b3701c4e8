"""A table for a page: its words as plain data, and as HTML."""

from __future__ import annotations

from html import escape
from typing import Any

from everywatt.core.tables import Table

MISSING = "–"


def table_view(table: Table) -> dict[str, Any]:
    """What the page's script draws: title, heads, rows of words, and the places of columns of numbers."""
    return {"title": table.title, "heads": table.headers, "rows": table.cells(MISSING), "numbers": table.right}


def table_html(table: Table) -> str:
    """The table as HTML, the first cell of each row as its heading."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.headers)
    body = "".join(
        "<tr>" + f"<th>{escape(row[0])}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.cells()
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1b1f24; background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid #d0d7de; text-align: left; white-space: nowrap; }
.scroll { overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117; } th, td { border-color: #30363d; } }
"""


def table_document(table: Table) -> str:
    """A page with one table, its title and its notes; it needs neither a script nor the network."""
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    title = escape(table.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>{table_html(table)}{notes}</body></html>\n"
    )
