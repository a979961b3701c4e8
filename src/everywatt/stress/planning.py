"""From a program to the plans of its workers: each worker plays one resource through all steps."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from everywatt.core.errors import UsageError
from everywatt.core.format import format_bytes
from everywatt.stress.crew import Plan
from everywatt.stress.program import Program, Step
from everywatt.stress.stress_ng import METHODS

ENGINES = ("own", "stress-ng")
DISK_BYTES = 256 * 2**20
"""Free disk space below which nothing is written."""
_GPU_CURE = "torch with CUDA, or: pip install 'everywatt[opencl]'"

Row = tuple[int, int, float, str]


def plans(program: Program, engine: str = "own", folder: str | Path | None = None) -> list[Plan]:
    """The plan of every worker that the program needs; disk load is made in `folder` (the one for temporary files)."""
    if engine not in ENGINES:
        raise UsageError(f"There is no engine '{engine}'.", cure=f"one of: {', '.join(ENGINES)}")
    made = _own_cpu(program) if engine == "own" else _stress_ng(program)
    made += _amount(program, "ram", lambda step: float(step.memory_bytes))
    made += _amount(program, "network", lambda step: step.network_bytes_per_s)
    if any(step.disk_bytes_per_s for step in program.steps):
        made += _amount(program, "disk", lambda step: step.disk_bytes_per_s, {"folder": _writable(folder)})
    return made + _gpu(program)


def _rows(program: Program, level: Callable[[Step], tuple[float, str]]) -> list[Row]:
    edges = pairwise(program.edges_ns)
    return [(start_ns, end_ns, *level(step)) for (start_ns, end_ns), step in zip(edges, program.steps, strict=True)]


def _own_cpu(program: Program) -> list[Plan]:
    """One worker for each core; a step that asks for fewer cores leaves the others idle."""
    most = max((step.cpu.cores for step in program.steps if step.cpu is not None), default=0)

    def of_core(core: int) -> Callable[[Step], tuple[float, str]]:
        def level(step: Step) -> tuple[float, str]:
            if step.cpu is None or core >= step.cpu.cores:
                return 0.0, ""
            return step.cpu.percent / 100, step.cpu.kind

        return level

    return [Plan("cpu", _rows(program, of_core(core)), {"offset": core / most}) for core in range(most)]


def _stress_ng(program: Program) -> list[Plan]:
    cores = [0 if step.cpu is None else step.cpu.cores for step in program.steps]
    if not any(cores):
        return []
    if shutil.which("stress-ng") is None:
        raise UsageError("stress-ng is not installed.", cure="apt install stress-ng, or --engine own")
    other = {step.cpu.kind for step in program.steps if step.cpu is not None} - METHODS.keys()
    if other:
        raise UsageError(
            f"stress-ng cannot control the load of the kind {min(other)}.",
            cure="--engine own, or a kind of: " + ", ".join(METHODS),
        )

    def level(step: Step) -> tuple[float, str]:
        return (0.0, "") if step.cpu is None else (step.cpu.percent / 100, step.cpu.kind)

    return [Plan("stress-ng", _rows(program, level), {"cores": cores})]


def _amount(
    program: Program, role: str, amount: Callable[[Step], float], options: Mapping[str, object] | None = None
) -> list[Plan]:
    if not any(amount(step) for step in program.steps):
        return []
    return [Plan(role, _rows(program, lambda step: (amount(step), "")), options or {})]


def _gpu(program: Program) -> list[Plan]:
    devices = sorted({device for step in program.steps if step.gpu is not None for device in step.gpu.devices})
    role = "gpu-sim" if os.environ.get("EVERYWATT_SIM") else "gpu"

    def of_device(device: int) -> Callable[[Step], tuple[float, str]]:
        def level(step: Step) -> tuple[float, str]:
            return (step.gpu.percent / 100 if step.gpu is not None and device in step.gpu.devices else 0.0), ""

        return level

    return [Plan(role, _rows(program, of_device(device)), {"device": device}, _GPU_CURE) for device in devices]


def _writable(folder: str | Path | None) -> str:
    chosen = Path(folder) if folder is not None else Path(tempfile.gettempdir())
    if not chosen.is_dir() or not os.access(chosen, os.W_OK):
        raise UsageError(f"{chosen} is not a writable folder.", cure="--disk-folder FOLDER")
    free = shutil.disk_usage(chosen).free
    if free < DISK_BYTES:
        raise UsageError(f"{chosen} has {format_bytes(free)} left; disk load needs {format_bytes(DISK_BYTES)}.")
    return str(chosen.resolve())
