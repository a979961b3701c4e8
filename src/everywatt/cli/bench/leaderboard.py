"""`everywatt bench leaderboard RUN…`: runs of `bench llm` in one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.leaderboard import ORDERS, Board, leaderboard
from everywatt.cli.common.options import RUN, Verb, out_option, output_options
from everywatt.cli.common.output import Output, emit_json
from everywatt.cli.compare import check_ending
from everywatt.core.format import format_percent
from everywatt.core.jsonio import document
from everywatt.core.tables import Cell, Table

HEADERS = (
    "",
    "MODEL",
    "LOAD",
    "ANSWERED",
    "ACCURACY",
    "CORRECT/J",
    "J/TOKEN",
    "J/REQUEST",
    "TOKENS/S",
    "PROVENANCE",
    "RUN",
)


@click.command(cls=Verb)
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--by", "order", type=click.Choice(list(ORDERS)), default="accuracy-per-joule", help="Figure to sort by.")
@out_option
@output_options
def command(runs: tuple[str, ...], order: str, out: Path | None, output: Output) -> None:
    """Rank runs of `bench llm` in one table, each figure with its interval.

    Refused with exit code 3 if the runs used different items or their joules cover different scopes.
    """
    check_ending(out, (".json",))
    board = leaderboard([load(run) for run in runs], order)
    output.table(Table.of(*HEADERS, rows=_rows(board), title=f"{board.dataset}, by {board.order}"))
    if board.scope:
        output.text(f"joules: scope {board.scope}, boundary {board.boundary}")
    for place in board.places:
        if place.refused:
            output.say(f"{place.run}: no energy: {place.refused}")
    if out is not None:
        emit_json(document("leaderboard", board.to_dict()), str(out))
    output.json("leaderboard", board.to_dict())


def _rows(board: Board) -> list[tuple[Cell, ...]]:
    return [
        (
            str(number),
            place.model,
            place.level,
            f"{place.answered}/{place.queries}",
            _share(place.accuracy),
            _shown(place.figures["accuracy_per_joule_mean"]),
            _shown(place.figures["energy_per_output_token"]),
            _shown(place.figures["energy_per_request"]),
            _shown(place.figures["output_tokens_per_second"]),
            place.pedigree,
            place.run,
        )
        for number, place in enumerate(board.places, start=1)
    ]


def _share(figure: Figure) -> str | None:
    if figure.value is None or figure.low is None or figure.high is None:
        return None
    return format_percent(figure.value, figure.value - figure.low, figure.high - figure.value)


def _shown(figure: Figure) -> str | None:
    return None if figure.value is None else str(replace(figure, unit="").printed())
