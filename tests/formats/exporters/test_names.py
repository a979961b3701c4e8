"""The names of other exporters, from a simulated Jetson."""

import subprocess
import sys

import pytest
from agents import SRC, home_of, parse

from everywatt.sim.jetson import Board


def test_a_jetson_tells_what_its_exporter_did(tmp_path):
    with Board(tmp_path / "board", {"VDD_IN": "constant:8W", "VDD_SOC": "constant:1W"}, layout="hwmon") as board:
        env = {**home_of(tmp_path, board.environment()), "PYTHONPATH": str(SRC)}
        words = [sys.executable, "-m", "everywatt", "agent", "--check", "--compat", "jetson", "--sensors", "jetson,use"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    values = parse(done.stdout)
    assert values['tegra_wattage_current_milliwatts{sensor="vdd_in"}'][0] == pytest.approx(8000, rel=0.02)
    assert values['tegra_wattage_average_milliwatts{sensor="vdd_soc"}'][0] == pytest.approx(1000, rel=0.02)
    rails = {name: value for name, (value, _) in values.items() if name.startswith("everywatt_power_watts")}
    assert len(rails) == 2
    assert any('domain="soc"' in name and value == pytest.approx(8, rel=0.02) for name, value in rails.items())
    assert any('domain="rail"' in name and value == pytest.approx(1, rel=0.02) for name, value in rails.items())
    owned = sum(value for name, (value, _) in values.items() if name.startswith("everywatt_owner_energy_joules_total"))
    energy = next(
        v for name, (v, _) in values.items() if name.startswith("everywatt_energy") and 'domain="soc"' in name
    )
    assert round(owned * 1e6) == round(energy * 1e6), "the module's owners; its rails are inside of it"
