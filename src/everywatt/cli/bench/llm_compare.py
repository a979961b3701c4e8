"""`everywatt compare RUN RUN…` where `bench llm` made the runs: item by item."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everywatt.api.run import Run
from everywatt.bench.llm.comparing import Beside, compare_llm, side
from everywatt.bench.llm.rows import HEADERS, Row, figure_row
from everywatt.cli.common.output import Output, write_text
from everywatt.core.jsonio import document, dumps
from everywatt.core.tables import Table


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
