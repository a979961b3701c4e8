"""From a program to the plans of its workers: each worker plays one resource through all steps."""

from __future__ import annotations

from everywatt.stress.crew import Plan
from everywatt.stress.program import Program


def plans(program: Program, engine: str = "own") -> list[Plan]:
    """The plan of every worker that the program needs."""
    return _cpu(program)


def _cpu(program: Program) -> list[Plan]:
    """One worker for each core; a step that asks for fewer cores leaves the others idle."""
    most = max((step.cpu.cores for step in program.steps if step.cpu is not None), default=0)
    made = []
    for core in range(most):
        rows = [
            (start, step.duration_s, step.cpu.percent / 100, step.cpu.kind)
            if step.cpu is not None and core < step.cpu.cores
            else (start, step.duration_s, 0.0, "")
            for start, step in zip(program.starts_s, program.steps, strict=True)
        ]
        made.append(Plan("cpu", rows, {"offset": core / most}))
    return made
