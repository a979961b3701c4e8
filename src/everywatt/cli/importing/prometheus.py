"""`everywatt import prometheus URL`: series of Prometheus, VictoriaMetrics or Mimir become a run or a table."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import click

from everywatt.cli.common.options import DURATION, FILE, TIME, Verb, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.common.progress import Tell, task
from everywatt.cli.importing.command import imported
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.fleet.imports import targets, write_run
from everywatt.fleet.query import EVERYWATT, Series, fetch, nothing, read_filter
from everywatt.fleet.tables import join, write
from everywatt.net.api import ApiClient
from everywatt.net.tls import read_token

HOUR_NS = 3600 * NS
TABLES = (".csv", ".parquet")


@click.command(cls=Verb)
@click.argument("url")
@click.option("--start", type=TIME, help="Start of the period; an hour before its end by default.")
@click.option("--end", type=TIME, help="End of the period; now by default.")
@click.option("--filter", "filter_file", type=FILE, metavar="FILE", help="File of series to import; see above.")
@click.option(
    "--step", type=DURATION, metavar="DURATION", help="Resample to this grid instead of importing the stored samples."
)
@click.option("--counters", is_flag=True, help="Export raw counters instead of rates (tables only).")
@click.option("--token-file", type=FILE, metavar="FILE", help="File whose first line is the bearer token.")
@click.option("--ca", type=FILE, metavar="FILE", help="CA certificate (PEM) to trust.")
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
    """Import series from a time-series database as a run.

    URL is Prometheus, VictoriaMetrics, Mimir, or a data source behind Grafana
    (https://grafana/api/datasources/proxy/uid/NAME) with --token-file. Without --step, samples are imported exactly as
    stored, so the energy equals what the agent counted.

    --filter FILE selects series instead of all of everywatt's: lines of PromQL selectors, or
    [["metric", {"label": "text"}], ...], where both are substrings to match.

    -o FILE.csv or FILE.parquet writes a table instead: one row per time, one column per series, joined by time, with
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

    if out is not None and out.suffix in TABLES:
        with task(output, f"import from {client.shown}") as tell:
            table = join(ask(tell), step_s=step, rates=not counters)
            write(table, out)
        rows, columns = table.values.shape
        output.json("import-table", {"path": str(out), "rows": rows, "columns": list(table.columns)})
        output.text(str(out))
        output.say(f"{rows} rows, {columns} series.")
        return
    if counters:
        raise UsageError("--counters applies only to tables; a tape always keeps raw counters.", cure="-o FILE.csv")
    host = urlsplit(client.url).hostname or "server"
    what, endings = f"import from {client.shown}", (".tape", *TABLES)
    with imported(output, out, f"prometheus-{host}", what, endings=endings) as (target, tell):
        nodes, notes = targets(ask(tell))
        output.warn(*notes)
        queries = [one.promql for one in wanted]
        asked = {"start_utc_ns": start_ns, "end_utc_ns": end_ns, "step_s": step, "queries": queries}
        write_run(target, nodes, client.shown, {"imported_from": [client.shown], "prometheus": asked})
