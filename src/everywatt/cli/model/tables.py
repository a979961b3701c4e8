"""What the verbs of `model` share: tables and runs as arguments, figures as text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from everywatt.cli.common.options import DURATION, TIME
from everywatt.cli.model.stored import LAST_HOUR, SCHEMES, Stored, stored_table
from everywatt.core.errors import RunNotFound, UsageError
from everywatt.core.format import format_percent
from everywatt.models.table import Table, join, windows

F = TypeVar("F", bound=Callable[..., Any])
ENDINGS = (
    ".csv",
    ".csv.gz",
    ".tsv",
    ".parquet",
    ".pq",
    ".ndjson",
    ".ndjson.gz",
    ".jsonl",
    ".jsonl.gz",
    ".json",
    ".json.gz",
)

FILE = click.Path(dir_okay=False, path_type=Path)
target_option = click.option("--target", required=True, metavar="COLUMN", help="Column of watts to fit.")
model_argument = click.argument("model", type=click.Path(dir_okay=False, path_type=Path))


def table_options(function: F) -> F:
    """Adds SOURCES…, --time, --load, --join, --tolerance and what a time-series engine is asked; it gets `table`."""

    @click.argument("sources", nargs=-1, required=True, metavar="TABLE|RUN|URL…")
    @click.option(
        "--time", "time_column", metavar="COLUMN", help="Column of times, if it cannot be recognised by name."
    )
    @click.option("--load", "load_column", metavar="COLUMN", help="Column that names the load of a row.")
    @click.option(
        "--join",
        "beside",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="Table over the same time, joined by nearest time.",
    )
    @click.option(
        "--tolerance", type=DURATION, help="Largest time difference of joined rows; half a period by default."
    )
    @click.option("--window", type=DURATION, help="Average the rows over windows of this length.")
    @click.option("--start", type=TIME, help="URL only: start of the period; an hour before its end by default.")
    @click.option("--end", type=TIME, help="URL only: end of the period; now by default.")
    @click.option("--filter", "filter_file", type=FILE, help="URL only: series to read, as in `import prometheus`.")
    @click.option(
        "--step", type=DURATION, help="URL only: resample to this grid instead of reading the stored samples."
    )
    @click.option("--token-file", type=FILE, help="URL only: file whose first line is the bearer token.")
    @functools.wraps(function)
    def wrapped(
        *args: Any,
        sources: tuple[str, ...],
        start: int | None,
        end: int | None,
        filter_file: Path | None,
        step: float | None,
        token_file: Path | None,
        time_column: str | None,
        load_column: str | None,
        beside: tuple[Path, ...],
        tolerance: float | None,
        window: float | None,
        **values: Any,
    ) -> Any:
        which = Stored(start, end, filter_file, step, token_file)
        table = table_of(sources, time=time_column, load=load_column, beside=beside, tolerance_s=tolerance, which=which)
        table = table if window is None else windows(table, window)
        if values.get("target") is not None:
            values["target"] = table.aliases.get(values["target"], values["target"])
        return function(*args, table=table, **values)

    return wrapped  # type: ignore[return-value]


def table_of(
    sources: Sequence[str],
    *,
    time: str | None = None,
    load: str | None = None,
    beside: Sequence[Path] = (),
    tolerance_s: float | None = None,
    which: Stored = LAST_HOUR,
) -> Table:
    """One table from files, from runs or from a time-series engine, with others joined to it by time."""
    from everywatt.models.reading import read_table, read_tables
    from everywatt.models.runs import run_table

    if any(source.startswith(SCHEMES) for source in sources):
        if len(sources) > 1:
            raise UsageError("A URL cannot be combined with other sources.", cure="add the other table with --join")
        table = stored_table(sources[0], which)
        return join([table, *(read_table(path, time=time) for path in beside)], tolerance_s) if beside else table
    if which:
        raise UsageError("--start, --end, --filter, --step and --token-file require a URL.", cure="http://…:9090")
    if any(source.lower().endswith(ENDINGS) for source in sources):
        if not all(source.lower().endswith(ENDINGS) for source in sources):
            raise UsageError("Tables and runs cannot be combined as sources.", cure="add the table with --join")
        return read_tables([Path(s) for s in sources], time=time, load=load, tolerance_s=tolerance_s, beside=beside)
    from everywatt.api.run import load as load_run

    try:
        table = run_table([load_run(source) for source in sources])
    except RunNotFound as error:
        raise UsageError(
            f"{error.message} (It is not a table either: {', '.join(ENDINGS[:5])} …)", cure="everywatt list"
        ) from None
    return join([table, *(read_table(path, time=time) for path in beside)], tolerance_s) if beside else table


def percent(value: float | None) -> str:
    """Percent as text, `-` where there is none."""
    return "-" if value is None else format_percent(value / 100)
