"""Tables for `everywatt model` from stored time series: Prometheus, VictoriaMetrics or Mimir, asked by PromQL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.channels import Kind
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.models.table import Floats, Table

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
        """Whether anything was said."""
        return self != LAST_HOUR


LAST_HOUR = Stored()


def stored_table(url: str, which: Stored) -> Table:
    """Series as a table: each a column, joined by time (the newest sample that is not too old), counters as rates."""
    from everywatt.fleet.filters import EVERYWATT, read_filter
    from everywatt.fleet.query import fetch, nothing
    from everywatt.fleet.tables import join
    from everywatt.models.reading import in_watts
    from everywatt.net.api import ApiClient
    from everywatt.net.tokens import read_token

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
    return table if which.filter_file is not None else by_channel(table, answer.series)


def by_channel(table: Table, series: Sequence[Series]) -> Table:
    """Columns of our own series under the names of their channels, so that a model of them can be used as a sensor.

    Series that no sensor gives (of owners, jobs and the agent itself) are left out, and so are power gauges beside the
    counter of the same energy. Where two nodes have the same channel the series keep their names.
    """
    from everywatt.fleet.exporting import STATES
    from everywatt.fleet.tables import is_counter
    from everywatt.fleet.translate import translate
    from everywatt.models.runs import column_name

    sensed = {"everywatt_energy_joules_total", "everywatt_power_watts", "everywatt_clock_hertz"}
    sensed |= {
        "everywatt_host_cpu_seconds_total",
        "everywatt_host_memory_bytes",
        *(name for name, _ in STATES.values()),
    }
    nodes = {(one.labels.get("instance"), one.labels.get("job")) for one in series}
    if len(nodes) > 1:
        return table
    columns: dict[str, Floats] = {}
    units: dict[str, str] = {}
    aliases: dict[str, str] = {}
    # Counters come first: energy is more exact than the power beside it.
    for stored, one in sorted(zip(table.columns, series, strict=True), key=lambda pair: not is_counter(pair[1].name)):
        told = translate(one) if one.name in sensed else None
        if told is None:
            continue
        name = column_name(told.channel)
        columns.setdefault(name, table.columns[stored] * told.channel.scale)
        counted = told.channel.kind is Kind.COUNTER
        units.setdefault(name, ("W" if told.channel.unit == "J" else "s/s") if counted else told.channel.unit)
        aliases |= {stored: name, stored.removeprefix("rate(").removesuffix(")"): name}
        if sum(other.name == one.name for other in series) == 1:
            aliases[one.name] = name
    return replace(table, columns=columns, units=units, aliases=aliases)
