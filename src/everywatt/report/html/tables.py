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
