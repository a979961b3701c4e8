"""Load curves: power that follows what programs really do, with one truth for everyone."""

import os
import resource
import subprocess
import sys
import time

import pytest
from waiting import until

from everywatt.sim.curves import Load
from everywatt.sim.loads import HOST_STAT, Following, HostStat, write_loads
from everywatt.sim.truth import EventLog

BURN = """
import time
end = time.process_time() + {cpu}
while time.process_time() < end: pass
"""


def test_a_package_draws_for_cpu_time(sim_machine):
    lab = sim_machine(packages=["load:10W,90W"])
    time.sleep(0.3)  # the follower starts
    start = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", BURN.format(cpu=0.8)], env=lab.environment(), check=True)
    time.sleep(0.1)  # for the follower to look once more
    end = time.monotonic_ns()
    joules = lab.truth("cpu.0", start, end)
    rows = lab.settle()
    used = sum(row["cpu_s"] for row in rows)
    assert used >= 0.7
    idle = 10 * (end - start) / 1e9
    active = sum(row["active_j"] for row in rows)
    assert joules - idle == pytest.approx(active, rel=0.1, abs=1.0)
    assert active == pytest.approx(80 * used / (os.cpu_count() or 1), rel=0.15)


def test_the_counter_and_the_truth_agree_under_load(sim_machine, inside):
    lab = sim_machine(packages=["load:10W,90W"])
    code = """
import json, os, time
fd = os.open("/sys/class/powercap/intel-rapl:0/energy_uj", os.O_RDONLY)
rows = []
for i in range(60):
    end = time.process_time() + 0.004 * (i % 3)
    while time.process_time() < end: pass
    a = time.monotonic_ns(); v = int(os.pread(fd, 64, 0)); rows.append((a, time.monotonic_ns(), v))
    time.sleep(0.002)
print(json.dumps(rows))
"""
    rows = inside(lab, code)
    for a, b, reading in rows:
        low = 1000 + lab.truth("cpu.0", lab.t0_ns, a - 10**6)
        high = 1000 + lab.truth("cpu.0", lab.t0_ns, b)
        assert low - 0.05 <= reading / 1e6 <= high + 0.05


def test_a_card_draws_for_declared_use(sim_machine, inside):
    lab = sim_machine(gpus=["load:50W,250W"], sensor=["period=10ms"])
    code = """
import json, os, time, pynvml as n
from everywatt.testing import use_gpu
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
with use_gpu(0.5, memory_bytes=2**30):
    a = time.monotonic_ns()
    time.sleep(0.3)
    inside = [n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetUtilizationRates(h).gpu,
              [(p.pid == os.getpid(), p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h)]]
    b = time.monotonic_ns()
time.sleep(0.1)
print(json.dumps([inside, n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetComputeRunningProcesses(h), a, b]))
"""
    during, after, processes, a, b = inside(lab, code)
    assert during == [150000, 50, [[True, 2**30]]]
    assert (after, processes) == (50000, [])
    assert lab.truth("gpu.0", a, b) == pytest.approx(150 * (b - a) / 1e9, rel=1e-6)


def test_a_process_that_dies_stops_drawing(sim_machine):
    lab = sim_machine(gpus=["load:50W,250W"])
    code = "import os, time\nfrom everywatt.testing import use_gpu\nuse_gpu(1.0).__enter__(); os._exit(3)"
    assert subprocess.run([sys.executable, "-c", code], env=lab.environment()).returncode == 3
    until(lambda: lab.events("gpu.0")[-1].raw_w == 50.0)


def test_work_takes_longer_under_a_limit(sim_machine, inside):
    lab = sim_machine(gpus=["load:50W,250W"], sensor=["power_limit=250W,power_limit_min=60W"])
    code = """
import json, pynvml as n
from everywatt.testing import gpu_work
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
full = gpu_work(0.2)
n.nvmlDeviceSetPowerManagementLimit(h, 75000)
print(json.dumps([full, gpu_work(0.2)]))
"""
    full, slow = inside(lab, code)
    assert full >= 0.2
    assert slow >= 0.39  # (75 - 50) / (250 - 50) is an eighth: half the speed
    assert max(min(e.raw_w, e.limit_w) for e in lab.events("gpu.0") if e.limit_w == 75.0) == 75.0


def test_outside_of_a_machine_there_is_no_card(monkeypatch):
    from everywatt.core.errors import UsageError
    from everywatt.testing import use_gpu

    monkeypatch.delenv("EVERYWATT_SIM", raising=False)
    with pytest.raises(UsageError, match="not inside"), use_gpu(0.5):
        pass


def test_proc_stat_tells_the_time_of_the_machine_and_not_of_the_host(sim_machine, inside):
    stranger = subprocess.Popen(
        [
            "setsid",
            "-f",
            sys.executable,
            "-S",
            "-c",
            "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass",
        ]
    )
    stranger.wait()  # what it started belongs to nobody here
    lab = sim_machine(packages=["load:10W,90W"])
    code = """
import json, os, time
fd = os.open("/proc/stat", os.O_RDONLY)  # kept open, as meters do
def busy():
    words = os.pread(fd, 512, 0).split()
    return int(words[1]) / os.sysconf("SC_CLK_TCK")
def burn(s):
    end = time.process_time() + s
    while time.process_time() < end: pass
start = busy()
while busy() < start + 0.05: burn(0.02); time.sleep(0.02)  # until somebody looks at this process
last = -1.0
while busy() != last: last = busy(); time.sleep(0.3)
before, own = busy(), time.process_time()
burn(0.5)
end = time.monotonic() + 60  # the look at all of it may be late
while busy() - before < 0.45 and time.monotonic() < end: time.sleep(0.05)
with open("/proc/stat") as file:
    cpus = sum(line.startswith("cpu") for line in file)
print(json.dumps([busy() - before, time.process_time() - own, cpus]))
"""
    told, own, cpus = inside(lab, code)
    assert told == pytest.approx(own, abs=0.15)
    assert cpus == 1 + os.cpu_count()


def test_owners_have_a_truth_also_daemons_and_those_that_nobody_saw(sim_machine):
    lab = sim_machine(packages=["load:10W,90W"])
    time.sleep(0.3)  # the follower starts
    daemon = "import os, time\nif os.fork() == 0:\n while time.process_time() < 0.4: pass\n os._exit(0)\nos.wait()"
    line = "i=0; while [ $i -lt 150 ]; do i=$((i+1)); /bin/true; done"
    start = time.monotonic_ns()
    subprocess.run([sys.executable, "-S", "-c", daemon], env=lab.environment(), check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["sh", "-c", line], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    time.sleep(0.4)  # for the follower to look once more
    end = time.monotonic_ns()
    joules = lab.truth("cpu.0", start, end)
    rows = lab.settle()
    short = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    # What it used after the last look is that of its ancestor's children, and on a busy host looks are far apart.
    assert any(row["name"].startswith("python") and row["cpu_s"] >= 0.15 for row in rows)
    told = sum(row["cpu_s"] for row in rows)
    assert told >= 0.9 * (0.4 + short)
    assert sum(row["joules"] for row in rows) == pytest.approx(joules - 10 * (end - start) / 1e9, rel=0.05, abs=0.5)


def test_power_that_is_made_up_for_has_an_owner(tmp_path, monkeypatch):
    """A step that came early drew too little; the next one, in which nobody runs, draws the rest: for the first."""
    curve = Load("load", 10.0, 90.0)
    EventLog.create(tmp_path / "events-cpu.0", curve, 1e9).close()
    write_loads(tmp_path, {"cpu.0": curve}, time.monotonic_ns())
    HostStat(tmp_path / HOST_STAT, time.monotonic_ns()).close()
    following = Following(tmp_path, os.getpid())
    amounts = iter([{7: 30_000_000}, {}, {}, {}])
    monkeypatch.setattr(following._tree, "scan", dict)
    monkeypatch.setattr(following._tree, "used_ns", lambda: next(amounts))
    start = following.last - following._t0_ns / 1e9
    for nap_s in (0.02, 0.005, 0.05, 0.05):
        time.sleep(nap_s)  # unequal steps of the real clock, which it reads
        following.step()
    end = following.last - following._t0_ns / 1e9
    above_j = following._logs["cpu.0"].joules(end) - following._logs["cpu.0"].joules(start) - 10.0 * (end - start)
    (row,) = [row for row in following.account.rows() if row["pid"] == 7]
    assert above_j > 0.3 and row["joules"] == pytest.approx(above_j, abs=0.15)


def test_processes_on_a_card_have_a_truth(sim_machine, inside):
    lab = sim_machine(gpus=["load:50W,250W"])
    time.sleep(0.3)  # the follower starts
    code = """
import json, os, time
from everywatt.testing import use_gpu
before = time.monotonic()
with use_gpu(0.5):
    began = time.monotonic()
    time.sleep(0.6)
    ended = time.monotonic()
print(json.dumps([os.getpid(), ended - began, time.monotonic() - before]))
"""
    pid, least_s, most_s = inside(lab, code)
    (row,) = [row for row in lab.settle() if row["pid"] == pid]
    assert 100 * least_s - 6 <= row["gpu_j"] <= 100 * most_s + 6
    assert row["joules"] == row["active_j"] + row["gpu_j"]


@pytest.mark.parametrize(("mask", "card"), [(None, 0), ("", 0), ("2", 2), ("3,1", 3), ("GPU-abc", 0), ("all", 0)])
def test_a_program_is_on_the_first_card_that_it_may_see(monkeypatch, mask, card):
    from everywatt.sim.loads import first_visible

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert first_visible() == card
