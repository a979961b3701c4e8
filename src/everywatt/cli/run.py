"""`everywatt run -- CMD`: measure a command. Its exit code, stdin, stdout and signals stay its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from everywatt.api import own_cgroup
from everywatt.api.meter import Meter
from everywatt.cli.common import child
from everywatt.cli.common.metering import meter_of, record_idle, say_run, start
from everywatt.cli.common.options import RUN, WAIT, Verb, output_options, settings_options
from everywatt.cli.common.output import STDOUT, Output
from everywatt.cli.common.progress import repeated
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, MeasurementRefused
from everywatt.core.format import format_duration
from everywatt.doctor import preflight

if TYPE_CHECKING:
    # What reads a run needs numpy, whose threads would take signals that are meant for the command: only after it.
    from everywatt.api.run import Run
    from everywatt.footprint.carbon import Footprint
    from everywatt.recorder.client import Recording

NOT_FOUND, NOT_EXECUTABLE = 127, 126
LAST_READ_S = 0.2  # how long the recorder gets for a last look at the command before it is waited for


@click.command(cls=Verb, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
@click.option("--idle", "idle_s", type=WAIT, default=0.0, help="Record idle power for this long first.")
@click.option(
    "--append", type=RUN, default=None, metavar="RUN", help="Append to an earlier run; the gap is not counted."
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse to start (exit code 3) if no sensor measures power or the machine is not quiet.",
)
@settings_options
@output_options
def command(
    words: tuple[str, ...],
    idle_s: float,
    append: str | None,
    strict: bool,
    settings: Settings,
    output: Output,
) -> int:
    """Measure the energy of a command.

    The exit code is that of the command; 126 or 127 if it could not be started, 128+n after signal n. The summary goes
    to stderr, so the command's stdout is unchanged. With --json the object goes to stdout and the command's stdout to
    stderr; --json=FILE leaves both unchanged.
    """
    load = click.get_current_context().find_object(preflight.CpuLoad) or preflight.CpuLoad()
    unable = child.cannot_start(words[0])
    if unable is not None:  # nothing would be measured: no run is made of it
        from everywatt.core.energy import Energy

        code = _not_started(words[0], unable, output)
        refused = Energy.refuse(f"{words[0]} could not be started").to_dict()
        output.json("run", {"energy": refused, "name": None, "exit_code": code})
        return code
    if strict:
        found = preflight.look(settings.sensors, options=settings.options)
        if found.refusal:
            raise MeasurementRefused(f"{found.refusal} (--strict).", cure=found.cure)
    meter = meter_of(settings, append=append, pids=())
    with _loaded_meanwhile(child.load):
        start(meter, output, command=words, reaper=os.getpid())
    if meter.recording is not None:
        note_disturbances(meter.recording, load)
    record_idle(meter, idle_s, output)
    try:
        code = _measured(meter, words, output)
    except BlockingIOError as error:
        return _in_place(meter, words, error, output)
    try:
        if meter.recording is not None:
            _load_figures()
        finish(meter, meter.stop(), output, settings, exit_code=code)
    except EverywattError as error:
        output.error(error)  # the command has ended: its code is what counts
    except Exception as error:  # noqa: BLE001 - a defect of ours must not become the command's failure
        output.error(f"The run cannot be shown: {type(error).__name__}: {error}")
    return code


def _in_place(meter: Meter, words: Sequence[str], error: OSError, output: Output) -> int:
    """No process can be started: the command takes the place of this one, unmeasured. Returns where it cannot."""
    from everywatt.core.energy import Energy

    why = f"no process could be started ({error.strerror}), so the command ran in place of everywatt"
    meter.discard()
    output.warn(f"no measurement: {why}")
    output.json("run", {"energy": Energy.refuse(why).to_dict(), "name": None, "exit_code": None})
    try:
        child.become(words, to_stderr=output.json_to == STDOUT)
    except OSError as unable:
        return _not_started(words[0], unable, output)


@contextmanager
def _loaded_meanwhile(load: Callable[[], None]) -> Iterator[None]:
    """Import something while this process waits for the recorder. The thread that does it has ended afterwards."""
    thread = threading.Thread(target=load, daemon=True)
    with suppress(RuntimeError):  # no thread can be started: it is imported when it is needed
        thread.start()
    try:
        yield
    finally:
        if thread.is_alive():
            thread.join()


def _load_figures() -> None:
    """Begin to import what reads a run while the recorder waits for the last publications and seals the tape.

    Not while the command runs: the CPU time would be in its energy.
    """

    def load() -> None:
        with suppress(Exception):  # whoever needs it will meet the same trouble, and say so
            import everywatt.api.run
            import everywatt.ledger.build
            import everywatt.report.text  # noqa: F401 - only to have it

    # A library for matrices would start threads, and interrupt this process where it may not.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with suppress(RuntimeError):  # no thread can be started: it is imported when it is needed
        threading.Thread(target=load, daemon=True).start()


def note_disturbances(recording: Recording, load: preflight.CpuLoad) -> None:
    """Keep with the run, and so in its summary, that the machine was not quiet when it was started."""
    started = [recording.recorder_pid] if recording.recorder_is_new else []
    samples = {name: value for report in recording.reports for name, value in report.get("samples", {}).items()}
    for sentence in preflight.sentences(load.others(started), recording.tenants, samples):
        recording.note("warning", sentence)


def _measured(meter: Meter, words: Sequence[str], output: Output) -> int:
    """Run the command inside a span and return its exit code."""
    recording = meter.recording
    child.adopt_orphans()  # after the recorder was started, which goes its own way
    group = own_cgroup.make()[0] if recording is not None else None
    uid = recording.span_open("run", attributes={"role": "run"}) if recording is not None else None
    ended = child.Ended()
    try:
        with child.held_signals() as (caught, before):
            try:
                pid = child.spawn(
                    words, before, to_stderr=output.json_to == STDOUT, join=group.join if group is not None else None
                )
            except BlockingIOError:
                raise  # not the command's fault
            except OSError as error:
                code = _not_started(words[0], error, output)
                if recording is not None and uid is not None:
                    recording.span_close(uid, attributes={"exit_code": code, "error": str(error.strerror)})
                return code
            with progress(meter, output):
                if recording is None:
                    child.watch(pid, caught, ended)
                else:
                    recording.follow([pid], cgroup=str(group.folder) if group is not None else None)
                    child.watch(pid, caught, ended, recording.look)
            _settle(recording, uid, pid, ended, group)
    finally:
        if group is not None and not group.remove():
            output.detail(f"everywatt: the command left processes running in {group.folder}")
    return ended.code


def _not_started(name: str, error: OSError, output: Output) -> int:
    output.error(f"{name if name.strip() else repr(name)}: {error.strerror}")
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _settle(
    recording: Recording | None, uid: str | None, pid: int, ended: child.Ended, group: own_cgroup.OwnCgroup | None
) -> None:
    """The command has ended: have it looked at once more, wait for it, and close its span with what it used."""
    if recording is None or uid is None:
        child.reap(pid, ended)
        return
    mark = recording.mark()
    last = recording.read_tables(LAST_READ_S)
    child.reap(pid, ended)
    grouped_s = group.cpu_s() if group is not None else None
    attributes: dict[str, Any] = {
        "exit_code": ended.code,
        "cpu_s": ended.cpu_s if grouped_s is None else grouped_s,
        "cpu_method": "cgroup" if grouped_s is not None else "exit records" if (last or {}).get("exits") else "rusage",
        **ended.memory(),
    }
    recording.span_close(uid, attributes=attributes, mark=mark)


@contextmanager
def progress(meter: Meter, output: Output) -> Iterator[None]:
    """--verbose: one plain line every ten seconds while the command runs."""
    recording, started = meter.recording, time.monotonic()
    if not output.verbose or recording is None:
        yield
        return

    def report() -> None:
        from everywatt.api.run import load
        from everywatt.core.format import format_energy

        try:
            energy = load(recording.path).energy()
        except EverywattError as error:
            output.detail(f"everywatt: {error}")
            return
        output.detail(f"everywatt: {format_duration(time.monotonic() - started)}, so far {format_energy(energy)}")

    with repeated(report):
        yield


def finish(meter: Meter, run: Run | None, output: Output, settings: Settings, **more: Any) -> None:
    """Print the summary of a run that has just ended, or its JSON object; `more` goes into that too."""
    if run is None:
        output.warn(f"nothing recorded: {meter.energy.refused}")
        output.json("run", {"energy": meter.energy.to_dict(), "name": None, **more})
        return
    found = _footprint(run, settings, output)
    if output.json_to != STDOUT:  # first: the file may not be writable
        say_run(run, output, found)
    if output.json_to is not None:
        from everywatt.report.text import RunReport

        output.json("run", {**RunReport(run, found).to_dict(), **more})


def _footprint(run: Run, settings: Settings, output: Output) -> Footprint | None:
    """Carbon and cost where the settings ask for them. A factor that cannot be used does not end a run."""
    asked = (settings.country, settings.intensity, settings.intensity_file, settings.pue, settings.price)
    if all(factor is None for factor in asked):
        return None
    from everywatt.footprint.carbon import factors_of, footprint

    try:
        return footprint(run, factors_of(settings))
    except EverywattError as error:
        output.warn(str(error))
        return None
