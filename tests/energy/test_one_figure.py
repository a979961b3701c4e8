"""One window gives one figure, however it is asked for: alone, as a span, among many, in a ledger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tapes import at, write_tape

from everywatt.api.run import Run, load
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.energy import loading

MICROJOULE = 1e-6
ROWS, PERIOD_S = 300, 0.1
MS = 1_000_000
SAMPLING = ("edges", "aliasing", "quantum")


def machine(kind: str, random: np.random.Generator, count: int = ROWS, asked: int = 24) -> tuple[list, list]:
    """A device that is recorded ten times a second, of one kind; and what the program itself read of it."""
    levels = random.uniform(40.0, 350.0, count)[np.cumsum(random.random(count) < 0.15)]
    when = np.arange(count) * PERIOD_S * (1 + 1e-4) + random.normal(0.0, 3e-4, count)
    joules = np.cumsum(levels * PERIOD_S)
    tracked, counter, inline = "tracked" in kind, "counter" in kind, "inline" in kind
    window_s = 0.025 if "part" in kind else 1.0 if "average" in kind else None if counter else PERIOD_S
    period_s = 0.001 if inline else PERIOD_S
    device, domain = ("cpu.0", Domain.PACKAGE) if inline else ("gpu.0", Domain.GPU)
    facts = Facts(period_s=period_s, window_s=window_s, quantum=0.001, max_w=400.0, gain_pct=5.0, offset_w=2.0)
    channel = Channel(f"{device}.energy", "J", Kind.COUNTER, device, domain, facts=facts)
    if not counter:
        channel = replace(channel, name=f"{device}.power", unit="W", kind=Kind.GAUGE, pedigree=Pedigree.INTEGRATED)
    busy = Channel(f"{device}.utilisation", "%", Kind.GAUGE, device)
    info = GroupInfo("group", "test", device, (channel, busy), tracked=tracked, inline=inline)
    width_s = random.choice((0.001, 0.004, 0.03), count) if tracked else np.full(count, 0.001)
    early = when - random.uniform(0.05, 0.95, count) * width_s
    rows = [
        Row(at(e + w) + MS, at(e), at(e + w), (float(j if counter else p), float(u)))
        for e, w, j, p, u in zip(early, width_s, joules, levels, random.integers(0, 101, count), strict=True)
    ]
    reads = []
    for t in np.sort(random.uniform(1.0, count * PERIOD_S - 1.0, asked)) if inline else ():
        published = np.floor(t / period_s) * period_s
        reads.append((0, Row(at(t), at(t - period_s), at(t), (float(np.interp(published, when, joules)), np.nan))))
    return [(info, PERIOD_S, rows)], reads


def windows(
    random: np.random.Generator, reads: list, last_s: float = 29.0, edges: int = 24
) -> list[tuple[float, float]]:
    """Disjoint spans of 20 ms to seconds; where the program read a counter itself, that was at a span's edge."""
    at_s = np.sort([(row.read_ns - at(0.0)) / NS for _, row in reads] or random.uniform(0.5, last_s, edges))
    return list(zip(at_s[::2], at_s[1::2], strict=True))


def asked(run: Run, spans: list[tuple[float, float]]) -> dict[str, list[float]]:
    """Joules of the windows by every way of asking."""
    origin_s = (run.tapes[0].extent_ns()[0] - at(0.0)) / NS
    starts, ends = (np.array(side) - origin_s for side in zip(*spans, strict=True))
    device = run.energy().parts[0][0]
    ledger = {entry.owner.id: entry.energy.joules for entry in run.ledger(by="span", between=(0.0, 29.9)).entries}
    return {
        "between": [run.energy(between=pair).joules for pair in zip(starts, ends, strict=True)],
        "span": [run.energy(f"part {number}").joules for number in range(len(spans))],
        "device": [run.energy(f"part {number}", device=device).joules for number in range(len(spans))],
        "energies": run.energies(starts, ends).tolist(),
        "energies one by one": [float(run.energies([a], [b])[0]) for a, b in zip(starts, ends, strict=True)],
        "ledger": [ledger[f"s{number}"] for number in range(len(spans))],
    }


KINDS = (
    "tracked counter",
    "tracked gauge",
    "tracked gauge of a part of the period",
    "tracked gauge of an average",
    "counter",
    "gauge",
    "gauge of a part of the period",
    "gauge of an average",
    "inline counter",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_one_window_has_one_figure(tmp_path, kind, seed):
    random = np.random.default_rng(seed)
    groups, reads = machine(kind, random)
    spans = windows(random, reads)
    named = [(f"part {number}", a, b, None, {}) for number, (a, b) in enumerate(spans)]
    run = load(write_tape(tmp_path / "a.tape", groups, named, reads))
    found = asked(run, spans)
    for way, joules in found.items():
        # A ledger's owners are whole microjoules that add up to the total, so each may be rounded twice.
        rounding = 2.0 if way == "ledger" else 0.1
        assert joules == pytest.approx(found["between"], abs=rounding * MICROJOULE), way


@pytest.mark.parametrize("kind", KINDS)
def test_many_windows_of_a_long_tape_have_the_figures_of_single_ones(tmp_path, monkeypatch, kind):
    """Clocks are fitted to other stretches of rows then, and that is all: a fraction of what sampling leaves open."""
    monkeypatch.setattr(loading, "SMALL_ROWS", 0)
    random = np.random.default_rng(0)
    groups, reads = machine(kind, random, 3000, 40)
    spans = windows(random, reads, 299.0, 40)
    named = [(f"part {number}", a, b, None, {}) for number, (a, b) in enumerate(spans)]
    run = load(write_tape(tmp_path / "a.tape", groups, named, reads))
    origin_s = (run.tapes[0].extent_ns()[0] - at(0.0)) / NS
    starts, ends = (np.array(side) - origin_s for side in zip(*spans, strict=True))
    single = [run.energy(between=pair) for pair in zip(starts, ends, strict=True)]
    sampling = [sum(figure.budget.by_source().get(name, 0.0) for name in SAMPLING) for figure in single]
    entries = run.ledger(by="span", between=(0.0, 299.9)).entries
    ledger = {entry.owner.id: entry.energy.joules for entry in entries}
    found = {
        "energies": run.energies(starts, ends),
        "ledger": np.array([ledger[f"s{number}"] for number in range(len(spans))]),
    }
    for way, joules in found.items():
        off = np.abs(joules - [figure.joules for figure in single])
        assert (off <= 10 * MICROJOULE + 0.05 * np.array(sampling)).all(), way


def test_many_windows_of_a_long_tape_are_not_read_off_the_line_between_its_ends(tmp_path, monkeypatch):
    """Of a long tape only rows around the two ends of a window are loaded; windows in between need their own."""
    random = np.random.default_rng(1)
    groups, _ = machine("counter", random)
    times = np.arange(1.0, 28.0, 1.3)
    path = write_tape(tmp_path / "a.tape", groups, [("part", a, a + 0.4, None, {}) for a in times])
    short = load(path).energy("part")
    monkeypatch.setattr(loading, "SMALL_ROWS", 0)
    monkeypatch.setattr(loading, "WHOLE_ROWS", 100)
    monkeypatch.setattr(loading, "CONTEXT_PERIODS", 10)
    long = load(path).energy("part")
    assert long.joules == pytest.approx(short.joules, abs=0.1 * short.half_width)
