"""A window answered from the ticks near its ends, beside the same window from all ticks around it."""

from __future__ import annotations

import numpy as np
import pytest
from tapes import ORIGIN_NS, write_tape

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.energy import counter_ends, loading
from everywatt.energy.counter_ends import idle_w
from everywatt.energy.loading import line_joules, load_readings
from everywatt.energy.sources import Source, addable, sources
from everywatt.energy.window import windows_energy
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape

SECONDS = 400.0
MS = 1_000_000
FIELDS = ("joules", "coverage", "start_width_j", "end_width_j", "aliasing_j", "quantum_j")


def gpu(number: int, share, **odd) -> tuple[GroupInfo, float, list[Row]]:
    """A tracked card: published every 0.1 s by a clock that drifts, known to 1 to 4 ms; `share` is its utilisation."""
    name = f"gpu.{number}"
    facts = Facts(period_s=0.1, window_s=0.1, quantum=0.001, max_w=400.0, gain_pct=5.0, offset_w=2.0)
    energy = Channel(f"{name}.energy", "J", Kind.COUNTER, name, Domain.GPU, 1e-3, facts=facts)
    power = Channel(f"{name}.power", "W", Kind.GAUGE, name, Domain.GPU, 1.0, Pedigree.INTEGRATED, energy.name, facts)
    busy = Channel(f"{name}.utilisation", "%", Kind.GAUGE, name)
    info = GroupInfo(f"test.{name}", "test", name, (energy, power, busy), tracked=True)
    random = np.random.default_rng(number)
    at = 0.0123 * number + 0.1000213 * np.arange(3999) + odd.get("jitter_s", 0.0) * random.normal(size=3999)
    watts = np.repeat(random.uniform(60.0, 350.0, len(at)), 7)[: len(at)] + random.normal(0.0, 0.5, len(at))
    count = np.floor(np.cumsum(watts * np.diff(at, prepend=at[0])) * 1e3)
    before, after = random.uniform(0.5e-3, 2e-3, (2, len(at)))
    rows = []
    for i, t in enumerate(at):
        if odd.get("silent", (0, 0))[0] <= t < odd.get("silent", (0, 0))[1]:
            continue
        early, late = ORIGIN_NS + round((t - before[i]) * NS), ORIGIN_NS + round((t + after[i]) * NS)
        if i in odd.get("late", ()):
            early -= 60 * MS
        value = count[i] - odd.get("reset", {}).get("by", 0) * (i >= odd.get("reset", {}).get("row", 10**9))
        value = float("nan") if i in odd.get("missing", ()) else value
        rows.append(Row(late + 3 * MS, early, late, (value, float(watts[i]), float(share(i, random)))))
    return info, 0.1, rows


def package(number: int) -> tuple[GroupInfo, float, list[Row]]:
    """A counter of a package, read every 0.1 s and published within the millisecond before."""
    facts = Facts(period_s=0.001, quantum=6.1e-5, max_w=200.0, wrap=262_143_328_850.0)
    name = f"cpu.{number}"
    channel = Channel(f"{name}.package.energy", "J", Kind.COUNTER, name, Domain.PACKAGE, 1e-6, facts=facts)
    random = np.random.default_rng(100 + number)
    at = np.arange(0.0, SECONDS, 0.1) + random.uniform(0.0, 0.004, 4000)
    count = (262_100e6 + np.cumsum(random.uniform(4.0, 9.0, 4000)) * 1e6) % facts.wrap
    rows = [
        Row(ORIGIN_NS + round(t * NS), ORIGIN_NS + round((t - 0.001) * NS), ORIGIN_NS + round(t * NS), (float(c),))
        for t, c in zip(at, count, strict=True)
    ]
    return GroupInfo(f"rapl.{name}", "rapl", name, (channel,)), 0.1, rows


MACHINE = {
    "busy all the time": lambda: gpu(0, lambda i, r: 100),
    "toggles": lambda: gpu(1, lambda i, r: r.integers(30, 70)),
    "toggles and idles": lambda: gpu(2, lambda i, r: 0 if i % 900 < 20 else r.integers(30, 70)),
    "idle": lambda: gpu(3, lambda i, r: 0),
    "late rows": lambda: gpu(4, lambda i, r: r.integers(60, 99), late=(700, 1105, 2000, 2001), missing=(1500, 1501)),
    "silent for 20 s": lambda: gpu(5, lambda i, r: 100, silent=(150.0, 170.0)),
    "a clock that jitters": lambda: gpu(6, lambda i, r: 100, jitter_s=0.004),
    "starts again": lambda: gpu(7, lambda i, r: 100, reset={"row": 2500, "by": 40_000_000}),
    "package": lambda: package(0),
    "package 1": lambda: package(1),
}


@pytest.fixture(scope="module")
def tape(tmp_path_factory):
    path = write_tape(tmp_path_factory.mktemp("ends") / "machine.tape", [make() for make in MACHINE.values()])
    with Tape.open(path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def long_tape(monkeypatch):
    """As if the tape were too long to keep all its ticks."""
    monkeypatch.setattr(loading, "SMALL_ROWS", 0)


def windows(longest_s: float, number: int = 12) -> list[tuple[int, int]]:
    random = np.random.default_rng(5)
    lengths = np.exp(random.uniform(np.log(0.02), np.log(longest_s), number))
    starts = random.uniform(0.0, SECONDS - lengths)
    inside = [(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    at_the_ends = [(-3.0, 2.0), (0.0, 1.0), (SECONDS - 1.0, SECONDS), (SECONDS - 2.0, SECONDS + 3.0), (-9.0, -5.0)]
    odd = [(149.0, 155.0), (155.0, 160.0), (165.0, 171.0), (249.9, 250.3), (110.0, 111.0), (149.95, 150.2)]
    return [(ORIGIN_NS + round(a * NS), ORIGIN_NS + round(b * NS)) for a, b in (*inside, *at_the_ends, *odd)]


def answers(tape, start, end):
    """Readings by the ends, and from all ticks of the rows around them, for every source."""
    found = sources(tape)
    fast = load_readings(found, start, end)
    ticks = [loading._read(s, start, end).ticks((start, end)) for s in found]
    return [(s.label, one, all_.between(start, end)) for s, one, all_ in zip(found, fast, ticks, strict=True)]


@pytest.mark.parametrize("window", windows(100.0))
def test_every_number_is_the_same(tape, window, monkeypatch):
    """From the ticks near the ends, and from all ticks of the rows around them."""
    found = sources(tape)
    by_ends = load_readings(found, *window)
    monkeypatch.setattr(loading, "readings_by_ends", lambda some, *_: [None] * len(some))
    for source, fast, plain in zip(found, by_ends, load_readings(found, *window), strict=True):
        assert (fast.joules is None) == (plain.joules is None), source.label
        for field in FIELDS if plain.joules is not None else ():
            seen = (source.label, field)
            assert getattr(fast, field) == pytest.approx(getattr(plain, field), rel=1e-8, abs=1e-9), seen


@pytest.mark.parametrize("window", windows(100.0))
def test_rows_further_away_say_the_same(tape, window):
    """A counter's ends look at 26 s to either side, a gauge at a minute: joules differ by microseconds of the clock."""
    for label, fast, plain in answers(tape, *window):
        assert (fast.joules is None) == (plain.joules is None), label
        if plain.joules is not None:
            unsure = 0.1 * max(plain.start_width_j, plain.end_width_j)
            assert fast.joules == pytest.approx(plain.joules, abs=max(400.0 * 4e-4, unsure)), label
            assert fast.coverage == pytest.approx(plain.coverage, abs=1e-4), label
            for field in ("start_width_j", "end_width_j"):
                wide = 0.15 if label == "gpu.2" else 0.05
                assert getattr(fast, field) == pytest.approx(getattr(plain, field), rel=wide, abs=0.05), (label, field)


def test_most_windows_are_answered_by_their_ends(tape, monkeypatch):
    """The comparison above would say nothing if both were the same path."""
    seen: dict[str, int] = {}

    def spied(asked, asked_ns):
        result = real(asked, asked_ns)
        for one, ticks in zip(asked, result, strict=True):
            if ticks is not None:
                assert len(ticks.at_ns) <= 4 * 34 + 2
                seen[one.channel.device] = seen.get(one.channel.device, 0) + 1
        return result

    real = counter_ends._near_ticks
    monkeypatch.setattr(counter_ends, "_near_ticks", spied)
    asked = windows(100.0)
    for start, end in asked:
        windows_energy(sources(tape), [(start, end)])
    by_ends = {name: seen.get(device, 0) / len(asked) for name, device in zip(MACHINE, devices(), strict=True)}
    for name in MACHINE:
        assert (by_ends[name] > 0.8) == (name != "idle"), by_ends


def devices():
    return [*(f"gpu.{number}" for number in range(8)), "cpu.0", "cpu.1"]


def test_a_long_window_needs_its_two_ends_only(tape, monkeypatch):
    """300 s: joules are those of all ticks but for microseconds of the clock.

    Of the half-widths only that of a toggling load may differ by more: its idle power is looked for near the ends.
    """
    start, end = ORIGIN_NS + round(20.05 * NS), ORIGIN_NS + round(320.43 * NS)
    loaded = []
    real = loading.load_columns
    for label, fast, plain in answers(tape, start, end):
        assert fast.joules == pytest.approx(plain.joules, abs=400.0 * 2e-4), label
        assert fast.coverage == pytest.approx(plain.coverage, rel=1e-6), label
        for field in ("start_width_j", "end_width_j"):
            assert getattr(fast, field) == pytest.approx(
                getattr(plain, field), rel=0.15 if label == "gpu.2" else 0.05, abs=0.02
            ), label

    def counted(*args, **kwargs):
        columns = real(*args, **kwargs)
        loaded.append(args[3:5])
        return columns

    monkeypatch.setattr(loading, "load_columns", counted)
    loading._newest.clear()
    windows_energy(addable(sources(tape)), [(start, end)])
    assert loaded
    assert all(high - low < 130 * NS for low, high in loaded)


@pytest.mark.parametrize("window", windows(300.0))
def test_another_path_is_first_checked_by_four_rows(tape, window):
    """`line_joules` is the figure itself, but for what an edge may cut off, or says nothing."""
    for source in sources(tape):
        for group, channel in ((source.group, source.channel), *source.mirrors):
            one = Source(tape, group, channel)
            roughly, reading = line_joules(one, *window), load_readings([one], *window)[0]
            if roughly is not None:
                assert reading is not None and reading.joules is not None
                edges_j = reading.start_width_j + reading.end_width_j
                assert abs(roughly - reading.joules) <= max(edges_j, 0.02 * abs(reading.joules)), channel.name


def test_idle_power_is_found_far_from_the_window(tape):
    """A card that toggles around the window and was idle 20 s before it: what it drew then bounds its pauses."""
    source = next(s for s in sources(tape) if s.label == "gpu.2")
    at = ORIGIN_NS + 110 * NS  # idle from 90.0 to 92.0 s after the start, by row number
    loaded = loading._read(source, at, at + NS, ends=True)
    columns = load_columns(tape, source.group.id, [source.channel.name], ORIGIN_NS + 89 * NS, ORIGIN_NS + 93 * NS)
    rows = slice(*np.searchsorted(columns.published, [ORIGIN_NS + 90 * NS, ORIGIN_NS + 92 * NS]))
    at_s = columns.published[rows] / NS
    watts = np.diff(columns.accumulated[source.channel.name][rows]) * 1e-3 / np.diff(at_s)
    assert idle_w(loaded.around) == pytest.approx(watts.min(), rel=1e-6)
