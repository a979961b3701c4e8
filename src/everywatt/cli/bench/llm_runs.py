"""`everywatt bench leaderboard RUN…` and `bench agents RUN`: what is made of recorded runs of language models."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.bench.llm.agents import agent_bill
from everywatt.bench.llm.leaderboard import ORDERS, leaderboard
from everywatt.cli.common.options import PATH, RUN, Verb, out_option, output_options, run_argument
from everywatt.cli.common.output import Output
from everywatt.cli.common.results import check_ending, write_result


@click.command(cls=Verb)
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option(
    "--by",
    "order",
    type=click.Choice(list(ORDERS)),
    default="accuracy-per-joule",
    metavar="FIGURE",
    help=f"Figure to sort by: {', '.join(ORDERS)}.  [default: accuracy-per-joule]",
)
@out_option
@output_options
def leaderboard_command(runs: tuple[str, ...], order: str, out: Path | None, output: Output) -> None:
    """Rank runs of `bench llm`, each figure with its interval; runs whose intervals overlap are tied.

    Failed queries count as not correct, and their joules are charged. Runs whose joules cover different scopes are
    ranked in separate tables. -o writes .json, .html, .md or .csv; `everywatt validate FILE.json` recomputes every row
    from the runs. Refused with exit code 3 if the runs used different items.
    """
    check_ending(out)
    board = leaderboard([load(run) for run in runs], order)
    output.table(*board.tables())
    write_result(output, out, "leaderboard", board)


@click.command(cls=Verb)
@run_argument
@click.option("--otel", type=PATH, metavar="FILE", help="GenAI spans as OTLP JSON lines.")
@click.option("--steps", is_flag=True, help="Every span, not only the summary by kind.")
@out_option
@output_options
def agents_command(run: str, otel: Path | None, steps: bool, out: Path | None, output: Output) -> None:
    """Show the energy of the steps of an agent: turns, model calls, tool calls.

    The spans are those that the program made with turn(), model_call() and tool_call(), or those of an OpenTelemetry
    file covering the same time. Each joule belongs to the innermost span that was open, so own energies add up.
    """
    check_ending(out, (".json", ".csv", ".md"))
    found = agent_bill(load(run), otel)
    kinds, every = found.tables()
    output.table(kinds)
    if steps:
        output.text("")
        output.table(every)
    output.text("own energy: drawn while no child span was open; it adds up to the total")
    for note in found.notes:
        output.say(f"Note: {note}")
    write_result(output, out, "agent", found)
