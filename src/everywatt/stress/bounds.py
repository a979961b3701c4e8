"""How much memory a load program may take: never more than is available, less a margin."""

from __future__ import annotations

from everywatt.core.errors import UsageError
from everywatt.core.format import format_bytes
from everywatt.core.machine import Machine
from everywatt.sensors.usage.cgroups import parse_place
from everywatt.stress.kinds import stream_bytes
from everywatt.stress.program import Program

WORKER_BYTES = 32 * 2**20
"""Memory that a worker itself may need, with numpy."""
MARGIN_BYTES = 256 * 2**20
MARGIN_SHARE = 0.05


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


def memory_bytes(machine: Machine) -> tuple[int | None, int | None]:
    """Bytes that are available, and all there are, to this process: the machine's, or its cgroup's where that is less.

    None where the kernel does not say.
    """
    try:
        text = (machine.proc / "meminfo").read_text()
        rows = {line.partition(":")[0]: line.split()[1] for line in text.split("\n") if ":" in line}
        available, total = int(rows["MemAvailable"]) * 1024, int(rows["MemTotal"]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None, None
    for limit, used in _cgroup_limits(machine):
        if limit < total:
            available, total = min(available, max(0, limit - used)), min(total, limit)
    return available, total


def _cgroup_limits(machine: Machine) -> list[tuple[int, int]]:
    """Limit and use of this process's memory cgroup and of those above it."""
    root = machine.sys / "fs" / "cgroup"
    try:
        place = parse_place((machine.proc / "self" / "cgroup").read_bytes()).memory
    except OSError:
        return []
    folder = root / (place or "").strip("/")
    found = []
    for place_above in (folder, *folder.parents):
        if not place_above.is_relative_to(root):
            break
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                found.append((int((place_above / limit).read_text()), int((place_above / used).read_text())))
            except (OSError, ValueError):
                continue
    return found
