"""play(): a load program on this machine, by workers that each play one resource; each step is a span on the tape.
It ends early where something gets too hot."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from everywatt.api.meter import current
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_bytes
from everywatt.core.machine import Machine
from everywatt.sensors.base import Group, Request
from everywatt.sensors.procfs import file_text, parse_host_times
from everywatt.sensors.registry import choose, known
from everywatt.sensors.surroundings import memory_bytes
from everywatt.stress.cpu import METHODS, stream_bytes
from everywatt.stress.crew import Crew, Plan
from everywatt.stress.program import Program
from everywatt.stress.results import StepResult, weighed

ENGINES = ("own", "stress-ng")
DISK_BYTES = 256 * 2**20
"""Free disk space below which nothing is written."""
_GPU_CURE = "torch with CUDA, or: pip install 'everywatt[opencl]', or the system's driver: apt install pocl-opencl-icd"


def plans(program: Program, engine: str = "own", folder: str | Path | None = None) -> list[Plan]:
    """The plan of every worker that the program needs; disk load is made in `folder` (the one for temporary files)."""
    if engine not in ENGINES:
        raise UsageError(f"There is no engine '{engine}'.", cure=f"one of: {', '.join(ENGINES)}")
    steps, idle = program.steps, (0.0, "")

    def plan(role: str, levels: Iterable[tuple[float, str]], options: Mapping[str, object], cure: str = "") -> Plan:
        edges = pairwise(program.edges_ns)
        return Plan(role, [(*edge, *level) for edge, level in zip(edges, levels, strict=True)], options, cure or None)

    cores = [0 if step.cpu is None else step.cpu.cores for step in steps]
    cpu = [idle if step.cpu is None else (step.cpu.percent / 100, step.cpu.kind) for step in steps]
    if engine == "own":  # one worker for each core; a step that asks for fewer cores leaves the others idle
        made = [
            plan("cpu", [one if core < count else idle for one, count in zip(cpu, cores, strict=True)], {"offset": at})
            for core, at in ((core, core / max(cores)) for core in range(max(cores)))
        ]
    else:
        made = [plan("stress-ng", _by_stress_ng(cpu), {"cores": cores})] if any(cores) else []
    for role, amounts in (
        ("ram", [float(step.memory_bytes) for step in steps]),
        ("network", [step.network_bytes_per_s for step in steps]),
        ("disk", [step.disk_bytes_per_s for step in steps]),
    ):
        if any(amounts):
            options = {"folder": _writable(folder)} if role == "disk" else {}
            made.append(plan(role, [(amount, "") for amount in amounts], options))
    shares = [dict.fromkeys(step.gpu.devices, step.gpu.percent / 100) if step.gpu else {} for step in steps]
    role = "gpu-sim" if os.environ.get("EVERYWATT_SIM") else "gpu"
    for device in sorted({device for share in shares for device in share}):
        made.append(plan(role, [(share.get(device, 0.0), "") for share in shares], {"device": device}, _GPU_CURE))
    return made


def _by_stress_ng(cpu: Sequence[tuple[float, str]]) -> Sequence[tuple[float, str]]:
    """The same levels. UsageError where stress-ng is not there or cannot hold one of them."""
    if shutil.which("stress-ng") is None:
        raise UsageError("stress-ng is not installed.", cure="apt install stress-ng, or --engine own")
    other = {kind for _, kind in cpu if kind} - METHODS.keys()
    if other:
        raise UsageError(
            f"stress-ng cannot control the load of the kind {min(other)}.",
            cure="--engine own, or a kind of: " + ", ".join(METHODS),
        )
    return cpu


def _writable(folder: str | Path | None) -> str:
    chosen = Path(folder) if folder is not None else Path(tempfile.gettempdir())
    if not chosen.is_dir() or not os.access(chosen, os.W_OK):
        raise UsageError(f"{chosen} is not a writable folder.", cure="--disk-folder FOLDER")
    free = shutil.disk_usage(chosen).free
    if free < DISK_BYTES:
        raise UsageError(f"{chosen} has {format_bytes(free)} left; disk load needs {format_bytes(DISK_BYTES)}.")
    return str(chosen.resolve())


LOOK_S = 0.2
LATE_S = 3.0
"""How long after the end of a step to wait for its workers' reports."""

WORKER_BYTES = 32 * 2**20
"""Memory that a worker itself may need, with numpy."""
MARGIN_BYTES = 256 * 2**20
MARGIN_SHARE = 0.05

Stop = Callable[[], object]


def prepared(program: Program, engine: str = "own", disk_folder: str | Path | None = None) -> list[Plan]:
    """What each worker will do. UsageError where it is plain that the program cannot be made here."""
    check_memory(program, engine=engine)
    return plans(program, engine, disk_folder)


def play(
    program: Program,
    *,
    on_step: Callable[[StepResult], None] | None = None,
    on_start: Callable[[Sequence[str]], None] | None = None,
    stop: Stop | None = None,
    engine: str = "own",
    disk_folder: str | Path | None = None,
    max_temperature_c: float | None = None,
) -> list[StepResult]:
    """Play a program and give what was asked and reached in each step. All workers have ended when it returns.

    on_step            is called with each result, as soon as it is known (a moment after the step's end)
    on_start           is called when all workers are ready, with what makes the load where that is a choice (the GPU)
    stop               is asked five times a second: anything true ends the program, and a text is kept as the reason
    engine             what makes CPU load: "own", or "stress-ng" where it is installed
    disk_folder        where disk load is made; the folder for temporary files unless given
    max_temperature_c  the program ends when any device that reports a temperature is hotter

    Where a `Meter` records here, each step is a span named `step` with `asked` and `reached` among its attributes.
    UsageError, before anything starts, where the program wants more memory than is available, or cannot be made here.
    """
    made = prepared(program, engine, disk_folder)
    results: list[StepResult] = []

    def finished(result: StepResult) -> None:
        results.append(result)
        if on_step is not None:
            on_step(result)

    with ExitStack() as stack:
        reasons = [stop] if stop is not None else []
        if max_temperature_c is not None:
            hot = TooHot(max_temperature_c)
            stack.callback(hot.close)
            reasons.append(hot)
        crew = stack.enter_context(Crew(made))
        if on_start is not None:
            on_start(list(dict.fromkeys(worker.about for worker in crew.workers if worker.about)))
        _Player(program, crew, finished).run(lambda: next(filter(None, (reason() for reason in reasons)), None))
    return results


@dataclass
class _Open:
    """A step whose reports are awaited: when it was, and its span."""

    index: int
    start_ns: int
    end_ns: int
    uid: str | None = None
    mark: Any = None
    stolen_s: float | None = None


class _Player:
    def __init__(self, program: Program, crew: Crew, on_result: Callable[[StepResult], None]) -> None:
        self._program = program
        self._crew = crew
        self._on_result = on_result
        self._waiting: list[_Open] = []
        self._playing: _Open | None = None
        here = current()
        self._recording = here[0].recording if here is not None else None
        self._parent = here[1] if here is not None else None
        self._stat = Machine.here().proc / "stat"

    def run(self, stop: Stop) -> None:
        try:
            self._run(stop)
        except BaseException as error:  # an interrupt, or what a caller's function raised
            for step in filter(None, (self._playing, *self._waiting)):
                if self._recording is not None and step.uid is not None:
                    attributes = {"complete": False, "error": type(error).__name__}
                    self._recording.span_close(step.uid, attributes=attributes, mark=step.mark)
            raise

    def _run(self, stop: Stop) -> None:
        start_ns = self._crew.go()
        for index, (begin_ns, end_ns) in enumerate(pairwise(self._program.edges_ns)):
            step = _Open(index, start_ns + begin_ns, start_ns + end_ns)
            self._until(step.start_ns, lambda: None)
            step.uid = self._span(step)
            self._playing = step
            stolen_s = self._stolen_s()
            reason = self._until(step.end_ns, stop)
            step.stolen_s = _since(stolen_s, self._stolen_s())
            if self._recording is not None:
                step.mark = self._recording.mark()
            self._waiting.append(step)
            self._playing = None
            if reason:
                step.end_ns = min(step.end_ns, time.monotonic_ns())
                self._crew.halt()
                self._finish(step, note=reason if isinstance(reason, str) else "stopped", complete=False)
                return
        deadline = time.monotonic() + LATE_S
        while self._waiting and self._crew.working and time.monotonic() < deadline:
            self._crew.hear(deadline - time.monotonic())
            self._settle()
        self._settle()
        for step in list(self._waiting):
            self._finish(step)

    def _until(self, end_ns: int, stop: Stop) -> object:
        """Listen until this instant; gives why to stop, where something says so."""
        reason: object = None
        while not reason and (left_s := (end_ns - time.monotonic_ns()) / 1e9) > 0:
            self._crew.hear(min(left_s, LOOK_S))
            self._settle()
            reason = stop() or "; ".join(self._crew.failures())
        return reason

    def _settle(self) -> None:
        """Tell the steps that every worker has reported, or that have waited too long, in their order."""
        while self._waiting:
            step = self._waiting[0]
            late = time.monotonic_ns() - step.end_ns > LATE_S * 1e9
            if not late and not all(step.index in worker.reports for worker in self._crew.workers):
                return
            self._finish(step)

    def _finish(self, step: _Open, *, note: str = "", complete: bool = True) -> None:
        for earlier in [one for one in self._waiting if one.index < step.index]:
            self._finish(earlier)
        self._waiting.remove(step)
        asked = self._program.steps[step.index]
        seconds = (step.end_ns - step.start_ns) / 1e9
        reached, notes = weighed(asked, step.index, self._crew.workers, seconds, step.stolen_s)
        notes = (*notes, note) if note else notes
        result = StepResult(step.index, asked, step.start_ns, step.end_ns, reached, notes, complete)
        if self._recording is not None and step.uid is not None:
            # A span begins and ends where the counters were read; these are the instants that the workers kept to.
            attributes = {"start_ns": step.start_ns, "end_ns": step.end_ns, "reached": dict(reached)}
            attributes |= {"notes": list(notes), "complete": complete}
            self._recording.span_close(step.uid, attributes=attributes, mark=step.mark)
        self._on_result(result)

    def _stolen_s(self) -> float | None:
        """Seconds that the hypervisor has run another guest, over all CPUs; None if the kernel does not report it."""
        try:
            return parse_host_times(self._stat.read_bytes()).steal_s
        except (OSError, ValueError):
            return None

    def _span(self, step: _Open) -> str | None:
        if self._recording is None:
            return None
        attributes = {"role": "step", "index": step.index, "asked": self._program.steps[step.index].asked}
        return self._recording.span_open("step", parent=self._parent, attributes=attributes)


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def check_memory(program: Program, machine: Machine | None = None, engine: str = "own") -> None:
    """UsageError where the program needs more memory than is available, less a margin."""
    needed = needed_bytes(program, engine)
    available, total = memory_bytes(machine or Machine.here())
    if available is None or total is None:
        return
    allowed = available - max(MARGIN_BYTES, int(total * MARGIN_SHARE))
    if needed > allowed:
        raise UsageError(
            f"The program needs {format_bytes(needed)} of memory; {format_bytes(available)} are available, and "
            f"{format_bytes(available - allowed)} of that must stay free.",
            cure=f"at most {format_bytes(max(0, allowed))} in total",
        )


def needed_bytes(program: Program, engine: str = "own") -> int:
    """The most memory that the program takes at one time, with what its workers need themselves."""
    held = max(step.memory_bytes for step in program.steps)
    cores = max((step.cpu.cores for step in program.steps if step.cpu is not None), default=0)
    streams = any(step.cpu is not None and step.cpu.kind == "memory" for step in program.steps)
    each = WORKER_BYTES + (2 * stream_bytes() if streams and engine == "own" else 0)
    return held + cores * each


GLANCE_S = 1.0  # between two looks at temperatures
OLD_S = 10.0  # a temperature that was not reported for so long is left out
_CELSIUS = "°C"
_LIKELY_C = (-40.0, 200.0)
"""Plausible range of a chip's temperature; disconnected inputs read far outside it."""


class Thermometer:
    """Every temperature that sensors and the kernel's own files give, in °C."""

    def __init__(self, machine: Machine | None = None) -> None:
        machine = machine or Machine.here()
        self._files = _temperature_files(machine.sys)
        self._groups: list[Group] = []
        self._last: dict[str, tuple[float, float]] = {}
        for group in choose(known(machine.environ), Request(machine, estimate=False)).groups:
            if not group.info.table and any(channel.unit == _CELSIUS for channel in group.info.channels):
                self._groups.append(cast("Group", group))
            else:
                group.close()

    def read(self) -> dict[str, float]:
        """Temperatures by name; those that were not reported for ten seconds are left out."""
        found: dict[str, float] = {}
        for name, file in self._files:
            with suppress(OSError, ValueError):
                found[name] = max(int(file.read_text()) / 1000, found.get(name, -math.inf))
        now = time.monotonic()
        for group in self._groups:
            with suppress(EverywattError, OSError):
                for row in group.read():
                    for channel, value in zip(group.info.channels, row.values, strict=True):
                        if channel.unit == _CELSIUS and not math.isnan(value):
                            self._last[channel.name] = (now, value * channel.scale)
        found |= {name: value for name, (at, value) in self._last.items() if now - at < OLD_S}
        return {name: value for name, value in found.items() if _LIKELY_C[0] < value < _LIKELY_C[1]}

    def close(self) -> None:
        for group in self._groups:
            group.close()


class TooHot:
    """A `stop` for `play`: a sentence as soon as something is hotter than the limit, else None.

    UsageError if no sensor reports a temperature: a limit must be monitored.
    """

    def __init__(
        self, limit_c: float, thermometer: Thermometer | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_c = limit_c
        self._thermometer = thermometer or Thermometer()
        self._clock = clock
        self._next = clock()
        if not self._thermometer.read():
            self._thermometer.close()
            raise UsageError(
                "No sensor on this machine reports a temperature, so no limit can be enforced.",
                cure="leave --max-temperature out and limit --time",
            )

    def __call__(self) -> str | None:
        """Looks once a second."""
        if self._clock() < self._next:
            return None
        self._next = self._clock() + GLANCE_S
        found = self._thermometer.read()
        if not found:
            return "no sensor reports a temperature any more"
        name, hottest = max(found.items(), key=lambda item: item[1])
        if hottest <= self._limit_c:
            return None
        return f"{name} is at {hottest:.0f} °C, above {self._limit_c:g} °C"

    def close(self) -> None:
        self._thermometer.close()


def _temperature_files(sys: Path) -> list[tuple[str, Path]]:
    zones = sorted((sys / "class" / "thermal").glob("thermal_zone*/temp"))
    found = [(file_text(file.parent / "type") or file.parent.name, file) for file in zones]
    for file in sorted((sys / "class" / "hwmon").glob("hwmon*/temp*_input")):
        chip = file_text(file.parent / "name") or file.parent.name
        label = file_text(file.with_name(file.name.replace("_input", "_label"))) or file.name.removesuffix("_input")
        found.append((f"{chip} {label}", file))
    return found
