"""What a batch came to, printed: by `batch` at its end, and by `batch summary RUN`."""

from __future__ import annotations

from pathlib import Path

from everywatt.api.run import load
from everywatt.batch.figures import BatchFigures, figures
from everywatt.batch.journal import DONE, FAILED, History, read_journal
from everywatt.batch.tables import (
    HEADERS,
    ITEM_HEADERS,
    ITEM_RIGHT,
    RIGHT,
    device_rows,
    headline,
    item_rows,
    stragglers,
)
from everywatt.cli.output import Output
from everywatt.core.errors import EverywattError

MOST_ROWS = 20


def batch_figures(folder: Path) -> tuple[BatchFigures | None, History, str]:
    """The figures of a batch, its journal, and why there are no figures where there are none."""
    history = read_journal(folder)
    try:
        return figures(load(folder), history), history, ""
    except EverywattError as error:
        return None, history, str(error)


def show_batch(folder: Path, output: Output) -> int:
    """Print what a batch came to; gives 1 where an item failed or is left."""
    found, history, why = batch_figures(folder)
    statuses = [state.status for state in history.states.values()]
    code = 0 if all(status == DONE for status in statuses) else 1
    if found is None:
        output.warn(f"no figures: {why}")
        items = [{"id": key, "status": state.status} for key, state in history.states.items()]
        output.json("batch", {"run": folder.name, "items": items, "by_device": [], "energy": None, "refused": why})
        output.text(f"{len(statuses)} items: {statuses.count(DONE)} done, {statuses.count(FAILED)} failed")
        return code
    output.json("batch", found.to_dict())
    output.text(headline(found))
    output.table(HEADERS, device_rows(found), right=RIGHT)
    if found.total.joules is None:
        output.text(f"energy refused: {found.total.refused}")
    _show_items(found, output)
    for note in found.notes:
        output.say(f"! {note}")
    output.say(f"  run     {found.run}   (everywatt ledger {found.run} --by span, everywatt batch summary {found.run})")
    return code


def _show_items(found: BatchFigures, output: Output) -> None:
    failed = [item for item in found.items if item.state.status != DONE]
    if failed:
        output.table(ITEM_HEADERS, item_rows(failed[:MOST_ROWS]), right=ITEM_RIGHT, title="not done")
        if len(failed) > MOST_ROWS:
            output.text(f"and {len(failed) - MOST_ROWS} more; --json has all")
    if slow := stragglers(found):
        output.table(ITEM_HEADERS, item_rows(slow[:MOST_ROWS]), right=ITEM_RIGHT, title="stragglers")
