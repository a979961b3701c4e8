"""Tables that the verbs of `model` learn from: files, runs, and stored time series by PromQL; and figures as text."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everywatt.api.run import load
from everywatt.cli.common.options import DURATION, FILE, TIME, WAIT, as_value
from everywatt.core.channels import Kind
from everywatt.core.clocks import NS
from everywatt.core.errors import RunNotFound, UsageError
from everywatt.core.format import format_percent
from everywatt.models.reading import column_name, in_watts, read_table, run_table
from everywatt.models.table import Floats, Table, concatenate, join, windows

if TYPE_CHECKING:
    from everywatt.fleet.query import Series

SCHEMES = ("http://", "https://")
HOUR_NS = 3600 * NS


@dataclass(frozen=True, slots=True)
class Stored:
    """Which part of a time-series engine: from when to when (UTC ns), which series, on which grid, with which token."""

    start_ns: int | None = None
    end_ns: int | None = None
    filter_file: Path | None = None
    step_s: float | None = None
    token_file: Path | None = None

    def __bool__(self) -> bool:
        return self != LAST_HOUR


LAST_HOUR = Stored()


def stored_table(url: str, which: Stored) -> Table:
    """Series as a table: each a column, joined by time (the newest sample that is not too old), counters as rates."""
    from everywatt.fleet.query import EVERYWATT, fetch, nothing, read_filter
    from everywatt.fleet.tables import join
    from everywatt.net.api import ApiClient
    from everywatt.net.tls import read_token

    end_ns = time.time_ns() if which.end_ns is None else which.end_ns
    start_ns = end_ns - HOUR_NS if which.start_ns is None else which.start_ns
    if start_ns >= end_ns:
        raise UsageError("The period ends before it begins.", cure="--start -2h --end -1h")
    client = ApiClient(url, token=read_token(None, which.token_file))
    wanted = [EVERYWATT] if which.filter_file is None else read_filter(which.filter_file)
    answer = fetch(client, wanted, start_ns, end_ns, step_s=which.step_s)
    if not answer.series:
        raise nothing(client, wanted, start_ns, end_ns)
    made = join(answer.series, step_s=which.step_s)
    columns = {name: made.values[:, place] for place, name in enumerate(made.columns)}
    table = in_watts(Table(made.at_ms / 1000.0, columns, notes=tuple(answer.warnings)))
    ours = all(one.name.startswith("everywatt_") for one in answer.series)
    return by_channel(table, answer.series) if ours else table


def by_channel(table: Table, series: Sequence[Series]) -> Table:
    """Columns of our own series under the names of their channels, so that a model of them can be used as a sensor.

    Series that no sensor gives (of owners, jobs and the agent itself) are left out, and so are power gauges beside the
    counter of the same energy. The series of several nodes keep their names.
    """
    from everywatt.fleet.exporting import STATES
    from everywatt.fleet.imports import translate
    from everywatt.fleet.tables import is_counter

    sensed = {"everywatt_energy_joules_total", "everywatt_power_watts", "everywatt_clock_hertz"}
    sensed |= {
        "everywatt_host_cpu_seconds_total",
        "everywatt_host_memory_bytes",
        *(name for name, _ in STATES.values()),
    }
    nodes = {(one.labels.get("instance"), one.labels.get("job")) for one in series}
    if len(nodes) > 1:
        line = '{__name__=~"everywatt_.+",instance="NODE"}'
        note = f"series of {len(nodes)} nodes keep their names; {line} in the file of --filter chooses one node"
        return table.with_columns(table.columns, note)
    columns: dict[str, Floats] = {}
    units: dict[str, str] = {}
    aliases: dict[str, str] = {}
    # Counters come first: energy is more exact than the power beside it.
    for stored, one in sorted(zip(table.columns, series, strict=True), key=lambda pair: not is_counter(pair[1].name)):
        translated = translate(one) if one.name in sensed else None
        if translated is None:
            continue
        name = column_name(translated.channel)
        columns.setdefault(name, table.columns[stored] * translated.channel.scale)
        counted = translated.channel.kind is Kind.COUNTER
        units.setdefault(
            name, ("W" if translated.channel.unit == "J" else "s/s") if counted else translated.channel.unit
        )
        aliases |= {stored: name, stored.removeprefix("rate(").removesuffix(")"): name}
        if sum(other.name == one.name for other in series) == 1:
            aliases[one.name] = name
    return replace(table, columns=columns, units=units, aliases=aliases)


F = TypeVar("F", bound=Callable[..., Any])
ENDINGS = (".csv", ".tsv", ".parquet", ".pq", ".ndjson", ".jsonl", ".json")  # also with .gz

target_option = click.option("--target", required=True, metavar="COLUMN", help="Column of watts to fit.")
model_argument = click.argument("model", type=FILE)
READ = ("sources", "time", "load", "beside", "tolerance_s", "which")  # what `table_of` takes


def table_options(function: F) -> F:
    """Adds SOURCES…, --time, --load, --join, --tolerance and what a time-series engine is asked; it gets `table`."""

    @click.argument("sources", nargs=-1, required=True, metavar="TABLE|RUN|URL…")
    @click.option("--time", metavar="COLUMN", help="Column of times, if it cannot be recognised by name.")
    @click.option("--load", metavar="COLUMN", help="Column that names the load of a row.")
    @click.option(
        "--join", "beside", multiple=True, type=FILE, help="Table over the same time, joined by nearest time."
    )
    @click.option(
        "--tolerance",
        "tolerance_s",
        type=WAIT,
        help="Largest time difference of joined rows; half a period by default.",
    )
    @click.option("--window", type=DURATION, help="Average the rows over windows of this length.")
    @click.option(
        "--start", "start_ns", type=TIME, help="URL only: start of the period; an hour before its end by default."
    )
    @click.option("--end", "end_ns", type=TIME, help="URL only: end of the period; now by default.")
    @click.option("--filter", "filter_file", type=FILE, help="URL only: series to read, as in `import prometheus`.")
    @click.option(
        "--step", "step_s", type=DURATION, help="URL only: resample to this grid instead of reading the stored samples."
    )
    @click.option("--token-file", type=FILE, help="URL only: file whose first line is the bearer token.")
    @functools.wraps(function)
    @as_value("which", Stored)
    def wrapped(*args: Any, window: float | None, **values: Any) -> Any:
        table = table_of(**{name: values.pop(name) for name in READ})
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
    files = [source.lower().removesuffix(".gz").endswith(ENDINGS) for source in sources]
    stored = any(source.startswith(SCHEMES) for source in sources)
    if stored and len(sources) > 1:
        raise UsageError("A URL cannot be combined with other sources.", cure="add the other table with --join")
    if which and not stored:
        raise UsageError("--start, --end, --filter, --step and --token-file require a URL.", cure="http://…:9090")
    if stored:
        table = stored_table(sources[0], which)
    elif all(files):
        table = concatenate([read_table(Path(source), time=time, load=load) for source in sources])
    elif any(files):
        raise UsageError("Tables and runs cannot be combined as sources.", cure="add the table with --join")
    else:
        table = _runs_table(sources)
    return join([table, *(read_table(path, time=time) for path in beside)], tolerance_s) if beside else table


def _runs_table(sources: Sequence[str]) -> Table:
    try:
        return run_table([load(source) for source in sources])
    except RunNotFound as error:
        cure = "everywatt list"
        raise UsageError(f"{error.message} (It is not a table either: {', '.join(ENDINGS)})", cure=cure) from None


def percent(value: float | None) -> str:
    """Percent as text, `-` for None."""
    return "-" if value is None else format_percent(value / 100)
