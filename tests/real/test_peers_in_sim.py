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
before = time.monotonic()
m.begin_window("w", sync_execution=False)
began = time.monotonic()
time.sleep(1.5)
ended = time.monotonic()
r = m.end_window("w", sync_execution=False)
after = time.monotonic()
print(json.dumps([ended - began, after - before, r.gpu_energy[0], r.cpu_energy[0]]))
"""
    least_s, most_s, gpu_j, cpu_j = run(lab, tmp_path, code)
    assert 100 * (least_s - 0.15) <= gpu_j <= 100 * (most_s + 0.15)
    assert 60 * (least_s - 0.15) <= cpu_j <= 60 * (most_s + 0.15)


def test_zeus_power_monitor_reads_the_power(lab, tmp_path):
    code = """
import json, time
from multiprocessing.synchronize import Event
from zeus.monitor.power import PowerMonitor
if __name__ == "__main__":
    wait = Event.wait  # it gives its own processes ten seconds to start, and a busy machine may need more
    Event.wait = lambda self, timeout=None: wait(self, timeout and 18 * timeout)
    m = PowerMonitor(gpu_indices=[0], update_period=0.05)
    while (found := m.get_power()) is None or not found.get(0):
        time.sleep(0.1)
    print(json.dumps(found))
    m.stop()
"""
    assert run(lab, tmp_path, code)["0"] == pytest.approx(100)


def test_codecarbon_measures_card_and_package(lab, tmp_path):
    code = """
import json, time
from codecarbon import OfflineEmissionsTracker
t = OfflineEmissionsTracker(country_iso_code="FRA", measure_power_secs=1, save_to_file=False, log_level="error")
before = time.monotonic()
t.start()
time.sleep(2.5)
t.stop()
after = time.monotonic()
d = t.final_emissions_data
print(json.dumps([after - before, d.gpu_energy * 3.6e6, d.cpu_energy * 3.6e6]))
"""
    most_s, gpu_j, cpu_j = run(lab, tmp_path, code)
    assert 0.7 * 250 <= gpu_j <= 1.3 * 100 * most_s
    assert 0.7 * 150 <= cpu_j <= 1.3 * 60 * most_s


def test_pyjoules_reads_the_package(lab, tmp_path):
    code = """
import json, time
from pyJoules.device import DeviceFactory
from pyJoules.device.rapl_device import RaplPackageDomain
from pyJoules.energy_meter import EnergyMeter
m = EnergyMeter(DeviceFactory.create_devices([RaplPackageDomain(0)]))
before = time.monotonic()
m.start(tag="w")
began = time.monotonic()
time.sleep(1)
ended = time.monotonic()
m.stop()
after = time.monotonic()
print(json.dumps([ended - began, after - before, m.get_trace()[0].energy["package_0"] / 1e6]))
"""
    least_s, most_s, joules = run(lab, tmp_path, code)
    assert 60 * least_s - 3 <= joules <= 60 * most_s + 3
