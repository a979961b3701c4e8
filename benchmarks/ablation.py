"""What each part of the estimate is worth: the interval score with the part left out, over the score of the whole.

    python -m benchmarks ablation

A part stays if leaving it out worsens the score of some recording or simulated load by more than 2 %. The score is the
width of the 95 % interval plus 40 times what sticks out of it, in percent of the truth: lower is better.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import product_lab as product
from everywatt.api import run
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import NS, Anchor
from everywatt.core.spans import Span
from everywatt.energy import building, counter_ends, loading, sampling, ticks, unseen_power, utilisation
from everywatt.sensors.nvidia import gpu_known
from everywatt.tape.importing import Recording, write_tape

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


def _part_time_counter() -> product.Sensor:
    facts = gpu_known.facts_for("NVIDIA A100-PCIE-40GB", "525.60", 500.0, "counter")
    return product.Sensor(counter=True, seen_s=0.02, facts=replace(facts, gain_pct=0.0, offset_w=0.0))


def _shifts(rng: np.random.Generator) -> product.Load:
    """Busy pulses in turns of a second or two, so that there are many beginnings and ends."""
    turns = np.cumsum(rng.uniform(0.8, 2.0, 80)) + 3.0
    pulsed = product.pulses(0.02, 0.0473, 100.0, 330.0, always_busy=True)(rng)
    on = np.searchsorted(turns, pulsed.t_s) % 2 == 1
    at = np.concatenate((pulsed.t_s, turns))
    order = np.argsort(at, kind="stable")
    watts = np.concatenate((np.where(on, pulsed.watts, 60.0), np.where(np.arange(len(turns)) % 2 == 0, 100.0, 60.0)))
    busy = np.concatenate((on.astype(np.float64), (np.arange(len(turns)) % 2 == 0).astype(np.float64)))
    return product.Load(at[order], watts[order], busy[order])


def read_inline(made: product.Load, out: Path, rng: np.random.Generator) -> product.Recorded:
    """A package's counter that moves every millisecond, read ten times a second and where spans start and end."""

    def at(t_s: float) -> int:
        return product.ORIGIN_NS + round(t_s * NS)

    def read(t_s: float) -> Row:
        counted_j = float(made.energy(-4.0, np.floor(t_s * 1000) / 1000))
        return Row(at(t_s), at(t_s - 0.001), at(t_s), (round(counted_j / QUANTUM_J) * QUANTUM_J,))

    facts = Facts(period_s=0.001, quantum=QUANTUM_J, max_w=400.0, gain_pct=0.0, offset_w=0.0)
    channel = Channel("cpu.0.package.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, facts=facts)
    rows = [read(t) for t in np.arange(rng.uniform(0, 0.1), product.SECONDS, 0.1)]
    spans = [(start, start + length) for length in LENGTHS_S for start in rng.uniform(1.0, 54.0, 10).tolist()]
    edges = [read(t) for t in sorted(edge for pair in spans for edge in pair)]
    recording = Recording(GroupInfo("rapl", "rapl", "cpu.0", (channel,), inline=True), rows, 0.1, edges)
    anchors = [Anchor(one, product.UTC_NS + one, one, 0) for one in (at(0.0), at(product.SECONDS))]
    opened = [Span(f"s{n}", f"step {n}", at(a), at(b), None) for n, (a, b) in enumerate(spans)]
    write_tape(out, [recording], meta={"host": {"name": "box"}}, anchors=anchors, spans=opened)
    recorded = run.load(out)
    begin_s = (recorded.tapes[0].extent_ns()[0] - at(0.0)) / NS
    return product.Recorded(recorded, lambda a, b: made.energy(a + begin_s, b + begin_s), (1.0, 59.0))


# Loads that one rule was made for, each with the sensors on which it shows. Only some phases need the rule, so there
# are many.
RULES: dict[str, tuple[product.Sensor, Callable[..., product.Load]]] = {
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
    "gauge 20 of 100 ms, pulses 10 of 99.5 ms": (
        product.Sensor(window_s=0.02),
        product.pulses(0.010, 0.0995, 90.0, 330.0),
    ),
    "averages of 100 ms, 30 ms of jitter, telegraph 400 ms": (
        product.Sensor(jitter_s=0.03),
        product.LOADS["telegraph 400 ms"],
    ),
    "averages of 100 ms, 30 ms of jitter, pulses 47 ms": (
        product.Sensor(jitter_s=0.03),
        product.LOADS["decode pulses"],
    ),
    "averages of 100 ms, 30 ms of jitter, wide pulses 47 ms": (
        product.Sensor(jitter_s=0.03),
        product.pulses(0.012, 0.047, 45.0, 330.0, always_busy=True),
    ),
    "gauge 80 of 100 ms, rare spikes at many phases": (SENSORS["gauge 80 of 100 ms"], product.spikes),
    "gauge 20 of 20 ms, 5 W of noise, never idle": (
        product.Sensor(period_s=0.02, window_s=0.02, noise_w=5.0),
        lambda rng: product.Load(np.array([-5.0]), np.array([300.0]), np.array([1.0])),
    ),
    "gauge 20 of 100 ms, pulses in turns": (product.Sensor(window_s=0.02), _shifts),
    "gauge 20 of 100 ms, pulses 2 of 150 ms": (
        product.Sensor(window_s=0.02),
        product.pulses(0.002, 0.1513, 60.0, 300.0),
    ),
    "gauge 100 of 100 ms, pulses 2 of 150 ms": (product.Sensor(), product.pulses(0.002, 0.1513, 60.0, 300.0)),
    "no utilisation, gauge 100 of 100 ms, square 0.7 s": (
        product.Sensor(utilisation=False),
        product.LOADS["square 0.7 s"],
    ),
    "no utilisation, gauge 25 of 100 ms, telegraph 60 ms": (
        product.Sensor(window_s=0.025, utilisation=False),
        product.LOADS["telegraph 60 ms"],
    ),
    "no utilisation, gauge 25 of 100 ms, on/off 50 ms": (
        product.Sensor(window_s=0.025, utilisation=False),
        product.LOADS["on/off 50 ms"],
    ),
    "no utilisation, counter 100 ms, on/off 100 ms": (
        product.Sensor(counter=True, utilisation=False),
        product.LOADS["on/off 100 ms"],
    ),
    "unknown window, 25 of 100 ms, telegraph 60 ms": (
        product.Sensor(window_s=0.025, known=False, model="Z"),
        product.LOADS["telegraph 60 ms"],
    ),
    "unknown window, 25 of 100 ms, square 0.7 s": (
        product.Sensor(window_s=0.025, known=False, model="Z"),
        product.LOADS["square 0.7 s"],
    ),
    "unknown window, 80 of 100 ms, on/off 100 ms": (
        product.Sensor(window_s=0.08, known=False, model="Z"),
        product.LOADS["on/off 100 ms"],
    ),
    "unknown window, 1 s every 100 ms, square 7 s": (
        product.Sensor(window_s=1.0, known=False, model="Z"),
        product.pulses(3.5, 7.0, 90.0, 330.0),
    ),
    "unknown window, 1 s every 100 ms, telegraph 400 ms": (
        product.Sensor(window_s=1.0, known=False, model="Z"),
        product.LOADS["telegraph 400 ms"],
    ),
    "unknown window, 100 ms every 50 ms, square 0.7 s": (
        product.Sensor(period_s=0.05, window_s=0.1, known=False, model="Z"),
        product.LOADS["square 0.7 s"],
    ),
    "counter of a part-time sensor, telegraph 60 ms": (_part_time_counter(), product.LOADS["telegraph 60 ms"]),
    "counter of a part-time sensor, on/off 100 ms": (_part_time_counter(), product.LOADS["on/off 100 ms"]),
    "stall of 2 s, gauge 100 of 100 ms, telegraph 400 ms": (
        product.Sensor(stall_s=2.0, noise_w=0.5, quantum=0.01),
        product.LOADS["telegraph 400 ms"],
    ),
    "stall of 2 s, whole watts, gauge 100 of 100 ms, telegraph 400 ms": (
        product.Sensor(stall_s=2.0, noise_w=0.3, quantum=1.0),
        product.LOADS["telegraph 400 ms"],
    ),
    "stall of 2 s, whole watts, gauge 25 of 100 ms, square 0.7 s": (
        product.Sensor(stall_s=2.0, noise_w=0.3, window_s=0.025, quantum=1.0),
        product.LOADS["square 0.7 s"],
    ),
    "stall of 2 s, whole watts, gauge 100 of 100 ms, telegraph 60 ms": (
        product.Sensor(stall_s=2.0, noise_w=0.3, quantum=1.0),
        product.LOADS["telegraph 60 ms"],
    ),
    "stall of 2 s, gauge 100 of 100 ms, square 0.7 s": (
        product.Sensor(stall_s=2.0, quantum=0.01),
        product.LOADS["square 0.7 s"],
    ),
    "stall of 2 s, counter 100 ms, telegraph 400 ms": (
        product.Sensor(counter=True, stall_s=2.0),
        product.LOADS["telegraph 400 ms"],
    ),
}
READ_INLINE = ("steady", "square 0.7 s", "telegraph 400 ms")
QUANTUM_J = 2.0**-14
PHASES, FEW_PHASES = 40, 8


def _zeros(y: Any, *rest: Any) -> Any:
    return np.zeros(len(y))


def _no_watts(*of: Any) -> float:
    return 0.0


def _as_read(read: Any, early: Any, late: Any) -> Any:
    return early + (late - early) // 2, (late - early) / 2.0


def _quarter(t: Any, mean: Any, *rest: Any) -> Any:
    return mean, np.zeros(len(mean)), np.abs(mean) / 4


def _none(y: Any, *rest: Any) -> Any:
    return np.zeros(len(y), dtype=bool)


# What is put in the place of each part.
PARTS: dict[str, list[tuple[Any, str, Any]]] = {
    "steps": [(sampling, "place_steps", lambda cells: cells)],
    "restlessness": [(sampling, "restlessness", _zeros)],
    "averages that stray": [(sampling, "_left_out_j", _zeros)],
    "publication times": [(building, "retime", _as_read)],
    "places of inline reads": [(loading, "placed", lambda raw, which: raw)],
    "halves of what is not seen": [(sampling, "_halves", lambda cells, *rest: cells)],
    "levels": [(sampling, "toggling", lambda witness, end_s: None)],
    "no utilisation": [(sampling, "unwitnessed", lambda witness, y: False)],
    "accounts without utilisation": [(sampling, "unwitnessed_w", _quarter)],
    "recurrence": [(sampling, "recurring", lambda y, sd: np.zeros(len(y)))],
    "pulses": [(utilisation, "PULSED", 0.0), (utilisation, "PULSED_APART", 0.0)],
    "pulses one by one": [(utilisation, "PULSED_APART", utilisation.PULSED)],
    "pulses of one percent": [(utilisation, "NOTHING", utilisation.IDLE)],
    "edges of pulses": [(utilisation, "PULSE_EDGE", 1.0)],
    "longer pulses are blunted less": [(utilisation, "UNRESOLVED", 1.0)],
    "what a sensor sees of pulses": [(unseen_power, "PULSE_SEEN", 1.0)],
    "busy devices swing": [(sampling, "BUSY_SWING", 0.0)],
    "readings that follow": [(unseen_power, "FOLLOWED", 1e9)],
    "the other explanation": [(sampling, "otherwise", lambda mean, *rest: (mean, np.zeros(len(mean))))],
    "jitter of beats": [(sampling, "OFTEN", 0.0)],
    "beginnings and ends": [(unseen_power, "BEGINS", 0.0)],
    "hidden levels": [(unseen_power, "BLURRED", np.inf)],
    "lone levels": [(unseen_power, "LONE", 0.0)],
    "slow loads' shape": [(utilisation, "STEADY_SHARE", 2.0)],
    "length of beats": [(unseen_power, "RESOLVED", 1e9)],
    "slow beats": [(unseen_power, "WANDERS", np.inf)],
    "turns of slow beats": [(unseen_power, "FULL_BEAT", 0.0)],
    "readings that differ by jitter alone": [(sampling, "in_step", _none)],
    "utilisation that stands still": [(unseen_power, "STILL_SHARE", -1.0)],
    "idle floor": [(sampling, "rest_w", _no_watts), (unseen_power, "rest_w", _no_watts)]
    + [(module, "idle_w", _no_watts) for module in (loading, counter_ends)],
    "noise": [(unseen_power, "NOISE_RANGE", 0.0)],
    "noise of busy devices": [(unseen_power, "QUIET", 0.0)],
    "feigned swing": [(sampling, "APPARENT_SDS", 0.0)],
    "moving average": [(sampling, "DEEPEST", -1)],
    "ripple of averages": [(sampling, "STEPS_A_WINDOW", 1e9)],
    "toggling in averages": [(sampling, "TOGGLING_S", 0.0)],
    "loads that averages hide": [(sampling, "_averaged_out", lambda y, *rest: np.zeros(len(y)))],
    "error of averaging windows": [(sampling, "WINDOW_KNOWN", 0.0)],
    "unknown windows": [(ticks, "possible_windows", lambda y, period, *rest: (period,))],
    "four fifths of a period": [(ticks, "MOST", 1.0)],
    "steps of unknown windows": [(ticks, "CLEAR_ODDS", np.inf)],
    "toggling of unknown windows": [(ticks, "FEWEST_TOGGLING", np.inf)],
    "windows longer than a short period": [(ticks, "SHORT_AVERAGE_S", 0.0)],
    "the likelier of two windows": [(ticks, "SOME_CALM", np.inf)],
    "counters of part-time sensors": [(ticks, "part_time", lambda channel: False)],
    "stalls of gauges": [(building, "old_readings", lambda at, value, *rest: _none(value))],
    "stalls by how busy": [(building, "_as_busy", lambda at, alike, witness, first, *rest: _none(first))],
    "stalls by utilisation": [(building, "_unfollowed", lambda at, still, witness, first, *rest: _none(first))],
    "stalls of counters": [(building, "stalled", _none)],
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


def questions(scratch: Path, phases: int = PHASES, seed: int = 3) -> dict[str, list[product.Recorded]]:
    """Recorded cards by their readings and averages, every load by every sensor, and what a rule was made for."""
    found: dict[str, list[product.Recorded]] = {}
    for name in sorted(path.parent.name for path in DATA.glob("*/meter.csv.gz")):
        card = product.RECORDED_CARDS[name.split("_")[0]]
        found[name] = [product.imported(DATA / name, scratch / f"{name}.tape", card=card)]
        found[f"{name}, not named"] = [product.imported(DATA / name, scratch / f"{name}-unnamed.tape", card="Z9")]
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
    return found | by_rule(scratch, phases)


def by_rule(scratch: Path, phases: int) -> dict[str, list[product.Recorded]]:
    """The loads of single rules, by many phases of the sensor."""
    found: dict[str, list[product.Recorded]] = {name: [] for name in RULES}
    for name, (sensor, load) in RULES.items():
        for seed in range(phases):
            rng = np.random.default_rng(seed)
            out = scratch / f"{name} {seed}.tape"
            found[name].append(product.record(load(rng), sensor, out, rng))
    for load_name in READ_INLINE:
        name = f"counter read inline, {load_name}"
        for seed in range(phases):
            rng = np.random.default_rng(seed)
            made = read_inline(product.LOADS[load_name](rng), scratch / f"{name} {seed}.tape", rng)
            found.setdefault(name, []).append(made)
    return found


def scores(asked: dict[str, list[product.Recorded]], count: int) -> dict[str, float]:
    """The interval score of random windows, by question and length of window."""
    found = {}
    for name, recorded in asked.items():
        # Opened again: a run keeps what it found in its ticks.
        recordings = [replace(one, run=run.load(one.run.tapes[0].path)) for one in recorded]
        for length in LENGTHS_S:
            rng = np.random.default_rng(5)
            each = max(count // len(recordings), 3)
            first, *others = (
                product.by_spans(one, length) if one.run.spans else product.by_windows(one, length, each, rng)
                for one in recordings
            )
            found[f"{name}, {length:g} s"] = sum(others, start=first).score_pct
    return found


def main(quick: bool = False) -> None:
    """Print a table: each part, where leaving it out costs most, and how much; `quick` asks for less."""
    count = 15 if quick else 60
    with tempfile.TemporaryDirectory() as folder:
        asked = questions(Path(folder), FEW_PHASES if quick else PHASES)
        whole = scores(asked, count)
        print("| left out | worst for | score before | after | mean ratio |\n|---|---|---|---|---|")
        for part in PARTS:
            with without(part):
                other = scores(asked, count)
            ratio = {name: other[name] / max(whole[name], 1e-9) for name in whole if whole[name] > 0.1}
            worst = max(ratio, key=lambda name: ratio[name])
            mean = float(np.exp(np.mean(np.log(list(ratio.values())))))
            verdict = "" if ratio[worst] > WORTH else " (remove)"
            print(f"| {part}{verdict} | {worst} | {whole[worst]:.1f} | {other[worst]:.1f} | {mean:.2f} |", flush=True)


if __name__ == "__main__":
    main(len(sys.argv) > 1)
