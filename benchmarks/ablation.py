"""What each part of the estimate is worth: the interval score with the part left out, over the score of the whole.

    python -m benchmarks ablation

A part stays if leaving it out worsens the score of some recording or simulated load by more than 2 %. The score is the
width of the 95 % interval plus 40 times what sticks out of it, in percent of the truth: lower is better.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import product_lab as product
from everywatt.energy import building, sampling, unseen_power

DATA = Path(__file__).resolve().parents[1] / "tests" / "energy" / "data"
WORTH = 1.02
LENGTHS_S = (0.25, 1.0, 5.0)
SENSORS = {
    "gauge 25 of 100 ms": product.Sensor(window_s=0.025),
    "gauge 100 of 100 ms": product.Sensor(),
    "gauge 1 s every 100 ms": product.Sensor(window_s=1.0),
    "gauge 1 s every 20 ms": product.Sensor(period_s=0.02, window_s=1.0),
    "gauge 10 of 20 ms": product.Sensor(period_s=0.02, window_s=0.01),
    "gauge 20 of 50 ms": product.Sensor(period_s=0.05, window_s=0.02),
    "gauge 20 of 100 ms, 15 ms of jitter": product.Sensor(window_s=0.02, jitter_s=0.015),
    "gauge 80 of 100 ms": product.Sensor(window_s=0.08),
    "counter 100 ms": product.Sensor(counter=True),
    "counter 100 ms, 20 ms late": product.Sensor(counter=True, bracket_s=0.02),
}
# Beside the loads of `product_lab`: a square that is not in step with any sensor, pulses that beat with those of 20 and
# 100 ms, and pauses (or pulses) that come one by one.
OWN_LOADS = {
    "square 1.3 s": product.pulses(0.65, 1.3, 90.0, 330.0),
    "busy pulses 19 ms": product.pulses(0.0075, 0.019, 150.0, 340.0, always_busy=True),
    "pulses 43 of 632 ms": product.pulses(0.043, 0.632, 90.0, 330.0),
    "busy pulses 95 ms": product.pulses(0.046, 0.0946, 60.0, 206.0, always_busy=True),
}
LOADS = (
    *("square 0.7 s", "telegraph 60 ms", "telegraph 400 ms", "decode pulses", "rare spikes", "bursts 7 of 33 ms"),
    *("on/off 100 ms", "on/off 50 ms"),
    *OWN_LOADS,
)


# Loads that one rule was made for, each with the sensor on which it shows: short pulses whose beats pass for a slow
# load, a load in step with a noisy sensor, one that beats with it in 20 s. Only some phases need the rule, so there are
# many.
MADE_FOR = {
    "gauge 80 of 100 ms, pulses 14 of 119 ms": (
        SENSORS["gauge 80 of 100 ms"],
        product.pulses(0.0143, 0.119, 66.0, 209.0),
    ),
    "gauge 20 of 100 ms, 5 W of noise, on/off 100 ms": (
        product.Sensor(window_s=0.02, noise_w=5.0),
        product.LOADS["on/off 100 ms"],
    ),
    "gauge 20 of 100 ms, on/off 99.5 ms": (
        product.Sensor(window_s=0.02),
        product.pulses(0.04975, 0.0995, 90.0, 330.0),
    ),
}
PHASES = 40


def _zeros(y: Any) -> Any:
    return np.zeros(len(y))


def _as_read(read: Any, early: Any, late: Any) -> Any:
    return early + (late - early) // 2, (late - early) / 2.0


# What is put in the place of each part.
PARTS: dict[str, list[tuple[Any, str, Any]]] = {
    "steps": [(sampling, "place_steps", lambda cells: cells)],
    "restlessness": [(sampling, "restlessness", _zeros)],
    "publication times": [(building, "retime", _as_read)],
    "moving average": [(sampling, "DEEPEST", -1)],
    "levels": [(sampling, "toggling", lambda witness, end_s: None)],
    "recurrence": [(sampling, "recurring", lambda y, sd: np.zeros(len(y)))],
    "pulses": [(unseen_power, "PULSED", 0.0), (unseen_power, "PULSED_APART", 0.0)],
    "pulses one by one": [(unseen_power, "PULSED_APART", unseen_power.PULSED)],
    "readings that follow": [(unseen_power, "FOLLOWED", 1e9)],
    "the other explanation": [(sampling, "otherwise", lambda mean, *rest: (mean, np.zeros(len(mean))))],
    "hidden levels": [(unseen_power, "BLURRED", np.inf)],
    "lone levels": [(unseen_power, "LONE", 0.0)],
    "slow loads' shape": [(unseen_power, "STEADY_SHARE", 2.0)],
    "length of beats": [(unseen_power, "RESOLVED", 1e9)],
    "feigned swing": [(sampling, "FEIGNED", 0.0)],
    "ripple of averages": [(sampling, "STEPS_A_WINDOW", 1e9)],
    "toggling in averages": [(sampling, "TOGGLING_S", 0.0)],
    "loads that averages hide": [(sampling, "_averaged_out", lambda y, *rest: np.zeros(len(y)))],
    "publications that stray": [(sampling, "OFTEN", 0.0)],
    "utilisation that stands still": [(unseen_power, "STILL_SHARE", -1.0)],
    "slow beats": [(unseen_power, "WANDERS", np.inf)],
    "noise": [(unseen_power, "NOISE_RANGE", 0.0)],
}


@contextmanager
def without(part: str | None) -> Iterator[None]:
    """The estimate without one of its parts."""
    swaps = [patch.object(module, name, other) for module, name, other in PARTS.get(part or "", [])]
    for swap in swaps:
        swap.start()
    try:
        yield
    finally:
        for swap in swaps:
            swap.stop()


def questions(scratch: Path, seed: int = 3) -> dict[str, list[product.Recorded]]:
    """Recorded cards by their readings and averages, every load by every sensor, and what a rule was made for."""
    found: dict[str, list[product.Recorded]] = {}
    for name in sorted(path.parent.name for path in DATA.glob("*/meter.csv.gz")):
        card = product.RECORDED_CARDS[name.split("_")[0]]
        found[name] = [product.imported(DATA / name, scratch / f"{name}.tape", card=card)]
        if name.startswith("RTX"):
            out = scratch / f"{name}-average.tape"
            options = {"card": card, "driver": "535.54.03", "column": "power.draw"}
            found[f"{name}, 1 s average"] = [product.imported(DATA / name, out, **options)]
    rng = np.random.default_rng(seed)
    loads = {**product.LOADS, **OWN_LOADS}
    for sensor, made in SENSORS.items():
        for load in LOADS:
            out = scratch / f"{len(found)}.tape"
            found[f"{sensor}, {load}"] = [product.record(loads[load](rng), made, out, rng)]
    return found | made_for(scratch)


def made_for(scratch: Path) -> dict[str, list[product.Recorded]]:
    """The loads of single rules, by many phases of the sensor."""
    found: dict[str, list[product.Recorded]] = {name: [] for name in MADE_FOR}
    for name, (sensor, load) in MADE_FOR.items():
        for seed in range(PHASES):
            rng = np.random.default_rng(seed)
            out = scratch / f"{name} {seed}.tape"
            found[name].append(product.record(load(rng), sensor, out, rng))
    return found


def scores(asked: dict[str, list[product.Recorded]], count: int) -> dict[str, float]:
    """The interval score of random windows, by question and length of window."""
    found = {}
    for name, recordings in asked.items():
        for length in LENGTHS_S:
            rng = np.random.default_rng(5)
            each = max(count // len(recordings), 3)
            first, *others = (product.by_windows(one, length, each, rng) for one in recordings)
            found[f"{name}, {length:g} s"] = sum(others, start=first).score_pct
    return found


def main(quick: bool = False) -> None:
    """Print a table: each part, where leaving it out costs most, and how much."""
    count = 15 if quick else 60
    with tempfile.TemporaryDirectory() as folder:
        whole = scores(questions(_inside(folder, "whole")), count)
        print("| left out | worst for | score before | after | mean ratio |\n|---|---|---|---|---|")
        for part in PARTS:
            with without(part):
                other = scores(questions(_inside(folder, part)), count)
            ratio = {name: other[name] / max(whole[name], 1e-9) for name in whole if whole[name] > 0.1}
            worst = max(ratio, key=lambda name: ratio[name])
            mean = float(np.exp(np.mean(np.log(list(ratio.values())))))
            verdict = "" if ratio[worst] > WORTH else " (remove)"
            print(f"| {part}{verdict} | {worst} | {whole[worst]:.1f} | {other[worst]:.1f} | {mean:.2f} |", flush=True)


def _inside(folder: str, name: str) -> Path:
    path = Path(folder) / name
    path.mkdir()
    return path


if __name__ == "__main__":
    main()
