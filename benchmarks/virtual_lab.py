"""Accuracy and honesty of sampling in virtual time: the real tracker and the real energy code, no clock to wait for.

    python benchmarks/virtual_lab.py [--windows 400] [--seed N] [--sensors gauge25,…] [--utilisation busy|100|none]

What the real-time benchmarks measure through the whole path is done here for each load and sensor in a fraction of a
second, so that rare windows show. A card's readings come from its curve in closed form; the tracker is woken late as a
scheduler does it. For each row: p95 of |error|, the bound, the share of 95 % intervals that hold, their median
half-width, the interval score, and the share of publications inside the tracker's brackets.

The bound is that of the real-time benchmark: the best of several rules, chosen in each run by the truth, which for a
load in step with the sensor is a matter of its phase. "one rule" is the best rule among those if one has to serve all
runs, as for anybody who does not know the truth.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent))

from accuracy_bound import rules_pct
from accuracy_lab import LOADS, SENSORS, Sensor
from common import Tables
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.energy.building import build_ticks
from everywatt.energy.ticks import Ticks
from everywatt.energy.unseen_power import Witness
from everywatt.recorder.phase_lock import Tracker
from everywatt.sim.curves import parse_curve
from everywatt.tape.columns import Columns

NS = 1_000_000_000
ORIGIN_NS = 1_000 * NS
COST_NS = 60_000
LATE_S = 0.00015
BUSY_WINDOW_S = 0.2
BUSY_LEVEL = 0.25
LENGTHS_S = (0.05, 0.25, 1.0, 5.0)
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Card:
    """A sensor in front of a curve: cumulative joules on a fine grid, publications, utilisation."""

    sensor: Sensor
    t: Array
    joules: Array
    published: Array
    values: Array
    busy: Array

    @classmethod
    def of(cls, load: str, sensor: Sensor, seconds: float, chance: random.Random, jitter_s: float = 0.0) -> Card:
        curve = parse_curve(LOADS[load])
        t = np.arange(-2.0, seconds + 3.0, 0.0005)
        joules = np.array([curve.energy_j(0.0, at) for at in t])
        phase = chance.random() * sensor.period_s
        count = int((seconds + 2.5) / sensor.period_s)
        published = phase - 1.0 + sensor.period_s * np.arange(count)
        published = published + np.array([chance.random() * jitter_s for _ in published])
        total = np.interp(published, t, joules)
        if sensor.counter:
            values = np.floor((total + 120_000) * 1000) / 1000
        else:
            values = np.round((total - np.interp(published - sensor.window_s, t, joules)) / sensor.window_s, 3)
        watts = np.gradient(joules, t)
        above = watts > watts.min() + BUSY_LEVEL * np.ptp(watts)
        busy = np.concatenate(([0.0], np.cumsum(above[:-1] * np.diff(t))))
        return cls(sensor, t, joules, published, values, busy)

    def energy(self, a: Array, b: Array) -> Array:
        """The truth."""
        return np.asarray(np.interp(b, self.t, self.joules) - np.interp(a, self.t, self.joules))

    def utilisation(self, at: float) -> float:
        """Percent, as the driver tells it at that time."""
        end = np.floor(at / BUSY_WINDOW_S) * BUSY_WINDOW_S
        busy = np.interp([end - BUSY_WINDOW_S, end], self.t, self.busy)
        return float(np.round(100 * (busy[1] - busy[0]) / BUSY_WINDOW_S))


def _info(sensor: Sensor) -> GroupInfo:
    kind = Kind.COUNTER if sensor.counter else Kind.GAUGE
    facts = Facts(period_s=sensor.period_s, window_s=sensor.window_s, quantum=0.001, max_w=500.0)
    name, unit = ("gpu.0.energy", "J") if sensor.counter else ("gpu.0.power", "W")
    return GroupInfo(
        "gpu.0", "nvml", "gpu.0", (Channel(name, unit, kind, "gpu.0", Domain.GPU, facts=facts),), tracked=True
    )


def follow(card: Card, seconds: float, chance: random.Random) -> tuple[list[Row], float]:
    """Rows that the recorder would write, and the share of publications inside their brackets."""
    tracker = Tracker(_info(card.sensor), round(card.sensor.read_s * NS), ORIGIN_NS)
    now, rows, inside = ORIGIN_NS, [], []
    while now < ORIGIN_NS + seconds * NS:
        due = tracker.due
        late = chance.expovariate(1 / LATE_S) + (chance.random() < 0.01) * chance.random() * 0.004
        before = max(now, (due.earliest_ns + due.latest_ns) // 2) + round(late * NS)
        looked = before + chance.randrange(COST_NS)
        k = int(np.searchsorted(card.published, (looked - ORIGIN_NS) / NS, side="right")) - 1
        now = before + COST_NS
        for row in tracker.feed(before, now, Row(now, now, now, (float(card.values[k]),))):
            rows.append(row)
            at = ORIGIN_NS + card.published[k] * NS
            inside.append(row.early_ns - 1 <= at <= row.late_ns + 1)
    settled = [held for row, held in zip(rows, inside, strict=True) if row.read_ns > ORIGIN_NS + NS]
    return rows, float(np.mean(settled))


def ticks_of(card: Card, rows: Sequence[Row], utilisation: str) -> Ticks:
    """Ticks as from a tape."""
    info = _info(card.sensor)
    channel = info.channels[0]
    read, early, late = (np.array([getattr(row, n) for row in rows]) for n in ("read_ns", "early_ns", "late_ns"))
    published = early + (late - early) // 2
    keep = np.concatenate(([True], published[1:] > np.maximum.accumulate(published)[:-1]))
    read, early, late, published = read[keep], early[keep], late[keep], published[keep]
    values = np.array([row.values[0] for row in rows])[keep]
    since = np.concatenate(([0], np.diff(published))).astype(np.float64)
    accumulated = values - values[0] if card.sensor.counter else np.cumsum(values * since)
    columns = Columns(
        read,
        early,
        late,
        published,
        np.zeros(len(read), dtype=bool),
        {channel.name: values},
        {channel.name: accumulated},
        {channel.name: published - published[0]},
    )
    ticks = build_ticks([columns], [], channel, max(card.sensor.read_s, card.sensor.period_s), tracked=True)
    assert ticks is not None
    if utilisation == "none":
        return ticks
    looks = np.unique(np.round(read / (0.16 * NS)).astype(int)) * 0.16
    percent = [100.0 if utilisation == "100" else card.utilisation(at - ORIGIN_NS / NS) for at in looks]
    return replace(ticks, witness=Witness.of_percent(looks, percent))


@dataclass(frozen=True)
class Outcome:
    """What came of the windows of one length: errors and half-widths in percent of the truth."""

    error: Array
    half: Array
    rules: Array

    @property
    def p95(self) -> float:
        return float(np.percentile(np.abs(self.error), 95))

    @property
    def holds(self) -> float:
        return float(np.mean(np.abs(self.error) <= self.half + 1e-9))

    @property
    def score(self) -> float:
        return float(np.mean(2 * self.half + 40 * np.maximum(np.abs(self.error) - self.half, 0)))


def try_out(
    load: str,
    sensor: Sensor,
    windows: int,
    seed: int,
    utilisation: str,
    lengths: Sequence[float],
    jitter_s: float = 0.0,
) -> tuple[dict[float, Outcome], float]:
    """Random windows of each length over one minute, and the share of publications inside brackets."""
    chance, seconds = random.Random(seed), 62.0
    card = Card.of(load, sensor, seconds, chance, jitter_s)
    rows, held = follow(card, seconds, chance)
    ticks = ticks_of(card, rows, utilisation)
    rng = np.random.default_rng(seed)
    found = {}
    for length in lengths:
        a = rng.uniform(1.5, seconds - length - 0.5, windows)
        b = a + length
        start, end = (ORIGIN_NS / NS - ticks.origin_ns / NS + side for side in (a, b))
        sampled = ticks.curve.energy(start, end)
        truth = card.energy(a, b)
        rules = rules_pct(sensor, card.published, lambda t: np.interp(t, card.t, card.joules), np.stack((a, b), axis=1))
        by_rule = np.percentile(np.abs(rules), 95, axis=1)
        error, half = (100 * x / truth for x in (sampled.joules - truth, sampled.half_width_j))
        found[length] = Outcome(error, half, by_rule)
    return found, held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sensors", default=",".join(name for name, sensor in SENSORS.items() if sensor.kind == "gpu"))
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--utilisation", choices=("busy", "100", "none"), default="busy")
    parser.add_argument("--jitter", type=float, default=0.0, help="publications late by up to this many seconds")
    args = parser.parse_args()
    output = Tables()
    for name in args.sensors.split(","):
        lines = []
        for load in args.loads.split(","):
            runs = [
                try_out(load, SENSORS[name], args.windows, seed, args.utilisation, LENGTHS_S, args.jitter)
                for seed in range(args.seed, args.seed + args.runs)
            ]
            for length in LENGTHS_S:
                parts = [found[length] for found, _ in runs]
                error, half = (np.concatenate([getattr(part, n) for part in parts]) for n in ("error", "half"))
                rules = np.stack([part.rules for part in parts])
                pooled = Outcome(error, half, rules.mean(axis=0))
                ours, bound = float(np.mean([part.p95 for part in parts])), float(rules.min(axis=1).mean())
                one = float(pooled.rules.min())
                over = "over" if ours > max(1.1 * one, one + 0.1) else ""
                lines.append(
                    [
                        load,
                        f"{length:g}",
                        f"{ours:.2f}",
                        f"{bound:.2f}",
                        f"{one:.2f}",
                        over,
                        f"{100 * pooled.holds:.1f}",
                        f"{np.median(pooled.half):.2f}",
                        f"{pooled.score:.1f}",
                        f"{100 * np.mean([held for _, held in runs]):.0f}",
                    ]
                )
        heads = ["load", "window s", "p95 %", "bound %", "one rule %", "", "hold %", "± %", "score", "in brackets %"]
        output.table(heads, lines, right=(1, 2, 3, 4, 6, 7, 8, 9), title=SENSORS[name].title)
        output.text()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
