"""Rows averaged over windows of time, and the wall learnt from the chip over such windows."""

import numpy as np
import pytest

from everywatt.core.errors import UsageError
from everywatt.models.applying import evaluate
from everywatt.models.fitting import fit
from everywatt.models.table import Table, windows


def test_windows_are_means_and_none_reaches_across_a_gap():
    times = np.concatenate([np.arange(0.0, 25.0), np.arange(100.0, 120.0)])
    made = windows(Table(times, {"w": times}), 10.0)
    assert made.times_s.tolist() == [10, 20, 30, 110, 120]
    assert made.columns["w"].tolist() == [4.5, 14.5, 22.0, 104.5, 114.5]


def test_a_window_that_is_mostly_empty_is_left_out():
    values = np.where(np.arange(30) % 10 < 6, np.nan, 1.0)
    assert np.isnan(windows(Table(np.arange(30.0), {"w": values}), 10.0).columns["w"]).all()
    with pytest.raises(UsageError, match="No window"):
        windows(Table(np.arange(4.0), {"w": np.ones(4)}), 60.0)


def test_the_wall_is_learnt_from_the_chip_of_other_runs():
    """5 W and 1.15 times the chip, a lagging plug; the run that was left out draws more than any other."""
    random = np.random.default_rng(5)
    runs = []
    for number, busy in enumerate((0.0, 4.0, 9.0, 15.0)):
        chip = 3 + busy * np.repeat(random.random(60), 10)
        wall = np.roll(5 + 1.15 * chip, 4) + 0.2 * random.standard_normal(600)
        runs.append(windows(Table(np.arange(600.0) + 1e4 * number, {"chip_power": chip, "wall": wall}), 30.0))
    from everywatt.models.table import concatenate

    model = fit(concatenate(runs[:3]), "wall", features=["chip_power"]).model
    tested = evaluate(model, runs[3], "wall")
    assert tested["mape_pct"] <= 5.0 and tested["coverage"] >= 0.85
