"""The names of other exporters, from a simulated Jetson."""

import subprocess
import sys

import pytest
from agents import SRC, home_of, parse

from everywatt.formats.metric_names import metrics_text
from everywatt.sensors.jetson.tegrastats import parse_line
from everywatt.sim.jetson import Board

# Jetson Xavier NX, JetPack 5.1.2.
NX = (
    "07-09-2024 13:31:31 RAM 3168/6851MB (lfb 2x4MB) SWAP 0/3426MB (cached 0MB) "
    "CPU [23%@1190,14%@1190,16%@1190,14%@1190,12%@1190,14%@1190] EMC_FREQ 1%@1600 GR3D_FREQ 0%@[114] VIC_FREQ 115 "
    "APE 150 AUX@39C CPU@40.5C thermal@39.65C AO@38.5C GPU@38.5C PMIC@50C "
    "VDD_IN 2763mW/2846mW VDD_CPU_GPU_CV 650mW/670mW VDD_SOC 650mW/711mW"
)


def checked(tmp_path, environment, sensors):
    env = {**home_of(tmp_path, environment), "PYTHONPATH": str(SRC)}
    words = [sys.executable, "-m", "everywatt", "agent", "--check", "--compat", "jetson", "--sensors", sensors]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return parse(done.stdout)


def test_all_36_series_of_jetson_exporter_from_tegrastats(tmp_path):
    program = tmp_path / "bin" / "tegrastats"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nwhile echo '{NX}'; do sleep 0.2; done\n")
    program.chmod(0o755)
    environment = {"EVERYWATT_SYS": str(tmp_path / "no"), "PATH": f"{program.parent}:/usr/bin:/bin"}
    values = checked(tmp_path, environment, "tegrastats,use")
    line = parse_line(NX)
    assert line is not None
    expected = parse(metrics_text(line, 0.0))
    assert len(expected) == 36
    ours = {name: value for name, (value, _) in values.items() if name.startswith("tegra_")}
    stamp = "tegra_last_updated_timestamp_epoch"
    assert ours.keys() == expected.keys()
    assert {n: v for n, v in ours.items() if n != stamp} == {n: v for n, (v, _) in expected.items() if n != stamp}
    assert ours['tegra_wattage_average_milliwatts{sensor="vdd_cpu_gpu_cv"}'] == 670, "tegrastats' own average"
    assert values['everywatt_clock_hertz{device="jetson.cpu5",clock="cpu"}'][0] == 1.19e9
    assert values['everywatt_clock_hertz{device="jetson",clock="emc"}'][0] == 1.6e9
    assert values['everywatt_utilisation_ratio{device="jetson.cpu0"}'][0] == pytest.approx(0.23)


def test_a_jetson_tells_what_its_exporter_did(tmp_path):
    with Board(tmp_path / "board", {"VDD_IN": "constant:8W", "VDD_SOC": "constant:1W"}, layout="hwmon") as board:
        values = checked(tmp_path, board.environment(), "jetson,use")
    assert values['tegra_wattage_current_milliwatts{sensor="vdd_in"}'][0] == pytest.approx(8000, rel=0.02)
    assert values['tegra_wattage_average_milliwatts{sensor="vdd_soc"}'][0] == pytest.approx(1000, rel=0.02)
    cpus = [name for name in values if name.startswith("tegra_cpu_util_percentage")]
    assert cpus and all(0 <= values[name][0] <= 100 for name in cpus)
    told = {"tegra_emc_frequency_hz": 1.6e9, "tegra_gpu_frequency_hz": 114.75e6, "tegra_gpu_util_percentage": 5.0}
    assert {name: values[name][0] for name in told} == pytest.approx(told, rel=0.01)
    assert values['tegra_temperature_celcius{sensor="cpu"}'][0] == 45.5
    assert {"tegra_lfb_size_bytes", "tegra_swap_total_bytes", "tegra_ram_used_bytes"} <= values.keys()
    rails = {name: value for name, (value, _) in values.items() if name.startswith("everywatt_power_watts")}
    assert len(rails) == 2
    assert any('domain="soc"' in name and value == pytest.approx(8, rel=0.02) for name, value in rails.items())
    assert any('domain="rail"' in name and value == pytest.approx(1, rel=0.02) for name, value in rails.items())
    owned = sum(value for name, (value, _) in values.items() if name.startswith("everywatt_owner_energy_joules_total"))
    energy = next(
        v for name, (v, _) in values.items() if name.startswith("everywatt_energy") and 'domain="soc"' in name
    )
    assert round(owned * 1e6) == round(energy * 1e6), "the module's owners; its rails are inside of it"
