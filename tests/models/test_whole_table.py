"""Figures on the whole table of a real server, where it lies beside the clone (POWER_TABLE, benchmarks/models.py)."""

import os
from pathlib import Path

import pytest

from everywatt.models.applying import evaluate
from everywatt.models.fitting import fit
from everywatt.models.reading import read_table

TABLE = os.environ.get("POWER_TABLE", "")
pytestmark = pytest.mark.skipif(not Path(TABLE).is_file(), reason="POWER_TABLE does not name the table")
OTHER = {"package_power": "dram_power", "dram_power": "package_power"}


@pytest.mark.parametrize(
    ("target", "model", "most"), [("package_power", "both with past", 4.2), ("dram_power", "forest alone", 2.0)]
)
def test_blocks_of_time_left_out(target, model, most):
    found = fit(read_table(Path(TABLE)), target, ignore=[OTHER[target]], only=[model])
    assert found.scores[-1].candidate.name == model
    assert found.scores[-1].blocked_pct <= most
    assert 0.85 <= found.coverage <= 0.95


def test_the_last_third_of_the_time_with_loads_never_seen():
    table = read_table(Path(TABLE))
    cut = int(0.7 * len(table))
    early = fit(table.take(slice(0, cut)), "dram_power", ignore=["package_power"], only=["forest with past"])
    tested = evaluate(early.model, table.take(slice(cut, None)), "dram_power")
    assert tested["mape_pct"] <= 12 and tested["coverage"] >= 0.85
