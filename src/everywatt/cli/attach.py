"""`everywatt attach PID…`: measure processes that run already, with the children that they have and get."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everywatt.cli.common.metering import meter_of, recording_of, start
from everywatt.cli.common.options import DURATION, Verb, output_options, settings_options
from everywatt.cli.common.output import Output
from everywatt.cli.run import finish, note_disturbances, progress
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, NoSensor, UsageError
from everywatt.core.machine import Machine
from everywatt.doctor import preflight
from everywatt.sensors import procfs
from everywatt.sensors.usage.processes import Trees

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S = 0.2
LAST_PID = 1 << 22  # the most that Linux gives out
PID = click.IntRange(1, LAST_PID)
PID.name = "process id"  # what a message calls it
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(cls=Verb)
@click.argument("pids", nargs=-1, required=True, type=PID, metavar="PID...")
@click.option("--for", "for_s", type=DURATION, help="Stop after this long; by default, when all processes have ended.")
@settings_options
@output_options
def command(pids: tuple[int, ...], for_s: float | None, settings: Settings, output: Output) -> int:
    """Measure processes that are already running.

    Recording stops when they and all their children have ended, after the time given by --for, or on Ctrl-C; in each
    case a summary is printed. The processes themselves are not affected. The exit code is 4 if no sensor measures power
    and --no-estimate rules out a model.
    """
    machine = Machine.here()
    _check(pids, machine.proc)
    load = preflight.CpuLoad(machine)
    meter = meter_of(settings, pids=pids)
    # From here on a signal ends the recording and not this program.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    start(meter, output, command=["everywatt", "attach", *map(str, pids)], reaper=os.getpid())
    recording = recording_of(meter)
    if not any(channel.carries_energy for group in recording.groups for channel in group.channels):
        meter.discard()
        raise NoSensor("No sensor on this machine measures power, and --no-estimate rules out a model.")
    note_disturbances(recording, load)
    uid = recording.span_open("attach", attributes={"role": "run", "pids": list(pids)})
    with progress(meter, output):
        why = wait(Trees(machine.proc, pids), for_s, look=recording.look)
        mark = recording.mark()
        recording.read_tables()
    recording.span_close(uid, attributes={"ended": why}, mark=mark)
    run = meter.stop()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    try:
        finish(meter, run, output, settings, ended=why)
    except EverywattError as error:
        output.error(error)
        return error.exit_code
    return 0


def _check(pids: Sequence[int], proc: Path) -> None:
    for pid in pids:
        if pid == os.getpid():
            raise UsageError(f"Process {pid} is everywatt itself.")
        if not (proc / str(pid)).is_dir() and not _alive(pid):
            raise UsageError(f"There is no process {pid}.", cure="ps -e, or pgrep NAME")


def _alive(pid: int) -> bool:
    """Also where /proc hides it."""
    try:
        return time.clock_gettime_ns(procfs.cpu_clock(pid)) >= 0
    except OSError:
        return False


def wait(
    trees: Trees,
    for_s: float | None,
    clock: Callable[[], float] = time.monotonic,
    look: Callable[[], None] = lambda: None,
) -> str:
    """Until no process is left ("gone"), the time is over ("time") or a signal arrives ("signal").

    `look` is called each time that the processes have been looked at.
    """
    deadline = None if for_s is None else clock() + for_s
    try:
        while True:
            trees.read()
            look()
            if not trees.running:
                return "gone"
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - clock())
            if left <= 0:
                return "time"
            if signal.sigtimedwait(ENDING, left) is not None:
                return "signal"
    finally:
        trees.close()
