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
@click.option("--what", type=click.Choice(WHAT), default="power", help="What to plot; power by default.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Metric to plot over time; may be repeated.")
@click.option("--second-axis", "second", multiple=True, metavar="NAME", help="Metric to plot on a second axis.")
@click.option("--list", "list_them", is_flag=True, help="List the metrics that can be plotted.")
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
    """Plot a run to a file. Requires `pip install 'everywatt[plots]'`.

    The extension of --out selects the format: .png, .svg or .pdf; by default `NAME-WHAT.png` in the working directory.
    --metric and --second-axis take names that --list prints, such as "gpu.0 temperature".
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
