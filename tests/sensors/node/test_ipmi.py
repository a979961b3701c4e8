"""DCMI readings of public BMCs (tests/data/meters/ipmi_dcmi.txt names each), played by programs of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import play, request_with

from everywatt.core.channels import Domain
from everywatt.core.errors import SensorError
from everywatt.sensors.base import State
from everywatt.sensors.node.ipmi import Ipmi, parse_dcmi

TEXT = (Path(__file__).resolve().parents[2] / "data" / "meters" / "ipmi_dcmi.txt").read_text()
ANSWERS = dict(part.split("\n", 1) for part in TEXT.split("\n## ")[1:])


def answer(word):
    return next(text for title, text in ANSWERS.items() if word in title)


@pytest.mark.parametrize(
    ("word", "watts"),
    [
        ("lovoo", 215),
        ("openbmc/openbmc", 319),  # `deactivated`, and a good reading
        ("1.8.19", 109),  # two fields on one line
        ("ipmitool.exe", 186),
        ("telegraf", 167),
        ("FreeIPMI", 1190),
        ("ipmiutil", 49),
    ],
)
def test_public_answers(word, watts):
    assert parse_dcmi(answer(word)) == watts


def test_a_machine_that_runs_does_not_draw_0_w():
    with pytest.raises(SensorError, match="does not measure"):
        parse_dcmi(answer("phosphor"))


@pytest.mark.parametrize("word", ["capmc", "sdr style"])
def test_other_output_has_no_reading(word):
    with pytest.raises(SensorError, match="no power reading"):
        parse_dcmi(answer(word))


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("Power reading state is: deactivated\r\nInstantaneous power reading :   87 Watts\r\n", 87.0),
        ("  Average power reading over sample period: 9 Watts\n  INSTANTANEOUS POWER READING: 215.5 watts\n", 215.5),
        ("Get HPM.x Capabilities request failed\n\n  Current Power : 1190 W\n  Vendor field : 7 Watts\n", 1190.0),
    ],
)
def test_fields_in_another_order_with_others_between(text, watts):
    assert parse_dcmi(text) == watts


def test_the_average_is_never_taken():
    text = answer("lovoo").replace("Instantaneous", "Something else")
    with pytest.raises(SensorError):
        parse_dcmi(text)


def test_its_own_bmc_where_it_is_asked_for(tmp_path):
    play(tmp_path / "bin", "ipmitool", answer("openbmc/openbmc"))
    assert Ipmi(request_with(tmp_path / "bin", "ipmi")).probe().state is State.ABSENT
    assert Ipmi(request_with(tmp_path / "bin", "ipmi", sensors=("ipmi",))).probe().usable
    sensor = Ipmi(request_with(tmp_path / "bin", "ipmi", {"local": True}))
    assert sensor.probe().samples == {"bmc.power": 319.0}
    (group,) = sensor.groups()
    assert group.info.channels[0].domain is Domain.PSU and group.rows_every_s == 2.0
    group.poll()
    assert group._rows[0].values == (319.0,)


def test_freeipmi_where_there_is_no_ipmitool(tmp_path):
    play(tmp_path / "bin", "ipmi-dcmi", answer("FreeIPMI"), log=True)
    request = request_with(tmp_path / "bin", "ipmi", {"local": True, "command": "ipmi-dcmi"})
    assert Ipmi(request).probe().samples == {"bmc.power": 1190.0}
    assert "--get-system-power-statistics" in (tmp_path / "bin" / "ipmi-dcmi.log").read_text()


def test_a_password_is_never_an_argument(tmp_path):
    play(tmp_path / "bin", "ipmitool", answer("lovoo"), log=True)
    password = tmp_path / "password"
    password.write_text("s3cret-pass\n")
    options = {"host": "bmc.example", "user": "reader", "password_file": str(password)}
    report = Ipmi(request_with(tmp_path / "bin", "ipmi", options)).probe()
    assert report.samples == {"bmc.power": 215.0}
    words, count = (tmp_path / "bin" / "ipmitool.log").read_text().splitlines()
    assert words == "-I lanplus -H bmc.example -U reader -E dcmi power reading" and count == "1"
    report = Ipmi(request_with(tmp_path / "bin", "ipmi", {"host": "bmc.example"})).probe()
    assert report.state is State.UNUSABLE and "password_file" in report.why
    options["host"] = "-bad"
    assert Ipmi(request_with(tmp_path / "bin", "ipmi", options)).probe().state is State.UNUSABLE


def test_a_program_that_hangs_or_fails(tmp_path):
    file = play(tmp_path / "bin", "ipmitool", "Could not open device at /dev/ipmi0\n", code=1)
    report = Ipmi(request_with(tmp_path / "bin", "ipmi", {"local": True})).probe()
    assert report.state is State.UNUSABLE and "/dev/ipmi0" in report.why
    file.write_text("#!/bin/sh\nexec sleep 20\n")
    report = Ipmi(request_with(tmp_path / "bin", "ipmi", {"local": True, "timeout_s": 0.2})).probe()
    assert "did not respond" in report.why


@given(st.text(max_size=200) | st.sampled_from(sorted(ANSWERS.values())).flatmap(lambda t: cut(t)))
@settings(max_examples=200, deadline=None)
def test_anything_gives_the_reading_or_an_error(text):
    try:
        watts = parse_dcmi(text)
    except SensorError:
        return
    said = re.findall(r"(?im)(?:reading|power)\s*:\s*([\d.]+)\s*(?:watts?|w)\s*$", text)
    assert watts in [float(number) for number in said]


def cut(text):
    return st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(lambda ends: text[min(ends) : max(ends)])
