"""`everywatt import KIND PATH…`: recordings of other tools become runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from everywatt.cli.common.group import WithMembers
from everywatt.cli.common.options import DURATION, PAIR, TIME, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.importing.imported import imported
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.tape.importing import import_files, kinds

MEMBERS = {
    "sacct": "everywatt.cli.importing.sacct",
    "prometheus": "everywatt.cli.importing.prometheus",
    "sage": "everywatt.cli.importing.sage",
}
"""Kinds with options of their own: name → the module of the command."""


UNTIMED = {"nvidia-smi": "period_s", "dmon": "period_s", "pmon": "period_s", "tegrastats": "interval_s"}
"""Kinds whose logs may have no times, and what their importers call the time between two rows."""


@click.command(cls=WithMembers, modules=MEMBERS)
@click.argument("kind")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@out_option
@click.option(
    "--set", "settings", type=PAIR, multiple=True, metavar="K=V", help="Parameter of the importer; see above."
)
@click.option("--start", type=TIME, help="Time of the first row of a log without times.")
@click.option("--period", type=DURATION, help="Time between two rows of a log without times.")
@output_options
def command(
    kind: str,
    paths: tuple[Path, ...],
    out: Path | None,
    settings: tuple[tuple[str, str], ...],
    start: int | None,
    period: float | None,
    output: Output,
) -> None:
    """Import recordings of other tools as a run.

    KIND is csv, jsonl, parquet or arrow (files written by `export`, and any other csv), nvidia-smi, dmon or pmon (logs
    of nvidia-smi), tegrastats or powermetrics (logs of those tools), omegawatt (a wattmeter), aipowermeter, labia,
    codecarbon, sage, ipmi, ipw (a profile folder of Intelligence per Watt), or a kind that a plug-in provides.

    Any other csv needs its columns described: --set time=COLUMN --set values=COLUMN,COLUMN --set unit=W --set
    kind=gauge --set device=gpu.0 --set domain=gpu, and optionally scale, delimiter, zone_h and time_format (iso, s, ms,
    ns or a strptime pattern). Known properties of the meter go into the interval: gain_pct, offset_w, quantum, wrap,
    max_w, window_s. For nvidia-smi: card, cards, driver, limit_w, zone_h, column. For tegrastats: zone_h. Values may be
    JSON. Logs of nvidia-smi, dmon, pmon and tegrastats that have no times need --period, and --start to be in time.

    sacct, prometheus and sage have options of their own: everywatt import prometheus --help.
    """
    if kind not in kinds():
        raise UsageError(f"'{kind}' cannot be imported.", cure=f"one of: {', '.join(sorted(kinds()))}")
    options: dict[str, Any] = {key: _value(key, value) for key, value in settings}
    if (start, period) != (None, None) and kind not in UNTIMED:
        raise UsageError(f"--start and --period do not apply to {kind}.", cure=f"they are for {', '.join(UNTIMED)}")
    if start is not None:
        options["start"] = datetime.fromtimestamp(start / NS, UTC).isoformat()
    if period is not None:
        options[UNTIMED[kind]] = period
    with imported(output, out, f"{kind}-{paths[0].stem}", f"import of {paths[0].name}") as (target, _):
        import_files(kind, paths, target, options)


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.split(",") if key == "values" else text
