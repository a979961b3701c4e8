"""The nvidia-smi sensor against fake nvidia-smi programs that fail the way real ones do."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from waiting import until

from everywatt.core.channels import Domain, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.core.machine import Machine
from everywatt.sensors import child
from everywatt.sensors.base import Request, State
from everywatt.sensors.calibrations import Stored, save
from everywatt.sensors.nvidia import nvidia_smi
from everywatt.sensors.nvidia.gpu_select import parse_listing
from everywatt.sensors.nvidia.nvidia_smi import NvidiaSmi

FAKE = r'''#!{python} -SE
"""A fake nvidia-smi. FAKE_MODE says what is wrong with it; GPU n draws 100 + 10 n watts."""
import os, sys, time
from datetime import datetime

mode = os.environ.get("FAKE_MODE", "")
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "log"), "a") as log:
    print(os.getpid(), *sys.argv[1:], file=log)
args = sys.argv[1:]
query = next((a for a in args if a.startswith("--query-gpu=")), None)
loop = next((float(a.split("=")[1]) for a in args if a.startswith("--loop-ms=")), None)
if "-lms" in args:
    loop = float(args[args.index("-lms") + 1])
count = int(os.environ.get("FAKE_GPUS", "1"))
lost = os.path.exists(os.path.join(here, "lost"))
chosen = next((a.split("=")[1].split(",") for a in args if a.startswith("--id=")), None)
LOST = "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error"

if "-L" in args:
    print("GPU 0: NVIDIA A100 (UUID: GPU-0000)")
    print("  MIG 1g.5gb      Device  0: (UUID: MIG-aaaa)")
    sys.exit(0)
if mode == "hang":
    time.sleep(60)
if mode == "text":
    print(os.environ["FAKE_TEXT"])
    sys.exit(int(os.environ.get("FAKE_CODE", "9")))
names = query.split("=")[1].split(",")
if mode == "old" and any(n.startswith("power.draw.") for n in names):
    bad = next(n for n in names if n.startswith("power.draw."))
    print('Field "%s" is not a valid field to query.' % bad)
    sys.exit(2)
if mode == "new" and "clocks_throttle_reasons.active" in names:
    print('Field "clocks_throttle_reasons.active" is not a valid field to query.')
    sys.exit(2)
if loop and mode == "rejects" and "-lms" not in args:
    print("ERROR: Option --loop-ms=100 is not recognized. Please run 'nvidia-smi -h'.")
    sys.exit(2)
if loop and mode == "hangs-looping":
    time.sleep(60)
if loop and mode == "slow":
    loop = 700.0
if mode == "trap" and loop:
    loop = 5000.0
units = {{"memory.total": "MiB", "memory.used": "MiB", "power.draw": "W", "power.draw.instant": "W",
         "power.draw.average": "W", "power.max_limit": "W", "enforced.power.limit": "W", "utilization.gpu": "%",
         "utilization.memory": "%", "clocks.current.sm": "MHz", "clocks.current.memory": "MHz"}}
print(", ".join(n + (" [%s]" % units[n] if n in units else "") for n in names), flush=True)


def value(name, gpu):
    if mode == "words" and name in ("power.draw.average", "utilization.gpu"):
        return "[N/A]"
    if mode == "jetson" and name.startswith("power"):
        return "[Not Supported]"
    if os.path.exists(os.path.join(here, "err")) and name.startswith("power.draw"):
        return "[Unknown Error]"
    if name == "timestamp":
        return "garbled" if mode == "buffered-blind" else datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
    watts = 100 + 10 * gpu
    return str({{"index": gpu, "uuid": "GPU-%04d" % gpu, "name": "NVIDIA A100-PCIE-40GB", "driver_version": "535.54.03",
            "pci.bus_id": "00000000:%02X:00.0" % (gpu + 1), "memory.total": 40960, "memory.used": 512,
            "power.draw": watts, "power.draw.instant": watts + 0.5, "power.draw.average": watts + 0.25,
            "power.max_limit": "250.00", "enforced.power.limit": "240.00", "utilization.gpu": 50,
            "utilization.memory": 20, "temperature.gpu": 44, "clocks.current.sm": 1410, "clocks.current.memory": 1215,
            "clocks_throttle_reasons.active": "0x4", "clocks_event_reasons.active": "0x0000000000000004"}}[name])


start, done = time.monotonic(), 0
held = []
while True:
    wanted = chosen is None or "GPU-0001" in chosen or "0000:02:00.0" in chosen
    if wanted and os.path.exists(os.path.join(here, "lost")):
        print(LOST, flush=True)
        sys.exit(9)
    for gpu in range(count):
        if chosen is None or "GPU-%04d" % gpu in chosen or "0000:%02x:00.0" % (gpu + 1) in chosen:
            held.append(", ".join(value(n, gpu) for n in names))
    done += 1
    if not loop or not mode.startswith("buffered") or len(held) >= 8:
        print("\n".join(held), flush=True)
        held = []
    if not loop or (mode == "dies" and done == 3):
        sys.exit(0)
    time.sleep(max(0.0, start + done * loop / 1000 - time.monotonic()))
'''


@pytest.fixture
def smi(tmp_path):
    """A function that makes the sensor on top of a fake nvidia-smi; every child is gone at the end."""
    made = []

    def make(mode="", *, devices=None, period_s=0.1, **settings):
        binary = tmp_path / "nvidia-smi"
        binary.write_text(FAKE.format(python=sys.executable))
        binary.chmod(0o755)
        environ = {**os.environ, "PATH": str(tmp_path), "FAKE_MODE": mode, **settings}
        machine = Machine(proc=tmp_path / "proc", environ=environ)
        request = Request(machine=machine, devices=devices, options={"nvidia-smi": {"period_s": period_s}})
        made.append(NvidiaSmi(request))
        return made[-1]

    yield make
    for sensor in made:
        sensor.close()


def _collect(groups, seconds, enough=None, period_s=0.05):
    """Read groups at a steady pace; rows by device, and the errors that came."""
    rows, errors = {group.info.device: [] for group in groups}, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for group in groups:
            try:
                rows[group.info.device] += group.read()
            except SensorError as error:
                errors.append(str(error))
        if enough and enough(rows, errors):
            break
        time.sleep(period_s)
    return rows, errors


def test_a_steady_stream_gives_nearly_every_sample_with_the_right_watts(smi):
    sensor = smi()
    assert sensor.probe().usable
    (group,) = sensor.groups()
    rows, errors = _collect([group], 10, lambda rows, errors: len(rows["gpu.0"]) >= 25)
    rows = rows["gpu.0"]
    assert errors == [] and {row.values[0] for row in rows} == {100.5}
    times = [row.read_ns for row in rows]
    assert times == sorted(set(times))
    # At 100 ms, from the first to the last sample: at least 95 % of those that fit in.
    assert len(rows) - 1 >= 0.95 * (times[-1] - times[0]) / (NS / 10) - 1
    for before, after in pairwise(rows):
        assert after.late_ns == after.read_ns
        assert after.early_ns == before.read_ns or after.read_ns - before.read_ns >= 3 * NS // 10
    assert group.trouble is None


def test_channels_and_their_first_values(smi):
    sensor = smi()
    report = sensor.probe()
    (group,) = sensor.groups()
    power, average = group.info.channels[:2]
    assert (power.name, power.unit, power.domain, power.pedigree) == (
        "gpu.0.power",
        "W",
        Domain.GPU,
        Pedigree.INTEGRATED,
    )
    assert average.name == "gpu.0.power_average" and average.mirror_of == "gpu.0.power"
    assert (power.facts.period_s, power.facts.window_s, power.facts.max_w) == (0.1, 0.025, 250.0)
    assert report.samples == {
        "gpu.0.power": 100.5,
        "gpu.0.power_average": 100.25,
        "gpu.0.utilisation": 50.0,
        "gpu.0.memory_utilisation": 20.0,
        "gpu.0.memory": 512 * 2**20,
        "gpu.0.temperature": 44.0,
        "gpu.0.clock_sm": 1410.0,
        "gpu.0.clock_memory": 1215.0,
        "gpu.0.throttle": 4.0,
        "gpu.0.power_limit": 240.0,
    }
    (device,) = report.devices
    assert (device["uuid"], device["memory_bytes"], device["driver"]) == ("GPU-0000", 40960 * 2**20, "535.54.03")


def test_a_calibration_is_used_and_one_that_is_too_old_is_reported(smi, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    save(Stored("GPU-0000", 1.04, 2.0, 1.0, 0.8, time.time()))
    (group,) = smi().groups()
    assert (group.info.channels[0].facts.gain, group.info.channels[0].facts.bias_w) == (1.04, 2.0)
    save(Stored("GPU-0000", 1.04, 2.0, 1.0, 0.8, time.time() - 400 * 86_400))
    sensor = smi()
    assert "more than a year old" in sensor.probe().missing["gpu.0.calibration"]
    assert not sensor.groups()[0].info.channels[0].facts.calibrated


def test_missing_words_are_missing_channels_with_the_word(smi):
    report = smi("words").probe()
    assert report.usable and report.missing == {"gpu.0.power_average": "N/A", "gpu.0.utilisation": "N/A"}
    assert "gpu.0.utilisation" not in report.samples


def test_a_driver_without_the_newer_fields(smi):
    sensor = smi("old")
    report = sensor.probe()
    assert report.samples["gpu.0.power"] == 100.0
    assert "no such field" in report.missing["gpu.0.power_average"]
    (group,) = sensor.groups()
    rows, _ = _collect([group], 10, lambda rows, errors: rows["gpu.0"])
    assert rows["gpu.0"][0].values[0] == 100.0


def test_a_driver_that_has_renamed_a_field(smi):
    sensor = smi("new")
    assert sensor.probe().samples["gpu.0.throttle"] == 4.0
    (group,) = sensor.groups()
    rows, _ = _collect([group], 10, lambda rows, errors: rows["gpu.0"])
    names = [channel.name for channel in group.info.channels]
    assert rows["gpu.0"][0].values[names.index("gpu.0.throttle")] == 4.0


def test_several_gpus_share_one_child(smi, tmp_path):
    sensor = smi(FAKE_GPUS="4")
    groups = sensor.groups()
    rows, _ = _collect(groups, 10, lambda rows, errors: all(len(r) >= 5 for r in rows.values()))
    assert [rows[f"gpu.{n}"][0].values[0] for n in range(4)] == [100.5, 110.5, 120.5, 130.5]
    looping = [line for line in (tmp_path / "log").read_text().splitlines() if "--loop-ms=100" in line]
    assert len(looping) == 1


@pytest.mark.parametrize(
    ("mask", "devices"), [("2,0", {"gpu.2", "gpu.0"}), ("GPU-0001", {"gpu.1"}), ("MIG-aaaa", {"gpu.0"})]
)
def test_a_mask_limits_what_is_asked_for(smi, tmp_path, mask, devices):
    sensor = smi(FAKE_GPUS="3", devices=mask)
    groups = sensor.groups()
    rows, _ = _collect(groups, 10, lambda rows, errors: all(rows.values()))
    assert set(rows) == devices
    assert "--id=GPU-" in (tmp_path / "log").read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", State.UNUSABLE, "version mismatch"),
        ("Failed to initialize NVML: Insufficient Permissions", State.UNUSABLE, "Insufficient Permissions"),
        ("No devices were found", State.ABSENT, "finds no GPU"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", State.UNUSABLE, "driver"),
        ("Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error", State.UNUSABLE, "device handle"),
        ("something else altogether", State.UNUSABLE, "something else"),
    ],
)
def test_each_failure_has_its_own_message(smi, text, state, words):
    report = smi("text", FAKE_TEXT=text).probe()
    assert report.state is state and words in report.why


def test_no_nvidia_smi_and_no_power(smi, tmp_path):
    report = NvidiaSmi(Request(machine=Machine(environ={"PATH": str(tmp_path / "none")}))).probe()
    assert report.state is State.ABSENT and "nvidia-smi was not found" in report.why
    report = smi("jetson").probe()
    assert report.state is State.UNUSABLE and "Not Supported" in report.why


def test_a_hanging_probe_is_given_up(smi, monkeypatch):
    monkeypatch.setattr("everywatt.sensors.nvidia.nvidia_smi.PROBE_TIMEOUT_S", 0.3)
    report = smi("hang").probe()
    assert report.state is State.UNUSABLE and "did not respond within 0.3 s" in report.why


def test_a_run_waits_for_a_hanging_probe_no_longer_than_it_says(smi, tmp_path):
    given = smi("hang").request
    impatient = NvidiaSmi(replace(given, patience_s=0.25)).probe()
    assert impatient.state is State.UNUSABLE and "did not respond within 0.25 s" in impatient.why
    assert impatient.cure is not None and "patience_s" in impatient.cure
    patient = NvidiaSmi(replace(given, patience_s=60.0, options={"nvidia-smi": {"patience_s": 0.3}})).probe()
    assert "did not respond within 0.3 s" in patient.why


@pytest.mark.parametrize("mode", ["hangs-looping", "trap"])
def test_a_child_that_does_not_loop_is_replaced_by_polls(smi, mode, monkeypatch):
    """A child that hangs, and the one that answers every 5 s whatever it is asked for."""
    monkeypatch.setattr(nvidia_smi, "SILENCE_S", 0.5)
    sensor = smi(mode)
    (group,) = sensor.groups()
    rows, _ = _collect([group], 20, lambda rows, errors: group.trouble and len(rows["gpu.0"]) >= 6)
    assert group.trouble
    assert {row.values[0] for row in rows["gpu.0"]} == {100.5}
    assert "requested to print every 0.1 s, printed no line for" in group.trouble
    assert group.trouble.startswith("nvidia-smi --loop-ms=100, ")
    assert "single polls are used instead" in group.trouble


def test_a_spelling_that_is_rejected_is_replaced_by_polls(smi, monkeypatch):
    monkeypatch.setattr(child, "BACKOFF_S", 0.05)
    sensor = smi("rejects")
    (group,) = sensor.groups()
    rows, _ = _collect([group], 10, lambda rows, errors: len(rows["gpu.0"]) >= 3)
    assert len(rows["gpu.0"]) >= 3 and group.trouble
    assert "exited; single polls are used instead" in group.trouble


def test_lines_that_are_held_back_get_their_own_times(smi):
    sensor = smi("buffered")
    (group,) = sensor.groups()
    rows, _ = _collect([group], 10, lambda rows, errors: len(rows["gpu.0"]) >= 16)
    steps = [(after.read_ns - before.read_ns) / NS for before, after in pairwise(rows["gpu.0"])]
    assert len(steps) >= 15 and max(steps[:7]) < 0.5 and 0.05 < sum(steps[:7]) / 7 < 0.2
    assert group.trouble is None


def test_lines_that_are_held_back_without_times_are_a_period_apart(smi):
    sensor = smi("buffered-blind")
    (group,) = sensor.groups()
    rows, _ = _collect([group], 15, lambda rows, errors: len(rows["gpu.0"]) >= 8)
    steps = [(after.read_ns - before.read_ns) / NS for before, after in pairwise(rows["gpu.0"][:8])]
    assert steps == pytest.approx([0.1] * 7)


def test_a_child_that_dies_is_started_again(smi, tmp_path, monkeypatch):
    monkeypatch.setattr(child, "BACKOFF_S", 0.05)
    sensor = smi("dies")
    (group,) = sensor.groups()
    rows, _ = _collect([group], 25, lambda rows, errors: len(rows["gpu.0"]) >= 15)
    assert len(rows["gpu.0"]) >= 15
    assert (tmp_path / "log").read_text().count("--loop-ms=100") >= 5
    assert group.trouble is None


def test_a_lost_gpu_is_a_gap_of_its_own_and_comes_back(smi, tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia_smi, "LOST_RETRY_S", 1.0)
    sensor = smi(FAKE_GPUS="2")
    groups = sensor.groups()
    _collect(groups, 10, lambda rows, errors: all(rows.values()))
    (tmp_path / "lost").touch()
    _, errors = _collect(groups, 10, lambda rows, errors: errors)
    assert errors[0].startswith("GPU 1: Unable to determine the device handle")
    rows, _ = _collect(groups, 10, lambda rows, errors: len(rows["gpu.0"]) >= 3)
    assert len(rows["gpu.0"]) >= 3
    (tmp_path / "lost").unlink()
    rows, _ = _collect(groups, 10, lambda rows, errors: rows["gpu.1"])
    assert rows["gpu.1"][0].values[0] == 110.5


def test_a_gpu_that_is_lost_from_the_start_leaves_the_other(smi, tmp_path):
    for bus_id in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / bus_id).mkdir(parents=True)
    (tmp_path / "lost").touch()
    sensor = smi(FAKE_GPUS="2")
    report = sensor.probe()
    assert report.usable and "device handle" in report.missing["gpu"]
    assert [group.info.device for group in sensor.groups()] == ["gpu.0"]


def test_a_power_value_that_turns_into_a_word_is_a_gap(smi, tmp_path):
    sensor = smi()
    (group,) = sensor.groups()
    _collect([group], 10, lambda rows, errors: rows["gpu.0"])
    (tmp_path / "err").touch()
    _, errors = _collect([group], 10, lambda rows, errors: errors)
    assert errors[0] == "GPU 0: nvidia-smi reports 'Unknown Error' for power.draw.instant."


def test_the_child_ends_with_the_last_group(smi, tmp_path):
    sensor = smi(FAKE_GPUS="2")
    groups = sensor.groups()
    _collect(groups, 10, lambda rows, errors: all(rows.values()))
    pid = _last_pid(tmp_path)
    groups[0].close()
    assert Path(f"/proc/{pid}").exists()
    groups[1].close()
    assert not Path(f"/proc/{pid}").exists()


HOST = """
import time
from everywatt.sensors.base import Request
from everywatt.sensors.nvidia.gpu_select import parse_listing
from everywatt.sensors.nvidia.nvidia_smi import NvidiaSmi
sensor = NvidiaSmi(Request())
(group,) = sensor.groups()
while not group.read():
    time.sleep(0.02)
print("reads", flush=True)
time.sleep(60)
"""


def test_the_child_does_not_outlive_a_parent_that_was_killed(smi, tmp_path):
    smi()  # writes the fake
    source = str(Path(nvidia_smi.__file__).parents[3])
    environ = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": source}
    host = subprocess.Popen([sys.executable, "-c", HOST], env=environ, stdout=subprocess.PIPE, text=True)
    assert host.stdout.readline() == "reads\n"
    pid = _last_pid(tmp_path)
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    host.stdout.close()
    until(lambda: not _runs(pid), "the end of the child")


def _last_pid(folder):
    """The process that the fake's last start was."""
    return int((folder / "log").read_text().splitlines()[-1].split()[0])


def _runs(pid):
    """True while a process lives; one that waits to be reaped by init does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_mig_devices_out_of_the_list():
    lines = [
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)",
        "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef)",
        "  MIG 2g.10gb     Device  1: (UUID: MIG-cba663e8)",
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-e86cb44c)",
    ]
    found = [(gpu.index, gpu.uuid, [mig.uuid for mig in gpu.migs]) for gpu in parse_listing(lines)]
    assert found == [(0, "GPU-5d5ba0d6", ["MIG-c6d4f1ef", "MIG-cba663e8"]), (1, "GPU-e86cb44c", [])]
