"""Do intervals hold the truth on every path by which a user gets a figure? Asked of the product, not of its parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parent / "data"
HONEST = 0.93
# The least that a true 95 % may show in a few hundred windows, which share their load and so count as fewer.
HONEST_FEW = 0.90


def simulated(product, tmp_path, load, sensor, *, runs=3, **options):
    """Recordings of one load by one sensor, with random phases."""
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        made = product.LOADS[load](rng)
        yield product.record(made, sensor, tmp_path / f"{seed}.tape", rng, **options), rng


def asked(product, tmp_path, load, sensor, lengths=(0.25, 1.0, 5.0), count=40, **options):
    """Answers of `Run.energy` by length of window."""
    found = {}
    for recorded, rng in simulated(product, tmp_path, load, sensor, **options):
        for length in lengths:
            answers = product.by_windows(recorded, length, count, rng)
            found[length] = found[length] + answers if length in found else answers
    return found


@pytest.mark.parametrize("name", ["A100_step", "A100_square", "RTX3090_step", "RTX3090_square"])
def test_a_log_that_does_not_name_its_card(product, tmp_path, name):
    recorded = product.imported(DATA / name, tmp_path / "run.tape")
    for length in (0.25, 1.0, 3.0):
        answers = product.by_windows(recorded, length, 300, np.random.default_rng(1))
        assert answers.holds() >= HONEST, (length, answers)


def test_a_card_whose_averaging_window_is_unknown(product, tmp_path):
    sensor = product.SENSORS["gauge 25 of 100 ms, window unknown"]
    for load in ("telegraph 60 ms", "telegraph 400 ms"):
        folder = tmp_path / load
        folder.mkdir()
        for length, answers in asked(product, folder, load, sensor).items():
            assert answers.holds() >= HONEST_FEW, (load, length, answers)


@pytest.mark.parametrize("load", ["square 0.7 s", "telegraph 60 ms", "bursts 7 of 33 ms"])
def test_spans_of_a_ledger_hold_as_those_that_are_asked_alone(product, tmp_path, load):
    sensor = product.SENSORS["gauge 25 of 100 ms"]
    spans = product.spans_of(0.5, 0.73)
    for recorded, _ in simulated(product, tmp_path, load, sensor, spans=spans):
        alone, together = product.by_spans(recorded), product.by_ledger(recorded)
        assert alone.holds() >= HONEST_FEW, (load, alone)
        assert together.holds() >= HONEST_FEW, (load, together)
