"""RAPL by powercap, on real directory trees with a known power."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from everywatt.core.channels import Domain, GroupInfo
from everywatt.core.counters import Case, difference
from everywatt.core.errors import SensorError
from everywatt.sensors import sysfs
from everywatt.sensors.base import State
from everywatt.sensors.cpu.rapl import QUANTUM_J, Rapl, find_zones, group_rule, most_power_w

TOP = 262_143_328_850


def two_packages(tree):
    """Two sockets of 60 and 40 W with their parts, and psys."""
    for socket, watts in ((0, 60.0), (1, 40.0)):
        zone = f"intel-rapl:{socket}"
        tree.zone(zone, f"package-{socket}", watts=watts, tdp_w=100, limits_w=(100, 120))
        tree.zone(f"{zone}:0", "core", watts=watts / 2)
        tree.zone(f"{zone}:1", "uncore", watts=watts / 10)
        tree.zone(f"{zone}:2", "dram", watts=5, tdp_w=20)
    tree.zone("intel-rapl:2", "psys", watts=130)
    return tree


def channels(sensor):
    return {channel.name: channel for group in sensor.groups() for channel in group.info.channels}


def joules(sensor, clock, seconds):
    """Joules of each channel over `seconds`, by the counter rule."""
    groups = sensor.groups()
    before = [group.read()[0].values for group in groups]
    clock.advance(seconds)
    after = [group.read()[0].values for group in groups]
    found = {}
    for group, old, new in zip(groups, before, after, strict=True):
        for channel, a, b in zip(group.info.channels, old, new, strict=True):
            most = None if channel.facts.max_w is None else channel.facts.max_w / channel.scale
            step = difference(a, b, wrap=channel.facts.wrap, seconds=seconds, most_per_s=most)
            found[channel.name] = step.count * channel.scale
        group.close()
    return found


def test_two_packages_and_psys_each_count_their_own_joules(tree):
    sensor = Rapl(two_packages(tree).request())
    report = sensor.probe()
    assert report.state is State.USABLE
    found = joules(sensor, tree.clock, 10.0)
    assert found == pytest.approx(
        {
            "cpu.0.package.energy": 600.0,
            "cpu.0.core.energy": 300.0,
            "cpu.0.uncore.energy": 60.0,
            "cpu.0.dram.energy": 50.0,
            "cpu.1.package.energy": 400.0,
            "cpu.1.core.energy": 200.0,
            "cpu.1.uncore.energy": 40.0,
            "cpu.1.dram.energy": 50.0,
            "psys.energy": 1300.0,
        },
        rel=1e-6,
    )


def test_packages_are_summed_once(tree):
    """Packages and memory are disjoint; cores and uncore are inside, psys outside."""
    sensor = Rapl(two_packages(tree).request())
    sensor.probe()
    found = joules(sensor, tree.clock, 10.0)
    kinds = channels(sensor)
    disjoint = [name for name, c in kinds.items() if c.domain in (Domain.PACKAGE, Domain.DRAM) and not c.mirror_of]
    assert sum(found[name] for name in disjoint) == pytest.approx(600 + 400 + 50 + 50)
    assert {kinds[name].device for name in disjoint} == {"cpu.0", "cpu.1", "dram.0", "dram.1"}
    assert (kinds["psys.energy"].domain, kinds["psys.energy"].device) == (Domain.NODE, "psys")


def test_groups_are_one_for_each_package_with_the_package_first(tree):
    sensor = Rapl(two_packages(tree).request())
    infos = [group.info for group in sensor.groups()]
    assert [info.name for info in infos] == ["rapl.cpu.0", "rapl.cpu.1", "rapl.psys"]
    assert [info.channels[0].name for info in infos] == ["cpu.0.package.energy", "cpu.1.package.energy", "psys.energy"]
    assert all(info.inline and not info.tracked for info in infos)
    assert all(GroupInfo.from_dict(info.to_dict()) == info for info in infos)


def test_facts_and_rows(tree):
    sensor = Rapl(two_packages(tree).request())
    report = sensor.probe()
    package, dram = channels(sensor)["cpu.0.package.energy"], channels(sensor)["cpu.0.dram.energy"]
    assert (package.facts.period_s, package.facts.wrap, package.facts.quantum) == (1e-3, TOP, QUANTUM_J)
    assert package.facts.max_w == 200.0
    assert channels(sensor)["cpu.0.core.energy"].facts.max_w == 200.0
    assert dram.facts.max_w == 40.0
    assert (package.facts.gain_pct, dram.facts.gain_pct) == (5.0, 20.0)
    assert report.samples["cpu.0.package.energy"] == pytest.approx(1.0, abs=60 * 0.03)
    row = sensor.groups()[0].read()[0]
    assert (row.read_ns, row.early_ns, row.late_ns) == (
        tree.clock.now_ns,
        tree.clock.now_ns - 1_000_000,
        tree.clock.now_ns,
    )


def test_nested_and_linked_zones_count_once(tree):
    """Real machines: zones nested under /sys/devices, and flat links to each of them in the class folder."""
    real = "../../devices/virtual/powercap/intel-rapl/"
    tree.zone("intel-rapl:0", "package-0", watts=50, nested=real)
    tree.zone("intel-rapl:0:0", "dram", watts=4, nested=f"{real}intel-rapl:0/")
    powercap = tree.root / "sys/class/powercap"
    powercap.mkdir(parents=True, exist_ok=True)
    target = tree.root / "sys/devices/virtual/powercap/intel-rapl"
    (target / "enabled").write_text("1\n")
    for name, place in (
        ("intel-rapl", target),
        ("intel-rapl:0", target / "intel-rapl:0"),
        ("intel-rapl:0:0", target / "intel-rapl:0/intel-rapl:0:0"),
    ):
        (powercap / name).symlink_to(place)
    (target / "intel-rapl:0" / "device").symlink_to(target)  # the kernel links back up
    sensor = Rapl(tree.request())
    assert sensor.probe().usable
    assert sorted(channels(sensor)) == ["cpu.0.dram.energy", "cpu.0.package.energy"]


def test_dies_are_devices_of_their_own(tree):
    for index, (package, die) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        start = 1_000_000 * (index + 1)
        tree.zone(f"intel-rapl:{index}", f"package-{package}-die-{die}", watts=25, start_uj=start)
        tree.zone(f"intel-rapl:{index}:0", "dram", watts=3, start_uj=start + 17)
    sensor = Rapl(tree.request())
    assert sensor.probe().usable
    found = channels(sensor)
    assert {c.device for c in found.values()} == {
        "cpu.0-0", "cpu.0-1", "cpu.1-0", "cpu.1-1", "dram.0-0", "dram.0-1", "dram.1-0", "dram.1-1",
    }  # fmt: skip
    assert found["cpu.1-1.dram.energy"].device == "dram.1-1"
    assert not any(c.mirror_of for c in found.values())


def test_dies_that_show_one_package_counter_are_mirrors(tree):
    """AMD counts by package; kernels that list each die show the same counter several times."""
    tree.cpuinfo("AuthenticAMD", 25, 1)
    for die in range(4):
        tree.zone(f"intel-rapl:{die}", f"package-0-die-{die}", watts=80, start_uj=5_000_000)
    sensor = Rapl(tree.request())
    report = sensor.probe()
    found = channels(sensor)
    assert [c.name for c in found.values() if c.mirror_of is None] == ["cpu.0-0.package.energy"]
    assert {c.mirror_of for c in found.values()} == {None, "cpu.0-0.package.energy"}
    assert "same joules" in report.missing["intel-rapl:3"]


def test_two_sockets_that_count_alike_stay_two(tree):
    for socket in range(2):
        tree.zone(f"intel-rapl:{socket}", f"package-{socket}", watts=80, start_uj=5_000_000)
    assert not any(c.mirror_of for c in channels(Rapl(tree.request())).values())


def test_mmio_is_a_mirror_and_is_not_added_twice(tree):
    tree.zone("intel-rapl:0", "package-0", watts=30)
    tree.zone("intel-rapl-mmio:0", "package-0", watts=30)
    sensor = Rapl(tree.request())
    assert sensor.probe().usable
    found = channels(sensor)
    assert found["cpu.0.package.mmio.energy"].mirror_of == "cpu.0.package.energy"
    counted = [name for name, joule in joules(sensor, tree.clock, 2.0).items() if found[name].mirror_of is None]
    assert counted == ["cpu.0.package.energy"]


def test_mmio_alone_or_beside_a_dead_counter_is_the_meter(tree):
    tree.zone("intel-rapl:0", "package-0", watts=0, start_uj=0)
    tree.zone("intel-rapl-mmio:0", "package-0", watts=30)
    sensor = Rapl(tree.request())
    report = sensor.probe()
    assert {n: c.mirror_of for n, c in channels(sensor).items()} == {"cpu.0.package.energy": None}
    assert "is stuck at 0 J" in report.missing["intel-rapl:0"]


def test_amd_through_the_same_tree(tree):
    tree.cpuinfo("AuthenticAMD", 23, 49)
    tree.zone("intel-rapl:0", "package-0", watts=90, top_uj=65_532_610_987)
    tree.zone("intel-rapl:0:0", "core", watts=20, top_uj=65_532_610_987)
    sensor = Rapl(tree.request())
    assert joules(sensor, tree.clock, 5.0) == pytest.approx({"cpu.0.package.energy": 450, "cpu.0.core.energy": 100})
    facts = channels(sensor)["cpu.0.package.energy"].facts
    assert (facts.wrap, facts.max_w, facts.gain_pct) == (65_532_610_987, None, 10.0)


def test_wrap_adds_the_right_joules(tree):
    tree.zone("intel-rapl:0", "package-0", watts=100, start_uj=TOP - 50_000_000, tdp_w=150)
    sensor = Rapl(tree.request())
    assert joules(sensor, tree.clock, 10.0) == pytest.approx({"cpu.0.package.energy": 1000.0}, rel=1e-6)


def test_reset_is_no_wrap(tree):
    file = tree.zone("intel-rapl:0", "package-0", watts=100, start_uj=50_000_000_000, tdp_w=150)
    sensor = Rapl(tree.request())
    sensor.probe()
    group = sensor.groups()[0]
    before = group.read()[0].values[0]
    file.write_text("1200\n")
    after = group.read()[0].values[0]
    facts = group.info.channels[0].facts
    step = difference(before, after, wrap=facts.wrap, seconds=0.1, most_per_s=facts.max_w * 1e6)
    assert step.case is Case.RESET
    assert math.isnan(step.count)


@pytest.mark.parametrize("text", ["", "\n", "garbage\n", "-5\n", "1_000\n", "12.5\n", "9" * 30, f"{TOP + 1}\n", "٣\n"])
def test_a_bad_file_costs_its_own_channel_only(tree, text):
    tree.zone("intel-rapl:0", "package-0", watts=50)
    dram = tree.zone("intel-rapl:0:0", "dram", watts=4)
    sensor = Rapl(tree.request())
    sensor.probe()
    group = sensor.groups()[0]
    assert [c.name for c in group.info.channels] == ["cpu.0.package.energy", "cpu.0.dram.energy"]
    good = group.read()[0].values
    dram.write_text(text)
    package, broken = group.read()[0].values
    assert package == good[0]
    assert math.isnan(broken)
    dram.write_text("123456\n")
    assert group.read()[0].values[1] == 123456.0


def test_a_vanished_file_is_a_gap_and_works_again_when_it_is_back(tree):
    package = tree.zone("intel-rapl:0", "package-0", watts=50)
    dram = tree.zone("intel-rapl:0:0", "dram", watts=4)
    sensor = Rapl(tree.request())
    sensor.probe()
    group = sensor.groups()[0]
    group.read()
    text = package.read_text()
    package.unlink()
    values = group.read()[0].values
    assert math.isnan(values[0]) and values[1] > 0
    dram.unlink()
    with pytest.raises(SensorError, match="No such file"):
        group.read()
    package.write_text(text)
    dram.write_text("77\n")
    assert group.read()[0].values == (float(text), 77.0)
    group.close()


def test_a_replaced_file_is_followed(tree):
    package = tree.zone("intel-rapl:0", "package-0", watts=50)
    group = Rapl(tree.request()).groups()[0]
    group.read()
    other = package.with_name("new")
    other.write_text("42\n")
    os.replace(other, package)
    assert group.read()[0].values == (42.0,)


def test_files_stay_open_and_are_closed(tree, monkeypatch):
    tree.zone("intel-rapl:0", "package-0", watts=50)
    opened = []

    def opener(path):
        opened.append(path)
        return os.open(path, os.O_RDONLY)

    monkeypatch.setattr(sysfs, "open_readonly", opener)
    sensor = Rapl(tree.request())
    group = sensor.groups()[0]
    handles = len(os.listdir("/proc/self/fd"))
    del opened[:]
    for _ in range(50):
        group.read()
    assert [Path(path).name for path in opened] == ["energy_uj"]
    group.close()
    assert len(os.listdir("/proc/self/fd")) == handles


@pytest.mark.parametrize("text", [None, "", "garbage", "0", "-1"])
def test_unknown_range_is_noted_and_a_step_back_is_a_reset(tree, text):
    tree.zone("intel-rapl:0", "package-0", watts=50, top_uj=None)
    if text is not None:
        tree.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", text)
    sensor = Rapl(tree.request())
    report = sensor.probe()
    assert report.usable
    assert "range of the counter is unknown" in report.missing["intel-rapl:0/max_energy_range_uj"]
    wrap = channels(sensor)["cpu.0.package.energy"].facts.wrap
    assert wrap is None
    assert difference(9e9, 5.0, wrap=wrap, seconds=0.1, most_per_s=2e8).case is Case.RESET


def denied(path):
    if path.endswith("energy_uj"):
        raise PermissionError(13, "Permission denied", path)
    return os.open(path, os.O_RDONLY)


def test_root_only_counters_give_the_exact_cure(tree, monkeypatch):
    two_packages(tree)
    monkeypatch.setattr(sysfs, "open_readonly", denied)  # tests may run as root, to whom nothing is denied
    report = Rapl(tree.request()).probe()
    assert (report.state, report.cure) == (State.UNUSABLE, "everywatt doctor --fix")
    assert "CVE-2020-8694" in report.why
    assert group_rule("everywatt") in report.why
    assert "0440" in report.why and "0444" not in report.why and "a+r" not in report.why
    assert Rapl(tree.request()).groups() == []


def test_partly_denied_counters_leave_the_others(tree, monkeypatch):
    two_packages(tree)

    def opener(path):
        return denied(path) if "intel-rapl:1" in path else os.open(path, os.O_RDONLY)

    monkeypatch.setattr(sysfs, "open_readonly", opener)
    report = Rapl(tree.request()).probe()
    assert report.usable
    assert "cpu.0.package.energy" in report.samples
    assert "cpu.1.package.energy" not in report.samples
    assert "Permission denied" in report.missing["intel-rapl:1"]


@pytest.mark.parametrize("start", [0, 123_456])
def test_a_package_counter_that_stands_still_is_no_meter(tree, start):
    tree.cpuinfo("GenuineIntel", 6, 143, flags="fpu hypervisor")
    tree.zone("intel-rapl:0", "package-0", watts=0, start_uj=start)
    began = tree.clock.now_ns
    report = Rapl(tree.request()).probe()
    assert report.state is State.UNUSABLE
    assert "is stuck" in report.why
    assert "virtual machine" in report.why
    assert tree.clock.now_ns - began <= 30_000_000


def test_a_resting_part_is_kept_and_one_that_never_counted_is_not(tree):
    tree.zone("intel-rapl:0", "package-0", watts=50)
    tree.zone("intel-rapl:0:0", "uncore", watts=0, start_uj=5000)
    tree.zone("intel-rapl:0:1", "dram", watts=0, start_uj=0)
    report = Rapl(tree.request()).probe()
    assert sorted(report.samples) == ["cpu.0.package.energy", "cpu.0.uncore.energy"]
    assert "is stuck at 0 J" in report.missing["intel-rapl:0:1"]


def test_the_probe_is_fast_where_counters_move(tree):
    two_packages(tree)
    began = tree.clock.now_ns
    Rapl(tree.request()).probe()
    assert tree.clock.now_ns - began <= 4_000_000


def test_absent_says_why(tree):
    report = Rapl(tree.request()).probe()
    assert (report.state, report.cure) == (State.ABSENT, None)
    assert "no powercap directory" in report.why
    tree.cpuinfo("GenuineIntel", 6, 143)
    tree.write("sys/class/powercap/dtpm/name", "dtpm")
    report = Rapl(tree.request()).probe()
    assert (report.state, report.cure) == (State.ABSENT, "sudo modprobe intel_rapl_msr")
    assert "no RAPL zone" in report.why


def test_a_cpuinfo_with_odd_digits_costs_no_counter(tree):
    tree.write("proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : ²\nmodel : ③")
    tree.zone("intel-rapl:0", "package-0", watts=50)
    assert Rapl(tree.request()).probe().usable


def test_unknown_zones_are_named(tree):
    tree.zone("intel-rapl:0", "package-0", watts=50)
    tree.zone("intel-rapl:0:0", "npu", watts=5)
    zones, left_out = find_zones(tree.root / "sys/class/powercap")
    assert [zone.id for zone in zones] == ["intel-rapl:0"]
    assert "npu" in left_out["intel-rapl:0:0"]


@pytest.mark.parametrize(
    ("rated", "limits", "most"),
    [
        ([100], [100, 120], 200),  # a server
        ([15], [15, 64], 64),  # a laptop with a high short-term limit
        ([125], [4095.9, 4095.9], 500),  # a board without limits
        ([], [100, 150], 300),
        ([], [4095.9], None),
        ([0], [0], None),
        ([], [], None),
    ],
)
def test_most_power(rated, limits, most):
    assert most_power_w(rated, limits) == most
