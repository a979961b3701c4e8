"""`everywatt import KIND PATH…`: recordings of other tools become runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from everywatt.api.run import Run, load
from everywatt.cli.common.group import WithMembers
from everywatt.cli.common.metering import new_folder
from everywatt.cli.common.options import DURATION, PAIR, PATH, TIME, json_value, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.common.progress import Tell, task
from everywatt.cli.common.results import check_form
from everywatt.core.clocks import NS, SystemClock
from everywatt.core.config import nearest, resolve
from everywatt.core.errors import UsageError
from everywatt.core.format import format_count
from everywatt.report.text import summary
from everywatt.tape.importing import import_files, kinds
from everywatt.tape.run_store import new_run

MEMBERS = {
    "sacct": "everywatt.cli.slurm.records:import_sacct",
    "prometheus": "everywatt.cli.importing.prometheus",
    "sage": "everywatt.cli.importing.sage",
}
"""Kinds with options of their own: name → the module of the command."""


UNTIMED = {"nvidia-smi": "period_s", "dmon": "period_s", "pmon": "period_s", "tegrastats": "interval_s"}
"""Kinds whose logs may have no times, and what their importers call the time between two rows."""


def _known(ctx: click.Context, param: click.Parameter, kind: str) -> str:
    """UsageError before paths are asked for: the one word that was given may be a path."""
    if kind not in kinds():
        raise UsageError(
            f"'{kind}' is not a kind of recording.",
            cure=f"everywatt import KIND PATH; KIND: {', '.join(sorted(kinds()))}",
        )
    return kind


@click.command(cls=WithMembers, modules=MEMBERS)
@click.argument("kind", callback=_known)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
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
    JSON. Logs of nvidia-smi, dmon, pmon and tegrastats that have no times need --period, and --start for
    the time of their first row.

    sacct, prometheus and sage have options of their own: everywatt import prometheus --help.
    """
    options: dict[str, Any] = {key: json_value(value) for key, value in settings}
    if isinstance(names := options.get("values"), str):
        options["values"] = names.split(",")
    if (start, period) != (None, None) and kind not in UNTIMED:
        raise UsageError(f"--start and --period do not apply to {kind}.", cure=f"they are for {', '.join(UNTIMED)}")
    if start is not None:
        options["start"] = datetime.fromtimestamp(start / NS, UTC).isoformat()
    if period is not None:
        options[UNTIMED[kind]] = period
    asked = _Asked(options)
    with imported(output, out, f"{kind}-{paths[0].stem}", f"import of {paths[0].name}") as (target, _):
        import_files(kind, paths, target, asked)
    for key in options.keys() - asked.read:
        output.warn(f"{kind} does not use --set {key}{nearest(key, sorted(asked.read)) or '.'}")


class _Asked(dict[str, Any]):
    """Parameters that know which of them an importer looked for, whether they were given or not."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


MANY = 10  # a summary looks at every device of every tape, several times


@contextmanager
def imported(
    output: Output, out: Path | None, name: str, what: str, *, endings: Sequence[str] = (".tape",)
) -> Iterator[tuple[Path, Tell]]:
    """Yields where to write a tape and a function to report progress; then prints what the run contains.

    Without `out` it is a new run of that name, in a folder `out` that is there too. Where nothing comes of it, no
    empty run is left. `endings` are those that the verb can write.
    """
    made = out is None or out.is_dir()
    if out is not None and not made:
        check_form(out, *endings)
    if out is None:
        folder = new_folder(resolve(), name, output)
    else:
        folder = new_run(out, name, SystemClock.utc_ns()) if made else out
    target = folder / "import-0001.tape" if made else folder
    try:
        with task(output, what) as tell:
            yield target, tell
    except BaseException:
        if made:
            folder.rmdir()  # nothing came of it, and an empty run would be `last`
        raise
    run = load(folder)
    energy, odd = run.energy(), _oddities(run)
    facts = {"name": run.name, "path": str(run.path), "energy": energy.to_dict(), "oddities": odd}
    output.json("import", facts)
    output.warn(*odd)
    output.text(str(folder))
    if len(run.tapes) > MANY:
        output.say(f"energy  {energy}")
        output.say(f"{len(run.tapes)} tapes; for details: everywatt show {run.reference}")
        return
    output.say(*summary(run))


def _oddities(run: Run) -> list[str]:
    """What the files held that did not become a number, or became another one, counted by whoever read them."""
    metas = [tape.meta for tape in run.tapes]
    torn = sum(int(meta.get("torn_lines", 0)) for meta in metas)
    torn += max((int(meta.get("odd_lines", 0)) for meta in metas), default=0)  # of all nodes' one file
    swapped = sum(int(meta.get("swapped_fields", 0)) for meta in metas)
    found = [sentence for meta in metas for sentence in meta.get("oddities", ())]
    if torn:
        found.append(f"{format_count(torn, 'line')} could not be read and gave no readings")
    if swapped:
        found.append(f"utilisation and memory were swapped {swapped} times; corrected")
    return found
