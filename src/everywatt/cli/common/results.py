"""The file that -o names and the JSON object, from a result that knows its tables, its CSV and its JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from everywatt.api.run import Run, load
from everywatt.cli.common.output import Output, Result, check_folder, write_text
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.jsonio import document, dumps

ENDINGS = (".json", ".csv", ".md", ".html")
TABLES = (".tsv", ".jsonl", ".parquet", ".arrow", ".xls", ".xlsx")
FORMS = {*ENDINGS, *TABLES, ".htm", ".txt", ".pdf", ".docx", ".png", ".svg"}


class FileResult(Result, Protocol):
    """A result that can be a file."""

    def to_csv(self) -> str:
        """Plain numbers."""
        ...


def check_ending(out: Path | None, endings: Sequence[str] = ENDINGS) -> None:
    """UsageError where -o names a file that cannot be written: better before the trials than after them."""
    if out is not None and out.suffix.lower() not in endings:
        raise UsageError(f"{out} must end in one of {', '.join(endings)}.")
    if out is not None:
        check_folder(out)


def check_form(out: Path, *endings: str) -> None:
    """UsageError where a file of one form is named as one of another; any name of no known form (`x.v2`) will do."""
    if out.suffix.lower() in FORMS and out.suffix.lower() not in endings:
        raise UsageError(f"{out} must end in one of {', '.join(endings)}.")


def write_result(
    output: Output, out: Path | None, kind: str, result: FileResult, html: Callable[[], str] | None = None
) -> None:
    """Write the file in the form that its ending names, and the JSON object where --json asked for it.

    `html` makes the page where it is more than the tables.
    """
    if out is not None:
        texts: dict[str, Callable[[], str]] = {
            ".json": lambda: dumps(document(kind, result.to_dict()), indent=2) + "\n",
            ".csv": result.to_csv,
            ".md": lambda: "\n".join(table.markdown() for table in result.tables()),
            ".html": html or (lambda: _page(result)),
        }
        write_text(out, texts[out.suffix.lower()]())
    output.json(kind, result.to_dict())


def _page(result: FileResult) -> str:
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
