"""`everywatt run -- CMD`: measure a command. Its exit code, stdin, stdout and signals stay its own."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

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
from everywatt.sensors.base import Request
from everywatt.sensors.registry import choose, known

NOT_FOUND, NOT_EXECUTABLE = 127, 126
PASSED_ON = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
LOOK_S = 0.1
FROM_KERNEL = 0x80  # si_code of a signal that the terminal sent, to us and to the command alike


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
    if strict:
        _strict(settings)
    meter = _meter(settings, append, note)
    meter.start(command=words, root=False)
    if meter.elsewhere:
        output.warn(meter.elsewhere)
    if idle_s > 0 and meter.recording is not None:
        output.say(f"everywatt: recording idle power for {format_duration(idle_s)}")
        uid = meter.recording.span_open("idle", attributes={"role": "idle"})
        time.sleep(idle_s)
        meter.recording.span_close(uid)
    code = _measured(meter, words, output)
    try:
        _finish(meter, meter.stop(), code, output)
    except EverywattError as error:
        output.error(error)  # the command has ended: its code is what counts
    return code


def _meter(settings: Settings, append: str | None, note: str | None) -> Meter:
    return Meter(
        settings.tags.get("name", ""),
        tags=settings.tags,
        note=note or "",
        period=settings.period_s,
        sensors=settings.sensors,
        estimate=settings.estimate,
        home=settings.home,
        append=append,
    )


def _strict(settings: Settings) -> None:
    """Refuse where no sensor measures power; before there is a run, so that none is left behind."""
    choice = choose(known(), Request(estimate=False, options=settings.options), settings.sensors)
    for group in choice.groups:
        group.close()
    if not any(channel.carries_energy for group in choice.groups for channel in group.info.channels):
        raise MeasurementRefused("Nothing on this machine measures power (--strict).", cure="everywatt doctor")


def _measured(meter: Meter, words: Sequence[str], output: Output) -> int:
    """Run the command inside a span and return its exit code."""
    recording = meter.recording
    uid = recording.span_open("run", attributes={"role": "run"}) if recording is not None else None
    with _signals() as (caught, before):
        try:
            child = _spawn(words, before, to_stderr=output.json_to == STDOUT)
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            output.error(f"{words[0]}: {error.strerror}")
            if recording is not None and uid is not None:
                recording.span_close(uid, attributes={"exit_code": code, "error": str(error.strerror)})
            return code
        with _progress(meter, output):
            if recording is not None:
                recording.follow([child])
            status, usage = _wait(child, caught)
        ended_ns = SystemClock.monotonic_ns()
    code = os.waitstatus_to_exitcode(status)
    code = 128 - code if code < 0 else code
    if recording is not None and uid is not None:
        attributes = {
            "exit_code": code,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * 1024,
        }
        recording.span_close(uid, attributes=attributes, at_ns=None if _just(ended_ns) else ended_ns)
    return code


def _spawn(words: Sequence[str], mask: set[int], *, to_stderr: bool) -> int:
    """Start the command as a shell would, and give its process id.

    It gets our files too (a jobserver's, those of `3>file`), the signal mask that we were started with, and the signals
    that Python ignores for itself back.
    """
    moved = [(os.POSIX_SPAWN_DUP2, 2, 1)] if to_stderr else []
    restored = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawnp(words[0], list(words), os.environ, file_actions=moved, setsigmask=mask, setsigdef=restored)


def _just(ended_ns: int) -> bool:
    """True where closing the span with an inline read is still about the same instant."""
    return SystemClock.monotonic_ns() - ended_ns < NS // 1000


@contextmanager
def _signals() -> Iterator[tuple[set[int], set[int]]]:
    """Signals wait until they are asked for, so that none is lost around the command's start. No handler is needed.

    Gives the signals to wait for, and the mask that the command is to have. What was ignored for us (nohup) stays
    ignored for the command. What arrives after its end is dropped: there is nobody left to pass it on to.
    """
    caught = {int(number) for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN} | {signal.SIGCHLD}
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else nobody could wait for the command
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, caught)}
    try:
        yield caught, before
    finally:
        while signal.sigtimedwait(caught, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, caught: set[int]) -> tuple[int, resource.struct_rusage]:
    """Wait for the command and pass signals on to it; those that the terminal sent have reached it already."""
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found == pid:
            return status, usage
        # A thread of a library may swallow SIGCHLD, so the command is also looked at now and then.
        arrived = signal.sigtimedwait(caught, LOOK_S)
        if arrived is not None and arrived.si_signo != signal.SIGCHLD and arrived.si_code != FROM_KERNEL:
            with suppress(ProcessLookupError):
                os.kill(pid, arrived.si_signo)


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
