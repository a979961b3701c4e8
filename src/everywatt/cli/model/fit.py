"""`everywatt model fit`: learn a column of watts from the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.model.tables import percent, table_options, target_option
from everywatt.core.errors import MeasurementRefused, MissingExtra, UsageError
from everywatt.core.format import format_watts
from everywatt.core.tables import Table

if TYPE_CHECKING:
    from everywatt.models.fitting import Fit
    from everywatt.models.table import Table as Rows


@click.command(cls=Verb)
@table_options
@target_option
@click.option("--features", default="auto", metavar="COLUMNS", help="auto, or columns separated by commas.")
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Column to exclude; may be repeated.")
@click.option("--averages", is_flag=True, help="Also try rolling averages over 1, 5 and 15 s.")
@click.option(
    "--choose",
    type=click.Choice(["blocks", "loads"]),
    default="blocks",
    show_default=True,
    help="Choose the model by its error on held-out blocks of time, or on held-out loads.",
)
@click.option(
    "--level",
    type=click.FloatRange(0.5, 0.99),
    default=0.9,
    show_default=True,
    help="Nominal coverage of the interval.",
)
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Model file to write."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="File of the plot; beside the model by default."
)
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

    Every model is evaluated on held-out rows: five blocks of time in turn, and each load in turn (by --load COLUMN, by
    the steps of a load program, or else by groups of rows with similar utilisation), beside simple baselines. If no
    model is better than the mean, the answer is "no relation", nothing is written, and the exit code is 3.
    """
    from everywatt.models.fitting import error_row, fit
    from everywatt.models.modelfile import dumps

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
    for warning in found.warnings:
        output.warn(warning)
    _table(found, choose, output)
    data: dict[str, Any] = {
        "target": target,
        "relation": found.model is not None,
        "why": found.why,
        "models": [error_row(one, found.truth) for one in found.scores],
        "warnings": list(found.warnings),
        "loads": list(found.loads),
    }
    if found.model is None or found.chosen is None:
        output.json("model-fit", data)
        raise MeasurementRefused(f"No relation between these columns and {target}: {found.why}.")
    write_text(out, dumps(found.model))
    best, held = found.chosen, percent(None if found.coverage is None else 100 * found.coverage)
    output.text(
        f"{best.candidate.name}: error {percent(best.blocked_pct)} on held-out time, {percent(best.loads_pct)} on "
        f"held-out loads; {level:.0%} intervals held {held} of the truths. Written: {out}"
    )
    drawn = None if no_plot else _plot(found, plot or out.with_suffix(".svg"), output)
    about = {"chosen": best.candidate.name, "coverage": found.coverage, "level": level, "file": str(out)}
    output.json("model-fit", {**data, **about, "plot": None if drawn is None else str(drawn)})


def _table(found: Fit, choose: str, output: Output) -> None:
    rows = []
    for one in found.scores:
        mark = (
            "← chosen"
            if found.chosen is not None and one is found.chosen
            else "baseline"
            if one.candidate.baseline
            else ""
        )
        rows.append(
            [one.candidate.name, percent(one.blocked_pct), format_watts(one.blocked_w), percent(one.loads_pct), mark]
        )
    title = f"Error on held-out rows ({len(found.truth)} rows, {len(found.loads)} loads; chosen by {choose})"
    output.table(Table.of("MODEL", "BLOCKED", "BLOCKED", "HELD-OUT LOAD", "", rows=rows, right=(1, 2, 3), title=title))


def _plot(found: Fit, path: Path, output: Output) -> Path | None:
    from everywatt.report.model_plots import truth_plot

    assert found.chosen is not None and found.model is not None
    held = found.chosen.blocked
    try:
        drawn = truth_plot(found.times_s[held.rows], found.truth[held.rows], held.watts, found.model.target, path)
    except MissingExtra as error:
        output.warn(f"No plot: {error}")
        return None
    output.say(f"Prediction against truth, for each row while it was held out: {drawn}")
    return drawn
