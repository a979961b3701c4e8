"""`everywatt import prometheus URL`: series of Prometheus, VictoriaMetrics or Mimir become a run or a table."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import click

from everywatt.cli.common.options import DURATION, TIME, Verb, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.common.progress import Tell, task
from everywatt.cli.importing.imported import imported
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.fleet.filters import EVERYWATT, Wanted, read_filter
from everywatt.fleet.imports import targets, write_run
from everywatt.fleet.query import Series, fetch, nothing
from everywatt.net.api import ApiClient
from everywatt.net.tokens import read_token

HOUR_NS = 3600 * NS
FILE = click.Path(path_type=Path)


@click.command(cls=Verb)
@click.argument("url")
@click.option("--start", type=TIME, help="From this time on (an hour before the end).")
@click.option("--end", type=TIME, help="Up to this time (now).")
@click.option("--filter", "filter_file", type=FILE, metavar="FILE", help="Which series: see above.")
@click.option("--step", type=DURATION, metavar="DURATION", help="Values on a grid, instead of the samples themselves.")
@click.option("--counters", is_flag=True, help="In a table: counters as they are, not as rates.")
@click.option("--token-file", type=FILE, metavar="FILE", help="A token to send, in a file.")
@click.option("--ca", type=FILE, metavar="FILE", help="Whose certificates to trust.")
@out_option
@output_options
def command(
    url: str,
    start: int | None,
    end: int | None,
    filter_file: Path | None,
    step: float | None,
    counters: bool,
    token_file: Path | None,
    ca: Path | None,
    out: Path | None,
    output: Output,
) -> None:
    """Make a run out of the series of a time-series engine.

    URL is Prometheus, VictoriaMetrics, Mimir, or a data source behind Grafana
    (https://grafana/api/datasources/proxy/uid/NAME) with --token-file. Without --step every sample comes as it was
    stored, so that energy is what the agent counted.

    --filter FILE says which series, instead of all of everywatt: lines of PromQL selectors, or
    [["metric", {"label": "text"}], ...], where both are texts that a name contains.

    -o FILE.csv or FILE.parquet writes a table instead: one row a time, one column a series, joined by time, with
    counters as rates.
    """
    end_ns = time.time_ns() if end is None else end
    start_ns = end_ns - HOUR_NS if start is None else start
    client = ApiClient(url, token=read_token(None, token_file), ca=ca)
    if client.corrected:
        output.warn(client.corrected)
    wanted = [EVERYWATT] if filter_file is None else read_filter(filter_file)

    def ask(tell: Tell) -> list[Series]:
        answer = fetch(client, wanted, start_ns, end_ns, step_s=step, tell=tell)
        for warning in answer.warnings:
            output.warn(f"{client.shown}: {warning}")
        if not answer.series:
            raise nothing(client, wanted, start_ns, end_ns)
        return answer.series

    if out is not None and out.suffix in (".csv", ".parquet"):
        _table(client, out, ask, step, not counters, output)
        return
    if counters:
        raise UsageError("--counters is for tables; a tape keeps counters as they are.", cure="-o FILE.csv")
    host = urlsplit(client.url).hostname or "server"
    with imported(output, out, f"prometheus-{host}", f"import from {client.shown}") as (target, tell):
        nodes, notes = targets(ask(tell))
        for note in notes:
            output.warn(note)
        write_run(target, nodes, client.shown, _meta(client, wanted, start_ns, end_ns, step))


def _meta(client: ApiClient, wanted: list[Wanted], start_ns: int, end_ns: int, step: float | None) -> dict[str, object]:
    asked = {"start_utc_ns": start_ns, "end_utc_ns": end_ns, "step_s": step, "queries": [one.promql for one in wanted]}
    return {"imported_from": [client.shown], "prometheus": asked}


def _table(client: ApiClient, out: Path, ask: object, step: float | None, rates: bool, output: Output) -> None:
    from everywatt.fleet.tables import join, write

    assert callable(ask)
    with task(output, f"import from {client.shown}") as tell:
        table = join(ask(tell), step_s=step, rates=rates)
        write(table, out)
    rows, columns = table.values.shape
    output.json("import-table", {"path": str(out), "rows": rows, "columns": list(table.columns)})
    output.text(str(out))
    output.say(f"{rows} rows, {columns} series.")
