"""The simulated libnvidia-ml.so.1 through the real nvidia-ml-py, against its closed form."""

import itertools
import math

import pytest

POLL = """
import json, time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
rows = []
end = time.monotonic() + {seconds}
while time.monotonic() < end or len(rows) < 120:  # fewer come where the machine is busy
    a = time.monotonic_ns(); v = {read}; rows.append((a, time.monotonic_ns(), v)); time.sleep(0.001)
print(json.dumps(rows))
"""


def published(t, period, phase):
    return phase + math.floor((t - phase) / period) * period


def follows(lab, rows, value, tolerance):
    """Every reading is the formula's value at the publication before the call started, or before it ended."""
    assert len(rows) > 100
    for a, b, reading in rows:
        candidates = (value(lab.seconds(a)), value(lab.seconds(b)))
        assert min(abs(reading - c) for c in candidates) <= tolerance, (lab.seconds(a), reading, candidates)


@pytest.mark.parametrize(
    ("curve", "period", "window"),
    [("square:100W,300W,0.13s", 0.1, 0.025), ("ramp:50W,350W,1s", 0.02, 0.02), ("sine:200W,100W,0.31s", 0.05, 0.2)],
)
def test_power_polled_at_1_khz_follows_its_window_and_duty_cycle(sim_machine, inside, curve, period, window):
    lab = sim_machine(gpus=[curve], sensor=[f"period={period},phase=0.007,window={window}"])
    rows = inside(lab, POLL.format(seconds=0.8, read="n.nvmlDeviceGetPowerUsage(h)"))
    truth = lab.machine.gpus[0].curve

    def milliwatts(t):
        end = published(t, period, 0.007)
        return truth.energy_j(end - window, end) / window * 1e3

    follows(lab, rows, milliwatts, 1.0)
    # Eight publications at least; of the square's, as few as two may have an edge in their window, by where it starts.
    assert len({reading for _, _, reading in rows}) >= 3


def test_gain_offset_and_two_averages(sim_machine, inside):
    sensor = "period=50ms,phase=0,window=50ms,average=1s,gain=0.958,offset=-2W"
    lab = sim_machine(gpus=["square:100W,300W,0.4s"], sensor=[sensor])
    read = "[n.nvmlDeviceGetPowerUsage(h), *(f.value.uiVal for f in n.nvmlDeviceGetFieldValues(h, [185, 186]))]"
    rows = inside(lab, POLL.format(seconds=0.5, read=read))
    truth = lab.machine.gpus[0].curve
    for place, window in ((0, 1.0), (1, 1.0), (2, 0.05)):

        def milliwatts(t, window=window):
            end = published(t, 0.05, 0.0)
            return (0.958 * truth.energy_j(end - window, end) / window - 2) * 1e3

        follows(lab, [(a, b, values[place]) for a, b, values in rows], milliwatts, 1.0)


def test_the_counter_is_the_exact_integral_at_its_publication(sim_machine, inside):
    sensor = "counter_period=20ms,counter_phase=3ms,quantum=0.5J,start=1000J"
    lab = sim_machine(gpus=["square:100W,300W,0.13s"], sensor=[sensor])
    rows = inside(lab, POLL.format(seconds=0.6, read="n.nvmlDeviceGetTotalEnergyConsumption(h)"))
    truth = lab.machine.gpus[0].curve

    def millijoules(t):
        joules = 1000 + truth.energy_j(0, published(t, 0.02, 0.003))
        return math.floor(joules / 0.5 + 1e-9) * 500

    follows(lab, rows, millijoules, 0.5)


def test_jitter_and_dropped_publications_keep_the_order(sim_machine, inside):
    lab = sim_machine(gpus=["ramp:100W,200W,20s"], sensor=["period=20ms,jitter=15ms,drop=0.3,window=0s,phase=0s"])
    rows = inside(lab, POLL.format(seconds=1.0, read="n.nvmlDeviceGetPowerUsage(h)"))
    values = sorted({reading for _, _, reading in rows})
    assert [r for _, _, r in rows] == sorted(r for _, _, r in rows)
    gaps = [(b - a) / 5.0 for a, b in itertools.pairwise(values)]  # the ramp rises 5 mW a millisecond
    assert max(gaps) > 30
    assert len({round(gap) for gap in gaps}) > 5
    assert 15 < len(values) < 48


def test_what_a_card_is(sim_machine, inside):
    lab = sim_machine(
        gpus=["constant:100W"], replicate=2, sensor=["name='NVIDIA A100-SXM4-40GB',memory=40GiB,gpu.1.gain=0.9"]
    )
    got = inside(
        lab,
        """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(1)
pci = n.nvmlDeviceGetPciInfo(h)
other = [n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h)), n.nvmlDeviceGetHandleByPciBusId(pci.busId),
         n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h))]
m = n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
print(json.dumps([n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), n.nvmlDeviceGetIndex(h),
  n.nvmlDeviceGetMinorNumber(h),
  pci.bus, [n.nvmlDeviceGetIndex(o) for o in other], n.nvmlDeviceGetMemoryInfo(h).total, m.total - m.used - m.free,
  n.nvmlDeviceGetCudaComputeCapability(h), n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion(),
  n.nvmlDeviceGetTemperature(h, 0), n.nvmlDeviceGetTemperatureV(h, 0), n.nvmlDeviceGetMaxClockInfo(h, 1)]))
""",
    )
    name = "NVIDIA A100-SXM4-40GB"
    gib = 2**30
    assert got == [2, name, 1, 1, 2, [1, 1, 1], 40 * gib, gib // 4, [8, 0], "580.65.06", 13000, 45, 45, 1410]


def test_default_names_say_whether_the_card_is_exact():
    from everywatt.sim.machine import SimMachine

    def names(*sensor):
        return [gpu.title for gpu in SimMachine.of(gpus=["constant:1W"], sensor=sensor).gpus]

    assert names() == ["everywatt Simulated Exact GPU"]
    assert names("gain=0.9") == ["everywatt Simulated GPU"]
    assert names("gain=0.9,exact=1") == ["everywatt Simulated Exact GPU"]
    assert names("exact=0") == ["everywatt Simulated GPU"]


FAULT = """
import json, time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def code(f, *a):
    try: f(*a); return 0
    except n.NVMLError as e: return e.value
"""


def test_calls_that_do_not_answer(sim_machine, inside):
    sensor = (
        "unsupported=nvmlDeviceGetTotalEnergyConsumption+nvmlDeviceGetMemoryInfo+field:186,"
        "missing=nvmlDeviceGetPowerUsage,failing=nvmlDeviceGetUUID,fail_code=999"
    )
    lab = sim_machine(gpus=["constant:100W"], sensor=[sensor])
    got = inside(
        lab,
        FAULT
        + """
fields = n.nvmlDeviceGetFieldValues(h, [185, 186, 83, 9999])
print(json.dumps([code(n.nvmlDeviceGetTotalEnergyConsumption, h), code(n.nvmlDeviceGetMemoryInfo, h, n.nvmlMemory_v2),
  code(n.nvmlDeviceGetPowerUsage, h), code(n.nvmlDeviceGetUUID, h), code(n.nvmlDeviceGetName, h),
  code(n.nvmlDeviceGetFanSpeed, h), code(n.nvmlDeviceGetHandleByIndex, 1), code(n.nvmlDeviceGetNumFans, h),
  [f.nvmlReturn for f in fields]]))
""",
    )
    assert got == [3, 3, 13, 999, 0, 3, 2, 13, [0, 3, 0, 3]]


def test_failing_on_the_nth_call(sim_machine, inside):
    lab = sim_machine(gpus=["constant:100W"], sensor=["fail_call=3"])
    code = FAULT + "print(json.dumps([code(n.nvmlDeviceGetPowerUsage, h) for _ in range(5)]))"
    assert inside(lab, code) == [0, 0, 999, 0, 0]
    lab = sim_machine(gpus=["constant:100W"], sensor=["fail_after=3"])
    assert inside(lab, code) == [0, 0, 0, 999, 999]


def test_a_lost_card_comes_back(sim_machine, inside):
    lab = sim_machine(gpus=["constant:100W", "constant:50W"], sensor=["gpu.0.lost_at=1ms,gpu.0.back_at=2s"])
    got = inside(
        lab,
        """
import json, time, pynvml as n
n.nvmlInit()
def code():
    try: return n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(0))
    except n.NVMLError as e: return e.value
first = code()
import os
t0 = int(open(os.environ["EVERYWATT_SIM"] + "/machine.txt").readline().split()[1])
if time.monotonic_ns() - t0 > 2e9: first = 15 # this program took so long to start that the card is back
other = n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(1))
time.sleep(max(0, 2.05 - (time.monotonic_ns() - t0) / 1e9))
print(json.dumps([first, other, code()]))
""",
    )
    assert got == [15, 50000, 100000]


def test_mig_instances(sim_machine, inside):
    lab = sim_machine(gpus=["constant:100W"], sensor=["mig=1g.5gb+3g.20gb,processes=11:1GiB:10%:0+12:2GiB:30%:1"])
    got = inside(
        lab,
        FAULT
        + """
m = [n.nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(2)]
print(json.dumps([n.nvmlDeviceGetMigMode(h), code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 2),
  n.nvmlDeviceIsMigDeviceHandle(m[0]).value,
  n.nvmlDeviceGetUUID(m[1])[:4], n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m[1])),
  n.nvmlDeviceGetMemoryInfo(m[1]).total, [n.nvmlDeviceGetAttributes(x).gpuInstanceSliceCount for x in m],
  [[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(x)] for x in (h, *m)],
  code(n.nvmlDeviceGetUtilizationRates, h), code(n.nvmlDeviceGetPowerUsage, m[0]), code(n.nvmlDeviceGetPowerUsage, h),
  n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(m[0]))))]))
""",
    )
    assert got == [[1, 1], 6, 1, "MIG-", 0, 20 * 2**30, [1, 3], [[11, 12], [11], [12]], 3, 3, 0, 0]


def test_utilisation_is_the_share_of_the_last_fifth_of_a_second_in_which_the_card_was_busy(sim_machine, inside):
    # duty 30 % in 20 ms, so every window of 0.2 s has the same share; a ramp and a constant load for comparison
    lab = sim_machine(
        gpus=["square:100W,300W,20ms,0.3", "ramp:100W,300W,0.1s", "constant:100W", "square:100W,300W,2s"],
        sensor=["phase=0,gpu.1.utilisation=100%"],
    )
    got = inside(
        lab,
        FAULT
        + """
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(4)]
time.sleep(0.5)
seen = [[n.nvmlDeviceGetUtilizationRates(x).gpu for x in hs] for _ in range(60) if not time.sleep(0.04)]
print(json.dumps(seen))
""",
    )
    fast, fixed, constant, slow = zip(*got, strict=True)
    assert set(fast) == {30}
    assert set(fixed) == {100}
    assert set(constant) == {0}
    assert set(slow) <= {0, 100}  # it steps every second, where a window of 0.2 s ends
    assert {0, 100} <= set(slow)


def test_processes_with_memory_and_use(sim_machine, inside):
    lab = sim_machine(gpus=["constant:100W"], sensor=["processes=11:1GiB:25%+12:2GiB:50%"])
    got = inside(
        lab,
        FAULT
        + """
u = n.nvmlDeviceGetProcessUtilization(h, 0)
print(json.dumps([[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
  n.nvmlDeviceGetGraphicsRunningProcesses(h), [(x.pid, x.smUtil) for x in u],
  n.nvmlDeviceGetUtilizationRates(h).gpu, code(n.nvmlDeviceGetProcessUtilization, h, u[0].timeStamp + 10**9),
  n.nvmlDeviceGetMemoryInfo(h).used]))
""",
    )
    gib = 2**30
    assert got == [[[11, gib], [12, 2 * gib]], [], [[11, 25], [12, 50]], 75, 6, 3 * gib + gib // 4]


def test_a_power_limit_clips_power_and_clock_and_the_truth(sim_machine, inside):
    lab = sim_machine(
        gpus=["constant:250W"], sensor=["period=10ms,power_limit=300W,power_limit_min=100W,utilisation=1"]
    )
    got = inside(
        lab,
        FAULT
        + """
a = [n.nvmlDeviceGetPowerManagementLimit(h), n.nvmlDeviceGetPowerManagementLimitConstraints(h),
     code(n.nvmlDeviceSetPowerManagementLimit, h, 50000), code(n.nvmlDeviceSetPowerManagementLimit, h, 400000)]
n.nvmlDeviceSetPowerManagementLimit(h, 150000)
t = time.monotonic_ns()
time.sleep(0.2)
print(json.dumps([*a, n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetEnforcedPowerLimit(h),
  n.nvmlDeviceGetCurrentClocksEventReasons(h), n.nvmlDeviceGetPowerManagementDefaultLimit(h), t]))
""",
    )
    *facts, t = got
    assert facts == [300000, [100000, 300000], 2, 2, 150000, 150000, 4, 300000]
    assert lab.truth("gpu.0", t, t + 10**9) == pytest.approx(150.0)
    limit = next(event for event in lab.events("gpu.0") if event.limit_w == 150.0)
    since = lab.t0_ns + round(limit.t_s * 1e9)
    assert lab.truth("gpu.0", lab.t0_ns, since) == pytest.approx(250.0 * limit.t_s, rel=1e-6)


def test_the_limit_may_be_denied(sim_machine, inside):
    lab = sim_machine(gpus=["constant:100W"], sensor=["denied=1"])
    assert inside(lab, FAULT + "print(json.dumps(code(n.nvmlDeviceSetPowerManagementLimit, h, 200000)))") == 4


def test_the_drivers_buffer_holds_every_publication(sim_machine, inside):
    lab = sim_machine(gpus=["ramp:100W,300W,10s"], sensor=["period=20ms,window=20ms,phase=0,samples=30"])
    got = inside(
        lab,
        FAULT
        + """
time.sleep(0.7)
off = time.time_ns() - time.monotonic_ns()
kind, s = n.nvmlDeviceGetSamples(h, 0, 0)
last = n.nvmlDeviceGetSamples(h, 0, s[-3].timeStamp)[1]
print(json.dumps([kind, off, [(x.timeStamp, x.sampleValue.uiVal) for x in s], len(last)]))
""",
    )
    kind, offset, samples, newer = got
    curve = lab.machine.gpus[0].curve
    assert (kind, len(samples)) == (1, 30)
    assert 2 <= newer <= 6
    for stamp, value in samples:
        t = round(lab.seconds(stamp * 1000 - offset) / 0.02) * 0.02
        assert abs(lab.seconds(stamp * 1000 - offset) - t) < 0.005
        assert value == pytest.approx(curve.energy_j(t - 0.02, t) / 0.02 * 1e3, abs=1)


def test_gpm_means_between_two_samples(sim_machine, inside):
    code = (
        FAULT
        + """
if not n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice: print(json.dumps(None)); raise SystemExit
a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
n.nvmlGpmSampleGet(h, a); time.sleep(0.05); n.nvmlGpmSampleGet(h, b)
g = n.c_nvmlGpmMetricsGet_t(); g.version = 1; g.numMetrics = 3; g.sample1 = a; g.sample2 = b
for i, m in enumerate((2, 3, 77)): g.metrics[i].metricId = m
n.nvmlGpmMetricsGet(g)
print(json.dumps([(m.value, m.nvmlReturn) for m in g.metrics[:3]]))
"""
    )
    assert inside(sim_machine(gpus=["constant:100W"]), code) is None
    lab = sim_machine(gpus=["constant:100W"], sensor=["gpm=1,utilisation=0.8"])
    assert inside(lab, code) == [[pytest.approx(80.0), 0], [pytest.approx(40.0), 0], [0.0, 3]]


def test_calls_are_counted_and_cost_what_they_are_told(sim_machine, inside):
    lab = sim_machine(gpus=["constant:100W"], sensor=["call_cost=200us,process_cost=2ms"])
    got = inside(
        lab,
        FAULT
        + """
t = time.monotonic()
for _ in range(50): n.nvmlDeviceGetPowerUsage(h)
a = time.monotonic() - t
for _ in range(10): n.nvmlDeviceGetComputeRunningProcesses(h)
print(json.dumps([a, time.monotonic() - t - a]))
""",
    )
    assert got[0] >= 50 * 200e-6
    assert got[1] >= 10 * 2e-3
    assert lab.calls()["nvmlDeviceGetPowerUsage"] == 50
    assert lab.calls()["nvmlDeviceGetComputeRunningProcesses_v3"] == 10


def test_without_cards_there_is_no_library(sim_machine, inside):
    lab = sim_machine(packages=["constant:10W"])
    code = """
import json, pynvml as n
try: n.nvmlInit(); print(0)
except n.NVMLError as e: print(e.value)
"""
    assert inside(lab, code) == 12


def test_slices_of_instances_are_told_by_the_sensor(sim_machine, inside):
    lab = sim_machine(gpus=["constant:100W"], sensor=["mig=1g.5gb+3g.20gb,processes=11:1GiB:10%:0+12:2GiB:30%:1"])
    code = """
import json
from everywatt.sensors.base import Request
from everywatt.sensors.nvidia.nvml import Nvml
table = [group for group in Nvml(Request()).groups() if group.info.name == "nvml.processes"][0]
print(json.dumps([[row["pid"], row["slices"], row["of_slices"]] for row in table.read_table()[1]]))
"""
    assert inside(lab, code) == [[11, 1, 7], [12, 3, 7]]


def test_what_instances_did_is_told_by_the_sensor_where_the_board_has_gpm(sim_machine, inside):
    """10 % of the board are 70 % of one of its seven slices; on a board without GPM that is not known."""
    code = """
import json, time
from everywatt.sensors.base import Request
from everywatt.sensors.nvidia.nvml import Nvml
table = [group for group in Nvml(Request()).groups() if group.info.name == "nvml.processes"][0]
read = [table.read_table()[1]]
time.sleep(1)
read.append(table.read_table()[1])
print(json.dumps([[row.get("instance_sm") for row in rows] for rows in read]))
table.close()
"""
    for more, second in ((",gpm=1", [pytest.approx(70), pytest.approx(70)]), ("", [])):
        sensor = f"mig=1g.5gb+3g.20gb,processes=11:1GiB:10%:0+12:2GiB:30%:1{more}"
        assert inside(sim_machine(gpus=["constant:100W"], sensor=[sensor]), code) == [[None, None], second]
