"""`everywatt export RUN --to KIND`: a run as CSV, JSON lines, Parquet, Arrow, or a recording of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.cli.common.options import RUN, Verb, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.common.progress import task
from everywatt.core.plugins import EXPORTERS, load_plugin, registered
from everywatt.tape.exporting import KINDS, export


@click.command(cls=Verb)
@click.argument("run", type=RUN, default="last")
@click.option("--to", "kind", type=click.Choice([*KINDS, *registered(EXPORTERS)]), required=True, help="Output format.")
@click.option(
    "--neutral", is_flag=True, help="In CSV, put an apostrophe before anything that a spreadsheet would execute."
)
@out_option
@output_options
def command(run: str, kind: str, neutral: bool, out: Path | None, output: Output) -> None:
    """Write all ticks, spans and points of a run to files of another format.

    --out is the file of ticks; by default `NAME.KIND` in the working directory. Spans, points and channel metadata are
    written beside it. Existing files are replaced. For aipowermeter, --out is the folder of the recording.

    Jobs of a Slurm site have their own export (labia-csv): `everywatt slurm export`.

    ipw writes a run of `bench llm` as a folder in the layout of Intelligence per Watt: an Arrow dataset and
    summary.json.
    """
    opened = load(run)
    if kind in KINDS:
        with task(output, "export") as tell:
            target = out or Path(f"{opened.name}.{kind}")
            files = export([tape.path for tape in opened.tapes], kind, target, tell, neutral=neutral)
    else:
        files = load_plugin(EXPORTERS, kind)(opened, out)
    output.json("export", {"name": opened.name, "to": kind, "files": [str(file) for file in files]})
    for file in files:
        output.text(str(file))
