"""How well power is learnt from use: on a real server's counters, from chips to the wall, without any sensor.

    python -m benchmarks models --data FOLDER      (make bench NAME=models DATA=FOLDER)

FOLDER/power_models/xeon_e5_2667v3_rapl.csv is 77 minutes of one server with two Xeon E5-2667 v3, from the model
database of Kepler (github.com/sustainable-computing-io/kepler-model-db). Every other CSV file beside it with the same
columns is taken for other rows of that machine: a model of the first is tested on them.
FOLDER/evidence/rapl_vs_wall_minipc has runs of a mini PC beside a plug, power_models/specpower_servers.csv is described
in `fit_modelled`. What is not there is left out, with a sentence. Plain non-negative least squares on the same rows
stands beside every figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fit_modelled
from benchmarks.common import OUT, data_folder, say, verdict
from everywatt.core.errors import EverywattError
from everywatt.models.applying import evaluate
from everywatt.models.fitting import fit
from everywatt.models.reading import read_table
from everywatt.models.table import Table, concatenate, join, windows
from everywatt.models.validation import Fold, folds_of, mape

# target: (the other power column, most MAPE on rows that are not in the table)
TARGETS = {"package_power": ("dram_power", 11.0), "dram_power": ("package_power", 4.0)}
COVERED = 0.85
HELD = 0.88
WALL_MOST = 5.0
SIMULATED_S = 150  # of load; ten minutes of it, with 3 % at most, are a test (tests/models/test_collect.py)
SIMULATED_MOST = 6.0
LATER = (0.3, 0.2, 0.1)  # of the rows: what follows, as in deployment
WORSE = "worse than NNLS"
SEEN_SERVERS = 0.93  # share of servers of a maker that was left out whose watts an interval of 95 % holds
WIDEST_PCT = {"server_tdp": 40.0, "server": 48.0, "guest": 94.0}  # half of that interval: TDP known, unknown, a guest
PLUG_LAG_S = 3.75  # the plug's clock is 2.5 to 5 s behind
HEADS = ["TARGET", "TESTED ON", "MODEL", "MAPE %", "NNLS %", "90 % HOLDS", "VERDICT"]


def main(quick: bool) -> None:
    """Print every figure with its target."""
    path = _given("POWER_TABLE", "power_models/xeon_e5_2667v3_rapl.csv")
    if path is not None:
        _xeon(path, quick)
    folder = data_folder()
    if folder is not None and (folder / "evidence" / "rapl_vs_wall_minipc").is_dir():
        _wall(sorted((folder / "evidence" / "rapl_vs_wall_minipc").iterdir()))
    path = _given("SPECPOWER_TABLE", "power_models/specpower_servers.csv")
    if path is not None:
        _specpower(path)
    if not quick:
        _sim(SIMULATED_S)


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
    row = [str(time_s), str(made["rows"]), best["model"], f"{best['blocked_pct']:.2f}", f"{SIMULATED_MOST:g}"]
    OUT.table(
        ["SIMULATED, S", "ROWS", "MODEL", "MAPE % IN BLOCKS", "AT MOST", "VERDICT"],
        [[*row, verdict(best["blocked_pct"], SIMULATED_MOST)]],
        right=(0, 1, 3, 4),
    )


def _xeon(path: Path, quick: bool) -> None:
    """The validations that `model fit` prints, whole fits without parts of the time, and other rows of the machine."""
    table = read_table(path)
    others = {one.name: rest for one in sorted(path.parent.glob("*.csv")) if one != path and (rest := _other(one))}
    every = np.arange(len(table))
    parts = [Fold("time", f"last {share:.0%}", every[round((1 - share) * len(every)) :]) for share in LATER]
    parts += [] if quick else [fold for fold in folds_of(["all"] * len(table), {}) if fold.rows[-1] < every[-1]]
    validations, rows = [], []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # the fits take most of the time
        fits = {target: pool.submit(fit, table, target, ignore=[other]) for target, (other, _) in TARGETS.items()}
        without = {target: [pool.submit(_without, table, target, part) for part in parts] for target in TARGETS}
        for target, (_, most) in TARGETS.items():
            found = fits[target].result()
            assert found.model is not None
            for one in found.shifts:
                figures = [f"{one.error_pct:.2f}", f"{one.baseline_pct:.2f}", f"{one.coverage:.1%}"]
                words = _words(one.error_pct, one.baseline_pct, one.coverage, HELD)
                validations.append([target, f"{one.kind}: {one.name}", one.model, *figures, words])
            rows += [row for made in without[target] if (row := made.result())]
            for name, rest in others.items():
                lacking = sorted({target, *found.model.needs} - set(rest.columns))
                if lacking:
                    say(f"{name} is left out: it has no {', '.join(lacking)}.")
                else:
                    rows.append(_row(found.model, table, rest, target, name, most))
    OUT.text("Validations of `model fit`, each with the model and the interval that were made without it:")
    OUT.table(HEADS, validations, right=(3, 4, 5))
    worse = sum(row[-1].startswith(WORSE) for row in validations)
    OUT.text(f"{worse} of {len(validations)} are {WORSE}.")
    OUT.text(
        "Whole fits without a part of the time (for loads and ranges the table above has to do), "
        "and other rows of the same machine:"
    )
    OUT.table(HEADS, rows, right=(3, 4, 5))


def _without(table: Table, target: str, fold: Fold) -> list[str]:
    """A whole fit without the rows of a fold, on these rows; empty where there is no relation."""
    kept, left = (table.take(rows) for rows in (np.setdiff1d(np.arange(len(table)), fold.rows), fold.rows))
    made = fit(kept, target, ignore=[TARGETS[target][0]]).model
    return [] if made is None else _row(made, kept, left, target, f"{fold.kind}: {fold.name}", float("inf"))


def _other(path: Path) -> Table | None:
    """Other rows of the machine; None, with a sentence, where a file has none."""
    try:
        return read_table(path)
    except EverywattError as error:
        say(f"{path.name} is left out: {error.message}")
        return None


def _row(model: Any, train: Table, test: Table, target: str, name: str, most: float) -> list[str]:
    tested = evaluate(model, test, target)
    squares = _least_squares(train, test, target)
    error, inside = tested["mape_pct"], tested["coverage"]
    words = _words(error, squares, inside, COVERED) + ("" if most == float("inf") else f", {verdict(error, most)}")
    return [target, name, str(model.about["model"]), f"{error:.2f}", f"{squares:.2f}", f"{inside:.1%}", words]


def _words(error: float, squares: float, inside: float, least: float) -> str:
    """The verdict on one test: beside least squares, and whether the interval holds what is asked."""
    held = "interval honest" if inside >= least else "interval not honest"
    return f"{WORSE if error > squares else 'not ' + WORSE}, {held}"


def _least_squares(train: Table, test: Table, target: str) -> float:
    """The error of plain non-negative least squares on every column that is no power."""
    from scipy.optimize import nnls

    names = [name for name in train.columns if "power" not in name and name in test.columns]
    x, z = (np.column_stack([np.nan_to_num(part.column(name)) for name in names]) for part in (train, test))
    size = np.maximum(np.abs(x).max(axis=0), 1e-300)
    weights = nnls(np.column_stack([np.ones(len(x)), x / size]), train.column(target))[0]
    truth = test.column(target)
    known = np.isfinite(truth) & (truth > 0)
    return mape((np.column_stack([np.ones(len(z)), z / size]) @ weights)[known], truth[known])


def _wall(folders: list[Path]) -> None:
    """Watts at the plug from those of the chip, windows of 60 s, each run left out in turn."""
    runs = []
    for folder in folders:
        chip, plug = read_table(folder / "rapl.csv"), read_table(folder / "wall.csv")
        plug = replace(plug, times_s=plug.times_s - PLUG_LAG_S, columns={"wall": plug.column("watts")})
        run = windows(join([chip, plug], 1.5), 60.0)
        runs.append(replace(run, loads=np.array([folder.name] * len(run))))
    rows, errors, inside = [], [], []
    for place, (folder, run) in enumerate(zip(folders, runs, strict=True)):
        made = fit(concatenate(runs[:place] + runs[place + 1 :]), "wall", features=["package_j"])
        assert made.model is not None
        tested = evaluate(made.model, run, "wall")
        errors += [tested["mape_pct"]] * tested["rows"]
        inside += [tested["coverage"]] * tested["rows"]
        name = str(made.model.about["model"])
        rows.append(
            [folder.name[:40], name, str(tested["rows"]), f"{tested['mape_pct']:.2f}", f"{tested['coverage']:.0%}"]
        )
    whole = float(np.mean(errors))
    rows.append(["all", "", str(len(errors)), f"{whole:.2f}", f"{np.mean(inside):.0%}"])
    OUT.text(f"Wall from package, 60 s windows, run left out: {whole:.2f} %, {verdict(whole, WALL_MOST)}")
    OUT.table(["RUN LEFT OUT", "MODEL", "WINDOWS", "MAPE %", "90 % HOLDS"], rows, right=(2, 3, 4))


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
    _specpower_intervals(fit_modelled.table(path))


def _specpower_intervals(servers: list[fit_modelled.Server]) -> None:
    """The shipped intervals of the no-sensor model on servers of makers that were left out."""
    shipped = json.loads(fit_modelled.FIT.read_text(encoding="utf-8"))["models"]
    rows = []
    for name, most in WIDEST_PCT.items():
        usable = [server for server in servers if name != "server_tdp" or server["facts"].tdp_w]
        widths = shipped[name]["widths"]["seen"]
        inside = float(fit_modelled.coverage(widths, *fit_modelled.errors(name, usable, "maker")).mean())
        half = 100 * float(fit_modelled.half_width(widths).mean())
        words = f"{verdict(SEEN_SERVERS / inside, 1.0)}, width {verdict(half, most)}"
        rows.append([name, str(len(usable)), f"{inside:.1%}", f"{half:.0f}", f"{most:.0f}", words])
    OUT.table(["NO SENSOR", "SERVERS", "95 % HOLDS", "± %", "AT MOST", "VERDICT"], rows, right=(1, 2, 3, 4))


def codecarbon_w(tdp_w: float) -> np.ndarray:
    """Watts at 0, 10 … 100 % load as CodeCarbon 3 models them: a tenth of the TDP at least, cubic in the load."""
    loads = np.array(fit_modelled.LOADS)
    return np.maximum(0.1 * tdp_w, tdp_w * (0.1 + 0.9 * loads**3))
