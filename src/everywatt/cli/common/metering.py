"""The meter that a verb's common options ask for, and what every verb says when it starts and stops one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from everywatt.api.meter import Meter
from everywatt.cli.common.output import Output
from everywatt.core.clocks import SystemClock
from everywatt.core.config import Settings
from everywatt.core.errors import MeasurementRefused
from everywatt.core.format import format_duration
from everywatt.recorder.request import RecordRequest

if TYPE_CHECKING:
    from everywatt.api.run import Run
    from everywatt.footprint.carbon import Footprint
    from everywatt.recorder.client import Recording


@contextmanager
def on_signals(handle: Callable[[int, FrameType | None], object], numbers: Iterable[int]) -> Iterator[None]:
    """These signals are handled so inside, and as before afterwards."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[Callable[[], int]]:
    """SIGTERM inside ends the work as Ctrl-C does, so partial results are kept; yields the exit code.

    `timeout` sends it twice, to its command and to its group: the second must not interrupt the saving of partial
    results.
    """
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if len(came) == 1 and callable(interrupt):
            interrupt(signal.SIGINT, frame)  # asyncio has a handler that lets its tasks end
        elif len(came) == 1:
            raise KeyboardInterrupt

    with on_signals(end, (signal.SIGTERM,)):
        yield lambda: 128 + (came[0] if came else signal.SIGINT)


def meter_of(settings: Settings, name: str = "", **more: Any) -> Meter:
    """A meter as --period, --sensors, --no-estimate, --memory, --tag and --note say; `more` goes to `Meter` as it is.

    `name` is part of the run's name where no tag `name` gives another.
    """
    return Meter(
        settings.tags.get("name", name),
        tags=settings.tags,
        note=settings.note,
        home=settings.home,
        request=RecordRequest.of_settings(settings),
        **more,
    )


def new_folder(settings: Settings, name: str, output: Output) -> Path:
    """The folder of a new run; says where that is if it is not where runs are kept."""
    from everywatt.tape.run_store import home, new_run

    place = home(settings.home)
    if place.why:
        output.warn(place.why)
    return new_run(place.path, name, SystemClock.utc_ns())


def start(meter: Meter, output: Output, *, root: bool = False, **how: Any) -> None:
    """Start it, without a span of its own unless `root`; `how` goes to `Meter.start`."""
    meter.start(root=root, **how)
    if meter.elsewhere:
        output.warn(meter.elsewhere)


def recording_of(meter: Meter) -> Recording:
    """The recording that was started. MeasurementRefused where none could be."""
    if meter.recording is None:
        raise MeasurementRefused(f"Nothing can be recorded: {meter.energy.refused}", cure="everywatt doctor")
    return meter.recording


def stop(meter: Meter, output: Output) -> Run | None:
    """The run, or None with a warning that says why."""
    run = meter.stop()
    if run is None:
        output.warn(f"nothing recorded: {meter.energy.refused}")
    return run


def recorded(meter: Meter, output: Output, work: Callable[[], None], **how: Any) -> Run | None:
    """Do the work of a benchmark in a recording; an interrupt ends it, and partial results are kept."""
    start(meter, output, **how)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        run = stop(meter, output)
    return run


def record_idle(meter: Meter, idle_s: float, output: Output) -> None:
    """Idle power for so long, in a span that says what it is."""
    if idle_s > 0 and meter.recording is not None:
        output.say(f"everywatt: recording idle power for {format_duration(idle_s)}")
        with meter.span("idle", role="idle"):
            time.sleep(idle_s)


def say_run(run: Run, output: Output, found: Footprint | None = None) -> None:
    """The summary of a run, carbon and cost where they are known, and the commands that show the rest."""
    from everywatt.report.text import summary

    lines = summary(run)
    if found is not None:
        from everywatt.footprint.carbon import carbon_lines

        lines += carbon_lines(found)
    output.say(*lines)
    then = f"everywatt why {run.reference}" if run.energy().joules is not None else "everywatt doctor"
    output.say(f"  run     {run.name}   (everywatt show {run.reference}, {then})")
