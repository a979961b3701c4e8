"""Figures on the whole table of a real server, where it lies beside the clone (POWER_TABLE, benchmarks/models.py)."""

import os
from pathlib import Path

import pytest

from everywatt.models.applying import effects
from everywatt.models.fitting import fit
from everywatt.models.reading import read_table

TABLE = os.environ.get("POWER_TABLE", "")
pytestmark = pytest.mark.skipif(not Path(TABLE).is_file(), reason="POWER_TABLE does not name the table")


@pytest.mark.parametrize(
    ("target", "other", "blocks", "load", "last"),
    [("package_power", "dram_power", 8.0, 16.0, 11.0), ("dram_power", "package_power", 4.0, 8.0, 8.6)],
)
def test_validations(target, other, blocks, load, last):
    found = fit(read_table(Path(TABLE)), target, ignore=[other])
    assert found.chosen.blocked_pct <= blocks and found.chosen.worst("load")[0] <= load
    squares = found.scores[1]
    assert squares.candidate.name == "least squares"
    for kind in ("time", "load", "range"):
        assert found.chosen.worst(kind)[0] <= squares.worst(kind)[0]
    # Every fold on its own, with the model and the interval that were made without it.
    assert min(one.coverage for one in found.shifts) >= 0.88
    # The last third of the time has loads that were never seen before.
    (later,) = [one for one in found.shifts if one.name == "last 30%"]
    assert later.error_pct <= last
    assert min(one.swing_w for one in effects(found.model)[1]) >= 0
