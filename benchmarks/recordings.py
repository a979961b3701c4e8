"""The recorded cards of tests/energy/data: readings of nvidia-smi beside an external meter."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

import numpy as np

from everywatt.energy.publications import publications
from everywatt.energy.sampling import GaugeCurve
from everywatt.energy.tolerance import Calibration, fit
from everywatt.energy.unseen_power import Witness

DATA = Path(__file__).resolve().parent.parent / "tests" / "energy" / "data"
LOCAL = timezone(timedelta(hours=1))


@dataclass(frozen=True)
class Sensor:
    """Which column of a recording, its averaging window, the board's limit, and its name in the table of gains."""

    recording: str
    column: str
    window_s: float
    limit_w: float
    family: str


SENSORS = {
    "A100_step": Sensor("A100_step", "power.draw", 0.025, 250, "A100"),
    "A100_square": Sensor("A100_square", "power.draw", 0.025, 250, "A100"),
    "RTX3090_step": Sensor("RTX3090_step", "power.draw.instant", 0.1, 350, "3090"),
    "RTX3090_square": Sensor("RTX3090_square", "power.draw.instant", 0.1, 350, "3090"),
}
AVERAGES = {
    "RTX3090_step": Sensor("RTX3090_step", "power.draw", 1.05, 350, "3090"),
    "RTX3090_square": Sensor("RTX3090_square", "power.draw", 1.05, 350, "3090"),
}


def polls(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Unix times and numeric columns of a log of nvidia-smi; a value that is no number is NaN."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.reader(file, skipinitialspace=True))
    names = [name.split(" [")[0] for name in rows[0]]
    full = [row for row in rows[1:] if len(row) == len(names)]
    when = [datetime.strptime(row[0], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=LOCAL).timestamp() for row in full]
    columns = {name: np.array([_number(row[i]) for row in full]) for i, name in enumerate(names) if i}
    return np.array(when), columns


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


@dataclass(frozen=True)
class Recording:
    """A sensor's curve and the meter's truth over the time that both cover."""

    sensor: Sensor
    t_s: np.ndarray
    values: np.ndarray
    curve: GaugeCurve
    meter_t: np.ndarray
    meter_j: np.ndarray

    def truth(self, a, b):
        return np.interp(b, self.meter_t, self.meter_j) - np.interp(a, self.meter_t, self.meter_j)

    def windows(self, length: float, count: int, seed: int):
        """Random windows of one length."""
        low, high = self.meter_t[0] + 0.01, self.meter_t[-1] - 0.01 - length
        start = np.random.default_rng(seed).uniform(low, high, count)
        return start, start + length


@cache
def load(sensor: Sensor) -> Recording:
    """A recording with its curve; kept, because reading the meter is slow."""
    folder = DATA / sensor.recording
    t, columns = polls(folder / "nvidia_smi.csv.gz")
    with gzip.open(folder / "meter.csv.gz", "rt") as file:
        meter = np.loadtxt(file, delimiter=",", skiprows=1)
    steps = (meter[1:, 1] + meter[:-1, 1]) / 2 * np.diff(meter[:, 0])
    values = columns[sensor.column]
    found = publications(t, values)
    curve = GaugeCurve(
        found.t_s,
        found.values,
        period_s=found.period_s,
        window_s=sensor.window_s,
        early_s=found.early_s,
        late_s=found.late_s,
        quantum_w=0.01,
        witness=Witness.of_percent(t, columns["utilization.gpu"]),
    )
    return Recording(sensor, t, values, curve, meter[:, 0], np.concatenate(([0.0], np.cumsum(steps))))


def marks(recording: str) -> np.ndarray:
    return np.loadtxt(DATA / recording / "load_marks.csv", skiprows=1)


def calibrate(recording: Recording) -> Calibration:
    """Gain and bias of a card from 1 s windows of its recording."""
    a, b = recording.windows(1.0, 400, seed=7)
    found = recording.curve.energy(a, b)
    return fit(found.joules, recording.truth(a, b), np.diag((found.half_width_j / 1.96) ** 2))
