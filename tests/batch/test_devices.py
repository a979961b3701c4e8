"""Which GPUs a batch may use, in simulated machines; a mask is never widened."""

import json
import os
import subprocess
import sys

import pytest

from everywatt.batch.devices import take_inventory
from everywatt.sensors.nvidia.gpu_select import parse_listing

PRINT = """
import json, os, sys
from everywatt.batch.devices import lay_out
from everywatt.core.errors import EverywattError
wanted = json.loads(sys.argv[1])
try:
    lanes = lay_out(os.environ, **wanted)
    print(json.dumps({"lanes": [[d.name, d.visible] for d in lanes.devices], "notes": lanes.notes}))
except EverywattError as error:
    print(json.dumps({"error": error.message, "code": error.exit_code, "cure": error.cure}))
"""


def lanes(inside, mask=None, **wanted):
    kept = {k: v for k, v in inside.items() if k != "CUDA_VISIBLE_DEVICES"} | (mask or {})
    done = subprocess.run(
        [sys.executable, "-c", PRINT, json.dumps(wanted)], env=kept, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_one_lane_for_each_gpu(sim_machine, count):
    found = lanes(sim_machine(gpus=["constant:50W"], replicate=count).environment())
    assert found["lanes"] == [[f"gpu.{i}", str(i)] for i in range(count)]


def test_per_gpu_and_cpu_workers(sim_machine):
    lab = sim_machine(gpus=["constant:50W"], replicate=2)
    found = lanes(lab.environment(), per_gpu=2, cpu_workers=1)
    names = [name for name, _ in found["lanes"]]
    assert names == ["gpu.0", "gpu.1", "gpu.0", "gpu.1", "cpu"]
    assert found["lanes"][-1] == ["cpu", ""]
    assert lanes(lab.environment(), gpus=[])["lanes"] == [["cpu", ""]]


def test_a_mask_of_indices_is_not_widened(sim_machine):
    lab = sim_machine(gpus=["constant:50W"], replicate=4)
    mask = {"CUDA_VISIBLE_DEVICES": "3,2"}
    assert lanes(lab.environment(), mask=mask)["lanes"] == [["gpu.3", "3"], ["gpu.2", "2"]]
    assert lanes(lab.environment(), mask=mask, gpus=["2"])["lanes"] == [["gpu.2", "2"]]
    refused = lanes(lab.environment(), mask=mask, gpus=["0"])
    assert refused["error"] == "GPU 0 is not among the GPUs visible under CUDA_VISIBLE_DEVICES=3,2: 3, 2."
    nothing = lanes(lab.environment(), mask={"CUDA_VISIBLE_DEVICES": ""})
    assert nothing["lanes"] == [["cpu", ""]] and "hides all 4 GPUs" in nothing["notes"][0]


def test_a_mask_of_uuids_stays_one(sim_machine):
    lab = sim_machine(gpus=["constant:50W"], replicate=3)
    listing = subprocess.run(["nvidia-smi", "-L"], env=lab.environment(), capture_output=True, text=True).stdout
    gpus = parse_listing(listing.split("\n"))
    assert len(gpus) == 3
    found = lanes(lab.environment(), mask={"CUDA_VISIBLE_DEVICES": gpus[1].uuid})
    assert found["lanes"] == [["gpu.1", gpus[1].uuid]]


def test_a_divided_gpu_gives_a_lane_for_each_part(sim_machine):
    lab = sim_machine(gpus=["constant:50W"], sensor=["mig=1g.5gb+3g.20gb"])
    found = lanes(lab.environment())["lanes"]
    assert [name for name, _ in found] == ["gpu.0", "gpu.0"]
    assert all(visible.startswith("MIG-") for _, visible in found)
    one = found[1][1]
    assert lanes(lab.environment(), mask={"CUDA_VISIBLE_DEVICES": one})["lanes"] == [["gpu.0", one]]


def test_denied_missing_and_none_are_three_messages(sim_machine, tmp_path):
    denied = sim_machine(gpus=["constant:50W"], sensor=["failing=nvmlDeviceGetUUID,fail_code=4"]).environment()
    refused = lanes(denied)
    assert refused["code"] == 3 and "no permission to use them (GPU 0: no permission)" in refused["error"]
    assert "group" in refused["cure"]
    none = lanes(sim_machine(packages=["constant:50W"]).environment())
    assert none["lanes"] == [["cpu", ""]] and none["notes"][0].startswith("No GPU is available")
    bare = {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    missing = lanes(bare)
    assert "NVML was not found, and nvidia-smi is not installed" in missing["notes"][0]
    asked = lanes(bare, gpus=["0"])
    assert asked["code"] == 2 and "not installed" in asked["error"]


def test_nvidia_smi_serves_where_nvml_does_not(tmp_path):
    def no_nvml():
        raise ModuleNotFoundError("pynvml")

    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA A30 (UUID: GPU-11)'\necho '  MIG 1g.6gb Device 0: (UUID: MIG-22)'\n"
    )
    tool.chmod(0o755)
    found = take_inventory({"PATH": f"{tmp_path}:/bin:/usr/bin"}, start=no_nvml)
    assert [(gpu.index, gpu.uuid, gpu.migs[0].uuid) for gpu in found.gpus] == [(0, "GPU-11", "MIG-22")]
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Insufficient Permissions'; exit 4\n")
    assert "no permission" in take_inventory({"PATH": f"{tmp_path}:/bin:/usr/bin"}, start=no_nvml).message
