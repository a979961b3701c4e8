"""RAPL by perf_events: a fed PMU for the figures, and the real system call on a software event."""

from __future__ import annotations

import errno
import math
import os
import time

import pytest

from everywatt.core.channels import Domain
from everywatt.core.clocks import SystemClock
from everywatt.core.counters import Case, difference
from everywatt.core.domains import in_total
from everywatt.core.errors import SensorError
from everywatt.sensors.base import State
from everywatt.sensors.cpu.perf import PerfRapl, find_events, open_event, read_event
from everywatt.sensors.registry import choose
from everywatt.sensors.sysfs import parse_cpus

SCALE = 2.0**-32
CONFIGS = {"energy-cores": 1, "energy-pkg": 2, "energy-ram": 3, "energy-gpu": 4, "energy-psys": 5}


class Pmu:
    """Counts joules by config from the moment a counter is opened."""

    def __init__(self, clock, watts):
        self.clock, self.watts = clock, watts
        self.open = {}
        self.lost = set()

    def opener(self, kind, config, cpu):
        assert kind in (21, 22)
        if cpu in self.lost:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        handle = os.open("/dev/null", os.O_RDONLY)
        self.open[handle] = (config if kind == 21 else "core", cpu, self.clock.now_ns)
        return handle

    def reader(self, handle):
        config, cpu, since = self.open[handle]
        if cpu in self.lost:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        watts = self.watts.get((config, cpu), self.watts.get(config, 0.0))
        return int(watts * (self.clock.now_ns - since) / 1e9 / SCALE)


def power_pmu(tree, events=("energy-pkg", "energy-ram", "energy-cores"), cpus=(0, 18), packages=(0, 1), dies=None):
    root = "sys/bus/event_source/devices/power"
    tree.write(f"{root}/type", 21)
    tree.write(f"{root}/cpumask", ",".join(map(str, cpus)))
    for name in events:
        tree.write(f"{root}/events/{name}", f"event=0x{CONFIGS[name]:02x}")
        tree.write(f"{root}/events/{name}.scale", "2.3283064365386962890625e-10")
        tree.write(f"{root}/events/{name}.unit", "Joules")
    for index, (cpu, package) in enumerate(zip(cpus, packages, strict=True)):
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", package)
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/topology/die_id", dies[index] if dies else 0)


def sensor_of(tree, watts, **kwargs):
    pmu = Pmu(tree.clock, watts)
    return PerfRapl(tree.request(**kwargs), opener=pmu.opener, reader=pmu.reader), pmu


def test_each_socket_counts_its_joules_under_the_names_of_rapl(tree):
    power_pmu(tree, events=tuple(CONFIGS))
    watts = {(2, 0): 60.0, (2, 18): 40.0, 1: 20.0, 3: 5.0, 4: 1.0, (5, 0): 130.0}
    sensor, _ = sensor_of(tree, watts)
    report = sensor.probe()
    assert report.usable
    assert "energy-psys@18" in report.missing  # the second socket's platform counter is not connected
    groups = sensor.groups()
    first = [group.read()[0].values for group in groups]
    tree.clock.advance(10.0)
    found = {}
    for group, old in zip(groups, first, strict=True):
        for channel, a, b in zip(group.info.channels, old, group.read()[0].values, strict=True):
            assert channel.facts.wrap is None
            step = difference(a, b, wrap=None, seconds=10.0)
            assert step.case is Case.PLAIN
            found[channel.name] = step.count * channel.scale
        group.close()
    assert found == pytest.approx(
        {
            "cpu.0.package.energy": 600.0,
            "cpu.1.package.energy": 400.0,
            "cpu.0.core.energy": 200.0,
            "cpu.1.core.energy": 200.0,
            "cpu.0.dram.energy": 50.0,
            "cpu.1.dram.energy": 50.0,
            "cpu.0.uncore.energy": 10.0,
            "cpu.1.uncore.energy": 10.0,
            "psys.energy": 1300.0,
        },
        rel=1e-6,
    )
    assert [group.info.channels[0].domain for group in groups] == [Domain.PACKAGE, Domain.PACKAGE, Domain.NODE]
    assert groups[0].info.inline


def test_single_cores_are_parts_of_their_package_and_read_only_if_asked_for(tree):
    """Zen 5: a package of 100 W with four cores of 20, 10, 5 and (asleep) 0 W, read at CPUs 0 to 3."""
    power_pmu(tree, events=("energy-pkg",), cpus=(0,), packages=(0,))
    root = "sys/bus/event_source/devices/power_core"
    for name, text in {
        "type": 22,
        "cpumask": "0-3",
        "events/energy-core": "event=0x01",
        "events/energy-core.scale": "2.3283064365386962890625e-10",
        "events/energy-core.unit": "Joules",
    }.items():
        tree.write(f"{root}/{name}", text)
    for cpu in range(4):
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", 0)
    watts = {2: 100.0, ("core", 0): 20.0, ("core", 1): 10.0, ("core", 2): 5.0}
    plain, _ = sensor_of(tree, watts)
    assert list(plain.probe().samples) == ["cpu.0.package.energy"]
    sensor, _ = sensor_of(tree, watts, options={"perf": {"cores": True}})
    package, cores = sensor.groups()
    assert [channel.name for channel in cores.info.channels] == [f"core.{cpu}.energy" for cpu in range(4)]
    assert (package.info.inline, cores.info.inline, cores.info.cadence) == (True, False, "slow")
    channels = [*package.info.channels, *cores.info.channels]
    assert [channel.name for channel in in_total(channels, lambda one: one)] == ["cpu.0.package.energy"]
    assert in_total(channels[1:], lambda one: one) == channels[1:], "parts of their own where no package can be read"
    start = cores.read()[0].values
    tree.clock.advance(10.0)
    counted = [(b - a) * c.scale for a, b, c in zip(start, cores.read()[0].values, cores.info.channels, strict=True)]
    assert counted == pytest.approx([200.0, 100.0, 50.0, 0.0])
    for group in (package, cores):
        group.close()


def test_dies_of_one_package_are_told_apart(tree):
    power_pmu(tree, events=("energy-pkg",), cpus=(0, 12), packages=(0, 0), dies=(0, 1))
    sensor, _ = sensor_of(tree, {2: 30.0})
    assert sorted(sensor.probe().samples) == ["cpu.0-0.package.energy", "cpu.0-1.package.energy"]


def test_a_pmu_that_counts_nothing_is_no_meter(tree):
    """`perf stat -e power/energy-psys/` succeeds on machines without a meter, and reports 0.00 J."""
    power_pmu(tree, events=("energy-psys",), cpus=(0,), packages=(0,))
    sensor, _ = sensor_of(tree, {})
    report = sensor.probe()
    assert report.state is State.UNUSABLE
    assert "counters do not move" in report.why
    assert sensor.groups() == []


def test_forbidden_perf_says_how_to_be_allowed(tree):
    power_pmu(tree)
    tree.write("proc/sys/kernel/perf_event_paranoid", 2)

    def opener(kind, config, cpu):
        raise PermissionError(errno.EACCES, "Permission denied")

    report = PerfRapl(tree.request(), opener=opener).probe()
    assert report.state is State.UNUSABLE
    assert "perf_event_paranoid is 2" in report.why
    assert "CAP_PERFMON" in report.why
    assert report.cure is not None and report.cure.startswith("everywatt doctor --fix")


def test_absent_and_broken_pmus_have_their_own_reasons(tree):
    assert PerfRapl(tree.request()).probe().state is State.ABSENT
    power_pmu(tree)
    tree.write("sys/bus/event_source/devices/power/cpumask", "none")
    report = PerfRapl(tree.request()).probe()
    assert (report.state, "cpumask" in report.why) == (State.UNUSABLE, True)


def test_events_that_are_not_understood_are_left_out(tree):
    power_pmu(tree)
    tree.write("sys/bus/event_source/devices/power/events/energy-ram.unit", "Furlongs")
    tree.write("sys/bus/event_source/devices/power/events/energy-cores", "event=zz")
    events, left_out = find_events(tree.machine.sys)
    assert {event.name for event in events} == {"energy-pkg"}
    assert sorted(left_out) == ["energy-cores", "energy-ram"]


def test_a_tree_that_stands_in_for_sys_never_reaches_the_real_kernel(tree):
    power_pmu(tree)
    report = PerfRapl(tree.request()).probe()
    assert report.state is State.UNUSABLE
    assert "not that of this kernel" in report.why


def test_a_lost_counter_is_a_gap_and_a_reopened_one_a_reset(tree):
    power_pmu(tree, events=("energy-pkg", "energy-ram"), cpus=(0,), packages=(0,))
    sensor, pmu = sensor_of(tree, {2: 50.0, 3: 5.0})
    sensor.probe()
    group = sensor.groups()[0]
    group.read()
    tree.clock.advance(5.0)
    before = group.read()[0].values[0]
    pmu.lost.add(0)
    with pytest.raises(SensorError, match="No such device"):
        group.read()
    pmu.lost.clear()
    after = group.read()[0].values[0]
    assert difference(before, after, wrap=None, seconds=0.1).case is Case.RESET
    assert math.isnan(difference(before, after, wrap=None, seconds=0.1).count)
    group.close()


def test_named_together_with_rapl_the_channels_are_mirrors(tree):
    power_pmu(tree, events=("energy-pkg", "energy-ram"), cpus=(0,), packages=(0,))
    tree.zone("intel-rapl:0", "package-0", watts=50)
    sensor, _ = sensor_of(tree, {2: 50.0, 3: 5.0}, sensors=("rapl", "perf"))
    sensor.probe()
    found = {c.name: c.mirror_of for g in sensor.groups() for c in g.info.channels}
    assert found == {"cpu.0.package.perf.energy": "cpu.0.package.energy", "cpu.0.dram.energy": None}
    alone, _ = sensor_of(tree, {2: 50.0, 3: 5.0}, sensors=("perf",))
    assert sorted(alone.probe().samples) == ["cpu.0.dram.energy", "cpu.0.package.energy"]


def test_it_stands_behind_rapl(tree):
    power_pmu(tree)
    tree.zone("intel-rapl:0", "package-0", watts=50)
    targets = {"rapl": "everywatt.sensors.cpu.rapl:Rapl", "perf": "everywatt.sensors.cpu.perf:PerfRapl"}
    choice = choose(targets, tree.request())
    assert [group.info.sensor for group in choice.groups] == ["rapl"]
    assert {report.sensor: report.state for report in choice.reports} == {"rapl": State.USABLE, "perf": State.ABSENT}
    assert choice.reports[-1].why == "not tried: rapl is used"


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", [0]), ("0,18", [0, 18]), ("0-2,8\n", [0, 1, 2, 8]), ("", []), ("x", []), ("1-", [])]
)
def test_cpu_lists(text, cpus):
    assert parse_cpus(text) == cpus


def test_the_real_system_call_counts():
    """PERF_TYPE_SOFTWARE (1), cpu-clock (0), of this process: nanoseconds of CPU time."""
    try:
        handle = open_event(1, 0, -1, pid=0)
    except OSError as error:
        pytest.skip(f"perf_event_open is not allowed here: {error}")
    try:
        before = read_event(handle)
        until = time.process_time_ns() + 20_000_000
        while time.process_time_ns() < until:
            pass
        counted = read_event(handle) - before
    finally:
        os.close(handle)
    assert counted >= 15_000_000  # 20 ms of CPU time were burnt; the tick of the clock may hide a few


def test_the_real_system_call_refuses_with_the_kernels_reason():
    with pytest.raises(OSError) as caught:
        open_event(0xFFFFFFF, 0, 0)
    assert caught.value.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EINVAL)


def test_the_whole_sensor_on_a_real_event(tree):
    """The system-wide CPU clock as a stand-in for joules: the real opener and reader under the real clock."""
    power_pmu(tree, events=("energy-pkg",), cpus=(0,), packages=(0,))

    def opener(kind, config, cpu):
        return open_event(1, 0, cpu)

    try:
        os.close(opener(0, 0, 0))
    except OSError as error:
        pytest.skip(f"system-wide perf events are not allowed here: {error}")
    tree.machine = type(tree.machine)(
        sys=tree.machine.sys, proc=tree.machine.proc, dev=tree.machine.dev, environ={}, clock=SystemClock()
    )
    sensor = PerfRapl(tree.request(), opener=opener)
    assert sensor.probe().usable
    group = sensor.groups()[0]
    one, two = group.read()[0], group.read()[0]
    assert two.values[0] > one.values[0]
    assert two.late_ns >= one.late_ns
    group.close()
