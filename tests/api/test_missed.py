"""Broken sensors are told once, with the cure; absent ones and those with a stand-in are not."""

import json
import subprocess
import sys

import pytest

from everywatt.api.meter import missed
from everywatt.core.jsonio import plain
from everywatt.sensors.base import Report, State


def told(*reports: Report) -> list[str]:
    return missed([plain(report) for report in reports])


def test_an_absent_sensor_is_told_where_it_was_asked_for_by_name():
    reports = [plain(Report(name, State.ABSENT, f"no {name}.")) for name in ("rapl", "nvml")]
    assert missed(reports, ["rapl"]) == ["rapl is not measured: no rapl."]
    assert missed(reports, None) == []


@pytest.mark.parametrize(
    ("reports", "sentences"),
    [
        ([Report("rapl", State.ABSENT, "none")], []),
        ([Report("rapl", State.USABLE)], []),
        (
            [
                Report("rapl", State.UNUSABLE, "root only.", "doctor --fix"),
                Report("perf", State.UNUSABLE, "forbidden."),
            ],
            ["rapl is not measured: root only. Try: doctor --fix"],
        ),
        (
            [Report("modelled", State.UNUSABLE, "turned off", "leave out --no-estimate")],
            ["modelled is not measured: turned off. Try: leave out --no-estimate"],
        ),
        ([Report("rapl", State.UNUSABLE, "root only."), Report("perf", State.USABLE)], []),
        ([Report("nvml", State.UNUSABLE, "mismatch."), Report("nvidia-smi", State.USABLE)], []),
        ([Report("nvidia-smi", State.UNUSABLE, "hangs.")], ["nvidia-smi is not measured: hangs."]),
        (
            [Report("nvml", State.USABLE, devices=[{"device": "gpu.0"}, {"device": "gpu.1", "error": "lost"}])],
            ["gpu.1 is not measured: lost"],
        ),
    ],
)
def test_sentences(reports, sentences) -> None:
    assert told(*reports) == sentences


@pytest.mark.parametrize(("better", "instead"), [("jetson", "tegrastats"), ("amdsmi", "rocm-smi")])
def test_every_stand_in_counts(better, instead) -> None:
    broken = Report(better, State.UNUSABLE, "broken.")
    assert told(broken, Report(instead, State.USABLE)) == []
    assert told(broken, Report(instead, State.UNUSABLE, "too.")) == [f"{better} is not measured: broken."]


def test_a_run_beside_a_lost_gpu_says_so(sim_machine, tmp_path) -> None:
    lab = sim_machine(gpus=["constant:100W", "constant:60W"], sensor=["gpu.1.lost_at=1us"])
    command = [sys.executable, "-m", "everywatt", "run", "--json=out.json", "--", "sleep", "0.3"]
    done = subprocess.run(command, cwd=tmp_path, env=lab.environment(), capture_output=True, text=True, timeout=240)
    warnings = json.loads((tmp_path / "out.json").read_text())["quality"]["warnings"]
    assert any("gpu.1 is not measured" in warning and "lost" in warning for warning in warnings)
    assert "gpu.1 is not measured" in done.stderr


def test_a_mask_that_names_a_card_that_is_not_there_is_told_once():
    note = "CUDA_VISIBLE_DEVICES=1,7: '7' is not a device here, so CUDA ignores it and the rest of the list."
    missing = {"CUDA_VISIBLE_DEVICES": note}
    assert told(Report("nvml", State.USABLE, missing=missing)) == [note]
    absent = [Report(name, State.ABSENT, note, missing=missing) for name in ("nvml", "nvidia-smi")]
    assert told(*absent) == [note]
    assert told(Report("nvml", State.ABSENT, "CUDA_VISIBLE_DEVICES='' selects none of 2 GPUs.")) == [], "as asked for"
