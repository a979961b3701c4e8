"""What `bench llm` prints: a table for each load, with formulas and boundary, and what the loads say together; and what
`compare` prints of such runs, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.llm.comparing import Beside, compare_llm, side
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.leaderboard import dataset_name, model_name
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import knee, over_all_repeats
from everywatt.bench.llm.rows import HEADERS, LOADS, Row, figure_row, figure_table, load_row, row_of
from everywatt.cli.common.output import Output, write_text
from everywatt.core.format import format_number, format_quantity
from everywatt.core.jsonio import document, dumps
from everywatt.core.tables import Table
from everywatt.footprint.carbon import Footprint


def compare_runs_of_models(
    runs: Sequence[Run], *, level: str | None, force: bool, out: Path | None, output: Output
) -> int:
    """Every run beside the first, item by item."""
    first, *others = [side(run, level) for run in runs]
    found = [compare_llm(first, other, force=force) for other in others]
    for one in found:
        items = f"{one.items} items" if one.items == one.sent else f"{one.items} of {one.sent} items answered by both"
        title = f"{one.name} compared with {first.name}: {items}, {one.level}"
        output.table(Table.of(*HEADERS, rows=_rows(one), title=title))
        for text in one.verdicts:
            output.text(text)
        for text in one.notes:
            output.say(f"Note: {text}")
        output.text()
    data = {"baseline": first.name, "candidates": [one.to_dict() for one in found]}
    if out is not None:
        write_text(out, dumps(document("llm-comparison", data), indent=2) + "\n")
    output.json("llm-comparison", data)
    return 0


def _rows(one: Beside) -> list[Row]:
    rows = [figure_row(name, figure) for name, figure in one.figures.items()]
    if one.p is not None:
        counts = f"correct only in the first: {one.only_first}, only in this one: {one.only_this}"
        rows.append(("McNemar's test", f"p = {one.p:.3g}", "", f"exact, two-sided; {counts}"))
    return rows


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
    if len(found) > 1:
        heads = [name.upper() for name in LOADS]
        title = f"{model_name(about)} on {dataset_name(about)}, one line per load"
        output.table(Table.of(*heads, rows=[load_row(one) for one in found], title=title))
        output.text()
    said: set[str] = set()
    for one, footprint in zip(found, footprints, strict=True):
        output.table(figure_table(one, _title(about, one), _carbon_rows(footprint)))
        output.text(f"boundary: {one.about}")
        for text in one.notes:
            if text not in said:
                output.say(f"Note: {text}")
        said.update(one.notes)
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
    return f"{model_name(about)} on {dataset_name(about)}, {one.level}: {states}"


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
