"""`everywatt model explain`: what moves a model's watts."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.model.tables import model_argument
from everywatt.core.tables import Table


@click.command(cls=Verb)
@model_argument
@output_options
def command(model: Path, output: Output) -> None:
    """Say what moves a model's watts: each column over its range while the others stay at their medians."""
    from everywatt.models.exploring import effects
    from everywatt.models.modelfile import load_model

    fitted = load_model(model)
    idle_w, found = effects(fitted)
    output.text(f"{fitted.target}: about {idle_w:.3g} W with every column at its lowest.")
    rows = [
        [one.name, f"{one.low_w:.3g} W", f"{one.middle_w:.3g} W", f"{one.high_w:.3g} W", f"{one.swing_w:+.3g} W"]
        for one in found
    ]
    output.table(Table.of("COLUMN", "AT ITS LOW", "MEDIAN", "HIGH", "SWING", rows=rows, right=(1, 2, 3, 4)))
    share = fitted.about.get("importance", {})
    if isinstance(share, dict) and share:
        output.text()
        output.table(
            Table.of(
                "FEATURE",
                "SHARE",
                rows=[[str(k), f"{float(v):.1%}"] for k, v in share.items() if isinstance(v, int | float)],
                right=(1,),
            )
        )
    output.json("model-explanation", {"model": str(model), "idle_w": idle_w, "columns": found, "importance": share})
