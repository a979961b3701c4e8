"""`everywatt model explore` and `model fit`: which columns move with power, and a model of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from everywatt.cli.common.options import FILE, Verb, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.model.tables import percent, table_options, target_option
from everywatt.core.errors import MeasurementRefused, MissingExtra, UsageError
from everywatt.core.tables import Table
from everywatt.models.fitting import Fit, error_row, fit
from everywatt.models.modelfile import dumps
from everywatt.models.screening import explore
from everywatt.models.table import Table as Rows
from everywatt.models.validation import KINDS


@click.command(cls=Verb)
@table_options
@target_option
@click.option("--features", default="auto", metavar="COLUMNS", help="auto, or columns separated by commas.")
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Column to exclude; may be repeated.")
@click.option("--averages", is_flag=True, help="Also try rolling averages over 1, 5 and 15 s.")
@click.option(
    "--choose",
    type=click.Choice(["worst", "blocks", "loads"]),
    default="worst",
    show_default=True,
    help="Choose by the worst error of all validations, or only by held-out time (blocks) or held-out loads.",
)
@click.option(
    "--level",
    type=click.FloatRange(0.5, 0.99),
    default=0.9,
    show_default=True,
    help="Nominal coverage of the interval.",
)
@click.option("-o", "--out", type=FILE, required=True, help="Model file to write.")
@click.option("--plot", type=FILE, help="File of the plot; beside the model by default.")
@click.option("--no-plot", is_flag=True, help="Do not plot prediction against truth.")
@output_options
def command(
    table: Rows,
    target: str,
    features: str,
    ignore: tuple[str, ...],
    averages: bool,
    choose: str,
    level: float,
    out: Path,
    plot: Path | None,
    no_plot: bool,
    output: Output,
) -> None:
    """Fit a column of watts to the other columns, and write the model as a JSON file.

    Every model is tested where deployment differs from training: held-out stretches of time, loads (by --load COLUMN,
    by the steps of a load program, or else by groups of stretches of time with similar utilisation) and ranges of
    columns, and columns that are stuck or scaled. The worst of these errors selects the model. If no model is better
    than the mean, the answer is "no relation", nothing is written, and the exit code is 3.
    """
    wanted = None if features == "auto" else [name.strip() for name in features.split(",") if name.strip()]
    ignored = [name.strip() for words in ignore for name in words.split(",") if name.strip()]
    if target in (wanted or ()) or target in ignored:
        raise UsageError(f"{target} is the target itself.", cure="--target another column")
    found = fit(
        table,
        target,
        ignore=ignored,
        features=wanted,
        averages=averages,
        choose=choose,
        level=level,
        tell=output.progress(),
    )
    output.warn(*found.warnings)
    _table(found, choose, output)
    data: dict[str, Any] = {
        "target": target,
        "relation": found.model is not None,
        "why": found.why,
        "models": [error_row(one) for one in found.scores],
        "warnings": list(found.warnings),
        "loads": list(found.loads),
    }
    if found.model is None or found.chosen is None:
        output.json("model-fit", data)
        raise MeasurementRefused(f"No relation between these columns and {target}: {found.why}.")
    write_text(out, dumps(found.model))
    best = found.chosen
    worst = max(found.shifts, key=lambda one: one.error_pct)
    least = min(found.shifts, key=lambda one: one.coverage)
    output.text(
        f"{best.candidate.name}: worst error {percent(worst.error_pct)} ({worst.name}); {percent(best.loads_pct)} on "
        f"held-out loads, {percent(best.blocked_pct)} on held-out time. {100 * level:.0f} % intervals held "
        f"{percent(100 * (found.coverage or 0.0))} of the truths over time, at least {percent(100 * least.coverage)} "
        f"({least.name}). Written: {out}"
    )
    drawn = None if no_plot else _plot(found, plot or out.with_suffix(".svg"), output)
    about: dict[str, Any] = {
        "chosen": best.candidate.name,
        "coverage": found.coverage,
        "level": level,
        "file": str(out),
    }
    about |= {"shifts": found.shifts, "worst_pct": worst.error_pct, "worst_fold": worst.name}
    output.json("model-fit", {**data, **about, "plot": None if drawn is None else str(drawn)})


def _table(found: Fit, choose: str, output: Output) -> None:
    rows = []
    for one in found.scores:
        mark = "baseline" if one.candidate.baseline else "← chosen" if one is found.chosen else ""
        errors = [one.worst(kind)[0] for kind in KINDS]
        rows.append([one.candidate.name, *(percent(None if e != e else e) for e in (one.blocked_pct, *errors)), mark])
    title = f"Error on held-out rows ({len(found.truth)} rows, {len(found.loads)} loads; chosen by {choose})"
    heads = ("MODEL", "BLOCKS, MEAN", "TIME, WORST", "LOAD", "RANGE", "COLUMN AT FAULT", "")
    output.table(Table.of(*heads, rows=rows, right=(1, 2, 3, 4, 5), title=title))


def _plot(found: Fit, path: Path, output: Output) -> Path | None:
    from everywatt.report.model_plots import truth_plot

    assert found.chosen is not None and found.model is not None
    held = found.chosen.blocks
    rows, watts = ([getattr(one, key) for one in held] for key in ("rows", "watts"))
    at, made = np.concatenate(rows), np.concatenate(watts)
    try:
        drawn = truth_plot(found.times_s[at], found.truth[at], made, found.model.target, path)
    except MissingExtra as error:
        output.warn(f"No plot: {error}")
        return None
    output.say(f"Prediction against truth, for each row while it was held out: {drawn}")
    return drawn


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
@click.option("--plot", type=FILE, help="Scatter plots: .png, .svg, .pdf or .html.")
@output_options
def explore_columns(table: Rows, target: str, lags: int, plot: Path | None, output: Output) -> None:
    """Show which columns move with power, and with what delay, before fitting anything.

    A delay above zero means that the column moves first. Correlations are rank correlations, so a monotonic curve
    counts in full.
    """
    found = explore(table, target, lags)
    rows = [
        [one.name, *(text.replace("-", "−") for text in texts), one.grade, one.remark]
        for one in found.columns
        for texts in [(f"{one.now:+.2f}", f"{one.best:+.2f}", f"{one.lag_s:+.3g} s")]
    ]
    output.table(
        Table.of("COLUMN", "NOW", "BEST", "DELAY", "RELATION", "", rows=rows, right=(1, 2, 3), title=f"With {target}:")
    )
    output.warn(*found.warnings)
    if not any(one.grade in ("strong", "some") for one in found.columns):
        output.text(f"No relation: no column moves with {target}.")
    if plot is not None:
        from everywatt.report.model_plots import scatter_plot

        names = [one.name for one in found.columns[:6]]
        drawn = scatter_plot({name: table.column(name) for name in names}, table.column(target), target, plot)
        output.say(f"Scatter plots of the strongest columns: {drawn}")
    output.json("model-explore", {"target": target, "columns": found.columns, "warnings": list(found.warnings)})
