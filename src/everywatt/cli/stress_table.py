"""The table of a load program: what was asked, what was reached, when, and at what power."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everywatt.core.energy import Energy
from everywatt.core.tables import Cell, Column, Table
from everywatt.stress.program import Program, Step
from everywatt.stress.results import SHORT_POINTS, StepResult

if TYPE_CHECKING:
    from everywatt.api.run import Run


MOST_NOTES = 12


_HEAD = (Column("step", ""), Column("start", "s"), Column("duration", "s"))
_COLUMNS = {
    "cpu_percent": Column("cpu %", ""),
    "memory_bytes": Column("ram", "B"),
    "disk_bytes_per_s": Column("disk", "B/s"),
    "network_bytes_per_s": Column("network", "B/s"),
    "gpu_percent": Column("gpu %", ""),
}


def plan_table(program: Program) -> Table:
    """One row for each step that is asked for."""
    rows = [
        [index + 1, start, step.duration_s, *_asked_cells(program, step), *_kinds_cell(program, step)]
        for index, (start, step) in enumerate(zip(program.starts_s, program.steps, strict=True))
    ]
    return Table.of(*_HEAD, *(_COLUMNS[key] for key in _asked(program)), *_kinds_column(program), rows=rows)


def step_table(program: Program, results: Sequence[StepResult], energies: Mapping[int, Energy] | None = None) -> Table:
    """One row for each step that was played; with its power where `energies` has it."""
    origin_ns = results[0].start_ns if results else 0
    rows = [
        [
            *(result.index + 1, (result.start_ns - origin_ns) / 1e9, result.duration_s),
            *_cells(program, result),
            *([_power(result, energies)] if energies is not None else []),
            *_kinds_cell(program, result.step),
        ]
        for result in results
    ]
    columns = [each for key in _asked(program) for each in (_COLUMNS[key], replace(_COLUMNS[key], name="reached"))]
    power = [Column("power", "W")] if energies is not None else []
    return Table.of(*_HEAD, *columns, *power, *_kinds_column(program), rows=rows)


def notes(results: Sequence[StepResult]) -> list[str]:
    """Sentences below the table: why a step reached less than asked, or where the program ended."""
    found = [f"step {result.index + 1}: {'; '.join(result.notes)}" for result in results if result.notes]
    more = len(found) - MOST_NOTES
    return found if more <= 0 else [*found[:MOST_NOTES], f"and {more} more steps (--json lists all)", found[-1]]


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
    told = f"in {short} of {count} steps the machine did not provide the CPU time requested" if short else ""
    if found["worst_points"] is None:
        return f"CPU: {told}; the accuracy of the duty cycle cannot be determined"
    within = "within" if found["worst_points"] <= most else "NOT within"
    which = f"{count - short} of {count} steps" if short else "every step" if count > 1 else "the step"
    line = f"CPU: {which} {within} {most:g} points of the request (worst {found['worst_points']:.1f})"
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
    return [key for key in _COLUMNS if key in asked]


def _kinds(program: Program) -> bool:
    """Whether the kind of work is worth a column: more than one, or another than the usual."""
    return bool({step.cpu.kind for step in program.steps if step.cpu is not None} - {"integer"})


def _kinds_column(program: Program) -> list[Column]:
    return [Column("kind")] if _kinds(program) else []


def _kinds_cell(program: Program, step: Step) -> list[Cell]:
    return [None if step.cpu is None else step.cpu.kind] if _kinds(program) else []


def _asked_cells(program: Program, step: Step) -> list[Cell]:
    return [float(step.asked.get(key, 0)) for key in _asked(program)]


def _cells(program: Program, result: StepResult) -> list[Cell]:
    return [cell for key in _asked(program) for cell in (float(result.asked.get(key, 0)), result.reached.get(key))]


def _power(result: StepResult, energies: Mapping[int, Energy]) -> float | None:
    joules = energies[result.index].joules
    return None if joules is None or result.duration_s <= 0 else joules / result.duration_s
