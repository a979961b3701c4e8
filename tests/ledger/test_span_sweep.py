"""Sharing stretches: against counting each of a hundred instants by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.ledger import span_sweep
from everywatt.ledger.span_sweep import Stretches, innermost, merged


def ints(*values):
    return np.array(values, dtype=np.int64)


@st.composite
def families(draw):
    """Spans on whole instants 0…40, each with a parent among those before it."""
    count = draw(st.integers(1, 12))
    starts = draw(st.lists(st.integers(0, 39), min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    parents = [draw(st.integers(-1, number - 1)) for number in range(count)]
    return ints(*starts), ints(*starts) + ints(*lengths), parents


def by_hand(starts, ends, parents, instant):
    """The innermost spans that are open in [instant, instant + 1)."""
    open_ = {n for n in range(len(starts)) if starts[n] <= instant < ends[n]}
    above = set()
    for number in open_:
        at = parents[number]
        while at >= 0:
            above.add(at)
            at = parents[at]
    return open_ - above


@given(families())
def test_innermost_is_what_has_nothing_open_below(family):
    starts, ends, parents = family
    pieces = innermost(starts, ends, parents)
    for instant in range(60):
        found = pieces.owner[(pieces.start_ns <= instant) & (instant < pieces.end_ns)].tolist()
        assert sorted(found) == sorted(by_hand(starts, ends, parents, instant)), instant


@given(families(), st.lists(st.floats(0, 1000), min_size=60, max_size=60))
def test_equal_shares_are_those_counted_by_hand(family, joules):
    starts, ends, parents = family
    truth, outside = np.zeros(len(starts)), 0.0
    for instant, amount in enumerate(joules):
        inner = by_hand(starts, ends, parents, instant)
        for number in inner:
            truth[number] += amount / len(inner)
        outside += 0.0 if inner else amount
    cut = Stretches.cut(innermost(starts, ends, parents), 0, 60)
    so_far = np.concatenate(([0.0], np.cumsum(joules)))
    stretches = np.diff(so_far[cut.edges_ns])
    shares = cut.equally(stretches, len(starts))
    assert shares == pytest.approx(truth, abs=1e-6)
    assert cut.outside(stretches) == pytest.approx(outside, abs=1e-6)
    same, measured = cut.by_use(stretches, len(starts), np.zeros(len(starts), dtype=np.int64), lambda pid: None)
    assert same == pytest.approx(truth, abs=1e-6)
    assert measured == 0.0


@given(families(), st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(1, 50))
def test_shares_by_use_are_those_counted_by_hand(family, processes, most):
    starts, ends, parents = family
    process = ints(*processes[: len(starts)])
    rate = {0: 0.0, 1: 1.0, 2: 3.0}  # of a process 3 nothing is known
    truth = np.zeros(len(starts))
    for instant in range(60):
        inner = by_hand(starts, ends, parents, instant)
        behind = {int(process[number]) for number in inner}
        known = behind <= rate.keys() and sum(rate[p] for p in behind) > 0
        for number in inner:
            mine = int(process[number])
            if known:
                alike = sum(process[other] == mine for other in inner)
                truth[number] += rate[mine] / sum(rate[p] for p in behind) / alike
            else:
                truth[number] += 1 / len(inner)
    cut = Stretches.cut(innermost(starts, ends, parents), 0, 60)
    joules = np.diff(cut.edges_ns).astype(float)

    def use(pid):
        return None if pid not in rate else (ints(0, 60), np.array([0.0, 60.0 * rate[pid]]))

    before, span_sweep.MOST_PAIRS = span_sweep.MOST_PAIRS, most  # in chunks, as where there are very many
    try:
        shares, measured = cut.by_use(joules, len(starts), process, use)
    finally:
        span_sweep.MOST_PAIRS = before
    assert shares == pytest.approx(truth, abs=1e-9)
    assert measured <= shares.sum() + 1e-9


def test_merged():
    starts, ends = merged(ints(5, 0, 1, 7, 20), ints(6, 3, 2, 9, 21))
    assert (starts.tolist(), ends.tolist()) == ([0, 5, 7, 20], [3, 6, 9, 21])


def test_circles_are_refused():
    with pytest.raises(ValueError, match="contain each other"):
        innermost(ints(0, 0), ints(1, 1), [1, 0])
