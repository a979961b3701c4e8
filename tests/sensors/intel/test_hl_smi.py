"""Gaudi, from a program that prints what hl-smi prints (numbers of ours)."""

from __future__ import annotations

import pytest

from everywatt.core.errors import SensorError
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request, State
from everywatt.sensors.intel.hl_smi import QUERY, HlSmi, parse_hl_smi

# Two Gaudi 3 of 210 W and 195 W: 405 W in all.
TEXT = """1, HL-325L, 01P4-HL3090A0-18-U4V193-08-06-01, 0000:b3:00.0, 195, 3, 672, 33
0, HL-325L, 01P4-HL3090A0-18-U4V193-08-05-00, 0000:19:00.0, 210, 41, 98304, 36
"""


def sensor_of(tmp_path, text, code=0):
    """A machine with an hl-smi that prints `text` and ends with `code`."""
    program = tmp_path / "bin" / "hl-smi"
    program.parent.mkdir()
    (tmp_path / "answer").write_text(text)
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n/bin/cat {tmp_path}/answer\nexit {code}\n')
    program.chmod(0o755)
    machine = Machine(sys=tmp_path / "sys", proc=tmp_path / "proc", environ={"PATH": str(program.parent)})
    return HlSmi(Request(machine=machine))


def test_every_accelerator_has_its_power(tmp_path):
    sensor = sensor_of(tmp_path, TEXT)
    report = sensor.probe()
    assert report.usable and (tmp_path / "asked").read_text().split() == list(QUERY)
    assert report.samples == {
        "gpu.0.power": 210.0,
        "gpu.0.utilisation": 41.0,
        "gpu.0.memory": 98304.0 * 2**20,
        "gpu.0.temperature": 36.0,
        "gpu.1.power": 195.0,
        "gpu.1.utilisation": 3.0,
        "gpu.1.memory": 672.0 * 2**20,
        "gpu.1.temperature": 33.0,
    }
    (group,) = sensor.groups()
    values = sensor.meters()[0].ask()
    assert sum(v for c, v in zip(group.info.channels, values, strict=True) if c.carries_energy) == 405.0
    group.close()


def test_an_accelerator_without_a_number_or_that_vanished_is_missing_and_not_zero(tmp_path):
    sensor = sensor_of(tmp_path, TEXT)
    sensor.probe()
    (meter,) = sensor.meters()
    (tmp_path / "answer").write_text("0, HL-325L, uuid, 0000:19:00.0, N/A, 41 %, 98304 MiB, 36 C\n")
    values = meter.ask()
    assert values[0] != values[0] and values[1:4] == (41.0, 98304.0, 36.0)
    assert all(value != value for value in values[4:])


@pytest.mark.parametrize("text", ["", "Driver not loaded", "index, name\n", "0, HL-225, uuid, 0000:19:00.0, 93\n"])
def test_answers_that_list_no_accelerator(tmp_path, text):
    with pytest.raises(SensorError, match="lists no accelerator"):
        parse_hl_smi(text)
    report = sensor_of(tmp_path, text, code=1).probe()
    assert report.state is State.UNUSABLE and "hl-smi lists no accelerator" in report.why


def test_without_the_program_it_is_absent(tmp_path):
    machine = Machine(environ={"PATH": str(tmp_path)})
    assert HlSmi(Request(machine=machine)).probe().state is State.ABSENT
