"""Watts estimated from CPU use, where nothing on the machine measures power. Always labelled `modelled`.

The figure is the whole machine at the wall without accelerators: its accuracy, and how it was established, are in
`power_model`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row, fresh
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors import procfs
from everywatt.sensors.base import Group, Report, Request, State
from everywatt.sensors.cpu.identity import MachineFacts, identify
from everywatt.sensors.cpu.power_model import Curve, curve, estimate, shipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everywatt.core.machine import Machine

__all__ = ["Modelled", "ModelledPower", "estimate", "grounds"]

CHANNEL = "host.power"
_GLANCE_NS = NS // 20
RECENT_NS = 60 * NS  # a look at the CPUs that is this old still shows how busy they are
_last_look: dict[Path, tuple[int, procfs.HostTimes]] = {}  # by root of /proc: when, and the CPU times there
TO_90 = 1.645 / 1.96  # intervals beside the watts are of 90 %, as those of a fitted model


def load_between(before: procfs.HostTimes, after: procfs.HostTimes) -> float | None:
    """The share of CPU time that was busy, 0 to 1; None where no time passed or the counters went back.

    Stolen time counts as time in which this machine's CPUs did nothing.
    """
    busy = after.busy_s - before.busy_s
    total = busy + (after.idle_s - before.idle_s) + (after.steal_s - before.steal_s)
    if total <= 0 or busy < 0:
        return None
    return min(busy / total, 1.0)


class ModelledPower:
    """The group `modelled.host`: each row is the mean power from the read before to this one."""

    def __init__(self, machine: Machine, line: Curve) -> None:
        peak_w = line.interval_w(1.0)[1]
        facts = Facts(gain_pct=100 * (1 - math.exp(-min(line.below))), max_w=peak_w)
        modelled = Pedigree.MODELLED
        channel = Channel(CHANNEL, "W", Kind.GAUGE, "host", Domain.NODE, pedigree=modelled, facts=facts)
        beside = (
            Channel("modelled.low", "W", Kind.GAUGE, "host", pedigree=modelled),
            Channel("modelled.high", "W", Kind.GAUGE, "host", pedigree=modelled),
            Channel("modelled.outside", "", Kind.GAUGE, "host", pedigree=modelled),
        )
        self.info = GroupInfo(
            "modelled.host", "modelled", "host", (channel, *beside), label="estimated from CPU utilisation"
        )
        self._clock = machine.clock
        self._line = line
        self._stat = procfs.KeptFile(machine.proc / "stat")
        self._before: procfs.HostTimes | None = None

    def read(self) -> Sequence[Row]:
        """One row; none at the first read, which is the base, nor where the kernel's counters have not moved."""
        try:
            times = procfs.parse_host_times(self._stat.read(512))
        except (OSError, ValueError) as error:
            raise SensorError(f"/proc/stat cannot be read: {error}") from error
        read_ns = self._clock.monotonic_ns()
        before = self._before
        load = None if before is None else load_between(before, times)
        if load is None:
            # Counters that stood still keep the base, so that the next row covers this stretch as well.
            if before is None or times.busy_s < before.busy_s or times.idle_s < before.idle_s:
                self._before = times
            return ()
        self._before = times
        low, high = self._line.interval_w(load, TO_90)
        return (fresh(read_ns, (self._line.at(load), low, high, 0.0)),)

    def close(self) -> None:
        """Close /proc/stat."""
        self._stat.close()


class Modelled:
    """The estimate of last resort: used where no other sensor delivers power, and estimates are allowed."""

    name = "modelled"
    after: Sequence[str] = ("*power",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def probe(self) -> Report:
        """Usable wherever Linux tells CPU use; says on what grounds, and how far off it may be."""
        if not self._request.estimate:
            why = "estimates are disabled"
            return Report(self.name, State.UNUSABLE, why=why, cure="run without --no-estimate", power=False)
        machine = self._request.machine
        try:
            facts = identify(machine)
            load = _load_now(machine)
        except (OSError, ValueError) as error:
            return Report(self.name, State.ABSENT, why=f"CPU utilisation cannot be read: {error}", power=False)
        watts, low, high = estimate(load, facts)
        interval = f"at {load:.0%} load {watts:.3g} W, 95 % interval {low:.3g} to {high:.3g} W"
        return Report(
            self.name,
            State.USABLE,
            why=f"{grounds(facts)}; {interval}",
            samples={CHANNEL: watts},
            missing={} if facts.container is None else {"container": _whole_host(facts.container)},
            devices=(_device(facts),),
        )

    def groups(self) -> Sequence[Group]:
        """The one group, `modelled.host`."""
        machine = self._request.machine
        return (ModelledPower(machine, curve(identify(machine))),)


def grounds(facts: MachineFacts, fit: Mapping[str, Any] | None = None) -> str:
    """One sentence: what was estimated from what, and what makes it uncertain."""
    fit = shipped() if fit is None else fit
    if facts.guest is not None:
        head = (
            f"modelled from CPU utilisation: {facts.threads} vCPUs of a host with {facts.cpu}, of unknown size and load"
        )
        notes = [f"a guest: {facts.guest}"]
    else:
        size = f"{facts.sockets} × {facts.cores // facts.sockets} cores"
        head, notes = f"modelled from CPU utilisation: a {facts.kind} with {size} of {facts.cpu}", []
        if facts.kind != "server":
            head = head.replace("a unknown", "an unknown machine")
            notes.append(
                "the model was fitted on servers, and this machine is not one or does not report it: the true power "
                "may be between a twentieth and twice the estimate"
            )
    if facts.generation not in fit["generation_years"]:
        notes.append("no server of this CPU generation was in the fit")
    return f"{head} ({'; '.join(notes)})" if notes else head


def _whole_host(container: str) -> str:
    return f"inside {container} the estimate covers the whole machine that runs it"


def _device(facts: MachineFacts) -> dict[str, Any]:
    return {"device": "host", **asdict(facts)}


def _load_now(machine: Machine) -> float:
    """The load since the last look in this process, so that a program that waits for its recorder waits no longer."""
    now_ns = machine.clock.monotonic_ns()
    last_ns, before = _last_look.get(machine.proc, (0, None))
    if before is None or not _GLANCE_NS <= now_ns - last_ns <= RECENT_NS:
        before = _times(machine)
        machine.clock.sleep_until(now_ns + _GLANCE_NS)
    after = _times(machine)
    _last_look[machine.proc] = machine.clock.monotonic_ns(), after
    load = load_between(before, after)
    if load is None:  # too short to see anything: the mean since boot will do
        load = load_between(procfs.HostTimes(0.0, 0.0, 0.0), after) or 0.0
    return load


def _times(machine: Machine) -> procfs.HostTimes:
    return procfs.parse_host_times(procfs.slurp(machine.proc / "stat", 512))
