"""The median is that of numpy, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.energy.medians import median, row_medians


@pytest.mark.parametrize("columns", [1, 2, 9, 10, 64, 65, 200])
def test_rows_have_the_median_of_numpy(columns):
    rows = np.random.default_rng(columns).normal(size=(50, columns))
    rows[3, columns // 2] = np.nan
    assert np.array_equal(row_medians(rows), np.median(rows, axis=1), equal_nan=True)


def test_of_all_values():
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median(np.array([4, 1])) == 2.5
    assert np.isnan(median([])) and np.isnan(median([1.0, np.nan, 2.0]))
