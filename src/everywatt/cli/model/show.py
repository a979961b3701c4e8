"""`everywatt model show` and `model explain`: a model file for people, and what moves its watts."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.model.tables import model_argument, percent
from everywatt.core.format import format_duration, format_number, format_percent, format_quantity, format_watts
from everywatt.core.tables import Cell, Column, Table
from everywatt.models.form import Model


@click.command(cls=Verb)
@model_argument
@output_options
def command(model: Path, output: Output) -> None:
    """Show a model: its inputs and their training ranges, the error of every candidate, how it was validated."""
    from everywatt.models.modelfile import load_model, to_dict

    fitted = load_model(model)
    about = fitted.about
    output.text(f"{fitted.target}: {about.get('model', fitted.form.kind)}, trained {_where(fitted)}")
    if fitted.gain != 1.0 or fitted.offset_w:
        offset = format_quantity(fitted.offset_w, "W", signed=True)
        output.text(f"Transferred to {fitted.host or 'another machine'}: × {format_number(fitted.gain)} {offset}")
    rows: list[list[Cell]] = [
        [name, fitted.units.get(name) or "-", r.low, r.middle, r.high] for name, r in fitted.columns.items()
    ]
    output.table(Table.of("INPUT", "UNIT", *(Column(name, "") for name in ("LOW", "MEDIAN", "HIGH")), rows=rows))
    tried = [
        [str(e.get("model", "")), percent(e.get("blocked_pct")), percent(e.get("load_out_pct"))] for e in fitted.errors
    ]
    if tried:
        output.text()
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
    return f"{host}{length}, one row every {model.period_s:g} s"


@click.command(cls=Verb)
@model_argument
@output_options
def explain(model: Path, output: Output) -> None:
    """Show how much each input moves a model's watts, over its range, with the other inputs at their medians."""
    from everywatt.models.applying import effects
    from everywatt.models.modelfile import load_model

    fitted = load_model(model)
    idle_w, found = effects(fitted)
    output.text(f"{fitted.target}: about {format_watts(idle_w)} with every column at its lowest.")
    rows: list[list[Cell]] = [
        [one.name, one.low_w, one.middle_w, one.high_w, format_quantity(one.swing_w, "W", signed=True)] for one in found
    ]
    output.table(Table.of("COLUMN", *(Column(name, "W") for name in ("LOW", "MEDIAN", "HIGH", "RANGE")), rows=rows))
    share = fitted.about.get("importance", {})
    if isinstance(share, dict) and share:
        output.text()
        output.table(
            Table.of(
                "FEATURE",
                "SHARE",
                rows=[[str(k), format_percent(float(v))] for k, v in share.items() if isinstance(v, int | float)],
                right=(1,),
            )
        )
    output.json("model-explanation", {"model": str(model), "idle_w": idle_w, "columns": found, "importance": share})
