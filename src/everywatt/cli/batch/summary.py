"""`everywatt batch summary RUN`: what a batch came to, a drift, several batches side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from everywatt.api.run import load
from everywatt.batch.figures import BatchFigures, cause_table, item_table, scaling_csv, scaling_table
from everywatt.batch.journal import DONE, FAILED, History, read_journal
from everywatt.batch.measuring import TOLERANCE, Drift, drifts, figures
from everywatt.cli.common.options import RUN, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.core.config import resolve
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_count
from everywatt.core.jsonio import document, dumps
from everywatt.formats.badc import Summary, read_summary, read_telemetry, summarise
from everywatt.tape.run_store import existing_home, find_run

MOST_ROWS = 20
FEW = 6  # items from which those of one cause are one row


@click.command("summary", cls=Verb)
@click.argument("runs", nargs=-1, type=RUN, metavar="RUN|LOG...")
@click.option("--to", "form", type=click.Choice(["md", "json", "csv"]), help="Output format on stdout.")
@click.option("--baseline", type=RUN, metavar="RUN", help="Compare with this batch; exit with 1 if it has drifted.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=TOLERANCE,
    help="Relative change that does not count as drift.  [default: 0.1]",
)
@output_options
def command(runs: tuple[str, ...], form: str | None, baseline: str | None, tolerance: float, output: Output) -> int:
    """Summarise a batch. RUN is a batch; telemetry logs (.jsonl) and summary.json files of BADC are read too.

    Several batches are shown side by side: items/s and J/item against the number of GPUs. Of a single one the exit code
    is 1 if an item failed or is unfinished, or if it has drifted from --baseline.
    """
    names = runs or ("last",)
    if len(names) > 1:
        return _several(names, form, output)
    if names[0].endswith((".jsonl", ".json")):
        return _telemetry(Path(names[0]), output, form)
    found = _figures_of(names[0])
    changes: list[Drift] = []
    notes: list[str] = []
    if baseline is not None:
        changes, notes = drifts(found, _figures_of(baseline), tolerance)
    code = 1 if found.count(DONE) < len(found.items) or any(one.drifted for one in changes) else 0
    lines = [*map(str, changes), *notes]
    more = {"drift": [one.to_dict() for one in changes]} if baseline is not None else {}
    if form is not None:
        data = document("batch", {**found.to_dict(), **more})
        output.document(_in_form(form, data, lambda: found.to_markdown(lines), found.to_csv))
    else:
        if output.json_to is not None:  # thousands of items take a while
            output.json("batch", {**found.to_dict(), **more})
        _show(found, output)
        output.text(*lines)
    return code


def _figures_of(name: str) -> BatchFigures:
    folder = find_run(name, existing_home(resolve().home))
    found, _, why = batch_figures(folder)
    if found is None:
        raise UsageError(f"{folder.name} has no figures: {why}")
    return found


def _several(names: Sequence[str], form: str | None, output: Output) -> int:
    found = [_figures_of(name) for name in names]
    data = {"batches": [{k: v for k, v in one.to_dict().items() if k != "items"} for one in found]}
    table = scaling_table(found)
    if form is not None:
        output.document(_in_form(form, document("batches", data), table.markdown, lambda: scaling_csv(found)))
    else:
        output.json("batches", data)
        output.table(table)
    return 0


def _telemetry(path: Path, output: Output, form: str | None) -> int:
    found: Summary = read_summary(path) if path.suffix == ".json" else summarise(read_telemetry(path), str(path))
    table = found.workers_table()
    if form is not None:
        output.document(_in_form(form, found.to_dict(), table.markdown, table.csv))
    else:
        output.json("telemetry", found.to_dict())
        output.table(table)
    return 0 if all(job.get("status") == "completed" for job in found.jobs.values()) else 1


def _in_form(form: str, data: Mapping[str, Any], markdown: Callable[[], str], csv: Callable[[], str]) -> str:
    return dumps(data, indent=2) if form == "json" else {"md": markdown, "csv": csv}[form]()


def batch_figures(folder: Path) -> tuple[BatchFigures | None, History, str]:
    """The figures of a batch, its journal, and the reason if there are no figures."""
    history = read_journal(folder)
    try:
        return figures(load(folder), history), history, ""
    except EverywattError as error:
        return None, history, str(error)


def show_batch(folder: Path, output: Output) -> tuple[int, BatchFigures | None]:
    """Print what a batch came to; gives 1 where an item failed or is left, and the figures."""
    found, history, why = batch_figures(folder)
    statuses = [state.status for state in history.states.values()]
    code = 0 if all(status == DONE for status in statuses) else 1
    if found is None:
        output.warn(f"no figures: {why}")
        items = [{"id": key, "status": state.status} for key, state in history.states.items()]
        output.json("batch", {"run": folder.name, "items": items, "by_device": [], "energy": None, "refused": why})
        done, failed = statuses.count(DONE), statuses.count(FAILED)
        output.text(f"{format_count(len(statuses), 'item')}: {done} done, {failed} failed")
        return code, None
    if output.json_to is not None:
        output.json("batch", found.to_dict())
    _show(found, output)
    run = found.run
    output.say(f"  run     {run}   (everywatt ledger {run} --by span, everywatt batch summary {run})")
    return code, found


def _show(found: BatchFigures, output: Output) -> None:
    output.text(found.headline)
    output.table(found.device_table())
    refused = found.total.joules is None
    output.text(f"energy refused: {found.total.refused}" if refused else f"energy: {found.total}")
    for text in found.total.notes:
        output.say(f"! {text}")
    _show_items(found, output)
    for note in (*found.notes, *found.repeated()):
        output.say(f"! {note}")


def _show_items(found: BatchFigures, output: Output) -> None:
    failed = found.unfinished()
    untouched = sum(not item.attempts for item in found.items)
    if len(failed) >= FEW and 2 * len(found.causes()) <= len(failed):
        output.table(cause_table(found, MOST_ROWS, "not finished"))
        output.text(f"{format_count(len(failed), 'item')} not finished; --json lists each")
    elif failed:
        output.table(item_table(failed[:MOST_ROWS], "not finished"))
        if len(failed) > MOST_ROWS:
            output.text(f"and {len(failed) - MOST_ROWS} more; --json lists all")
    if untouched:
        output.text(f"{format_count(untouched, 'item')} {'was' if untouched == 1 else 'were'} not started")
    if slow := found.stragglers():
        output.table(item_table(slow[:MOST_ROWS], "stragglers"))
