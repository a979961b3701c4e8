"""Tables for `everywatt model` from stored time series: Prometheus, VictoriaMetrics or Mimir, asked by PromQL."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.models.table import Table

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
    return in_watts(Table(made.at_ms / 1000.0, columns, notes=tuple(answer.warnings)))
