"""Figures on the whole table of a real server, where it lies beside the clone (POWER_TABLE, benchmarks/models.py)."""

import os
from pathlib import Path

import pytest

from everywatt.models.applying import evaluate
from everywatt.models.exploring import effects
from everywatt.models.fitting import fit
from everywatt.models.reading import read_table

TABLE = os.environ.get("POWER_TABLE", "")
pytestmark = pytest.mark.skipif(not Path(TABLE).is_file(), reason="POWER_TABLE does not name the table")
OTHER = {"package_power": "dram_power", "dram_power": "package_power"}


@pytest.mark.parametrize(("target", "blocks", "load"), [("package_power", 8.0, 16.0), ("dram_power", 4.0, 8.0)])
def test_validations(target, blocks, load):
    found = fit(read_table(Path(TABLE)), target, ignore=[OTHER[target]])
    assert found.chosen.blocked_pct <= blocks and found.chosen.worst("load")[0] <= load
    squares = found.scores[1]
    assert squares.candidate.name == "least squares"
    for kind in ("time", "load", "range"):
        # Memory's last 30 % have 18 times the cache misses of the rest: a form that saturates is 9.7 % off there, a
        # line that goes on without bound 8.6 % (and 139 % where it is wrong).
        slack = 1.15 if (target, kind) == ("dram_power", "time") else 1.0
        assert found.chosen.worst(kind)[0] <= slack * squares.worst(kind)[0]
        held = [one for one in found.shifts if one.kind == kind]
        assert sum(one.coverage * one.rows for one in held) / sum(one.rows for one in held) >= 0.88
    assert min(one.swing_w for one in effects(found.model)[1]) >= 0


@pytest.mark.parametrize(("target", "most"), [("package_power", 11.0), ("dram_power", 12.0)])
def test_the_last_third_of_the_time_with_loads_never_seen(target, most):
    table = read_table(Path(TABLE))
    cut = int(0.7 * len(table))
    early = fit(table.take(slice(0, cut)), target, ignore=[OTHER[target]])
    tested = evaluate(early.model, table.take(slice(cut, None)), target)
    assert tested["mape_pct"] <= most and tested["coverage"] >= 0.85
