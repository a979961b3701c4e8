"""`everywatt monitor`: the one live view, of this machine, a run, a batch log or an agent."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from everywatt.cli.common.options import DURATION, PATH, Verb, output_options, settings_options
from everywatt.cli.common.output import STDOUT, Output, style_of
from everywatt.core.clocks import SystemClock
from everywatt.core.config import Settings
from everywatt.core.errors import MissingExtra, UsageError
from everywatt.core.format import format_duration

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
    """How long, how often and to where."""

    interval_s: float
    for_s: float | None
    once: bool
    csv: str | None
    ascii: bool
    by: str | None
    here: bool
    tail: int
    token_file: Path | None = None
    ca: Path | None = None


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
def command(
    source: str | None,
    once: bool,
    interval_s: float,
    record: bool,
    for_s: float | None,
    csv: str | None,
    gpus: str | None,
    by: str | None,
    tail: int,
    token_file: Path | None,
    ca: Path | None,
    ascii_only: bool,
    settings: Settings,
    note: str | None,
    output: Output,
) -> int:
    """Watch power, energy and owners live.

    SOURCE is this machine by default, or a run or batch that is recording or has ended (its name, its path, `last`), a
    batch.jsonl or older telemetry log (.jsonl), or an agent (http://host:port). On a terminal the view is full-screen
    (requires `pip install 'everywatt[tui]'`); --once, --json and --csv work without it. --json prints one object per
    interval, one per line; with --once, exactly one.

    --record keeps the recording as a run and prints its summary at the end.
    """
    _check(source, once, interval_s, record, for_s)
    if source is None and (token_file or ca):
        raise UsageError(
            "--token-file and --ca require an agent as SOURCE.", cure="everywatt monitor https://host:port"
        )
    plan = Plan(interval_s, for_s, once, csv, ascii_only, by, source is None, tail, token_file, ca)
    output = replace(output, ascii_only=ascii_only)
    face = _face(plan, record, output)
    if face == "screen":
        need_textual()
    folder = _new_run(settings, output) if record else None
    # From here on a signal waits until it is asked for (or the screen handles it), so that nothing is left behind.
    with _signals(face) as ended:
        made = _source(source, plan, settings, gpus, folder, note, face)
        try:
            screen = face == "screen"
            code = _screen(made, plan, output) if screen else _stream(made, plan, output, ended, face)
        finally:
            made.close()
    if folder is not None:
        _summary(folder, output)
    return code


def _check(source: str | None, once: bool, interval_s: float, record: bool, for_s: float | None) -> None:
    if interval_s < SHORTEST_S:
        raise UsageError(
            "The shortest interval between updates is 0.1 s.", cure="--interval 0.1s, and --period for sensors"
        )
    if for_s is not None and for_s <= 0:
        raise UsageError("--for must be above zero.")
    if record and source is not None:
        raise UsageError("--record records this machine, so it takes no SOURCE.")
    if record and once:
        raise UsageError("--record and --once cannot be combined.", cure="--record --for 60s")


def _face(plan: Plan, record: bool, output: Output) -> str:
    """screen, once, stream (JSON lines or CSV), or quiet: a recording without a view."""
    if plan.once:
        return "once"
    if output.json_to is not None and not record:
        return "stream"
    if plan.csv is not None:
        return "stream"
    terminal = style_of(sys.stdout).rich and sys.stdin is not None and sys.stdin.isatty()
    if record and (not terminal or output.quiet or output.json_to is not None or not has_textual()):
        return "quiet"
    if not terminal:
        raise UsageError("Full-screen mode needs a terminal.", cure="everywatt monitor --once, --json or --csv FILE")
    return "screen"


def has_textual() -> bool:
    """Whether the extra `tui` is installed."""
    from importlib.util import find_spec

    return find_spec("textual") is not None


def need_textual() -> None:
    """MissingExtra, with the cure, where Textual is not installed."""
    if not has_textual():
        raise MissingExtra("textual", "tui")


def _new_run(settings: Settings, output: Output) -> Path:
    from everywatt.tape.run_store import home, new_run

    place = home(settings.home)
    if place.why:
        output.warn(place.why)
    return new_run(place.path, settings.tags.get("name", "monitor"), SystemClock().utc_ns())


def _source(
    source: str | None,
    plan: Plan,
    settings: Settings,
    gpus: str | None,
    folder: Path | None,
    note: str | None,
    face: str,
) -> LiveSource:
    by = plan.by or ("process" if face == "screen" else None)
    if source is None:
        from everywatt.report.live.local import LocalSource

        return LocalSource(
            plan.interval_s,
            _period_s(settings, plan, keep=folder is not None),
            by=by,
            gpus=gpus,
            sensors=settings.sensors,
            estimate=settings.estimate,
            once=plan.once,
            keep=folder,
            meta={"tags": dict(settings.tags), "note": note or ""},
            options=settings.options,
        )
    from everywatt.report.live.snapshot import open_source

    return open_source(
        source,
        plan.interval_s,
        by=by,
        gpus=_numbers(gpus),
        home=settings.home,
        tail=plan.tail,
        token_file=plan.token_file,
        ca=plan.ca,
    )


def _period_s(settings: Settings, plan: Plan, *, keep: bool) -> float:
    """A recording or a single look is made at the usual period; a view reads as often as it shows, unless told."""
    origin = settings.origins.get("period")
    if keep or plan.once or (origin is not None and origin.source != "default"):
        return settings.period_s
    return min(plan.interval_s, 1.0)


def _numbers(gpus: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in gpus.split(",") if part.strip()) if gpus else ()


@contextmanager
def _signals(face: str) -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits for so many seconds, or until a signal says to end; then it gives True."""
    if face == "screen":
        yield lambda seconds: False
        return
    caught = {number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, caught)

    def wait(seconds: float) -> bool:
        deadline_s = time.monotonic() + seconds
        while True:
            left_s = deadline_s - time.monotonic()
            if signal.sigtimedwait(caught, max(0.0, left_s)) is not None:
                return True
            if left_s <= 0:
                return False

    try:
        yield wait
    finally:
        while signal.sigtimedwait(caught, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _screen(source: LiveSource, plan: Plan, output: Output) -> int:
    from everywatt.report.live.app import MonitorApp

    gc.freeze()  # what is loaded now stays: looking through it again and again costs more than the view
    colour = style_of(sys.stdout).colour
    app = MonitorApp(source, plan.interval_s, ascii_only=plan.ascii or _needs_ascii(), colour=colour, for_s=plan.for_s)
    code = app.run()
    if app.error is not None:
        output.error(app.error)
    return code if code is not None else app.return_code or 0


def _needs_ascii() -> bool:
    return "utf" not in (sys.stdout.encoding or "").lower()


def _stream(source: LiveSource, plan: Plan, output: Output, ended: Callable[[float], bool], face: str) -> int:
    """Poll once an interval on absolute deadlines until time is up, the source ends or a signal comes."""
    from everywatt.report.live.faces import CsvFile

    table = CsvFile(plan.csv, sys.stdout) if plan.csv is not None else None
    lines = _json_file(output) if face != "quiet" else None
    began_s = time.monotonic()
    wanted_s = plan.for_s or max(plan.interval_s, OWNERS_S if plan.by else ONCE_S)
    if plan.once and not plan.here:
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
                _print_line(lines, snapshot)
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
    try:
        return Path(output.json_to).open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output.json_to} cannot be written: {error.strerror}.") from error


def _print_line(stream: TextIO, snapshot: Snapshot) -> None:
    from everywatt.report.live.faces import json_line

    stream.write(json_line(snapshot) + "\n")
    stream.flush()


def _print_once(snapshot: Snapshot, output: Output) -> None:
    from everywatt.report.live import faces

    output.text(faces.heading(snapshot))
    output.table(*faces.tables(snapshot))
    if snapshot.owners is not None and snapshot.owners.refused:
        output.text(f"owners: {snapshot.owners.refused}")
    for line in snapshot.tail if snapshot.work else ():
        output.text(line)
    for text in snapshot.notes:
        output.warn(text)


def _so_far(snapshot: Snapshot) -> str:
    from everywatt.report.live.faces import energy_text
    from everywatt.report.live.format import watts

    return f"{format_duration(snapshot.elapsed_s)}, {watts(snapshot.total_w)}, so far {energy_text(snapshot.total)}"


def _summary(folder: Path, output: Output) -> None:
    """As after `everywatt run`."""
    from everywatt.api.run import load
    from everywatt.cli.common.metering import say_run

    run = load(folder)
    if output.json_to is not None:
        output.json("run", {key: value for key, value in run.to_dict().items() if key not in ("schema", "kind")})
    if output.json_to != STDOUT:
        say_run(run, output)
