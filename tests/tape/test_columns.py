"""The vectorised accumulation is the writer's, number by number."""

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from fake_clock import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.core.errors import UsageError
from everywatt.tape.accumulate import Accumulator
from everywatt.tape.columns import load_columns, read_times, ticks_by_frame
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter

STEP = st.one_of(
    st.tuples(st.just("on"), st.floats(0, 5e5)),
    st.tuples(st.just("on"), st.integers(0, 500_000).map(float)),
    st.tuples(st.just("reset"), st.integers(0, 1000).map(float)),
    st.tuples(st.just("nan"), st.just(math.nan)),
    st.tuples(st.just("inf"), st.just(math.inf)),
)
TICK = st.tuples(
    st.integers(1, 9) | st.integers(1, 100) | st.integers(2000, 90_000),  # tenths of a period to the publication
    STEP,
    st.one_of(st.floats(-1e3, 1e6), st.just(math.nan), st.just(0.0)),
    st.integers(0, 40_000_000),  # width of [early, late]
    st.booleans(),  # flush after it
)


def play(lab, ticks, wrap, max_w):
    """Rows with wraps, resets, missing values and gaps."""
    clock_ns, raw, rows = 1_000_000_000_007, 900_000.0, []
    for tenths, (kind, amount), power, width, _ in ticks:
        clock_ns += tenths * lab.period_ns // 10 + 3
        if kind == "on":
            raw = (raw + amount) % wrap if wrap else raw + amount
        elif kind == "reset":
            raw = amount
        value = raw if kind in ("on", "reset") else amount
        rows.append(lab.row(clock_ns, value, power, width_ns=width))
    return rows


@settings(max_examples=120, deadline=None)
@given(
    st.lists(TICK, min_size=1, max_size=60),
    st.sampled_from([None, 2.0**20, 1e6 + 0.5]),
    st.sampled_from([None, 50.0, 700.0]),
    st.booleans(),
)
def test_the_vectorised_twin_is_equal(lab, ticks, wrap, max_w, seal):
    info = lab.group(lab.counter(wrap=wrap, max_w=max_w), lab.gauge())
    rows = play(lab, ticks, wrap, max_w)
    accumulator = Accumulator(info, 0.1)
    truth = []
    folder = Path(tempfile.mkdtemp())
    try:
        writer = TapeWriter(folder / "a.tape", {}, clock=FakeClock())
        group = writer.add_group(info, 0.1)
        for row, tick in zip(rows, ticks, strict=True):
            writer.append(group, [row])
            accumulator.add(row)
            truth.append(accumulator.cum())
            if tick[-1]:
                writer.flush()
        writer.flush()
        if seal:
            writer.seal()
        with Tape.open(folder / "a.tape") as tape:
            for first in (0, len(rows) // 2):
                start_ns = None if first == 0 else (rows[first].early_ns + rows[first].late_ns) // 2
                columns = load_columns(tape, group, ["gpu.0.power", "gpu.0.energy"], start_ns)
                wanted = truth[len(truth) - len(columns) :]
                for at, name in enumerate(("gpu.0.energy", "gpu.0.power")):
                    assert columns.accumulated[name].tolist() == [cum[at].total for cum in wanted]
                    assert columns.observed_ns[name].tolist() == [cum[at].observed_ns for cum in wanted]
            whole = load_columns(tape, group, ["gpu.0.power", "gpu.0.energy"])
            assert read_times(tape, tape.group(group)).tolist() == whole.read.tolist()
            fast = ticks_by_frame(tape, tape.group(group), ["gpu.0.energy", "gpu.0.power"])
            if fast is not None:
                assert fast[0].tolist() == whole.published.tolist()
                np.testing.assert_array_equal(fast[1], (whole.late - whole.early).astype(np.float32))
                assert fast[2]["gpu.0.energy"].tolist() == whole.accumulated["gpu.0.energy"].tolist()
                np.testing.assert_array_equal(fast[2]["gpu.0.power"], whole.values["gpu.0.power"])
            stored = [row for frame in tape.frames(group) for row in frame.rows()]
            assert [r[:3] for r in stored] == [r[:3] for r in rows]
            np.testing.assert_array_equal([r.values for r in stored], [r.values for r in rows])
        if not seal:
            writer.abandon()
    finally:
        shutil.rmtree(folder)


def test_a_counter_counts_across_wrap_gap_and_missing_values(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    info = lab.group(lab.counter(wrap=1000.0, max_w=0.7))
    group = writer.add_group(info, 0.1)
    p = lab.period_ns
    values = [(1, 900.0), (2, 950.0), (3, math.nan), (4, 30.0), (5, 60.0), (14, 100.0), (15, 3.0)]
    writer.append(group, [lab.row(10**12 + at * p, value) for at, value in values])
    tape = Tape.open(writer.seal())
    columns = load_columns(tape, group, ["gpu.0.energy"])
    # 50, then 80 across the wrap and the missing value, 30, 40 across the gap; the reset at the end counts nothing.
    assert columns.accumulated["gpu.0.energy"].tolist() == [0, 50, 50, 130, 160, 200, 200]
    assert (columns.observed_ns["gpu.0.energy"] / p).tolist() == [0, 1, 1, 3, 4, 13, 13]
    gaps = [(g.kind, g.channel, (g.start_ns - 10**12) / p, (g.end_ns - 10**12) / p) for g in tape.gaps(group)]
    assert gaps == [("missed", None, 5, 13), ("reset", "gpu.0.energy", 14, 15)]


def test_a_gauge_holds_backwards_and_not_across_a_gap(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    group = writer.add_group(lab.group(lab.gauge()), 0.1)
    p = lab.period_ns
    values = [(0, 7.0), (1, 10.0), (2, math.nan), (3, 20.0), (6, 1.0), (10, 5.0)]
    writer.append(group, [lab.row(10**12 + at * p, value) for at, value in values])
    tape = Tape.open(writer.seal())
    columns = load_columns(tape, group, ["gpu.0.power"])
    assert (columns.accumulated["gpu.0.power"] / p).tolist() == [0, 10, 10, 30, 33, 38]
    assert (columns.observed_ns["gpu.0.power"] / p).tolist() == [0, 1, 1, 2, 5, 6]
    assert [(g.kind, g.start_ns, g.end_ns) for g in tape.gaps(group)] == [("missed", 10**12 + 6 * p, 10**12 + 9 * p)]


def test_several_wraps_are_told_with_their_bound(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    group = writer.add_group(lab.group(lab.counter(wrap=1000.0, max_w=1.0)), 0.1)
    writer.append(group, [lab.row(10**12, 100.0), lab.row(10**12 + 3 * 10**9, 150.0)])
    (missed, many) = Tape.open(writer.seal()).gaps(group)
    assert missed.kind == "missed"
    # One watt is 1000 counts of a millijoule a second; half as much again is allowed for.
    assert (many.kind, many.count, many.most) == ("many-wraps", 50.0, 4500.0)


def test_an_unknown_channel_is_refused(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    with Tape.open(small.path) as tape, pytest.raises(UsageError, match=r"gpu\.9"):
        load_columns(tape, 1, ["gpu.9"])


def test_what_the_fast_way_cannot_do_is_said(lab, tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    group = writer.add_group(lab.group(lab.counter(wrap=1000.0)), 0.1)
    writer.append(
        group, [lab.row(10**12 + at * lab.period_ns, value) for at, value in ((1, 990.0), (2, 5.0), (3, 9.0))]
    )
    tape = Tape.open(writer.seal())
    assert ticks_by_frame(tape, tape.group(group), ["gpu.0.energy"]) is None
