"""Unmodified programs of others inside a simulated machine: they load the same libraries, and see the same truth."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from everywatt.sim.machine import SimMachine

_LOCAL = Path(__file__).parents[2] / ".venv-bench" / "bin" / "python"
PYTHON = Path(os.environ.get("EVERYWATT_BENCH_PYTHON", _LOCAL))
pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason="the peers are not installed: `make bench` makes .venv-bench, or set EVERYWATT_BENCH_PYTHON",
)


@pytest.fixture
def lab():
    machine = SimMachine.of(
        gpus=["constant:100W"], packages=["constant:60W"], sensor=["processes=1:1GiB:40%,period=20ms"]
    )
    with machine.start() as running:
        yield running


def run(lab, folder, code):
    """Run code with the peers' Python; the last line it prints is JSON."""
    script = folder / "peer.py"
    script.write_text(code)
    done = subprocess.run(
        [PYTHON, str(script)],
        env=lab.environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nvitop_shows_the_card(lab):
    done = subprocess.run(
        [PYTHON, "-m", "nvitop", "-1"], env=lab.environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0
    assert "100W / 300W" in done.stdout
    assert "1024MiB" in done.stdout
    assert done.stderr == ""


def test_zeus_monitor_reads_the_counters(lab, tmp_path):
    code = """
import json, time
from zeus.monitor import ZeusMonitor
m = ZeusMonitor(gpu_indices=[0])
m.begin_window("w", sync_execution=False)
time.sleep(1.5)
r = m.end_window("w", sync_execution=False)
print(json.dumps([r.time, r.gpu_energy[0], r.cpu_energy[0]]))
"""
    seconds, gpu_j, cpu_j = run(lab, tmp_path, code)
    assert gpu_j == pytest.approx(100 * seconds, abs=100 * 0.15)
    assert cpu_j == pytest.approx(60 * seconds, abs=60 * 0.15)


def test_zeus_power_monitor_reads_the_power(lab, tmp_path):
    code = """
import json, time
from zeus.monitor.power import PowerMonitor
if __name__ == "__main__":
    for _ in range(3):
        try:  # it gives its own processes ten seconds to start, which a busy machine may need
            m = PowerMonitor(gpu_indices=[0], update_period=0.05)
            break
        except RuntimeError as error:
            print(error)
    time.sleep(2)
    print(json.dumps(m.get_power()))
    m.stop()
"""
    assert run(lab, tmp_path, code)["0"] == pytest.approx(100)


def test_codecarbon_measures_card_and_package(lab, tmp_path):
    code = """
import json, time
from codecarbon import OfflineEmissionsTracker
t = OfflineEmissionsTracker(country_iso_code="FRA", measure_power_secs=1, save_to_file=False, log_level="error")
t.start()
time.sleep(2.5)
t.stop()
d = t.final_emissions_data
print(json.dumps([d.gpu_energy * 3.6e6, d.cpu_energy * 3.6e6]))
"""
    gpu_j, cpu_j = run(lab, tmp_path, code)
    assert gpu_j == pytest.approx(250, rel=0.3)
    assert cpu_j == pytest.approx(150, rel=0.3)


def test_pyjoules_reads_the_package(lab, tmp_path):
    code = """
import json, time
from pyJoules.device import DeviceFactory
from pyJoules.device.rapl_device import RaplPackageDomain
from pyJoules.energy_meter import EnergyMeter
m = EnergyMeter(DeviceFactory.create_devices([RaplPackageDomain(0)]))
m.start(tag="w")
time.sleep(1)
m.stop()
s = m.get_trace()[0]
print(json.dumps([s.duration, s.energy["package_0"] / 1e6]))
"""
    seconds, joules = run(lab, tmp_path, code)
    assert joules == pytest.approx(60 * seconds, abs=3)
