"""hwmon power and energy, on trees as drivers make them."""

from __future__ import annotations

import errno
import math

import pytest

from everywatt.core.channels import Cadence, Domain, Kind, Pedigree
from everywatt.core.errors import SensorError
from everywatt.sensors import sysfs
from everywatt.sensors.base import State
from everywatt.sensors.node.hwmon import Hwmon
from everywatt.sensors.sysfs import open_readonly


def chip(tree, number, name, **files):
    folder = f"sys/class/hwmon/hwmon{number}"
    tree.write(f"{folder}/name", name)
    for file, text in files.items():
        tree.write(f"{folder}/{file}", text)
    return folder


def channels(sensor):
    return {channel.name: channel for group in sensor.groups() for channel in group.info.channels}


def amd_energy(tree, sockets=2, cores=4):
    folder = chip(tree, 0, "amd_energy")
    for core in range(cores):
        tree.write(f"{folder}/energy{core + 1}_label", f"Ecore{core:03d}")
        tree.count(f"{folder}/energy{core + 1}_input", 1_000 * (core + 1), 3.0)
    for socket in range(sockets):
        index = cores + socket + 1
        tree.write(f"{folder}/energy{index}_label", f"Esocket{socket}")
        tree.count(f"{folder}/energy{index}_input", 9_000 * (socket + 1), 100.0)


def test_amd_energy_counts_sockets_as_packages_and_cores_as_cores(tree):
    amd_energy(tree)
    sensor = Hwmon(tree.request())
    assert sensor.probe().usable
    fast, slow = sorted(sensor.groups(), key=lambda group: group.info.cadence)
    assert [(c.name, c.device, c.domain, c.mirror_of) for c in fast.info.channels] == [
        ("hwmon.amd_energy.Esocket0.energy", "cpu.0", Domain.PACKAGE, None),
        ("hwmon.amd_energy.Esocket1.energy", "cpu.1", Domain.PACKAGE, None),
    ]
    assert (fast.info.cadence, fast.info.inline) == (Cadence.FAST, True)
    assert (slow.info.cadence, slow.info.inline) == (Cadence.SLOW, False)
    assert {c.domain for c in slow.info.channels} == {Domain.CORE}
    before = fast.read()[0].values
    tree.clock.advance(3.0)
    after = fast.read()[0].values
    counted = [(b - a) * c.scale for a, b, c in zip(before, after, fast.info.channels, strict=True)]
    assert counted == pytest.approx([300.0, 300.0], rel=1e-5)


def test_amd_energy_mirrors_rapl_where_both_are_in_the_run(tree):
    amd_energy(tree, sockets=1)
    tree.zone("intel-rapl:0", "package-0", watts=100)
    sensor = Hwmon(tree.request())
    report = sensor.probe()
    assert channels(sensor)["hwmon.amd_energy.Esocket0.energy"].mirror_of == "cpu.0.package.energy"
    assert report.power  # its cores still carry energy
    alone = Hwmon(tree.request(sensors=("hwmon",)))
    assert channels(alone)["hwmon.amd_energy.Esocket0.energy"].mirror_of is None


def test_a_graphics_card_by_its_average_with_the_instant_as_mirror(tree):
    chip(tree, 3, "amdgpu", power1_average=120_000_000, power1_input=131_000_000, power1_label="PPT")
    sensor = Hwmon(tree.request())
    report = sensor.probe()
    found = channels(sensor)
    best, instant = found["hwmon.amdgpu.PPT.power"], found["hwmon.amdgpu.PPT_input.power"]
    assert (best.domain, best.kind, best.unit, best.pedigree) == (Domain.GPU, Kind.GAUGE, "W", Pedigree.INTEGRATED)
    assert instant.mirror_of == best.name
    assert report.samples == pytest.approx({best.name: 120.0, instant.name: 131.0})
    assert best.device == "hwmon.amdgpu"


def test_cards_of_one_name_are_numbered_in_natural_order(tree):
    chip(tree, 10, "amdgpu", power1_average=30_000_000)
    chip(tree, 2, "amdgpu", power1_average=20_000_000)
    report = Hwmon(tree.request()).probe()
    assert report.samples == pytest.approx({"hwmon.amdgpu.power1.power": 20.0, "hwmon.amdgpu-1.power1.power": 30.0})


def test_intel_cards_count_the_card_once(tree):
    folder = chip(tree, 1, "xe", energy1_label="card", energy2_label="pkg", power1_rated_max=225_000_000)
    tree.count(f"{folder}/energy1_input", 5_000_000, 40.0)
    tree.count(f"{folder}/energy2_input", 4_000_000, 30.0)
    found = channels(Hwmon(tree.request()))
    assert {name: c.domain for name, c in found.items()} == {
        "hwmon.xe.card.energy": Domain.GPU,
        "hwmon.xe.pkg.energy": None,
    }


def test_a_counter_that_stands_still_is_not_used(tree):
    """A card always draws power; the idle core of a processor may rest, once it has counted something."""
    folder = chip(tree, 1, "xe", energy1_label="card", energy1_input=5_000_000)
    report = Hwmon(tree.request()).probe()
    assert report.state is State.UNUSABLE and "stuck at 5 J" in report.why
    chip(tree, 2, "amd_energy", energy1_label="Ecore000", energy1_input=7_000_000)
    tree.count(f"{folder}/energy1_input", 5_000_000, 40.0)
    assert Hwmon(tree.request()).probe().samples.keys() == {"hwmon.xe.card.energy", "hwmon.amd_energy.Ecore000.energy"}


def test_acpi_power_meter_below_its_device_with_interval_and_accuracy(tree):
    tree.write("sys/class/hwmon/hwmon0/device/name", "power_meter")
    tree.write("sys/class/hwmon/hwmon0/device/power1_average", 245_000_000)
    tree.write("sys/class/hwmon/hwmon0/device/power1_average_interval", 1000)
    tree.write("sys/class/hwmon/hwmon0/device/power1_accuracy", "90.0%")
    sensor = Hwmon(tree.request())
    assert sensor.probe().samples == {"hwmon.power_meter.power1.power": pytest.approx(245.0)}
    channel = channels(sensor)["hwmon.power_meter.power1.power"]
    assert (channel.domain, channel.facts.window_s, channel.facts.gain_pct) == (Domain.NODE, 1.0, 10.0)


def test_power_supplies_rails_and_batteries(tree):
    chip(tree, 0, "corsairpsu", power1_input=310_000_000, power1_label="power total")
    chip(tree, 1, "corsairpsu", power2_input=290_000_000, power2_label="power +12v")
    chip(tree, 2, "ina226", power1_input=4_000_000, update_interval=35)
    chip(tree, 3, "mystery9000", power1_input=1_000_000, power1_label="VRM 1.2")
    chip(tree, 4, "BAT0", power1_input=9_000_000)
    found = channels(Hwmon(tree.request()))
    assert {name: c.domain for name, c in found.items()} == {
        "hwmon.corsairpsu.power_total.power": Domain.PSU,
        "hwmon.corsairpsu-1.power_+12v.power": None,
        "hwmon.ina226.power1.power": Domain.RAIL,
        "hwmon.mystery9000.VRM_1_2.power": Domain.RAIL,
        "hwmon.BAT0.power1.power": None,
    }
    assert found["hwmon.ina226.power1.power"].facts.period_s == 0.035
    assert found["hwmon.ina226.power1.power"].facts.gain_pct is None


def test_values_that_say_nothing_are_left_out_with_the_reason(tree):
    chip(
        tree, 0, "ina226",
        power1_input=5_000_000, power2_input=1_000_000, power2_label="NC", power3_input=-4000, power4_input="",
    )  # fmt: skip
    tree.count("sys/class/hwmon/hwmon0/energy1_input", 0, 0.0)
    report = Hwmon(tree.request()).probe()
    assert list(report.samples) == ["hwmon.ina226.power1.power"]
    assert report.missing["ina226/power2_input"] == "labelled 'NC': not connected"
    assert "not a count: '-4000'" in report.missing["hwmon.ina226/power3_input"]
    assert report.missing["hwmon.ina226/power4_input"] == "empty"
    assert report.missing["hwmon.ina226/energy1_input"] == "the counter is stuck at 0 J"


def test_absent_dead_and_denied_are_three_things(tree, monkeypatch):
    assert Hwmon(tree.request()).probe().state is State.ABSENT
    chip(tree, 0, "coretemp", temp1_input=40_000)
    assert Hwmon(tree.request()).probe().state is State.ABSENT
    folder = chip(tree, 1, "amd_energy", energy1_label="Esocket0")
    tree.count(f"{folder}/energy1_input", 0, 0.0)
    dead = Hwmon(tree.request()).probe()
    assert (dead.state, dead.cure) == (State.UNUSABLE, None)
    assert "is stuck" in dead.why

    def opener(path):
        if path.endswith("energy1_input"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_readonly(path)

    monkeypatch.setattr(sysfs, "open_readonly", opener)  # tests may run as root, to whom nothing is denied
    denied = Hwmon(tree.request()).probe()
    assert denied.state is State.UNUSABLE
    assert "Permission denied" in denied.why and denied.cure


def test_a_sleeping_card_is_a_gap_of_its_own(tree):
    folder = chip(tree, 0, "ina226", power1_input=5_000_000, power2_input=6_000_000)
    sensor = Hwmon(tree.request())
    sensor.probe()
    group = sensor.groups()[0]
    (tree.root / folder / "power1_input").unlink()
    first, second = group.read()[0].values
    assert math.isnan(first) and second == 6_000_000.0


def test_a_chip_that_left_is_a_gap_although_another_one_takes_its_number(tree):
    """The kernel gives a free number to the next chip: a supply of 900 W is not the card of 150 W."""
    tree.write("sys/devices/pci0000:00/0000:04:00.0/hwmon/hwmon3/name", "amdgpu")
    tree.write("sys/devices/pci0000:00/0000:04:00.0/hwmon/hwmon3/power1_average", 150_000_000)
    tree.write("sys/devices/usb1/1-2/hwmon/hwmon3/name", "corsairpsu")
    tree.write("sys/devices/usb1/1-2/hwmon/hwmon3/power1_average", 900_000_000)
    link = tree.root / "sys/class/hwmon/hwmon3"
    link.parent.mkdir(parents=True)
    link.symlink_to(tree.root / "sys/devices/pci0000:00/0000:04:00.0/hwmon/hwmon3")
    sensor = Hwmon(tree.request())
    sensor.probe()
    (group,) = sensor.groups()
    assert group.read()[0].values == (150_000_000.0,)
    for file in sorted((tree.root / "sys/devices/pci0000:00/0000:04:00.0/hwmon/hwmon3").iterdir()):
        file.unlink()
    with pytest.raises(SensorError):
        group.read()
    link.unlink()
    link.symlink_to(tree.root / "sys/devices/usb1/1-2/hwmon/hwmon3")
    with pytest.raises(SensorError):
        group.read()
