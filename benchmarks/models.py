"""How well power is learnt from use: on a real server's counters, on SPECpower's servers, on a simulated machine.

    POWER_TABLE=xeon_e5_2667v3_rapl.csv SPECPOWER_TABLE=specpower_servers.csv python -m benchmarks models

POWER_TABLE is 77 minutes of one server with two Xeon E5-2667 v3, from the model database of Kepler
(github.com/sustainable-computing-io/kepler-model-db); SPECPOWER_TABLE is described in `fit_modelled`. Each is left out,
with a sentence, where it is not there. The figures beside ours are of ordinary least squares and of a default gradient
boosting on the same rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fit_modelled
from benchmarks.common import OUT, data_folder, say, verdict
from everywatt.models.applying import evaluate
from everywatt.models.fitting import fit
from everywatt.models.reading import read_table
from everywatt.models.table import Table

# target: (the other power column, most in blocks, least squares, boosting, most on the rest, least squares, boosting)
TARGETS = {
    "package_power": ("dram_power", 4.2, 13.5, 5.3, 11.0, 187.0, 11.3),
    "dram_power": ("package_power", 2.0, 6.6, 2.4, 12.0, 12.3, 15.7),
}
FIRST = 0.7
COVERED = (0.85, 0.95)


def main(quick: bool) -> None:
    """Print every figure with its target."""
    path = _given("POWER_TABLE", "power_models/xeon_e5_2667v3_rapl.csv")
    if path is not None:
        _xeon(read_table(path), quick)
    path = _given("SPECPOWER_TABLE", "power_models/specpower_servers.csv")
    if path is not None:
        _specpower(path)
    _sim(30 if quick else 600)


def _given(variable: str, name: str) -> Path | None:
    """The table that the variable names, else the file of that name in the folder of recordings (--data)."""
    folder = data_folder()
    path = os.environ.get(variable) or (folder / name if folder is not None else "")
    if path and Path(path).is_file():
        return Path(path)
    say(f"{variable} does not name a table, and there is no {name} in DATA: its figures are left out.")
    return None


def _sim(time_s: int) -> None:
    """A simulated machine of 20 + 100 × (busy share)^1.5 W, learnt from `model collect` while nothing else runs."""
    ours = [sys.executable, "-m", "everywatt"]
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "EVERYWATT_HOME": home}

        def told(*words: str) -> dict[str, Any]:
            done = subprocess.run([*ours, *words], capture_output=True, text=True, check=True, env=environ)
            return dict(json.loads(done.stdout))

        sim = ("sim", "--package", "load:20W,120W,1.5", "--", *ours)
        made = told(*sim, "model", "collect", "--json", "--time", f"{time_s}s", "--kinds", "integer")
        out = str(Path(home) / "m.json")
        fitted = told(
            "model", "fit", made["path"], "--json", "--no-plot", "--target", "cpu.0.package.power", "--out", out
        )
    best = next(row for row in fitted["models"] if row["model"] == fitted["chosen"])
    most = 3.0 if time_s >= 600 else 6.0
    row = [str(time_s), str(made["rows"]), best["model"], f"{best['blocked_pct']:.2f}", f"{most:g}"]
    OUT.table(
        ["SIMULATED, S", "ROWS", "MODEL", "MAPE % IN BLOCKS", "AT MOST", "VERDICT"],
        [[*row, verdict(best["blocked_pct"], most)]],
        right=(0, 1, 3, 4),
    )


def _xeon(table: Table, quick: bool) -> None:
    only = ("linear", "both with past") if quick else None
    rows = []
    for target, (other, most, squares, boosting, most_rest, squares_rest, boosting_rest) in TARGETS.items():
        found = fit(table, target, ignore=[other], only=only)
        assert found.chosen is not None and found.coverage is not None
        for one in found.scores:
            OUT.text(f"{target}: {one.candidate.name}: blocks {one.blocked_pct:.2f} %, loads out {one.loads_pct:.2f} %")
        error = found.chosen.blocked_pct
        rows.append(
            _row(target, "five blocks", found.chosen.candidate.name, error, most, squares, boosting, found.coverage)
        )
        cut = int(FIRST * len(table))
        early = fit(table.take(slice(0, cut)), target, ignore=[other], choose="loads", only=only)
        assert early.model is not None
        tested = evaluate(early.model, table.take(slice(cut, None)), target)
        name = str(early.model.about["model"])
        error = tested["mape_pct"]
        rows.append(
            _row(target, "the last 30 %", name, error, most_rest, squares_rest, boosting_rest, tested["coverage"])
        )
    heads = ["TARGET", "TESTED ON", "MODEL", "MAPE %", "AT MOST", "LEAST SQUARES", "BOOSTING", "90 % HOLDS", "VERDICT"]
    OUT.table(heads, rows, right=(3, 4, 5, 6, 7))


def _row(
    target: str, on: str, model: str, error: float, most: float, squares: float, boosting: float, inside: float
) -> list[str]:
    fine = COVERED[0] <= inside <= (COVERED[1] if on == "five blocks" else 1.0)
    words = f"{verdict(error, most)}, interval {'honest' if fine else 'not honest'}"
    return [target, on, model, f"{error:.2f}", f"{most:g}", f"{squares:g}", f"{boosting:g}", f"{inside:.1%}", words]


def _specpower(path: Path) -> None:
    """The no-sensor model with whole makers left out, beside the cubic of the TDP that CodeCarbon falls back to."""
    servers = [server for server in fit_modelled.table(path) if server["facts"].tdp_w]
    ours, cubic = [], []
    for kept, left in fit_modelled.parts(servers, "maker"):
        ground = fit_modelled.ground(kept)
        known = ground["generation_years"].values()
        for server in left:
            ground["generation_years"].setdefault(
                server["generation"], min(max(server["year"], min(known)), max(known))
            )
        coefficients = fit_modelled.solve("server_tdp", kept, ground)
        for server in left:
            facts = server["facts"]
            watts = np.exp(coefficients @ fit_modelled.features("server_tdp", facts, ground))
            ours.append(np.abs(watts / server["watts"] - 1))
            cubic.append(np.abs(codecarbon_w(facts.tdp_w * facts.sockets) / server["watts"] - 1))
    rows = [
        [
            name,
            *(f"{100 * np.mean(errors, axis=0)[place]:.0f}" for place in (0, 1, 5, 10)),
            f"{100 * np.mean(errors):.1f}",
        ]
        for name, errors in (("everywatt, makers left out", ours), ("cubic of the TDP (CodeCarbon)", cubic))
    ]
    OUT.table(
        ["NO SENSOR", "IDLE %", "10 % LOAD", "50 % LOAD", "100 % LOAD", "ALL LOADS %"], rows, right=(1, 2, 3, 4, 5)
    )


def codecarbon_w(tdp_w: float) -> np.ndarray:
    """Watts at 0, 10 … 100 % load as CodeCarbon 3 models them: a tenth of the TDP at least, cubic in the load."""
    loads = np.array(fit_modelled.LOADS)
    return np.maximum(0.1 * tdp_w, tdp_w * (0.1 + 0.9 * loads**3))
