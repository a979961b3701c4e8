"""`everywatt monitor`: the one live view, of this machine, a run, a batch log or an agent."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from everywatt.cli.common.child import held_signals
from everywatt.cli.common.metering import new_folder
from everywatt.cli.common.options import DURATION, PATH, Verb, as_value, output_options, settings_options
from everywatt.cli.common.output import STDOUT, Output, style_of
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.files import usable
from everywatt.core.format import format_duration
from everywatt.core.plugins import check_installed
from everywatt.recorder.request import RecordRequest

if TYPE_CHECKING:
    from everywatt.report.live.snapshot import LiveSource, Snapshot

KINDS = ("owner", "process", "container", "user", "job")
ENDING = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
SHORTEST_S = 0.1
SETTLE_S = 4.0
STEP_S = 0.1
ONCE_S = 2.2  # by then the first interval of the energy is known
OWNERS_S = 3.8
"""`--once --by`: CPU time is read once a second, and two intervals of it are needed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to watch, how long, how often and to where; `source` is None for this machine."""

    source: str | None
    interval_s: float
    for_s: float | None
    once: bool
    record: bool
    csv: str | None
    gpus: str | None
    ascii_only: bool
    by: str | None
    tail: int
    token_file: Path | None
    ca: Path | None

    def __post_init__(self) -> None:
        if self.interval_s < SHORTEST_S:
            raise UsageError(
                "The shortest interval between updates is 0.1 s.", cure="--interval 0.1s, and --period for sensors"
            )
        if self.record and self.source is not None:
            raise UsageError("--record records this machine, so it takes no SOURCE.")
        if self.record and self.once:
            raise UsageError("--record and --once cannot be combined.", cure="--record --for 60s")
        if self.source is None and (self.token_file or self.ca):
            raise UsageError(
                "--token-file and --ca require an agent as SOURCE.", cure="everywatt monitor https://host:port"
            )


@click.command(cls=Verb)
@click.argument("source", required=False, metavar="[SOURCE]")
@click.option("--once", is_flag=True, help="Print one snapshot and exit.")
@click.option(
    "--interval", "interval_s", type=DURATION, default="1s", show_default=True, help="Time between two updates."
)
@click.option("--record", is_flag=True, help="Keep the recording of the whole machine as a run.")
@click.option("--for", "for_s", type=DURATION, default=None, help="Stop after this long.")
@click.option("--csv", metavar="FILE", help="Append one row per device and interval to this file; - is stdout.")
@click.option("--gpus", metavar="LIST", help="Only these cards, such as 0,1.")
@click.option("--by", type=click.Choice(KINDS), default=None, help="Show owners of the power, grouped by this.")
@click.option(
    "--tail", type=click.IntRange(0), default=15, help="Number of recent batch events to show.  [default: 15]"
)
@click.option("--token-file", type=PATH, help="File whose first line is the agent's bearer token.")
@click.option("--ca", type=PATH, help="Trust this certificate (PEM) of an agent.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Use ASCII only.")
@settings_options
@output_options
@as_value("plan", Plan)
def command(plan: Plan, settings: Settings, output: Output) -> int:
    """Watch power, energy and owners live.

    SOURCE is this machine by default, or a run or batch that is recording or has ended (its name, its path, `last`), a
    batch.jsonl or older telemetry log (.jsonl), or an agent (http://host:port). On a terminal the view is full-screen
    (requires `pip install 'everywatt[tui]'`); --once, --json and --csv work without it. --json prints one object per
    interval, one per line; with --once, exactly one.

    --record keeps the recording as a run and prints its summary at the end.
    """
    output = replace(output, ascii_only=plan.ascii_only)
    face = _face(plan, output)
    if face == "screen":
        check_installed("textual", "tui")
    folder = new_folder(settings, settings.tags.get("name", "monitor"), output) if plan.record else None
    # From here on a signal waits until it is asked for (or the screen handles it), so that nothing is left behind.
    with _signals(face) as ended:
        made = _source(plan, settings, folder, face)
        try:
            screen = face == "screen"
            code = _screen(made, plan, output) if screen else _stream(made, plan, output, ended, face)
        finally:
            made.close()
    if folder is not None:
        _summary(folder, output)
    return code


def _face(plan: Plan, output: Output) -> str:
    """screen, once, stream (JSON lines or CSV), or quiet: a recording without a view."""
    if plan.once:
        return "once"
    if output.json_to is not None and not plan.record:
        return "stream"
    if plan.csv is not None:
        return "stream"
    terminal = style_of(sys.stdout).rich and sys.stdin is not None and sys.stdin.isatty()
    if plan.record and (not terminal or output.quiet or output.json_to is not None or find_spec("textual") is None):
        return "quiet"
    if not terminal:
        raise UsageError("Full-screen mode needs a terminal.", cure="everywatt monitor --once, --json or --csv FILE")
    return "screen"


def _source(plan: Plan, settings: Settings, folder: Path | None, face: str) -> LiveSource:
    by = plan.by or ("process" if face == "screen" else None)
    if plan.source is None:
        from everywatt.report.live.local import LocalSource

        period_s = _period_s(settings, plan, keep=folder is not None)
        asked = replace(RecordRequest.of_settings(settings), period_s=period_s, devices=plan.gpus)
        meta = {"tags": dict(settings.tags), "note": settings.note}
        return LocalSource(plan.interval_s, asked, by=by, once=plan.once, keep=folder, meta=meta)
    from everywatt.report.live.snapshot import open_source

    return open_source(
        plan.source,
        plan.interval_s,
        by=by,
        gpus=tuple(part.strip() for part in (plan.gpus or "").split(",") if part.strip()),
        home=settings.home,
        tail=plan.tail,
        token_file=plan.token_file,
        ca=plan.ca,
    )


def _period_s(settings: Settings, plan: Plan, *, keep: bool) -> float:
    """A recording or a single look is made at the usual period; a view reads as often as it shows (or by --period)."""
    origin = settings.origins.get("period")
    if keep or plan.once or (origin is not None and origin.source != "default"):
        return settings.period_s
    return min(plan.interval_s, 1.0)


@contextmanager
def _signals(face: str) -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits for so many seconds, or until a signal says to end; then it gives True."""
    if face == "screen":
        yield lambda seconds: False
        return
    with held_signals(ENDING) as (caught, _):
        yield lambda seconds: signal.sigtimedwait(caught, max(0.0, seconds)) is not None


def _screen(source: LiveSource, plan: Plan, output: Output) -> int:
    from everywatt.report.live.app import MonitorApp

    gc.freeze()  # what is loaded now stays: looking through it again and again costs more than the view
    colour = style_of(sys.stdout).colour
    ascii_only = plan.ascii_only or "utf" not in (sys.stdout.encoding or "").lower()
    app = MonitorApp(source, plan.interval_s, ascii_only=ascii_only, colour=colour, for_s=plan.for_s)
    code = app.run()
    if app.error is not None:
        output.error(app.error)
    return code if code is not None else app.return_code or 0


def _stream(source: LiveSource, plan: Plan, output: Output, ended: Callable[[float], bool], face: str) -> int:
    """Poll once an interval on absolute deadlines until time is up, the source ends or a signal comes."""
    from everywatt.report.live.faces import CsvFile, json_line

    table = CsvFile(plan.csv, sys.stdout) if plan.csv is not None else None
    lines = _json_file(output) if face != "quiet" else None
    began_s = time.monotonic()
    wanted_s = plan.for_s or max(plan.interval_s, OWNERS_S if plan.by else ONCE_S)
    if plan.once and plan.source is not None:
        wanted_s = 0.0  # everything has been written already
    first_s = wanted_s if plan.once else plan.interval_s
    end_s = None if plan.for_s is None else began_s + plan.for_s
    due_s = began_s + first_s
    progress = output.progress()
    try:
        _settle(source, ended, most_s=SETTLE_S if plan.once else first_s)
        while True:
            due_s = due_s if end_s is None else min(due_s, end_s)
            stopped = ended(due_s - time.monotonic())
            snapshot = source.poll()
            if lines is not None:
                lines.write(json_line(snapshot) + "\n")
                lines.flush()
            if table is not None:
                table.write(snapshot)
            if plan.once and lines is None and table is None:
                _print_once(snapshot, output)
            if face == "quiet":
                progress(f"everywatt: {_so_far(snapshot)}")
            if stopped or plan.once or not snapshot.live or (end_s is not None and time.monotonic() >= end_s - 0.01):
                break
            due_s = max(due_s + plan.interval_s, time.monotonic())
    finally:
        output.clear()
        if table is not None:
            table.close()
        if lines is not None and lines is not sys.stdout:
            lines.close()
    return 0


def _settle(source: LiveSource, ended: Callable[[float], bool], most_s: float) -> None:
    """Wait until every device of the total has a power, which takes two readings, but with a time limit."""
    deadline_s = time.monotonic() + most_s
    while time.monotonic() < deadline_s:
        snapshot = source.poll()
        waiting = [d for d in snapshot.devices if d.in_total and d.power_w is None and d.energy.joules is not None]
        if (snapshot.devices and not waiting) or not snapshot.live or snapshot.work or ended(STEP_S):
            return


def _json_file(output: Output) -> TextIO | None:
    if output.json_to is None:
        return None
    if output.json_to == STDOUT:
        return sys.stdout
    with usable(output.json_to, "written"):
        return Path(output.json_to).open("w", encoding="utf-8")


def _print_once(snapshot: Snapshot, output: Output) -> None:
    from everywatt.report.live import faces

    output.text(faces.heading(snapshot))
    output.table(*faces.tables(snapshot))
    if snapshot.owners is not None and snapshot.owners.refused:
        output.text(f"owners: {snapshot.owners.refused}")
    output.text(*snapshot.tail if snapshot.work else ())
    output.warn(*snapshot.notes)


def _so_far(snapshot: Snapshot) -> str:
    from everywatt.report.live.faces import energy_text
    from everywatt.report.live.format import spread, watts

    power, energy = watts(snapshot.total_w, spread(snapshot.total)), energy_text(snapshot.total)
    return f"{format_duration(snapshot.elapsed_s)}, {power}, so far {energy}"


def _summary(folder: Path, output: Output) -> None:
    from everywatt.api.run import load
    from everywatt.cli.common.metering import say_run

    run = load(folder)
    if output.json_to is not None:
        output.json("run", run.to_dict())
    if output.json_to != STDOUT:
        say_run(run, output)
