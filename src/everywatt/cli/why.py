"""`everywatt why RUN`: the error budget behind an interval, and what would narrow it."""

from __future__ import annotations

from dataclasses import asdict

import click

from everywatt.api.run import load
from everywatt.cli.common.options import RUN, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.core.errors import MeasurementRefused
from everywatt.core.tables import Cell, Column, Table
from everywatt.report.why import causes


@click.command(cls=Verb)
@click.argument("run", type=RUN, default="last")
@click.option("--span", default=None, help="Restrict to this span, by name or id.")
@click.option("--device", default=None, help="Restrict to this device, such as gpu.0.")
@click.option("--net", is_flag=True, help="Explain net energy (above idle).")
@output_options
def command(run: str, span: str | None, device: str | None, net: bool, output: Output) -> None:
    """Explain where the interval of a run's energy comes from, and what would narrow it and by how much."""
    opened = load(run)
    energy = opened.energy_net(span) if net else opened.energy(span, device=device)
    if energy.joules is None:
        known = net and opened.energy(span).joules is not None  # then the reason says how to measure idle
        cure = None if known else "everywatt doctor"
        raise MeasurementRefused(energy.refused or "No energy was measured.", cure=cure)
    chosen = (
        opened.duration_s if span is None else sum(s.duration_s or 0 for s in opened.spans if span in (s.id, s.name))
    )
    found = causes(energy, chosen)
    output.json("why", {"name": opened.name, "energy": energy.to_dict(), "budget": [asdict(cause) for cause in found]})
    output.text(str(energy))
    rows = [[c.source, c.half_width_j, _share(c.percent), c.meaning, c.cure] for c in found]
    columns = ("SOURCE", Column("± (95 %)", "J"), Column("OF FIGURE", "%"), "DESCRIPTION", "HOW TO NARROW IT")
    output.table(Table.of(*columns, rows=rows))
    for note in energy.notes:
        output.text(f"! {note}")


def _share(percent: float | None) -> Cell:
    """Of the figure; what does not matter is not printed to its ninth digit."""
    return None if percent is None else "< 0.01 %" if 0 < percent < 0.01 else percent / 100
