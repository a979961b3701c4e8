"""How far are everywatt's figures off? At least 300 windows a row, in virtual time: the real recorder, tape and energy.

    python -m benchmarks accuracy_virtual [--quick]

The machine of the tests: a package whose counter moves every millisecond, a card with a counter and one with a gauge of
100 ms, all with a truth in closed form. Windows of up to 1 s are spans of a program, one after another; longer ones are
asked of the same recording. A row has the 95th percentile of |error| in percent of the truth, with its 95 % interval
from the ranks of the windows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import HERE, OUT, as_block, keep_figure
from everywatt.core.clocks import NS

SPANS_S = (0.05, 0.25, 1.0)
LONG_S = 5.0
PAUSE_S = (0.12, 0.2)
DATA = HERE.parent / "tests" / "energy" / "data"
LOADS = {
    "constant": "constant:150W",
    "square 1.37 s": "square:100W,300W,1.37s",  # not in step with the cards, which publish every 100 ms
    "telegraph": "telegraph:100W,300W,0.4s,7",
    "meter 3090": f"replay:{DATA / 'RTX3090_square' / 'meter.csv.gz'}",
}
DEVICES = {"cpu": ("cpu.0", "RAPL counter, 1 ms"), "gpu": ("gpu.0", "NVML counter, 100 ms"),
           "board": ("gpu.1", "gauge, 100 of 100 ms")}  # fmt: skip


def percentile(errors: np.ndarray, share: float = 0.95) -> tuple[float, float, float]:
    """A percentile and its 95 % interval: the windows whose ranks a binomial count of 95 % reaches."""
    ranked, n = np.sort(errors), len(errors)
    slack = 1.96 * np.sqrt(n * share * (1 - share))
    low, high = (int(np.clip(np.floor(n * share + side * slack), 0, n - 1)) for side in (-1, 1))
    return float(np.percentile(ranked, 100 * share)), float(ranked[low]), float(ranked[high])


def errors_pct(load: str, count: int, seed: int = 1) -> dict[tuple[str, float], np.ndarray]:
    """|error| in percent of every window, by device and length."""
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from virtual_world import VirtualWorld

    import everywatt

    rng = np.random.default_rng(seed)
    curves = dict.fromkeys(DEVICES, LOADS[load])
    found: dict[tuple[str, float], list[float]] = {(name, s): [] for name in DEVICES for s in (*SPANS_S, LONG_S)}
    with tempfile.TemporaryDirectory() as folder, VirtualWorld(Path(folder), **curves) as world:
        with everywatt.Meter("work", sensors=["virtual"]) as meter:
            world.sleep(4.0)  # in which the recorder finds when the cards publish
            for length_s in rng.permutation(np.repeat(SPANS_S, count)):
                with meter.span(f"{length_s:g}"):
                    world.sleep(float(length_s))
                world.sleep(float(rng.uniform(*PAUSE_S)))
        run = everywatt.load(meter.run.path)
        (tape,) = run.tapes
        origin_ns, last_ns = tape.extent_ns()
        spans = [span for span in run.spans if span.name != "work" and span.end_ns is not None]
        starts = rng.uniform(4.0, (last_ns - origin_ns) / NS - LONG_S - 1.0, count)
        for name, (device, _) in DEVICES.items():
            for span in spans:
                truth = world.machine.energy_j(name, span.start_ns, span.end_ns)
                joules = run.energy(span, device=device).joules
                found[name, float(span.name)].append(100.0 if joules is None else 100 * abs(joules / truth - 1))
            for start_s in starts:
                edges = [origin_ns + round(at * NS) for at in (start_s, start_s + LONG_S)]
                joules = run.energy(between=(start_s, start_s + LONG_S), device=device).value
                found[name, LONG_S].append(100 * abs(joules / world.machine.energy_j(name, *edges) - 1))
    return {key: np.array(errors) for key, errors in found.items()}


def main(quick: bool = False) -> None:
    """Print the table."""
    by_load = {load: errors_pct(load, 20 if quick else 300) for load in LOADS}
    rows = []
    for name, (_, title) in DEVICES.items():
        for load, errors in by_load.items():
            for length_s in (*SPANS_S, LONG_S):
                own = errors[name, length_s]
                p95, low, high = percentile(own)
                ends = f"{low:.2f} … {high:.2f}"
                rows.append([title, load, f"{length_s:g}", str(len(own)), f"{p95:.2f}", ends])
    heads = ["sensor", "load", "window s", "n", "p95 of |error| %", "95 % interval"]
    OUT.table(heads, rows, right=(2, 3, 4, 5))
    what = "95th percentile of the error of everywatt in virtual time, with its 95 % interval"
    keep_figure("accuracy_virtual", "accuracy-table", as_block(heads, rows, (2, 3, 4, 5)), what, "simulator")
