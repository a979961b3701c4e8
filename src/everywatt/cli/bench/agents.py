"""`everywatt bench agents RUN`: what turns, model calls and tool calls of an agent cost."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.bench.llm.agents import agent_bill
from everywatt.cli.common.options import RUN, Verb, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.common.results import check_ending, write_result


@click.command(cls=Verb)
@click.argument("run", type=RUN, default="last")
@click.option("--otel", type=click.Path(path_type=Path), metavar="FILE", help="GenAI spans as OTLP JSON lines.")
@click.option("--steps", is_flag=True, help="Every span, not only the summary by kind.")
@out_option
@output_options
def command(run: str, otel: Path | None, steps: bool, out: Path | None, output: Output) -> None:
    """Show the energy of the steps of an agent: turns, model calls, tool calls.

    The spans are those that the program made with turn(), model_call() and tool_call(), or those of an OpenTelemetry
    file covering the same time. Each joule belongs to the innermost span that was open, so own energies add up.
    """
    check_ending(out, (".json", ".csv", ".md"))
    found = agent_bill(load(run), otel)
    kinds, every = found.tables()
    output.table(kinds)
    if steps:
        output.text()
        output.table(every)
    output.text("own energy: drawn while no child span was open; it adds up to the total")
    for note in found.notes:
        output.say(f"Note: {note}")
    write_result(out, "agent", found)
    output.json("agent", found.to_dict())
