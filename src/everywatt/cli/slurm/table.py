"""The table of jobs on a terminal that has no room for all of its columns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from everywatt.cli.common.output import Output, style_of
from everywatt.core.tables import Table

SPARE = ("NODES", "GPU", "ACCOUNT", "CPU", "USER", "IDLE SHARE", "STATE")  # what can be done without, in this order
GAP, EDGES = 3, 2
LEAST_NAME = 8


def print_jobs(headers: Sequence[str], rows: Sequence[Sequence[object]], left: int, output: Output) -> None:
    """Print jobs, their names last; on a narrow terminal without some columns, and it says which.

    The first `left` columns and the last are words, the others numbers.
    """
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    names = list(headers)
    if style_of(output.stdout, output.environ).rich:
        names, texts = fit(headers, texts, shutil.get_terminal_size().columns)
    numbers = [names.index(name) for name in headers[left:-1] if name in names]
    output.table(Table.of(*names, rows=texts, right=numbers))
    missing = [name for name in headers if name not in names]
    if missing:
        output.say(f"No room for {', '.join(missing)}: widen the terminal or use --json.")


def fit(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """As many columns as there is room for, those that say the same of all jobs left out first; long names are cut."""
    said = {name: {row[place] for row in rows} for place, name in enumerate(headers)}
    lengths = {name: max(map(len, (name, *said[name]))) for name in headers}
    kept, last = list(headers), headers[-1]

    def room() -> int:
        """What is left for the last column."""
        return width - EDGES - sum(lengths[name] + GAP for name in kept if name != last)

    for name in sorted((name for name in SPARE if name in headers), key=lambda name: len(said[name]) > 1):
        if room() < min(lengths[last], LEAST_NAME):
            kept.remove(name)
    most = max(room(), LEAST_NAME)
    cut = [[*row[:-1], row[-1] if len(row[-1]) <= most else f"{row[-1][: most - 1]}…"] for row in rows]
    places = [headers.index(name) for name in kept]
    return kept, [[row[place] for place in places] for row in cut]
