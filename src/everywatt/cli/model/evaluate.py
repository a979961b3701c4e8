"""`everywatt model evaluate` and `model predict`: a model on a table, with the truth and without."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import FILE, Verb, out_option, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.model.tables import model_argument, percent, table_options
from everywatt.core.format import format_duration, format_number, format_percent, format_quantity, format_watts
from everywatt.core.tables import Cell, Table, columns_of, csv_text
from everywatt.models.applying import apply, effects, evaluate, scale_warnings
from everywatt.models.form import Model
from everywatt.models.modelfile import load_model, to_dict
from everywatt.models.table import Table as Rows

PREDICTED = ("time", "watts", "low", "high", "outside")


@click.command(cls=Verb)
@model_argument
@table_options
@click.option("--target", metavar="COLUMN", help="Column with the true power.  [default: the model's own target]")
@click.option("--plot", type=FILE, help="Plot prediction against truth: .png, .svg, .pdf or .html.")
@output_options
def command(model: Path, table: Rows, target: str | None, plot: Path | None, output: Output) -> None:
    """Evaluate a model on a table with known power: errors, coverage of its interval, rows out of range."""
    fitted = load_model(model)
    target = target or fitted.target
    found = evaluate(fitted, table, target)
    output.warn(*found["warnings"])
    bias = format_quantity(found["bias_w"], "W", signed=True)
    rows = [
        ["mean error", percent(found["mape_pct"]), format_watts(found["mae_w"])],
        [
            "error of the energy over the whole time",
            percent(found["energy_error_pct"]),
            bias,
        ],
        ["within the training range", percent(found["mape_inside_pct"]), ""],
        ["predicting the training mean", percent(found["mean_baseline_pct"]), ""],
        ["variance explained (R²)", "-" if found["r2"] is None else format_number(found["r2"]), ""],
        [f"truths within the {100 * found['level']:.0f} % interval", percent(100 * found["coverage"]), ""],
        ["mean width of the interval", percent(found["mean_width_pct"]), ""],
        ["rows outside the training range", percent(100 * found["outside_share"]), ""],
    ]
    output.table(
        Table.of(
            "",
            "",
            "",
            rows=rows,
            right=(1, 2),
            title=f"{fitted.target} by {fitted.about.get('model', 'a model')}, {found['rows']} rows",
        )
    )
    if plot is not None:
        from everywatt.report.model_plots import truth_plot

        applied = apply(fitted, table)
        drawn = truth_plot(table.times_s, table.column(target), applied.watts, target, plot)
        output.say(f"Prediction against truth: {drawn}")
    output.json("model-evaluation", {"model": str(model), "target": target, **found})


@click.command(cls=Verb)
@model_argument
@table_options
@out_option
@output_options
def predict(model: Path, table: Rows, out: Path | None, output: Output) -> None:
    """Predict the watts of every row as CSV: time, watts, low, high, and inputs outside the training range."""
    fitted = load_model(model)
    found = apply(fitted, table)
    columns = (column.tolist() for column in (found.times_s, found.watts, found.low, found.high))
    rows = list(zip(*columns, found.outside, strict=True))
    text = csv_text(
        PREDICTED,
        ((f"{at:.6f}", *(f"{power:.6g}" for power in powers), "; ".join(outside)) for at, *powers, outside in rows),
    )
    output.warn(*found.warnings)
    if out is not None:
        write_text(out, text)
    elif output.json_to is None:
        output.document(text)
    elapsed_s = float(found.times_s[-1] - found.times_s[0]) + fitted.period_s
    output.json(
        "model-prediction",
        {
            "model": str(model),
            "rows": len(found.watts),
            "mean_w": float(found.watts.mean()),
            "joules": float(found.watts.mean()) * elapsed_s,
            "outside_share": found.outside_share,
            "level": fitted.widths.level,
            "rows_w": [dict(zip(PREDICTED, row, strict=True)) for row in rows],
            "warnings": list(found.warnings),
        },
    )


@click.command(cls=Verb)
@model_argument
@output_options
def show(model: Path, output: Output) -> None:
    """Show a model: its inputs and their training ranges, the error of every candidate, how it was validated."""
    fitted = load_model(model)
    about = fitted.about
    output.text(f"{fitted.target}: {about.get('model', fitted.form.kind)}, trained {_where(fitted)}")
    if fitted.gain != 1.0 or fitted.offset_w:
        offset = format_quantity(fitted.offset_w, "W", signed=True)
        output.text(f"Transferred to {fitted.host or 'another machine'}: × {format_number(fitted.gain)} {offset}")
    rows: list[list[Cell]] = [
        [name, fitted.units.get(name) or "-", r.low, r.middle, r.high] for name, r in fitted.columns.items()
    ]
    output.table(Table.of(*columns_of("INPUT, UNIT, LOW [], MEDIAN [], HIGH []"), rows=rows))
    tried = [
        [str(e.get("model", "")), percent(e.get("blocked_pct")), percent(e.get("load_out_pct"))] for e in fitted.errors
    ]
    if tried:
        output.text("")
        output.table(Table.of("MODEL", "BLOCKED", "HELD-OUT LOAD", rows=tried, right=(1, 2)))
    if about.get("validated"):
        output.text(f"Validated by {about['validated']}.")
    if isinstance(about.get("coverage_in_blocks"), int | float):
        held = format_percent(about["coverage_in_blocks"])
        output.text(f"{100 * fitted.widths.level:.0f} % intervals held {held} of the held-out truths.")
    output.json("model-file", {"model": {k: v for k, v in to_dict(fitted).items() if k not in ("schema", "kind")}})


def _where(model: Model) -> str:
    about = model.about
    host = f"on {model.host} " if model.host else ""
    rows, seconds = about.get("rows"), about.get("seconds")
    length = (
        f"from {rows} rows over {format_duration(float(seconds))}"
        if rows and seconds
        else "from an unknown number of rows"
    )
    return f"{host}{length}, one row every {model.period_s:.3g} s"


@click.command(cls=Verb)
@model_argument
@output_options
def explain(model: Path, output: Output) -> None:
    """Show how much each input moves a model's watts, over its range, with the other inputs at their medians."""
    fitted = load_model(model)
    idle_w, found = effects(fitted)
    output.text(f"{fitted.target}: about {format_watts(idle_w)} with every column at its lowest.")
    rows: list[list[Cell]] = [
        [one.name, one.low_w, one.middle_w, one.high_w, format_quantity(one.swing_w, "W", signed=True)] for one in found
    ]
    output.table(Table.of(*columns_of("COLUMN, LOW [W], MEDIAN [W], HIGH [W], RANGE [W]"), rows=rows))
    share = fitted.about.get("importance", {})
    if isinstance(share, dict) and share:
        output.text("")
        output.table(
            Table.of(
                "FEATURE",
                "SHARE",
                rows=[[str(k), format_percent(float(v))] for k, v in share.items() if isinstance(v, int | float)],
                right=(1,),
            )
        )
    output.warn(*scale_warnings(fitted))
    output.json(
        "model-explanation",
        {
            "model": str(model),
            "idle_w": idle_w,
            "columns": found,
            "importance": share,
            "warnings": scale_warnings(fitted),
        },
    )
