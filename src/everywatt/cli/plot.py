"""`everywatt plot RUN`: a run as PNG, SVG or PDF."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.cli.common.options import RUN, Verb, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.common.progress import task
from everywatt.core.tables import Table

WHAT = ("power", "ledger", "spans", "energy-by-device", "llm-tokens", "llm-density")


@click.command(cls=Verb)
@click.argument("run", type=RUN, default="last")
@click.option("--what", type=click.Choice(WHAT), default="power", help="What to draw; power unless given.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="A line over time; may be given again.")
@click.option("--second-axis", "second", multiple=True, metavar="NAME", help="A line with an axis at the right.")
@click.option("--list", "list_them", is_flag=True, help="List what can be drawn over time.")
@out_option
@output_options
def command(
    run: str,
    what: str,
    metrics: tuple[str, ...],
    second: tuple[str, ...],
    list_them: bool,
    out: Path | None,
    output: Output,
) -> None:
    """Draw a run into a file, without a browser: pip install 'everywatt[plots]'.

    --out says the format by its ending: .png, .svg or .pdf; without it, `NAME-WHAT.png` in the working folder. --metric
    and --second-axis take names that --list prints, such as "gpu.0 temperature".
    """
    from everywatt.report.plots import metrics_of, plot

    opened = load(run)
    if list_them:
        found = metrics_of(opened)
        output.json("metrics", {"name": opened.name, "metrics": [{"name": n, "unit": u or None} for n, u in found]})
        output.table(Table.of("METRIC", "UNIT", rows=[[name, unit or None] for name, unit in found]))
        return
    target = out or Path(f"{opened.name}-{what}.png")
    with task(output, "plot"):
        plot(opened, what, target, metrics=metrics, second=second)
    output.json("plot", {"name": opened.name, "what": what, "path": str(target)})
    output.text(str(target))
