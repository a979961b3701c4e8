"""Are intervals honest, and how narrow are they? On recorded cards against a meter, and on simulated sensors.

    python benchmarks/honesty.py

Coverage is the share of random windows whose 95 % interval holds the meter; width the median half-width in percent;
score the interval score (width plus 40 times what sticks out) in percent of the energy, the lower the better.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import recordings
import sensor_lab as lab
from everywatt.energy.publications import publications
from everywatt.energy.tolerance import tolerance

LENGTHS_S = (0.25, 1.0, 3.0)


@dataclass(frozen=True)
class Score:
    """One row of a table, in percent."""

    coverage: float
    width: float
    score: float
    p95_error: float

    @classmethod
    def of(cls, joules, half, truth) -> Score:
        error = joules - truth
        return cls(
            100 * float(np.mean(np.abs(error) <= half)),
            100 * float(np.median(half / joules)),
            lab.winkler(error, half, truth),
            100 * float(np.percentile(np.abs(error) / truth, 95)),
        )

    def __str__(self) -> str:
        return f"{self.coverage:6.1f} {self.width:6.1f} {self.score:7.1f}"


def calibrated(sensors=recordings.SENSORS, count: int = 1000, seed: int = 1) -> dict[tuple[str, float], Score]:
    """Gain and offset from a card's step recording, intervals on its square recording."""
    rows = {}
    for card in dict.fromkeys(name.split("_")[0] for name in sensors):
        found = recordings.calibrate(recordings.load(sensors[f"{card}_step"]))
        square = recordings.load(sensors[f"{card}_square"])
        for length in LENGTHS_S:
            a, b = square.windows(length, count, seed)
            sampled = square.curve.energy(a, b)
            joules = found.gain * sampled.joules + found.bias_w * length
            half = np.hypot(found.gain * sampled.half_width_j, found.tolerance.half_width_j(joules, length))
            rows[f"{card}_square", length] = Score.of(joules, half, square.truth(a, b))
    return rows


def uncalibrated(sensors=recordings.SENSORS, count: int = 1000, seed: int = 1) -> dict[tuple[str, float], Score]:
    """Gain and offset unknown, the card and its family left out of the table."""
    rows = {}
    for name, sensor in sensors.items():
        found = recordings.load(sensor)
        unknown = tolerance(limit_w=sensor.limit_w, exclude=(sensor.family,))
        for length in LENGTHS_S:
            a, b = found.windows(length, count, seed)
            sampled = found.curve.energy(a, b)
            half = np.hypot(sampled.half_width_j, unknown.half_width_j(sampled.joules, length))
            rows[name, length] = Score.of(sampled.joules, half, found.truth(a, b))
    return rows


def naive(sensors=recordings.SENSORS, count: int = 1000, seed: int = 1) -> dict[tuple[str, float], dict[str, Score]]:
    """What is done elsewhere: trapezoid over poll times or a backward hold, with fixed percentages."""
    rows = {}
    for name, sensor in sensors.items():
        found = recordings.load(sensor)
        steps = (found.values[1:] + found.values[:-1]) / 2 * np.diff(found.t_s)
        total = np.concatenate(([0.0], np.cumsum(steps)))
        hold = _backward_hold(found)
        for length in LENGTHS_S:
            a, b = found.windows(length, count, seed)
            truth, held = found.truth(a, b), hold(b) - hold(a)
            trapezoid = np.interp(b, found.t_s, total) - np.interp(a, found.t_s, total)
            rows[name, length] = {
                "trapezoid ±5 %": Score.of(trapezoid, 0.05 * trapezoid, truth),
                "backward hold ±5 %": Score.of(held, 0.05 * held, truth),
                "backward hold ±(5 % + 4 % limit)": Score.of(held, 0.05 * held + 0.04 * sensor.limit_w * length, truth),
            }
    return rows


def _backward_hold(found: recordings.Recording):
    """Cumulative energy where each reading covers the time since the publication before."""
    seen = publications(found.t_s, found.values)
    total = np.concatenate(([0.0], np.cumsum(seen.values[1:] * np.diff(seen.t_s))))
    return lambda t: np.interp(t, seen.t_s, total)


def synthetic(runs: int = 4, windows: int = 8, seed: int = 5, sensors=None) -> dict[tuple[str, str], lab.Trial]:
    """Every load by every sensor; windows of 0.05 to 60 s."""
    rng = np.random.default_rng(seed)
    rows = {}
    for load in lab.LOADS:
        for sensor in sensors or lab.SENSORS:
            trials = [lab.try_out(load, sensor, windows, rng, sensors) for _ in range(runs)]
            rows[load, sensor] = pool(trials)
    return rows


def pool(trials) -> lab.Trial:
    fields = ("truth", "joules", "half", "length")
    return lab.Trial(*(np.concatenate([getattr(trial, field) for trial in trials]) for field in fields))


def score(trial: lab.Trial) -> Score:
    return Score.of(trial.joules, trial.half, trial.truth)


def _print_recordings() -> None:
    print(f"{'Gain and offset from the step recording':58}coverage  width   score")
    for (name, length), row in calibrated().items():
        print(f"  {name:16} {length:5.2f} s {'':32}  {row}")
    print("  3090 by its 1 s average (power.draw)")
    for (name, length), row in calibrated(recordings.AVERAGES).items():
        print(f"  {name:16} {length:5.2f} s {'':32}  {row}")
    print(f"\n{'Not calibrated, card and family left out':58}coverage  width   score")
    every = recordings.SENSORS
    others = naive(every)
    for key, row in uncalibrated(every).items():
        print(f"  {key[0]:16} {key[1]:5.2f} s {'everywatt':32}  {row}")
        for method, other in others[key].items():
            print(f"  {'':16} {'':7} {method:32}  {other}")


def _print_synthetic() -> None:
    rows = synthetic(runs=6)
    for title, pick in (("load", 0), ("sensor", 1)):
        print(f"\n{'Simulated, by ' + title:58}coverage  width   score p95 error")
        for name in dict.fromkeys(key[pick] for key in rows):
            row = score(pool([trial for key, trial in rows.items() if key[pick] == name]))
            print(f"  {name:58}{row} {row.p95_error:8.2f}")


def main(quick: bool = False) -> None:
    """Print the tables: real recordings, and simulated sensors unless `quick`."""
    _print_recordings()
    if not quick:
        _print_synthetic()


if __name__ == "__main__":
    main()
