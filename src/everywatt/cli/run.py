"""`everywatt run -- CMD`: measure a command. Its exit code, stdin, stdout and signals stay its own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from everywatt.api.meter import Meter
from everywatt.api.run import Run, load
from everywatt.cli.options import DURATION, RUN, Verb, output_options, settings_options
from everywatt.cli.output import STDOUT, Output
from everywatt.core.clocks import NS, SystemClock
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, MeasurementRefused
from everywatt.core.units import format_duration
from everywatt.report.text import short, summary
from everywatt.tape.run_store import home as runs_home

NOT_FOUND, NOT_EXECUTABLE = 127, 126
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


@click.command(cls=Verb, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
@click.option("--idle", "idle_s", type=DURATION, default=0.0, help="Record idle power for this long first.")
@click.option("--append", type=RUN, default=None, metavar="RUN", help="Add to an earlier run; the gap is not counted.")
@click.option("--strict", is_flag=True, help="Refuse to start (exit 3) where nothing measures power.")
@settings_options
@output_options
def command(
    words: tuple[str, ...],
    idle_s: float,
    append: str | None,
    strict: bool,
    settings: Settings,
    note: str | None,
    output: Output,
) -> int:
    """Measure the energy of a command.

    The command's exit code is returned: 126 or 127 where it could not start, 128+n after signal n. The summary goes to
    stderr, so that the command's stdout stays its own. With --json the object goes to stdout and the command's stdout
    to stderr; --json=FILE leaves both alone.
    """
    for warning in settings.warnings:
        output.warn(warning)
    meter = _meter(settings, append, note, output)
    meter.start(command=words, root=False)
    if strict:
        _strict(meter)
    if idle_s > 0 and meter.recording is not None:
        output.say(f"everywatt: recording idle power for {format_duration(idle_s)}")
        uid = meter.recording.span_open("idle", attributes={"role": "idle"})
        time.sleep(idle_s)
        meter.recording.span_close(uid)
    code = _measured(meter, words, output)
    run = meter.stop()
    _finish(meter, run, code, output)
    return code


def _meter(settings: Settings, append: str | None, note: str | None, output: Output) -> Meter:
    home = runs_home(settings.home)
    if home.why:
        output.warn(home.why)
    return Meter(
        settings.tags.get("name", ""),
        tags=settings.tags,
        note=note or "",
        period=settings.period_s,
        sensors=settings.sensors,
        estimate=settings.estimate,
        home=home.path,
        append=append,
    )


def _strict(meter: Meter) -> None:
    recording = meter.recording
    measured = recording is not None and any(
        channel.carries_energy and channel.pedigree != "modelled"
        for group in recording.groups
        for channel in group.channels
    )
    if not measured:
        meter.stop()
        raise MeasurementRefused("Nothing on this machine measures power (--strict).", cure="everywatt doctor")


def _measured(meter: Meter, words: Sequence[str], output: Output) -> int:
    """Run the command inside a span and return its exit code."""
    recording = meter.recording
    uid = recording.span_open("run", attributes={"role": "run"}) if recording is not None else None
    try:
        child = subprocess.Popen(words, stdout=sys.stderr.fileno() if output.json_to == STDOUT else None)
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        output.error(f"{words[0]}: {error.strerror}")
        if recording is not None and uid is not None:
            recording.span_close(uid, attributes={"exit_code": code, "error": str(error.strerror)})
        return code
    with _signals(child.pid), _progress(meter, output):
        if recording is not None:
            recording.follow([child.pid])
        status, usage = _wait(child.pid)
    ended_ns = SystemClock.monotonic_ns()
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # it was waited for here: Popen must not wait again
    code = 128 - code if code < 0 else code
    if recording is not None and uid is not None:
        attributes = {
            "exit_code": code,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * 1024,
        }
        recording.span_close(uid, attributes=attributes, at_ns=None if _just(ended_ns) else ended_ns)
    return code


def _just(ended_ns: int) -> bool:
    """True where closing the span with an inline read is still about the same instant."""
    return SystemClock.monotonic_ns() - ended_ns < NS // 1000


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    while True:
        try:
            _, status, usage = os.wait4(pid, 0)
            return status, usage
        except InterruptedError:
            continue


@contextmanager
def _signals(pid: int) -> Iterator[None]:
    """Signals sent to us reach the command; those of the terminal have reached it already."""

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def from_terminal(number: int, frame: FrameType | None) -> None:
        if not _in_foreground():
            forward(number, frame)

    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
    for number in (*FORWARDED, *FROM_TERMINAL):
        with suppress(ValueError, OSError):
            # What was ignored for us (nohup) stays ignored for the command, and is not ours to catch.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, from_terminal if number in FROM_TERMINAL else forward)
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


def _in_foreground() -> bool:
    try:
        with Path("/dev/tty").open() as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def _progress(meter: Meter, output: Output) -> Iterator[None]:
    """--verbose: one plain line every ten seconds while the command runs."""
    if not output.verbose or meter.recording is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_report_every, args=(meter, output, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=1.0)


def _report_every(meter: Meter, output: Output, done: threading.Event, every_s: float = 10.0) -> None:
    started = time.monotonic()
    while not done.wait(every_s):
        recording = meter.recording
        if recording is None:
            return
        try:
            energy = load(recording.path).energy()
        except EverywattError as error:
            output.detail(f"everywatt: {error}")
            continue
        output.detail(f"everywatt: {format_duration(time.monotonic() - started)}, so far {short(energy)}")


def _finish(meter: Meter, run: Run | None, code: int, output: Output) -> None:
    if run is None:
        output.warn(f"no recording: {meter.energy.refused}")
        output.json("run", {"energy": meter.energy.to_dict(), "exit_code": code, "name": None})
        return
    if output.json_to is not None:
        data = {key: value for key, value in run.to_dict().items() if key not in ("schema", "kind")}
        output.json("run", {**data, "exit_code": code})
    if output.json_to is None or output.json_to != STDOUT:
        for line in summary(run):
            output.say(line)
        output.say(f"  run     {run.name}   (everywatt show {run.name}, everywatt why {run.name})")
