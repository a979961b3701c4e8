"""`everywatt model explain`: what moves a model's watts."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.model.tables import model_argument
from everywatt.core.format import format_percent, format_quantity, format_watts
from everywatt.core.tables import Cell, Column, Table


@click.command(cls=Verb)
@model_argument
@output_options
def command(model: Path, output: Output) -> None:
    """Show how much each input moves a model's watts, over its range, with the other inputs at their medians."""
    from everywatt.models.exploring import effects
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
