"""What a tape says of the use of a node beside energy: which GPU is which, how busy each was, when steps ran."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.ledger.groups import grouper
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.use.account import tape_use
from everywatt.ledger.use.usage import memory_held
from everywatt.tape.reader import Tape


def gpu_uuids(tape: Tape) -> dict[str, str]:
    """The UUID of each GPU (`gpu.0`); of one whose sensor reports none (AMD, Intel) its name."""
    channels = ((group, channel) for group in tape.groups for channel in group.info.channels)
    found = {channel.device: channel.device for _, channel in channels if is_gpu(channel.device)}
    return found | {group.info.device: group.info.uuid for group in tape.groups if group.info.uuid}


def gpu_busy_s(tape: Tape, gpu: str, start_ns: int, end_ns: int) -> tuple[float, float]:
    """Seconds that a GPU was busy between two instants, and seconds of which that is known."""
    seconds = max(end_ns - start_ns, 0) / NS
    found = tape_use(tape).channel(tape, f"{gpu}.utilisation")
    if found is None or not len(found.at_ns) or not seconds:
        return 0.0, 0.0
    share = float(found.mean(np.array([start_ns, end_ns]))[0]) / 100
    return (share * seconds, seconds) if share == share else (0.0, 0.0)


def gpu_memory_bytes(tape: Tape, gpu: str, start_ns: int, end_ns: int) -> tuple[int, float] | None:
    """The most memory of a GPU that was in use between two instants, and the mean; None where it was not read."""
    found = tape_use(tape).channel(tape, f"{gpu}.memory")
    if found is None:
        return None
    low, high = np.searchsorted(found.at_ns, (start_ns, end_ns))
    inside = found.values[low:high]
    return (int(inside.max()), float(inside.mean())) if len(inside) else None


def memory_mean_bytes(tape: Tape, start_ns: int, end_ns: int) -> dict[str, float]:
    """Mean resident memory of the processes of each step, by its owner's id in the ledger, between two instants."""
    processes = tape_use(tape).processes
    held = None if processes is None else memory_held(processes, "rss_bytes", [(start_ns, end_ns)])
    found: dict[str, float] = {}
    if processes is None or held is None:
        return found
    own = grouper("step", [tape])
    for number in np.flatnonzero(held.mean_bytes).tolist():
        owner = own(tape, processes.processes[number])
        if owner.kind is OwnerKind.JOB:
            found[owner.id] = found.get(owner.id, 0.0) + float(held.mean_bytes[number])
    return found


def step_times(tape: Tape, start_ns: int, end_ns: int) -> dict[str, tuple[float, float]]:
    """When (UTC) each step, by its owner's id in the ledger, used CPU time between two instants: first and last."""
    processes = tape_use(tape).processes
    if processes is None:
        return {}
    records = processes.records
    low = int(np.searchsorted(processes.edges, start_ns, side="right")) - 1
    high = int(np.searchsorted(processes.edges, end_ns, side="left"))
    first, last = np.searchsorted(records.place, (low, high))
    own = grouper("step", [tape])
    found: dict[str, tuple[int, int]] = {}
    for number in np.unique(records.number[first:last]).tolist():
        owner = own(tape, processes.processes[number])
        if owner.kind is OwnerKind.JOB:
            mine = records.number[first:last] == number
            span = (
                max(int(records.from_ns[first:last][mine].min()), start_ns),
                min(int(records.to_ns[first:last][mine].max()), end_ns),
            )
            there = found.get(owner.id, span)
            found[owner.id] = (min(there[0], span[0]), max(there[1], span[1]))
    return {owner: (tape.to_utc_ns(a) / NS, tape.to_utc_ns(b) / NS) for owner, (a, b) in found.items()}


def name_processes(tape: Tape, steps: Mapping[int, tuple[int, str]]) -> None:
    """Tell a tape whose the processes of these numbers (pids) are, where no cgroup and no parent says it."""
    use = tape_use(tape)
    if use.processes is None:
        return
    for pid, step in steps.items():
        seen = use.processes.seen.get(pid)
        if seen:
            use.steps[seen[-1][1]] = step
