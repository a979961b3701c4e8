"""Commands and files that print a number."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import play, request_with

from everywatt.core.channels import Domain, Kind
from everywatt.core.errors import SensorError
from everywatt.core.units import SI_UNITS
from everywatt.sensors.base import State
from everywatt.sensors.wall.execute import Execute, parse_number


def sensor(tmp_path, **options):
    return Execute(request_with(tmp_path / "bin", "exec", options))


def test_a_command_and_its_units(tmp_path):
    play(tmp_path / "bin", "meter", "12500 mW\n")
    found = sensor(tmp_path, command="meter --now", unit="mW", gain_pct=1)
    assert found.probe().samples == {"wall.exec.power": 12.5}
    (group,) = found.groups()
    channel = group.info.channels[0]
    assert (channel.domain, channel.kind, channel.facts.gain_pct) == (Domain.WALL, Kind.GAUGE, 1.0)
    group.poll()
    assert group._rows[0].values == (12500.0,) and channel.scale == 1e-3


def test_a_file_that_counts(tmp_path):
    file = tmp_path / "count"
    file.write_text("2.5\n")
    found = sensor(tmp_path, file=str(file), unit="kWh", domain="psu", device="psu.rack")
    assert found.probe().samples == {"psu.rack.energy": 9e6}
    channel = found.groups()[0].info.channels[0]
    assert (channel.unit, channel.kind, channel.domain) == ("J", Kind.COUNTER, Domain.PSU)


def test_a_pattern_finds_the_number_among_others(tmp_path):
    play(tmp_path / "bin", "meter", "volts: 230\nwatts: 61.5\n")
    assert sensor(tmp_path, command=["meter"], pattern=r"watts: (\S+)").probe().samples == {"wall.exec.power": 61.5}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": "meter"}, "not one number"),
        ({"command": "nothing-such"}, "cannot be run"),
        ({"command": "fails"}, "ended with 3"),
        ({"command": "slow", "timeout_s": 0.2}, "did not respond"),
        ({"command": "meter '"}, "cannot be read"),
        ({"command": "meter", "unit": "horses"}, "not one of"),
        ({"command": "meter", "domain": "moon"}, "domain must be one of"),
        ({"command": "meter", "pattern": "("}, "not a regular expression"),
        ({"command": "meter", "pattern": "watts (x)"}, "matches nothing"),
        ({"command": "joules", "unit": "W"}, "in J, but the settings say W"),
        ({"file": "/nonexistent/file"}, "cannot be read"),
    ],
)
def test_what_is_no_number_is_told(tmp_path, options, words):
    play(tmp_path / "bin", "meter", "volts: 230\nwatts: 61.5\n")
    play(tmp_path / "bin", "joules", "5 J\n")
    play(tmp_path / "bin", "fails", "7\n", code=3)
    play(tmp_path / "bin", "slow", "").write_text("#!/bin/sh\nexec sleep 20\n")
    report = sensor(tmp_path, **options).probe()
    assert report.state is State.UNUSABLE and words in report.why


def test_not_configured(tmp_path):
    assert sensor(tmp_path).probe().state is State.ABSENT


@given(st.text(alphabet="0123456789.eE+- WmkJh\n\tx", max_size=20), st.sampled_from(sorted(SI_UNITS)))
@settings(max_examples=200, deadline=None)
def test_a_number_is_the_one_that_stands_there(text, unit):
    try:
        value = parse_number(text, unit)
    except SensorError:
        return
    assert math.isfinite(value)
    (found,) = re.findall(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?", text)
    assert value == float(found)
