"""Whether the machine is quiet enough to measure on: who else is on its CPUs and GPUs, which chips are slowed down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, cast

from everywatt.core.format import format_percent
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.machine import Machine
from everywatt.sensors import procfs
from everywatt.sensors.base import Request, TableGroup, TableRow
from everywatt.sensors.registry import choose, known

BUSY_SHARE = 0.10
"""Above this share of the machine's CPUs the work of other programs is no longer noise."""
BUSY_GPU_PERCENT = 5.0
"""Above this utilisation a card is busy, even if the driver does not show by whom (containers hide other processes)."""
SLOWED = {
    0x08: "hardware slowdown",
    0x20: "thermal throttling (software)",
    0x40: "thermal throttling (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's throttle reasons that make a card slower than it could be."""
LOOK_S = 0.5
SHORTEST_S = 0.03  # below three ticks of the kernel's CPU times (10 ms) nothing can be said


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was seen before a measurement: a sentence for each disturbance, and whether anything measures power."""

    disturbances: tuple[str, ...] = ()
    power: bool = True

    @property
    def refusal(self) -> str | None:
        """Why a strict measurement is not started, None where it may be."""
        if not self.power:
            return "No sensor on this machine measures power"
        if self.disturbances:
            return "The machine is not quiet: " + "; ".join(text.rstrip(".") for text in self.disturbances)
        return None

    @property
    def cure(self) -> str:
        return "measure when they have ended, or without --strict" if self.power else "everywatt doctor"


class CpuLoad:
    """How busy other programs keep the CPUs, from the moment this is made."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine.here()
        self._before = self._now()

    def others(self, own: Iterable[int] = ()) -> float | None:
        """The share of all CPUs that others used since then, without this process and the young processes `own`.

        None where the kernel does not say, or too little time has passed for its ticks.
        """
        before, now = self._before, self._now()
        if before is None or now is None or now[0] - before[0] < SHORTEST_S:
            return None
        own_s = now[2] - before[2]
        for pid in own:
            with suppress(OSError):
                own_s += time.clock_gettime_ns(procfs.cpu_clock(pid)) / 1e9
        spent_s = now[1] - before[1] - own_s - 2 / procfs.TICKS_PER_S  # the kernel rounds
        return min(1.0, max(0.0, spent_s) / ((now[0] - before[0]) * (os.cpu_count() or 1)))

    def _now(self) -> tuple[float, float, float] | None:
        try:
            busy_s = procfs.parse_host_times(procfs.slurp(self._machine.proc / "stat", 512)).busy_s
        except (OSError, ValueError):
            return None
        # Children come in ticks, this process to the nanosecond: it is most of what runs while a command is started.
        return time.monotonic(), busy_s, time.process_time() + sum(os.times()[2:4])


def look(
    sensors: Sequence[str] | None = None,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    machine: Machine | None = None,
    seconds: float = LOOK_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Preflight:
    """Look at the machine for half a second, before there is a run."""
    machine = machine or Machine.here()
    choice = choose(known(machine.environ), Request(machine, estimate=False, options=options or {}), sensors)
    tenants: Sequence[TableRow] = ()
    with closing(choice):
        power = any(channel.carries_energy for group in choice.groups for channel in group.info.channels)
        for group in choice.groups:
            if group.info.lists_gpu_processes:
                tenants = cast("TableGroup", group).read_table()[1]
        load, slowed = CpuLoad(machine), _throttle_counts(machine)
        sleep(seconds)
        hot = _throttle_counts(machine) > slowed
        share = load.others()
    samples = {name: value for report in choice.reports for name, value in report.samples.items()}
    return Preflight(sentences(share, tenants, samples, hot=hot), power)


def sentences(
    cpu_share: float | None,
    tenants: Sequence[TableRow],
    samples: Mapping[str, float | None],
    *,
    hot: bool = False,
) -> tuple[str, ...]:
    """What disturbs, from the share of the CPUs that others use, rows of `nvml.processes`, and values of channels."""
    found = []
    if cpu_share is not None and cpu_share > BUSY_SHARE:
        found.append(f"Other programs kept {format_percent(cpu_share)} of the CPUs busy just before the start.")
    others = [row for row in tenants if not row.get("gone") and row["pid"] != os.getpid()]
    if others:
        found.append(f"Other processes are on the GPUs: {who_is_there(others)}.")
    busy: dict[str, float] = {}
    with_processes = {f"gpu.{row['gpu']}" for row in tenants if not row.get("gone")}
    for name, value in samples.items():
        device, _, what = name.rpartition(".")
        single_cpu = device.rpartition(".")[2].startswith("cpu")  # these are in `cpu_share`
        if (
            what == "utilisation"
            and not single_cpu
            and (value or 0.0) > BUSY_GPU_PERCENT
            and device not in with_processes
        ):
            busy[device] = (value or 0.0) / 100
        if name.endswith(".throttle") and (words := slowed_by(value or 0.0)):
            found.append(f"{name.removesuffix('.throttle')} is throttled: {words}.")
    if busy:
        ends = list(dict.fromkeys(map(format_percent, (min(busy.values()), max(busy.values())))))
        were = f"{', '.join(busy)} {'was' if len(busy) == 1 else 'were'} {' to '.join(ends)} busy"
        found.append(f"{were} just before the start; the driver does not report by whom.")
    if hot:
        found.append("The CPU is throttled by its temperature.")
    return tuple(found)


def slowed_by(reasons: float) -> str:
    """The words for those of NVML's throttle reasons that make a card slower, empty where none does."""
    return ", ".join(word for bit, word in SLOWED.items() if int(reasons) & bit)


def who_is_there(tenants: Sequence[TableRow]) -> str:
    """The first four rows of a table of GPU processes: `process 17 on gpu.0, … and 3 more`."""
    shown = ", ".join(f"process {row['pid']} on gpu.{row['gpu']}" for row in tenants[:4])
    return f"{shown} and {len(tenants) - 4} more" if len(tenants) > 4 else shown


def _throttle_counts(machine: Machine) -> int:
    """How often the CPUs have been slowed down by heat since boot; 0 where they do not say."""
    count = 0
    for file in (machine.sys / "devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count"):
        with suppress(OSError, ValueError):
            count += int(file.read_text())
    return count
