"""`everywatt model predict`: watts of a table with their interval."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everywatt.cli.common.options import Verb, out_option, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.model.tables import model_argument, table_options

if TYPE_CHECKING:
    from everywatt.models.table import Table


@click.command(cls=Verb)
@model_argument
@table_options
@out_option
@output_options
def command(model: Path, table: Table, out: Path | None, output: Output) -> None:
    """Predict the watts of every row as CSV: time, watts, low, high, and inputs outside the training range."""
    from everywatt.models.applying import apply
    from everywatt.models.modelfile import load_model

    fitted = load_model(model)
    found = apply(fitted, table)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["time", "watts", "low", "high", "outside"])
    for at, watts, low, high, outside in zip(
        found.times_s.tolist(),
        found.watts.tolist(),
        found.low.tolist(),
        found.high.tolist(),
        found.outside,
        strict=True,
    ):
        lines.writerow([f"{at:.6f}", f"{watts:.6g}", f"{low:.6g}", f"{high:.6g}", "; ".join(outside)])
    for warning in found.warnings:
        output.warn(warning)
    if out is not None:
        write_text(out, text.getvalue())
    elif output.json_to is None:
        output.text(text.getvalue().rstrip("\n"))
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
            "rows_w": [
                {"time": at, "watts": w, "low": a, "high": b, "outside": list(o)}
                for at, w, a, b, o in zip(
                    found.times_s.tolist(),
                    found.watts.tolist(),
                    found.low.tolist(),
                    found.high.tolist(),
                    found.outside,
                    strict=True,
                )
            ],
            "warnings": list(found.warnings),
        },
    )
