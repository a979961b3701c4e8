"""The file that -o names, from a result that knows its tables, its CSV and its JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from everywatt.api.run import Run, load
from everywatt.cli.common.output import write_text
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.jsonio import document, dumps
from everywatt.core.tables import Table

ENDINGS = (".json", ".csv", ".md", ".html")


class Result(Protocol):
    """What a verb found."""

    def tables(self) -> Sequence[Table]:
        """For people."""

    def to_csv(self) -> str:
        """Plain numbers."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without schema and kind."""


def check_ending(out: Path | None, endings: Sequence[str] = ENDINGS) -> None:
    """UsageError where -o names a file that cannot be written: better before the trials than after them."""
    if out is not None and out.suffix not in endings:
        raise UsageError(f"{out} must end in one of {', '.join(endings)}.")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: there is no folder {out.parent}.")


def write_result(out: Path | None, kind: str, result: Result, html: Callable[[], str] | None = None) -> None:
    """Write the file in the form that its ending names; `html` makes the page where it is more than the tables."""
    if out is None:
        return
    texts: dict[str, Callable[[], str]] = {
        ".json": lambda: dumps(document(kind, result.to_dict()), indent=2) + "\n",
        ".csv": result.to_csv,
        ".md": lambda: "\n".join(table.markdown() for table in result.tables()),
        ".html": html or (lambda: _page(result)),
    }
    write_text(out, texts[out.suffix]())


def _page(result: Result) -> str:
    from everywatt.report.html.figures import table_document

    return table_document(*result.tables())


def run_of(name: str | None, settings: Settings) -> Run | None:
    """The run of a result; None where it was moved meanwhile: a page then says less of where it ran."""
    try:
        return None if name is None else load(name, home=settings.home)
    except EverywattError:
        return None


def own_words() -> list[str]:
    """The command line as the user wrote it."""
    return ["everywatt", *sys.argv[1:]]
