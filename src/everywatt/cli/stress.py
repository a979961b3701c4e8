"""`everywatt stress --cpu 2 --shape ramp:0..100 --time 20`: load, with what was requested and reached."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from everywatt.cli.common.metering import meter_of, on_signals, record_idle, say_run, start, stop
from everywatt.cli.common.options import DURATION, WAIT, Verb, output_options, settings_options
from everywatt.cli.common.output import Output
from everywatt.core.config import Settings
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_duration
from everywatt.core.jsonio import ToDict
from everywatt.core.tables import Cell, Column, Table
from everywatt.report.text import watts_text
from everywatt.stress.files import Part, load_program
from everywatt.stress.playing import ENGINES, play, prepared
from everywatt.stress.program import Program, Step
from everywatt.stress.results import SHORT_POINTS, StepResult

if TYPE_CHECKING:
    from everywatt.api.meter import Meter
    from everywatt.api.run import Run

DEFAULT_S = 60.0
STOPPED = 1
MOST_NOTES = 12


@click.command(cls=Verb)
@click.argument("program", required=False, type=click.Path(dir_okay=False), metavar="[PROGRAM.toml]")
@click.option("--cpu", type=click.IntRange(1), metavar="N", help="Number of cores to load.")
@click.option(
    "--kind", metavar="KINDS", help="Kind of work: integer, float, vector, memory, branchy or all.  [default: integer]"
)
@click.option("--ram", metavar="SIZE", help="Memory to hold at 100 %, such as 1GiB.")
@click.option("--disk", metavar="RATE", help="Disk writes at 100 %, such as 50MB/s.")
@click.option("--network", metavar="RATE", help="Loopback traffic at 100 %, such as 100MB/s.")
@click.option("--gpu", metavar="LIST", help="Run matrix products on these GPUs, such as 0 or 0,1.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="[RESOURCE=]SHAPE",
    help="Load over time: constant:50, steps:0,50,100, ramp:0..100, sine:20..80,30s, random:0..100, walk:0..100,10, "
    "latin:0..100 or replay:RUN; gpu=constant:50 is for one resource; may be repeated.  [default: constant:100]",
)
@click.option("--time", "time_s", type=DURATION, default=None, help="Total duration.  [default: 60s]")
@click.option("--steps", type=click.IntRange(1), default=None, help="Number of steps, if the shape leaves it open.")
@click.option("--seed", type=int, default=None, help="Seed of the random shapes.  [default: 0]")
@click.option("--one-by-one", is_flag=True, help="Load each resource alone, one after another.")
@click.option(
    "--engine", type=click.Choice(ENGINES), default="own", help="Program that makes the CPU load.  [default: own]"
)
@click.option(
    "--disk-folder", type=click.Path(), default=None, help="Directory for disk load.  [default: temporary files]"
)
@click.option(
    "--max-temperature", type=float, default=None, metavar="CELSIUS", help="Stop if any temperature exceeds this."
)
@click.option("--idle", "idle_s", type=WAIT, default=0.0, help="Record idle power for this long first.")
@click.option("--no-record", "record", flag_value=False, default=True, help="Generate the load without recording it.")
@click.option("--plan", is_flag=True, help="Print the steps and exit.")
@settings_options
@output_options
def command(
    program: str | None,
    engine: str,
    disk_folder: str | None,
    max_temperature: float | None,
    idle_s: float,
    record: bool,
    plan: bool,
    settings: Settings,
    output: Output,
    **words: Any,
) -> int:
    """Generate load on CPU, memory, disk, network and GPU that follows a shape over time.

    The load program is a TOML file, or options. Each step is a span of a recorded run, with the load requested and the
    load reached; the table shows both. Everything stops with this command: Ctrl-C leaves no process and no file behind.
    """
    chosen = _program(program, words)
    if plan:
        _show_plan(chosen, output)
        return 0
    prepared(chosen, engine, disk_folder)
    _warn_of_cores(chosen, output)
    choices = {"engine": engine, "disk_folder": disk_folder, "max_temperature_c": max_temperature}
    if not record:
        results, ended = _played(chosen, choices, output)
        _show(chosen, results, None, output)
        return _code(ended, results)
    meter = meter_of(settings, name=chosen.name)
    start(meter, output, command=["everywatt", *sys.argv[1:]], reaper=os.getpid())
    try:
        record_idle(meter, idle_s, output)
        results, ended = _played(chosen, choices, output, meter)
    except EverywattError:
        meter.discard()
        raise
    except BaseException:
        meter.stop()
        raise
    run = stop(meter, output)
    _show(chosen, results, run, output)
    return _code(ended, results)


def _program(path: str | None, words: dict[str, Any]) -> Program:
    """The program of the file, or of the options."""
    given = {key: value for key, value in words.items() if value not in (None, ()) and value is not False}
    if path is not None:
        if given:
            name = min(given).replace("time_s", "time").replace("shapes", "shape").replace("_", "-")
            raise UsageError(f"{path} and --{name} both describe the load.", cure="use either the file or the options")
        return load_program(path)
    given["time"] = given.pop("time_s", DEFAULT_S)
    given["shape"] = _shape_words(given.pop("shapes", ()))
    return Part(**given).program()


def _shape_words(texts: Sequence[str]) -> dict[str, str]:
    """`ramp:0..100` is for all resources, `gpu=constant:50` for one."""
    found: dict[str, str] = {}
    for text in texts:
        resource, sign, shape = text.partition("=")
        resource, shape = (resource.strip(), shape) if sign and ":" not in resource else ("", text)
        if resource in found:
            raise UsageError(
                f"Two shapes were given for {resource or 'all resources'}.", cure="--shape gpu=constant:50"
            )
        found[resource] = shape
    return found


def _warn_of_cores(program: Program, output: Output) -> None:
    there = len(os.sched_getaffinity(0))
    most = max((step.cpu.cores for step in program.steps if step.cpu is not None), default=0)
    if most > there:
        output.warn(
            f"{most} cores were requested and {there} are available: they share, so full load cannot be reached"
        )


def _played(
    program: Program, choices: dict[str, Any], output: Output, meter: Meter | None = None
) -> tuple[list[StepResult], int | None]:
    """Play it; gives the results, and the signal that ended it before its time.

    The run's span starts when all workers are ready: what they cost before that is not the program's.
    """
    show = output.progress()
    count = len(program.steps)

    def on_step(result: StepResult) -> None:
        show(f"step {result.index + 1} of {count}: {format_duration(result.duration_s)}")
        for sentence in result.notes:
            output.detail(f"everywatt: step {result.index + 1}: {sentence}")

    def on_start(about: Sequence[str]) -> None:
        for what in about:
            output.say(f"everywatt: GPU load: {what}")
        if meter is not None:
            stack.enter_context(meter.span("stress", role="run", program=program.name))

    with _held() as arrived, ExitStack() as stack:
        results = play(
            program,
            on_step=on_step,
            on_start=on_start,
            stop=lambda: signal.Signals(arrived[0]).name if arrived else None,
            **choices,
        )
    return results, arrived[0] if arrived else None


@contextmanager
def _held() -> Iterator[list[int]]:
    """Ctrl-C and a polite end stop the program, and what was reached until then is still reported."""
    arrived: list[int] = []
    numbers = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    with on_signals(lambda got, _frame: arrived.append(got), numbers):
        yield arrived


def _code(ended: int | None, results: Sequence[StepResult]) -> int:
    if ended is not None:
        return 128 + ended
    return 0 if results and all(result.complete for result in results) else STOPPED


def _show_plan(program: Program, output: Output) -> None:
    output.table(plan_table(program))
    steps = [
        {"index": index, "start_s": start, "duration_s": step.duration_s, "asked": step.asked}
        for index, (start, step) in enumerate(zip(program.starts_s, program.steps, strict=True))
    ]
    output.json("stress-plan", {"name": program.name, "duration_s": program.duration_s, "steps": steps})


def _show(program: Program, results: Sequence[StepResult], run: Run | None, output: Output) -> None:
    energies = energies_of(run, results) if run is not None else None
    output.table(step_table(program, results, energies))
    output.text(*notes(results))
    found = Duty.of(results)
    if found is not None:
        output.text(str(found))
    for result in results:
        if not result.complete:
            output.say(f"everywatt: stopped in step {result.index + 1}: {result.notes[-1]}")
    data: dict[str, Any] = {
        "name": program.name,
        "asked_s": program.duration_s,
        "duration_s": (results[-1].end_ns - results[0].start_ns) / 1e9 if results else 0.0,
        "complete": len(results) == len(program.steps) and all(result.complete for result in results),
        "steps": [step_data(result, energies) for result in results],
    }
    if found is not None:
        data["cpu"] = found.to_dict()
    if run is not None:
        say_run(run, output)
        data |= {"run": run.name, "path": str(run.path), "energy": run.energy().to_dict()}
    output.json("stress", data)


_HEAD = (Column("step", ""), Column("start", "s"), Column("duration", "s"))
_COLUMNS = {
    "cpu_percent": Column("cpu", "%"),
    "memory_bytes": Column("ram", "B"),
    "disk_bytes_per_s": Column("disk", "B/s"),
    "network_bytes_per_s": Column("network", "B/s"),
    "gpu_percent": Column("gpu", "%"),
}


def _amount(amounts: Mapping[str, float | str], key: str) -> float:
    """An amount in the unit of its column, in which a percentage is a share."""
    return float(amounts.get(key, 0)) / (100 if key.endswith("_percent") else 1)


def plan_table(program: Program) -> Table:
    """One row for each step that is asked for."""
    asked = _asked(program)
    rows = [
        (step, [index + 1, start, step.duration_s, *(_amount(step.asked, key) for key in asked)])
        for index, (start, step) in enumerate(zip(program.starts_s, program.steps, strict=True))
    ]
    return _table(program, [_COLUMNS[key] for key in asked], rows)


def step_table(program: Program, results: Sequence[StepResult], energies: Mapping[int, Energy] | None = None) -> Table:
    """One row for each step that was played; with its power where `energies` has it."""
    origin_ns = results[0].start_ns if results else 0
    asked = _asked(program)
    rows: list[tuple[Step, list[Cell]]] = []
    for result in results:
        cells: list[Cell] = [result.index + 1, (result.start_ns - origin_ns) / 1e9, result.duration_s]
        for key in asked:
            cells += [_amount(result.asked, key), _amount(result.reached, key) if key in result.reached else None]
        rows.append((result.step, cells + ([_power(result, energies)] if energies is not None else [])))
    columns = [each for key in asked for each in (_COLUMNS[key], replace(_COLUMNS[key], name="reached"))]
    return _table(program, columns + ([Column("power", "W")] if energies is not None else []), rows)


def _table(program: Program, columns: Sequence[Column], rows: Sequence[tuple[Step, Sequence[Cell]]]) -> Table:
    """The rows, with the kind of work where it is not the usual one in every step."""
    if {step.cpu.kind for step in program.steps if step.cpu is not None} <= {"integer"}:
        return Table.of(*_HEAD, *columns, rows=[cells for _, cells in rows])
    kinds = [[*cells, None if step.cpu is None else step.cpu.kind] for step, cells in rows]
    return Table.of(*_HEAD, *columns, "kind", rows=kinds)


def notes(results: Sequence[StepResult]) -> list[str]:
    """Sentences below the table: why a step reached less than asked, or where the program ended."""
    found = [f"step {result.index + 1}: {'; '.join(result.notes)}" for result in results if result.notes]
    more = len(found) - MOST_NOTES
    return found if more <= 0 else [*found[:MOST_NOTES], f"and {more} more steps (--json lists all)", found[-1]]


@dataclass(frozen=True, slots=True)
class Duty(ToDict):
    """How near the CPU load came, over all steps: the worst of those that can be judged, and how many cannot."""

    target_points: float
    steps: int
    worst_points: float | None
    withheld: int

    @classmethod
    def of(cls, results: Sequence[StepResult]) -> Duty | None:
        """None where no CPU load was asked for."""
        asked = [result for result in results if result.cpu_missed_points is not None]
        off = [points for result in asked if (points := result.off_points()) is not None]
        return cls(SHORT_POINTS, len(asked), max(off, default=None), len(asked) - len(off)) if asked else None

    def __str__(self) -> str:
        count, short = self.steps, self.withheld
        shortfall = f"in {short} of {count} steps the machine did not provide the CPU time requested" if short else ""
        if self.worst_points is None:
            return f"CPU: {shortfall}; the accuracy of the duty cycle cannot be determined"
        within = "within" if self.worst_points <= self.target_points else "NOT within"
        which = f"{count - short} of {count} steps" if short else "every step" if count > 1 else "the step"
        line = f"CPU: {which} {within} {self.target_points:g} points of the request (worst {self.worst_points:.1f})"
        return f"{line}; {shortfall}" if shortfall else line


def energies_of(run: Run, results: Sequence[StepResult]) -> dict[int, Energy]:
    """The energy of each step, by its index; refused where the step is not on the tape."""
    spans = {span.attributes.get("index"): span for span in run.spans if span.attributes.get("role") == "step"}
    return {
        result.index: run.energy(spans[result.index])
        if result.index in spans
        else Energy.refuse("the step is not on the tape")
        for result in results
    }


def step_data(result: StepResult, energies: Mapping[int, Energy] | None) -> dict[str, Any]:
    """One step for JSON, with its times in UTC, and its energy where it was recorded."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    data = result.to_dict()
    data |= {"start": _utc(result.start_ns + offset_ns), "end": _utc(result.end_ns + offset_ns)}
    if energies is not None:
        data["energy"] = energies[result.index].to_dict()
    return data


def _utc(utc_ns: int) -> str:
    return datetime.fromtimestamp(utc_ns / 1e9, UTC).isoformat(timespec="microseconds")


def _asked(program: Program) -> list[str]:
    asked = {key for step in program.steps for key in step.asked}
    return [key for key in _COLUMNS if key in asked]


def _power(result: StepResult, energies: Mapping[int, Energy]) -> str | None:
    """Mean power, with the digits that the interval of the energy leaves it."""
    energy = energies[result.index]
    known = energy.joules is not None and result.duration_s > 0
    return watts_text(energy, energy.value / result.duration_s) if known else None
