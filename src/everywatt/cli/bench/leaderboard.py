"""`everywatt bench leaderboard RUN…`: runs of `bench llm` in one table."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.bench.llm.leaderboard import ORDERS, leaderboard
from everywatt.cli.common.options import RUN, Verb, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.common.results import check_ending, write_result


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
    check_ending(out)
    board = leaderboard([load(run) for run in runs], order)
    output.table(*board.tables())
    write_result(out, "leaderboard", board)
    output.json("leaderboard", board.to_dict())
