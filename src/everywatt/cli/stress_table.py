"""The table of a load program: what was asked, what was reached, when, and at what power."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everywatt.core.energy import Energy
from everywatt.core.format import format_bytes
from everywatt.stress.program import Program, Step
from everywatt.stress.results import SHORT_POINTS, StepResult

if TYPE_CHECKING:
    from everywatt.api.run import Run


MOST_NOTES = 12


def _percent(value: float) -> str:
    return f"{value:.1f}"


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s"


_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "cpu_percent": ("cpu %", _percent),
    "memory_bytes": ("ram", format_bytes),
    "disk_bytes_per_s": ("disk", _rate),
    "network_bytes_per_s": ("network", _rate),
    "gpu_percent": ("gpu %", _percent),
}


def columns(program: Program, *, reached: bool = False, power: bool = False) -> tuple[list[str], list[int]]:
    """The headers for a program, and which columns hold numbers."""
    headers = ["step", "from s", "for s"]
    for key in _asked(program):
        name = _QUANTITIES[key][0]
        headers += [name, "reached"] if reached else [name]
    right = list(range(len(headers) + power))
    headers += ["power W"] if power else []
    return headers + (["kind"] if _kinds(program) else []), right


def plan_rows(program: Program) -> list[list[object]]:
    """One row for each step that is asked for."""
    return [
        [str(index + 1), f"{start:.2f}", f"{step.duration_s:.2f}", *_plan_cells(program, step)]
        for index, (start, step) in enumerate(zip(program.starts_s, program.steps, strict=True))
    ]


def rows(
    program: Program, results: Sequence[StepResult], energies: Mapping[int, Energy] | None = None
) -> list[list[object]]:
    """One row for each step that was played; with its power where `energies` has it."""
    origin_ns = results[0].start_ns if results else 0
    return [
        [
            str(result.index + 1),
            f"{(result.start_ns - origin_ns) / 1e9:.2f}",
            f"{result.duration_s:.2f}",
            *_cells(program, result),
            *([_power(result, energies)] if energies is not None else []),
            *([_kind(result.step)] if _kinds(program) else []),
        ]
        for result in results
    ]


def notes(results: Sequence[StepResult]) -> list[str]:
    """Sentences below the table: why a step reached less than asked, or where the program ended."""
    found = [f"step {result.index + 1}: {'; '.join(result.notes)}" for result in results if result.notes]
    more = len(found) - MOST_NOTES
    return found if more <= 0 else [*found[:MOST_NOTES], f"and {more} more steps (--json has all)", found[-1]]


def duty(results: Sequence[StepResult]) -> dict[str, Any] | None:
    """How near the CPU load came, over all steps: the worst of those that can be judged, and how many cannot.

    None where no CPU load was asked for.
    """
    asked = [result for result in results if result.cpu_missed_points is not None]
    if not asked:
        return None
    off = [points for result in asked if (points := result.off_points()) is not None]
    return {
        "target_points": SHORT_POINTS,
        "steps": len(asked),
        "worst_points": max(off) if off else None,
        "withheld": len(asked) - len(off),
    }


def duty_line(found: Mapping[str, Any]) -> str:
    """The same as a sentence."""
    most, count, short = found["target_points"], found["steps"], found["withheld"]
    told = f"in {short} of {count} steps the machine did not give the CPU that was asked for" if short else ""
    if found["worst_points"] is None:
        return f"CPU: {told}; how near the duty cycle comes cannot be told"
    within = "within" if found["worst_points"] <= most else "NOT within"
    which = f"{count - short} of {count} steps" if short else "every step" if count > 1 else "the step"
    line = f"CPU: {which} {within} {most:g} points of what was asked (worst {found['worst_points']:.1f})"
    return f"{line}; {told}" if told else line


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
    return [key for key in _QUANTITIES if key in asked]


def _kinds(program: Program) -> bool:
    """Whether the kind of work is worth a column: more than one, or another than the usual."""
    return bool({step.cpu.kind for step in program.steps if step.cpu is not None} - {"integer"})


def _kind(step: Step) -> str | None:
    return None if step.cpu is None else step.cpu.kind


def _plan_cells(program: Program, step: Step) -> list[object]:
    asked = step.asked
    cells: list[object] = [_QUANTITIES[key][1](float(asked.get(key, 0))) for key in _asked(program)]
    return [*cells, *([_kind(step)] if _kinds(program) else [])]


def _cells(program: Program, result: StepResult) -> list[object]:
    cells: list[object] = []
    for key in _asked(program):
        show = _QUANTITIES[key][1]
        cells.append(show(float(result.asked.get(key, 0))))
        cells.append(show(result.reached[key]) if key in result.reached else None)
    return cells


def _power(result: StepResult, energies: Mapping[int, Energy]) -> str | None:
    joules = energies[result.index].joules
    return None if joules is None or result.duration_s <= 0 else f"{joules / result.duration_s:.1f}"
