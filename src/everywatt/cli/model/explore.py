"""`everywatt model explore`: which column moves with power at all, before anything is fitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.model.tables import table_options, target_option
from everywatt.core.tables import Table

if TYPE_CHECKING:
    from everywatt.models.table import Table as Rows


@click.command(cls=Verb)
@table_options
@target_option
@click.option(
    "--lags",
    type=click.IntRange(0, 60),
    default=5,
    show_default=True,
    help="Largest delay to try, in rows, in both directions.",
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Scatter plots: .png, .svg, .pdf or .html."
)
@output_options
def command(table: Rows, target: str, lags: int, plot: Path | None, output: Output) -> None:
    """Show which columns move with power, and with what delay, before fitting anything.

    A delay above zero means that the column moves first. Correlations are rank correlations, so a monotonic curve
    counts in full.
    """
    from everywatt.models.exploring import explore

    found = explore(table, target, lags)
    rows = [
        [one.name, f"{one.now:+.2f}", f"{one.best:+.2f}", f"{one.lag_s:+g} s", one.grade, one.remark]
        for one in found.columns
    ]
    output.table(
        Table.of("COLUMN", "NOW", "BEST", "DELAY", "RELATION", "", rows=rows, right=(1, 2, 3), title=f"With {target}:")
    )
    for warning in found.warnings:
        output.warn(warning)
    if not any(one.grade in ("strong", "some") for one in found.columns):
        output.text(f"No relation: no column moves with {target}.")
    if plot is not None:
        from everywatt.report.model_plots import scatter_plot

        names = [one.name for one in found.columns[:6]]
        drawn = scatter_plot({name: table.column(name) for name in names}, table.column(target), target, plot)
        output.say(f"Scatter plots of the strongest columns: {drawn}")
    output.json("model-explore", {"target": target, "columns": found.columns, "warnings": list(found.warnings)})
