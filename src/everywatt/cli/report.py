"""A run as files: `everywatt report` (one HTML page), `everywatt plot` (PNG, SVG, PDF), `everywatt export` (tables)."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.api.run import load
from everywatt.cli.common.options import RUN, Verb, footprint_options, out_option, output_options, run_argument
from everywatt.cli.common.output import Output, open_in_browser, write_text
from everywatt.cli.common.progress import task
from everywatt.cli.common.results import check_form
from everywatt.core.errors import UsageError
from everywatt.core.format import format_bytes
from everywatt.core.plugins import EXPORTERS, load_plugin, registered
from everywatt.core.tables import Table
from everywatt.footprint.carbon import Factors
from everywatt.report.html.data import report_document
from everywatt.report.html.page import page
from everywatt.tape.exporting import KINDS, export


@click.command(cls=Verb)
@click.argument("runs", nargs=-1, type=RUN, metavar="[RUN]...")
@out_option
@click.option("--open", "open_it", is_flag=True, help="Open the file in a browser.")
@click.option("--raw", is_flag=True, help="Keep every tick, whatever the size of the file.")
@footprint_options
@output_options
def command(
    runs: tuple[str, ...],
    out: Path | None,
    open_it: bool,
    raw: bool,
    factors: Factors,
    output: Output,
) -> None:
    """Write one or more runs as one self-contained HTML file that needs no network and no server.

    The default RUN is the last one. Several runs are compared; runs of a different scope get no ratio. --out is the
    file; by default `NAME.html` in the working directory. An existing file is replaced.
    """
    if out is not None:
        check_form(out, ".html", ".htm")
    names = runs or ("last",)
    target = out
    with task(output, "report") as tell:
        opened = [load(name) for name in names]
        target = out or Path(f"{'-and-'.join(run.name for run in opened[:2])}.html")
        command = ["everywatt", "report", *names, *(["--raw"] if raw else [])]
        data = report_document(opened, factors=factors, raw=raw, command=command, tell=tell)
        text = page(data)
        write_text(target, text)
    if data["comparison"] and data["comparison"]["mixed_scopes"]:
        output.warn("these runs do not cover the same scope; those that differ get no ratio.")
    size = target.stat().st_size if target.is_file() else len(text.encode())
    output.facts("report", {"path": str(target), "bytes": size, "runs": [run.name for run in opened]}, str(target))
    output.detail(f"{format_bytes(size)}, {len(opened)} runs" if len(opened) > 1 else format_bytes(size))
    if open_it:
        open_in_browser(str(target.resolve()), output, shown=str(target))


WHAT = ("power", "ledger", "spans", "energy-by-device", "llm-tokens", "llm-density")


@click.command(cls=Verb)
@run_argument
@click.option("--what", type=click.Choice(WHAT), default="power", help="What to plot; power by default.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Metric to plot over time; may be repeated.")
@click.option("--second-axis", "second", multiple=True, metavar="NAME", help="Metric to plot on a second axis.")
@click.option("--list", "list_them", is_flag=True, help="List the metrics that can be plotted.")
@out_option
@output_options
def plot_command(
    run: str,
    what: str,
    metrics: tuple[str, ...],
    second: tuple[str, ...],
    list_them: bool,
    out: Path | None,
    output: Output,
) -> None:
    """Plot a run to a file. Requires `pip install 'everywatt[plots]'`.

    The extension of --out selects the format: .png, .svg or .pdf; by default `NAME-WHAT.png` in the working directory.
    --metric and --second-axis take names that --list prints, such as "gpu.0 temperature".
    """
    from everywatt.report.plots import metrics_of, plot

    opened = load(run)
    if list_them:
        found = metrics_of(opened)
        output.json("metrics", {"name": opened.name, "metrics": [{"name": n, "unit": u or None} for n, u in found]})
        output.table(Table.of("METRIC", "UNIT", rows=[[name, unit or None] for name, unit in found]))
        return
    target = out or Path(f"{opened.name}-{what}.png")
    with task(output, "plot"):
        plot(opened, what, target, metrics=metrics, second=second)
    output.facts("plot", {"name": opened.name, "what": what, "path": str(target)}, str(target))


@click.command(cls=Verb)
@run_argument
@click.option(
    "--to",
    "kind",
    type=click.Choice([*KINDS, *registered(EXPORTERS)]),
    help="Output format; by default that of the extension of --out.",
)
@click.option(
    "--neutral", is_flag=True, help="In CSV, put an apostrophe before anything that a spreadsheet would execute."
)
@out_option
@output_options
def export_command(run: str, kind: str | None, neutral: bool, out: Path | None, output: Output) -> None:
    """Write all ticks, spans and points of a run to files of another format.

    --out is the file of ticks; by default `NAME.KIND` in the working directory. Spans, points and channel metadata are
    written beside it. Existing files are replaced. For aipowermeter, --out is the folder of the recording.

    Jobs of a Slurm site have their own export (labia-csv): `everywatt slurm export`.

    ipw writes a run of `bench llm` as a folder in the layout of Intelligence per Watt: an Arrow dataset and
    summary.json.
    """
    kind = kind or (out.suffix.lstrip(".").lower() if out is not None else "")
    if kind not in (*KINDS, *registered(EXPORTERS)):
        raise UsageError("The format is not known.", cure=f"--to KIND, or -o FILE that ends in .{', .'.join(KINDS)}")
    opened = load(run)
    if kind in KINDS:
        with task(output, "export") as tell:
            target = out or Path(f"{opened.name}.{kind}")
            files = export([tape.path for tape in opened.tapes], kind, target, tell, neutral=neutral)
    else:
        files = load_plugin(EXPORTERS, kind)(opened, out)
    written = [str(file) for file in files]
    output.facts("export", {"name": opened.name, "to": kind, "files": written}, *written)
