"""What `bench llm` prints: a table for each load, with formulas and boundary, and what the loads say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.leaderboard import model_name
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import knee, over_all_repeats
from everywatt.bench.llm.rows import Row, figure_table, row_of
from everywatt.cli.common.output import Output
from everywatt.core.format import format_number, format_quantity
from everywatt.core.tables import Table
from everywatt.footprint.carbon import Footprint

REPEATED = ("accuracy", "energy_per_output_token", "energy_per_request", "accuracy_per_joule_mean")


def show(
    about: Mapping[str, Any],
    found: Sequence[Metrics],
    footprints: Sequence[Footprint | None],
    output: Output,
) -> None:
    """Tables for people."""
    if output.json_to == "-":
        return
    for one, footprint in zip(found, footprints, strict=True):
        output.table(figure_table(one, _title(about, one), _carbon_rows(footprint)))
        output.text(f"boundary: {one.about}")
        for text in one.notes:
            output.say(f"Note: {text}")
        output.text()
    _show_together(found, output)


def _show_together(found: Sequence[Metrics], output: Output) -> None:
    if len(found) < 2:
        return
    for kind, figures in over_all_repeats(found).items():
        rows = []
        for name in REPEATED:
            one = figures.get(name)
            if one is not None:
                shown = Figure(one["mean"], one["low"], one["high"], "", "").printed()
                sd = format_number(one["sd"])
                rows.append((name.replace("_", " "), shown.value, shown.interval, sd, str(one["n"])))
        output.table(
            Table.of("FIGURE", "MEAN", "95 % (STUDENT)", "SD", "REPEATS", rows=rows, title=f"{kind}, from run to run")
        )
        output.text()
    best = knee(found)
    if best is not None:
        output.text(
            f"knee: {best['level']}, at {format_number(best['output_tokens_per_second'], 'output tokens/s')} and "
            f"{format_quantity(best['energy_per_output_token'], 'J/token')}; more load hardly saves energy beyond it"
        )


def _title(about: Mapping[str, Any], one: Metrics) -> str:
    states = ", ".join(f"{count} {name}" for name, count in one.statuses.items())
    return f"{model_name(about)} on {about['dataset']['name']}, {one.level}: {states}"


def _carbon_rows(found: Footprint | None) -> list[Row]:
    """Carbon and cost of the gross energy, where factors were given."""
    if found is None:
        return []
    rows: list[Row] = []
    for name, amount in (("carbon", found.carbon), ("electricity", found.cost)):
        if amount is None:
            continue
        if amount.value is None:
            rows.append((name, "refused", "", amount.refused))
        else:
            shown = Figure(amount.value, max(0.0, amount.low or 0.0), amount.high, amount.unit, "").printed()
            rows.append(row_of(name, shown, f"gross {amount.how}"))
    return rows
