"""Logs of nvidia-smi become runs; on real recordings the interval holds what an external meter saw."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from everywatt.api.run import load
from everywatt.core.errors import UsageError
from everywatt.tape.importing import import_files

DATA = Path(__file__).parents[1] / "energy" / "data"
SMI = """timestamp, index, name, power.draw [W], power.draw.instant [W], memory.used [MiB], utilization.gpu [%]
2026/06/24 10:26:34.000, 0, NVIDIA A, 39.32 W, [N/A], 214 MiB, 0 %
2026/06/24 10:26:34.010, 1, NVIDIA A, 50.00 W, [N/A], 1 MiB, [N/A]
2026/06/24 10:26:35.000, 0, NVIDIA A, 100.00 W, [N/A], 214 MiB, 5 %
2026/06/24 10:26:35.010, 1, NVIDIA A, [Unknown Error], [N/A], 1 MiB, [N/A]
timestamp, index, name, power.draw [W], power.draw.instant [W], memory.used [MiB], utilization.gpu [%]
2026/06/24 10:26:36.000, 0, NVIDIA A, 200.00 W, [N/A], 214 MiB, 9 %
"""


def test_two_cards_units_and_missing_words(tmp_path):
    (tmp_path / "smi.csv").write_text(SMI)
    run = load(import_files("nvidia-smi", [tmp_path / "smi.csv"], tmp_path / "s.tape"))
    names = {channel.name for group in run.tapes[0].groups for channel in group.info.channels}
    assert {"gpu.0.power", "gpu.0.memory", "gpu.0.utilisation", "gpu.1.power", "gpu.1.memory"} <= names
    frame = run.frame(["gpu.0.memory"], library="pandas")
    assert frame["value"].iloc[0] == 214 * 2**20
    assert run.devices()["gpu.0"]["power"]["max"] == 200.0


def test_what_is_not_a_log_is_refused(tmp_path):
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="no nvidia-smi rows"):
        import_files("nvidia-smi", [tmp_path / "no.csv"], tmp_path / "t.tape")
    assert not (tmp_path / "t.tape").exists()


@pytest.mark.parametrize(
    ("recording", "card", "limit_w"),
    [
        ("A100_step", "NVIDIA A100-PCIE-40GB", 250),
        ("A100_square", "NVIDIA A100-PCIE-40GB", 250),
        ("RTX3090_step", "NVIDIA GeForce RTX 3090", 350),
        ("RTX3090_square", "NVIDIA GeForce RTX 3090", 350),
    ],
)
def test_uncalibrated_intervals_hold_the_meter(tmp_path, recording, card, limit_w):
    log = next((DATA / recording).glob("nvidia_smi*"))
    options = {"card": card, "driver": "535", "limit_w": limit_w, "zone_h": 1}
    run = load(import_files("nvidia-smi", [log], tmp_path / "r.tape", options))
    with gzip.open(DATA / recording / "meter.csv.gz", "rt") as file:
        meter = np.loadtxt(file, delimiter=",", skiprows=1)
    joules = np.concatenate(([0.0], np.cumsum(np.diff(meter[:, 0]) * (meter[1:, 1] + meter[:-1, 1]) / 2)))
    origin = run.started.timestamp()
    random = np.random.default_rng(3)
    for length, widest in ((0.25, 0.25), (1.0, 0.22), (3.0, 0.18)):
        held, widths = [], []
        for start in random.uniform(meter[0, 0] + 0.3, meter[-1, 0] - length - 0.3, 60):
            energy = run.energy(between=(start - origin, start - origin + length))
            truth = np.diff(np.interp([start, start + length], meter[:, 0], joules))[0]
            held.append(energy.low <= truth <= energy.high)
            widths.append(energy.half_width / energy.joules)
        assert np.mean(held) >= 0.9, (recording, length, np.mean(held))
        assert np.median(widths) <= widest * 1.05, (recording, length, np.median(widths))


def test_a_log_without_timestamps_is_placed_by_its_period(tmp_path):
    """As `nvidia-smi --query-gpu=power.draw --format=csv -lms 100` writes it: 3 s at 50 W, 3 s at 150 W."""
    log = tmp_path / "log.csv"
    log.write_text("power.draw [W]\n" + "50.00 W\n" * 30 + "150.00 W\n" * 30)
    with pytest.raises(UsageError, match="no timestamps") as error:
        import_files("nvidia-smi", [log], tmp_path / "none.tape")
    assert error.value.cure == "--period 100ms"
    options = {"period_s": 0.1, "start": "2026-06-24T10:00:00"}
    run = load(import_files("nvidia-smi", [log], tmp_path / "log.tape", options))
    assert run.started.isoformat().startswith("2026-06-24T10:00:00")
    assert run.duration_s == pytest.approx(5.9, abs=0.2)
    assert run.energy().value == pytest.approx(600, rel=0.05)
    assert run.meta["times"] == "counted, not logged"


def test_cards_take_turns_in_a_log_without_timestamps(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("power.draw [W]\n" + "50.00 W\n200.00 W\n" * 40)
    options = {"period_s": 0.1, "cards": 2}
    run = load(import_files("nvidia-smi", [log], tmp_path / "log.tape", options))
    assert [run.devices()[name]["power"]["max"] for name in ("gpu.0", "gpu.1")] == [50.0, 200.0]
    assert run.duration_s == pytest.approx(3.9, abs=0.2)


def test_a_log_that_was_gone_on_with_after_a_month(tmp_path):
    rows = [
        f"2026/{month:02d}/01 10:00:{tenth // 10:02d}.{tenth % 10}00, {100 + tenth % 7}.00 W"
        for month in (1, 2)
        for tenth in range(100)
    ]
    (tmp_path / "log.csv").write_text("timestamp, power.draw [W]\n" + "\n".join(rows) + "\n")
    tracemalloc.start()
    try:
        run = load(import_files("nvidia-smi", [tmp_path / "log.csv"], tmp_path / "x.tape"))
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert run.energy().coverage < 1e-4 and run.duration_s == pytest.approx(31 * 86400, rel=1e-3)
