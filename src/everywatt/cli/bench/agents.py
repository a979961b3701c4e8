"""`everywatt bench agents RUN`: what turns, model calls and tool calls of an agent cost."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.bench.llm.agents import AgentBill, Step, agent_bill
from everywatt.cli.common.options import RUN, Verb, out_option, output_options
from everywatt.cli.common.output import Output, emit_json
from everywatt.cli.common.results import check_ending
from everywatt.core.format import format_energy
from everywatt.core.jsonio import document
from everywatt.core.tables import Cell, Column, Table


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
    check_ending(out, (".json",))
    found = agent_bill(load(run), otel)
    title = (
        f"{len(found.steps)} steps, {format_energy(found.total)} in total · {found.total.scope} · "
        f"{found.total.pedigree}"
    )
    columns: tuple[str | Column, ...] = (
        "KIND",
        Column("COUNT", ""),
        Column("TIME", "s"),
        Column("OWN ENERGY", "J"),
        Column("SHARE", "%"),
    )
    output.table(Table.of(*columns, rows=_kinds(found), title=title))
    if steps:
        output.text()
        energies = (Column("OWN ENERGY", "J"), Column("WITH CHILDREN", "J"))
        columns = ("STEP", "KIND", Column("TIME", "s"), *energies, "TOKENS")
        output.table(Table.of(*columns, rows=[_row(one) for one in found.steps]))
    output.text("own energy: drawn while no child span was open; it adds up to the total")
    for note in found.notes:
        output.say(f"Note: {note}")
    if out is not None:
        emit_json(document("agent", found.to_dict()), str(out))
    output.json("agent", found.to_dict())


def _kinds(found: AgentBill) -> list[list[Cell]]:
    rows = sorted(found.by_kind().items(), key=lambda row: -(row[1][2].joules or 0.0))
    whole = found.total.joules or 0.0
    return [
        [kind, count, seconds, own, (own.joules or 0.0) / whole if whole else None]
        for kind, (count, seconds, own) in rows
    ]


def _row(step: Step) -> list[Cell]:
    tokens = [str(one) if one is not None else "–" for one in step.tokens]
    return [step.span.name, step.kind, step.span.duration_s or 0.0, step.own, step.whole, " + ".join(tokens)]
