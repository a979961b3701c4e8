"""The power chip of a Raspberry Pi 5, from output as both firmware generations print it (written by us)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import play, request_with

from everywatt.core.channels import Domain
from everywatt.sensors.base import State
from everywatt.sensors.node.raspberry import Raspberry, parse_pmic

TEXT = """\
 3V7_WL_SW_A current(0)=0.08000000A
   3V3_SYS_A current(1)=0.10000000A
  VDD_CORE_A current(7)=2.00000000A
 3V7_WL_SW_V volt(8)=3.70000000V
   3V3_SYS_V volt(9)=3.30000000V
  VDD_CORE_V volt(15)=0.75000000V
     EXT5V_V volt(24)=5.10000000V
      BATT_V volt(25)=0.00000000V
"""
WATTS = {"3V7_WL_SW": 0.296, "3V3_SYS": 0.33, "VDD_CORE": 1.5}


def test_volts_times_amps():
    assert parse_pmic(TEXT) == pytest.approx(WATTS)
    assert parse_pmic("VDD_CORE_V=0.75V\nVDD_CORE_A=2A\n") == pytest.approx({"VDD_CORE": 1.5})
    assert parse_pmic("VDD_CORE_V=0.75A\nVDD_CORE_A=2A\n") == {}


def test_the_sensor(tree, tmp_path):
    play(tmp_path / "bin", "vcgencmd", TEXT)
    request = request_with(tmp_path / "bin", "raspberry", machine=tree.machine)
    assert Raspberry(request).probe().state is State.ABSENT
    tree.write("proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    sensor = Raspberry(request)
    report = sensor.probe()
    assert report.samples == pytest.approx({f"pi.{rail}.power": watts for rail, watts in WATTS.items()})
    assert "USB" in report.devices[0]["note"]
    (group,) = sensor.groups()
    assert {channel.domain for channel in group.info.channels} == {Domain.RAIL}
    group.poll()
    assert group._rows[0].values == pytest.approx(tuple(WATTS.values()))


def test_a_board_without_current(tree, tmp_path):
    play(tmp_path / "bin", "vcgencmd", 'error=1 error_msg="Command not registered"\n')
    tree.write("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0")
    report = Raspberry(request_with(tmp_path / "bin", "raspberry", machine=tree.machine)).probe()
    assert report.state is State.UNUSABLE and "only a Raspberry Pi 5" in report.why


@given(st.text(max_size=80) | st.tuples(st.integers(0, 300), st.text(max_size=2)).map(lambda p: spoil(*p)))
@settings(max_examples=200, deadline=None)
def test_anything_gives_rails_or_none(text):
    assert all(abs(watts) < 1e12 for watts in parse_pmic(text).values())


def spoil(at, letters):
    return TEXT[:at] + letters + TEXT[at + 1 :]
