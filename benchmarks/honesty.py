"""Are intervals honest, and how narrow are they? On recorded cards against a meter, and on simulated sensors.

    make bench NAME=honesty [DATA=FOLDER]

First by path: what a user gets from the product, for real recordings that are imported (FOLDER holds one folder for
each, laid out as tests/energy/data) and for simulated loads. Then by the curves behind it.

Coverage is the share of random windows whose 95 % interval holds the meter; width the median half-width in percent;
score the interval score (width plus 40 times what sticks out) in percent of the energy, the lower the better.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import product_lab as product
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


def by_path(
    data: Path = recordings.DATA,
    count: int = 300,
    runs: int = 3,
    seed: int = 1,
    sensors=tuple(product.SENSORS),
    loads=tuple(product.LOADS),
) -> dict[str, product.Answers]:
    """What the product answers, by path: imports with and without the card's name, windows, spans, ledgers by span."""
    found: dict[str, product.Answers] = {}
    rng = np.random.default_rng(seed)

    def add(path: str, answers: product.Answers) -> None:
        found[path] = found[path] + answers if path in found else answers

    with tempfile.TemporaryDirectory() as scratch:
        for folder in sorted(path.parent for path in data.glob("*/meter.csv.gz")):
            card = product.RECORDED_CARDS.get(folder.name.split("_")[0], "")
            for path, options in (("named", {"card": card}), ("not named", {}), ("unknown card", {"card": "NVIDIA X"})):
                recorded = product.imported(folder, Path(scratch) / f"{folder.name}-{path}.tape", **options)
                for length in LENGTHS_S:
                    name = f"import, {path}: {folder.name} {length:g} s"
                    add(name, product.by_windows(recorded, length, count, rng))
        spans = product.spans_of(0.5, 0.73)
        for sensor in sensors:
            for load in loads:
                for run in range(runs):
                    out = Path(scratch) / f"{len(found)}-{run}-{rng.integers(1 << 40)}.tape"
                    recorded = product.record(product.LOADS[load](rng), product.SENSORS[sensor], out, rng, spans=spans)
                    for length in (0.25, 1.0, 5.0):
                        name = f"Run.energy: {sensor}, {load}, {length:g} s"
                        add(name, product.by_windows(recorded, length, count // runs, rng))
                    add(f"span: {sensor}, {load}", product.by_spans(recorded))
                    add(f"ledger by span: {sensor}, {load}", product.by_ledger(recorded))
    return found


def _print_paths(data: Path, count: int, runs: int) -> None:
    print(f"{'By path':72} {'n':>5}  hold at 50, 80, 95 % (95 % interval of the last)   width  score")
    for name, answers in by_path(data, count, runs).items():
        held = round(answers.holds() * len(answers))
        low, high = wilson(held, len(answers))
        levels = " ".join(f"{100 * answers.holds(level):5.1f}" for level in (0.5, 0.8, 0.95))
        interval = f"({100 * low:.0f} … {100 * high:.0f})"
        mark = "" if answers.holds() >= 0.93 else "  below 93 %"
        width = f"{answers.width_pct:7.2f} {answers.score_pct:7.1f}"
        print(f"{name:72} {len(answers):5}  {levels} {interval:>12} {width}{mark}")


def wilson(held: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share, by Wilson."""
    share = held / count
    middle, slack = share + z * z / (2 * count), z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return float((middle - slack) / (1 + z * z / count)), float((middle + slack) / (1 + z * z / count))


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
    """Print the tables: by path, real recordings, and simulated sensors unless `quick`."""
    _print_paths(common.data_folder() or recordings.DATA, *((90, 1) if quick else (300, 3)))
    _print_recordings()
    if not quick:
        _print_synthetic()


if __name__ == "__main__":
    main()
