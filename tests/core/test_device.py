"""Devices by their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.device import Device, is_gpu, natural


@given(st.text(max_size=30))
def test_a_name_comes_back(text):
    device = Device.parse(text)
    assert Device.parse(str(device)) == device
    if not text.startswith("/") and not text.endswith("."):
        assert str(device) == text


@pytest.mark.parametrize(
    ("text", "kind", "name", "host", "index"),
    [
        ("gpu.0", "gpu", "0", "", 0),
        ("cpu.1", "cpu", "1", "", 1),
        ("host", "host", "", "", None),
        ("hwmon.acpitz-1", "hwmon", "acpitz-1", "", None),
        ("wall.rack.3", "wall", "rack.3", "", None),
        ("node1/gpu.10", "gpu", "10", "node1", 10),
        ("gpu.²", "gpu", "²", "", None),
    ],
)
def test_parts_of_a_name(text, kind, name, host, index):
    device = Device.parse(text)
    assert (device.kind, device.name, device.host, device.index) == (kind, name, host, index)


def test_kinds():
    assert Device.parse("gpu.3") == Device("gpu", "3") and Device.parse("gpu.3").is_gpu
    assert is_gpu("node1/gpu.0")
    assert not any(is_gpu(name) for name in ("gpu", "gpus.0", "cpu.0", "host", "hwmon.gpu.0", ""))
    assert Device.parse("cpu.0").is_cpu and not Device.parse("cpus").is_cpu


@given(st.lists(st.integers(0, 10**6), min_size=2, unique=True), st.sampled_from(["gpu", "cpu"]))
def test_numbers_sort_by_size(indices, kind):
    devices = [Device(kind, str(index)) for index in indices]
    assert [device.index for device in sorted(devices)] == sorted(indices)


@given(st.lists(st.text(max_size=8)))
def test_any_names_can_be_sorted(names):
    devices = [Device.parse(name) for name in names]
    assert sorted(sorted(devices), key=Device.sort_key) == sorted(devices)


def test_natural_order():
    names = ["hwmon10", "hwmon2", "hwmon", "10", "2", "²"]
    assert sorted(names, key=natural) == ["2", "10", "hwmon", "hwmon2", "hwmon10", "²"]
