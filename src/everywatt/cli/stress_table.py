"""The table of a load program: what was asked, what was reached, when, and at what power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from everywatt.core.energy import Energy
from everywatt.core.units import format_bytes
from everywatt.stress.program import Program, Step
from everywatt.stress.results import StepResult

if TYPE_CHECKING:
    from everywatt.api.run import Run


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s"


_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "cpu_percent": ("cpu", _percent),
    "memory_bytes": ("ram", format_bytes),
    "disk_bytes_per_s": ("disk", _rate),
    "network_bytes_per_s": ("network", _rate),
    "gpu_percent": ("gpu", _percent),
}


def columns(program: Program, *, reached: bool = False, power: bool = False) -> tuple[list[str], list[int]]:
    """The headers for a program, and which columns hold numbers."""
    headers = ["step", "from", "for"]
    for key in _asked(program):
        name = _QUANTITIES[key][0]
        headers += [f"{name} asked", "reached"] if reached else [name]
    right = list(range(len(headers) + power))
    headers += ["power"] if power else []
    headers += ["kind"] if _kinds(program) else []
    return headers + (["note"] if reached else []), right


def rows(program: Program, results: Sequence[StepResult], run: Run | None) -> list[list[object]]:
    """One row for each step: of the results where there are any, else of the plan."""
    if not results:
        return [
            [str(index + 1), f"{start:.2f} s", f"{step.duration_s:.2f} s", *_plan_cells(program, step)]
            for index, (start, step) in enumerate(zip(program.starts_s, program.steps, strict=True))
        ]
    powers = _powers(run, results) if run is not None else {}
    origin_ns = results[0].start_ns
    return [
        [
            str(result.index + 1),
            f"{(result.start_ns - origin_ns) / 1e9:.2f} s",
            f"{result.duration_s:.2f} s",
            *_cells(program, result),
            *([powers.get(result.index)] if run is not None else []),
            *([_kind(result.step)] if _kinds(program) else []),
            "; ".join(result.notes),
        ]
        for result in results
    ]


def step_data(result: StepResult, run: Run | None) -> dict[str, Any]:
    """One step for JSON, with its energy where it was recorded."""
    data = result.to_dict()
    if run is not None:
        data["energy"] = _energy(run, result).to_dict()
    return data


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


def _powers(run: Run, results: Sequence[StepResult]) -> dict[int, str]:
    found = {}
    for result in results:
        energy = _energy(run, result)
        if energy.joules is not None and result.duration_s > 0:
            found[result.index] = f"{energy.joules / result.duration_s:.1f} W"
    return found


def _energy(run: Run, result: StepResult) -> Energy:
    for span in run.spans:
        if span.attributes.get("role") == "step" and span.attributes.get("index") == result.index:
            return run.energy(span)
    return Energy.refuse("the step is not on the tape")
