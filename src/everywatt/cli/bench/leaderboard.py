"""`everywatt bench leaderboard RUN…`: runs of `bench llm` in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.leaderboard import ORDERS, Board, Place, leaderboard
from everywatt.cli.common.options import RUN, Verb, out_option, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.common.results import check_ending
from everywatt.core.format import format_duration, format_percent
from everywatt.core.jsonio import document, dumps
from everywatt.core.tables import Cell, Table

HEADERS = (
    *("rank", "model", "load", "answered", "accuracy", "correct/J", "accuracy/W", "J/token", "J/request", "TTFT"),
    *("tokens/s", "hardware", "scope", "provenance", "run"),
)
ENDINGS = (".json", ".html", ".md", ".csv")


@click.command(cls=Verb)
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--by", "order", type=click.Choice(list(ORDERS)), default="accuracy-per-joule", help="Figure to sort by.")
@out_option
@output_options
def command(runs: tuple[str, ...], order: str, out: Path | None, output: Output) -> None:
    """Rank runs of `bench llm`, each figure with its interval; runs whose intervals overlap are tied.

    Failed queries count as not correct, and their joules are charged. Runs whose joules cover different scopes are
    ranked in separate tables. -o writes .json, .html, .md or .csv; `everywatt validate FILE.json` recomputes every row
    from the runs. Refused with exit code 3 if the runs used different items.
    """
    check_ending(out, ENDINGS)
    board = leaderboard([load(run) for run in runs], order)
    tables = [_table(board, *which, places) for which, places in board.tables.items()]
    for table in tables:
        output.table(table)
    if out is not None:
        texts = {
            ".json": lambda: dumps(document("leaderboard", board.to_dict()), indent=2) + "\n",
            ".html": lambda: _html(tables),
            ".md": lambda: "\n".join(table.markdown() for table in tables),
            ".csv": board.to_csv,
        }
        write_text(out, texts[out.suffix]())
    output.json("leaderboard", board.to_dict())


def _table(board: Board, scope: str, boundary: str, places: Sequence[Place]) -> Table:
    notes = [f"joules: scope {scope}, boundary {boundary}"] if scope else []
    if any(place.tied for place in places):
        notes.append("tied: the 95 % interval overlaps that of the first with this rank")
    notes += [f"{place.run}: no energy: {place.refused}" for place in places if place.refused]
    title = f"{board.dataset}, by {board.order}"
    if len(board.tables) > 1:
        title += f": joules of {scope}, boundary {boundary}"
    return Table.of(*HEADERS, rows=_rows(places), title=title, notes=notes)


def _html(tables: Sequence[Table]) -> str:
    from everywatt.report.html.figures import table_document

    return table_document(*tables)


def _rows(places: Sequence[Place]) -> list[tuple[Cell, ...]]:
    return [
        (
            "-" if place.rank is None else f"{place.rank}{' tied' if place.tied else ''}",
            place.model,
            place.level,
            f"{place.answered}/{place.queries}",
            _share(place.accuracy),
            _shown(place.figures["accuracy_per_joule_mean"]),
            _shown(place.figures["accuracy_per_watt"]),
            _shown(place.figures["energy_per_output_token"]),
            _shown(place.figures["energy_per_request"]),
            None if place.ttft_s is None else format_duration(place.ttft_s),
            _shown(place.figures["output_tokens_per_second"]),
            place.hardware or None,
            place.scope or None,
            place.pedigree,
            place.run,
        )
        for place in places
    ]


def _share(figure: Figure) -> str | None:
    if figure.value is None or figure.low is None or figure.high is None:
        return None
    return format_percent(figure.value, figure.value - figure.low, figure.high - figure.value)


def _shown(figure: Figure) -> str | None:
    return None if figure.value is None else str(replace(figure, unit="").printed())
