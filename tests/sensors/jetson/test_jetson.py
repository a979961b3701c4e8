"""Jetson rails, on trees as each generation of the kernel lays them out."""

from __future__ import annotations

import pytest

from everywatt.core.channels import Domain
from everywatt.core.domains import Answer, contains
from everywatt.core.errors import SensorError
from everywatt.sensors.base import State
from everywatt.sensors.jetson.jetson import Jetson
from everywatt.sensors.node.hwmon import Hwmon

ORIN_NANO = [("VDD_IN", 5000, 1325), ("VDD_CPU_GPU_CV", 4960, 248), ("VDD_SOC", 4960, 480)]


def ina3221(tree, rails, *, number=1, address="1-0040", **files):
    """JetPack 5 and later: the chip under its driver, and a link to it in the class."""
    chip = f"sys/bus/i2c/drivers/ina3221/{address}/hwmon/hwmon{number}"
    tree.write(f"{chip}/name", "ina3221")
    tree.write(f"{chip}/update_interval", 430)
    for index, (label, millivolts, milliamps) in enumerate(rails, 1):
        tree.write(f"{chip}/in{index}_label", label)
        tree.write(f"{chip}/in{index}_input", millivolts)
        tree.write(f"{chip}/curr{index}_input", milliamps)
        tree.write(f"{chip}/in{index + 3}_input", 12)  # the shunt's own voltage
    for name, text in files.items():
        tree.write(f"{chip}/{name}", text)
    link = tree.root / f"sys/class/hwmon/hwmon{number}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tree.root / chip)
    return chip


def iio(tree, address, rails, *, folder="iio:device0", power=True):
    chip = f"sys/bus/i2c/drivers/ina3221x/{address}/{folder}"
    for index, (label, millivolts, milliamps) in enumerate(rails):
        tree.write(f"{chip}/rail_name_{index}", label)
        tree.write(f"{chip}/in_voltage{index}_input", millivolts)
        tree.write(f"{chip}/in_current{index}_input", milliamps)
        if power:
            tree.write(f"{chip}/in_power{index}_input", round(millivolts * milliamps / 1000))
    return chip


def domains(sensor):
    return {c.name: c.domain for group in sensor.groups() for c in group.info.channels}


def test_orin_nano_by_volts_and_amps(tree):
    ina3221(tree, ORIN_NANO)
    sensor = Jetson(tree.request())
    report = sensor.probe()
    assert report.samples == pytest.approx(
        {"jetson.VDD_IN.power": 6.625, "jetson.VDD_CPU_GPU_CV.power": 1.23008, "jetson.VDD_SOC.power": 2.3808}
    )
    (group,) = sensor.groups()
    assert [channel.domain for channel in group.info.channels] == [Domain.SOC, Domain.RAIL, Domain.RAIL]
    assert contains(Domain.SOC, Domain.RAIL) is Answer.YES  # the rails never join the total
    facts = group.info.channels[0].facts
    assert (facts.period_s, facts.window_s, group.info.tracked) == (0.43, 0.43, True)
    assert facts.quantum == pytest.approx(0.04)  # 40 µV over 5 mΩ at 5 V
    (row,) = group.read()
    assert row.values == pytest.approx((6.625, 1.23008, 2.3808))
    assert row.late_ns - row.early_ns == 430_000_000
    assert "note" not in report.devices[0]


def test_agx_orin_has_two_chips_unused_channels_and_no_input(tree):
    first = [("VDD_GPU_SOC", 19800, 121), ("VDD_CPU_CV", 19800, 20), ("VIN_SYS_5V0", 5000, 806)]
    ina3221(tree, first)
    second = [("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 19800, 15), ("NC", 0, 0)]
    ina3221(tree, second, number=2, address="1-0041")
    sensor = Jetson(tree.request())
    report = sensor.probe()
    assert set(domains(sensor).values()) == {Domain.RAIL}
    assert [group.info.name for group in sensor.groups()] == ["jetson.1-0040", "jetson.1-0041"]
    assert sum(report.samples.values()) == pytest.approx(2.3958 + 0.396 + 4.03 + 0.297)
    assert report.missing == dict.fromkeys(("1-0041/in1", "1-0041/in3"), "labelled 'NC': not connected")
    assert "carrier board" in report.devices[0]["note"]


def test_thor_has_its_input_from_another_chip(tree):
    ina3221(tree, [("VDD_GPU", 19800, -20), ("VDD_CPU_SOC_MSS", 19800, 297), ("VIN_SYS_5V0", 5000, 1127)])
    folder = "sys/class/hwmon/hwmon5"
    for name, text in {"name": "ina238", "in1_input": 19780, "curr1_input": 1000, "power1_input": 19_780_000}.items():
        tree.write(f"{folder}/{name}", text)
    sensor = Jetson(tree.request())
    report = sensor.probe()
    assert report.samples["jetson.VIN.power"] == pytest.approx(19.78)
    assert domains(sensor)["jetson.VIN.power"] is Domain.SOC
    assert report.samples["jetson.VDD_GPU.power"] == pytest.approx(-0.396)  # kept as read
    assert "below 0 W" in report.devices[0]["note"] and "carrier" not in report.devices[0]["note"]


@pytest.mark.parametrize("folder", ["iio:device0", "iio_device"])
def test_nano_by_iio_power(tree, folder):
    iio(tree, "6-0040", [("POM_5V_IN", 5000, 350), ("POM_5V_GPU", 5000, 0), ("POM_5V_CPU", 5000, 73)], folder=folder)
    sensor = Jetson(tree.request())
    assert sensor.probe().samples == pytest.approx(
        {"jetson.POM_5V_IN.power": 1.75, "jetson.POM_5V_GPU.power": 0.0, "jetson.POM_5V_CPU.power": 0.365}
    )
    assert domains(sensor)["jetson.POM_5V_IN.power"] is Domain.SOC


def test_xavier_nx_by_iio_volts_and_amps(tree):
    rails = [("VDD_IN", 5080, 1208), ("VDD_CPU_GPU_CV", 5080, 532), ("VDD_SOC", 5080, 211)]
    iio(tree, "7-0040", rails, power=False)
    assert Jetson(tree.request()).probe().samples["jetson.VDD_IN.power"] == pytest.approx(6.13664)


def test_tx2_has_two_chips_and_one_input(tree):
    iio(tree, "0-0040", [("VDD_SYS_GPU", 19000, 8), ("VDD_SYS_SOC", 19000, 36), ("VDD_4V0_WIFI", 4800, 0)])
    rails = [("VDD_IN", 19000, 161), ("VDD_SYS_CPU", 19000, 8), ("VDD_SYS_DDR", 19000, 46)]
    iio(tree, "0-0041", rails, folder="iio:device1")
    sensor = Jetson(tree.request())
    report = sensor.probe()
    assert report.samples["jetson.VDD_IN.power"] == pytest.approx(3.059)
    assert [name for name, domain in domains(sensor).items() if domain is Domain.SOC] == ["jetson.VDD_IN.power"]
    assert "note" not in report.devices[0]


def test_iio_by_its_class_alone(tree):
    for name, text in {"rail_name_0": "VDD_IN", "in_power0_input": 4200}.items():
        tree.write(f"sys/bus/iio/devices/iio:device3/{name}", text)
    assert Jetson(tree.request()).probe().samples == {"jetson.VDD_IN.power": pytest.approx(4.2)}


def test_a_power_file_is_preferred_and_hwmon_leaves_the_chip_alone(tree):
    ina3221(tree, ORIN_NANO, power1_input=6_626_000)
    assert Jetson(tree.request()).probe().samples["jetson.VDD_IN.power"] == pytest.approx(6.626)
    assert Hwmon(tree.request()).probe().state is State.ABSENT
    assert Hwmon(tree.request(sensors=("hwmon",))).probe().usable  # named alone it reads what it knows


def test_an_ina238_of_some_other_board_stays_with_hwmon(tree):
    for name, text in {"name": "ina238", "power1_input": 1_000_000}.items():
        tree.write(f"sys/class/hwmon/hwmon5/{name}", text)
    assert Jetson(tree.request()).probe().state is State.ABSENT
    assert Hwmon(tree.request()).probe().usable
    tree.write("proc/device-tree/compatible", "nvidia,p3834\0nvidia,tegra264\0")
    assert Jetson(tree.request()).probe().usable
    assert Hwmon(tree.request()).probe().state is State.ABSENT


def test_a_rail_that_fails_is_absent_and_a_chip_that_fails_is_lost(tree):
    chip = ina3221(tree, ORIN_NANO)
    tree.write(f"{chip}/in3_input", "junk")
    sensor = Jetson(tree.request())
    report = sensor.probe()
    assert report.missing == {"jetson.VDD_SOC.power": "in3_input: not a count: 'junk'"}
    (group,) = sensor.groups()
    for index in (1, 2):
        tree.write(f"{chip}/curr{index}_input", "")
    with pytest.raises(SensorError, match="curr1_input: empty"):
        group.read()
    group.close()


def test_rails_that_deliver_nothing(tree):
    chip = ina3221(tree, ORIN_NANO[:1])
    tree.write(f"{chip}/in1_input", "")
    assert Jetson(tree.request()).probe().state is State.UNUSABLE


def test_disabled_and_missing_channels(tree):
    chip = ina3221(tree, ORIN_NANO, in2_enable=0)
    (tree.root / chip / "curr3_input").unlink()
    report = Jetson(tree.request()).probe()
    assert list(report.samples) == ["jetson.VDD_IN.power"]
    assert "switched off" in report.missing["1-0040/in2"]
