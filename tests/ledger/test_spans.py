"""Concurrent spans add up to the device, in whole microjoules."""

import time
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tapes import at, counter_group, gauge_group, rows, write_tape

import everywatt
from everywatt.core.budget import Budget
from everywatt.core.clocks import NS
from everywatt.core.spans import Span
from everywatt.energy.sources import sources
from everywatt.ledger.owners import OwnerKind, Part
from everywatt.ledger.spans import span_ledger

SECONDS = 20.0


@pytest.fixture(scope="module")
def tape(tmp_path_factory):
    """Fifty watts by a counter, and a card that goes from 100 to 300 W halfway."""
    package = counter_group(period_s=0.1, gain_pct=3.0)
    card = gauge_group(period_s=0.1, window_s=0.1, gain_pct=5.0, offset_w=5.0)
    path = write_tape(
        tmp_path_factory.mktemp("spans") / "a.tape",
        [
            (package, 0.1, rows(lambda t: 50.0 * t, -1.0, SECONDS + 1, 0.1)),
            (card, 0.1, rows(lambda t: 100.0 if t <= SECONDS / 2 + 1e-9 else 300.0, -1.0, SECONDS + 1, 0.1)),
        ],
    )
    return everywatt.load(path).tapes[0]


_ids = count()


def span(start_s, end_s, parent=None, name="query", **attributes):
    end_ns = None if end_s is None else at(end_s)
    return Span(f"x{next(_ids)}", name, at(start_s), end_ns, parent, attributes)


def ledger(tape, spans, start_s=0.0, end_s=SECONDS, **options):
    return span_ledger(sources(tape), [(at(start_s), at(end_s))], spans, **options)


def adds_up(book):
    assert book.checks.hold, book.checks
    assert sum(entry.microjoules for entry in book.entries) == round(book.total.value * 1e6)
    for device, part in book.total.parts:
        of_owners = [dict(entry.energy.parts).get(device) for entry in book.entries]
        amount_uj = sum(round(energy.value * 1e6) for energy in of_owners if energy is not None)
        assert abs(amount_uj - part.value * 1e6) < 2, "devices are rounded so that the total is exact"


def test_a_hundred_identical_spans_get_a_hundredth_each(tape):
    book = ledger(tape, [span(0, SECONDS) for _ in range(100)])
    adds_up(book)
    amounts = [entry.microjoules for entry in book.entries]
    assert len(amounts) == 100
    assert max(amounts) - min(amounts) <= 2, "one microjoule for each of two devices"
    assert sum(amounts) == pytest.approx(5000e6, rel=1e-9)
    assert book.entries[0].energy.high - book.entries[0].energy.low == pytest.approx(
        (book.total.high - book.total.low) / 100, rel=1e-3
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(-2, 22),
            st.floats(0, 10),
            st.booleans(),
            st.integers(0, 50),
            st.sampled_from(["", "gpu.0", "cpu"]),
        ),
        max_size=40,
    ),
    st.floats(0, 9),
    st.floats(10, 20),
)
def test_random_spans_add_up_to_the_device(tape, drawn, start_s, end_s):
    spans = []
    for start, length, ended, parent, devices in drawn:
        above = spans[parent].id if parent < len(spans) else None
        more = {"devices": [devices]} if devices else {}
        spans.append(span(start, start + length if ended else None, above, **more))
    book = ledger(tape, spans, start_s, end_s)
    adds_up(book)
    assert all(entry.microjoules >= 0 for entry in book.entries)


def test_spans_one_after_the_other_cost_what_the_run_says(tape):
    spans = [span(0, 4, name="a"), span(4, 9.5, name="b"), span(9.5, 12, name="c")]
    book = ledger(tape, spans)
    run = everywatt.load(tape.path)
    for name, start, end in (("a", 0, 4), ("b", 4, 9.5), ("c", 9.5, 12)):
        entry = book.entry(name).energy
        truth = run.energy(between=((at(start) - tape.extent_ns()[0]) / NS, (at(end) - tape.extent_ns()[0]) / NS))
        assert entry.joules == pytest.approx(truth.joules, abs=2e-6)
        # Those beside it share its edges, so it knows itself about as well as the window of its own does.
        assert entry.half_width == pytest.approx(truth.half_width, rel=0.25)
    outside = book.entry("outside the spans")
    assert outside.owner.kind is OwnerKind.OTHER
    assert outside.energy.joules == pytest.approx(8 * 350.0, rel=1e-6)


@pytest.mark.parametrize("counter", [True, False])
def test_an_owner_knows_itself_no_better_than_the_window_of_its_own_does(tmp_path, counter):
    """Publications every second, and short spans at the ends of the run: its edges are theirs, not everybody's."""

    def joules(t):
        whole = int(t // 1.7)
        return 100 * t + 200 * ((whole // 2) * 1.7 + (t - whole * 1.7 if whole % 2 else 0))

    if counter:
        group, read = counter_group(period_s=1.0, gain_pct=1.0), rows(joules, -3.0, 23.0, 1.0)
    else:
        group = gauge_group(period_s=1.0, window_s=1.0, gain_pct=1.0, offset_w=4.0)
        read = rows(lambda t: joules(t) - joules(t - 1), -3.0, 23.0, 1.0)
    run = everywatt.load(write_tape(tmp_path / "a.tape", [(group, 1.0, read)]))
    tape, first_ns = run.tapes[0], run.tapes[0].extent_ns()[0]
    times = [(0.4, 0.9), (0.9, 2.2), (3.3, 3.6), (5.0, 9.5), (9.5, 19.7), (19.7, 20.3)]
    spans = [span(start, end, name=str(start)) for start, end in times]
    more = [span(12.0, 12.0, name="none") for _ in range(70)]  # so many that their edges are taken together
    for some in (spans, spans + more):
        book = ledger(tape, some, 0.4, 20.3)
        adds_up(book)
        for one in spans:
            own = run.energy(between=((one.start_ns - first_ns) / NS, (one.end_ns - first_ns) / NS))
            share = book.entry(one.name).energy
            assert share.joules == pytest.approx(own.joules, abs=2e-6)
            assert 0.999 * own.half_width <= share.half_width <= 1.25 * own.half_width, one.name
        everybody = sum((entry.energy.budget for entry in book.entries), Budget())
        if some is spans:  # what one has too much the others have too little
            assert max(everybody.sides()) == pytest.approx(book.total.half_width, rel=1e-6)


def test_a_parent_is_charged_with_its_own_time(tape):
    parent = span(0, 8, name="epoch")
    book = ledger(tape, [parent, span(1, 3, parent.id, "step"), span(2, 5, parent.id, "step")], end_s=8)
    assert book.entry("epoch").energy.joules == pytest.approx(4 * 150.0, rel=1e-6)
    steps = sorted(e.energy.joules for e in book.entries if e.owner.label == "step")
    assert steps == pytest.approx([1.5 * 150, 2.5 * 150], rel=1e-6)
    adds_up(book)


def test_a_span_of_one_device_leaves_the_others_to_who_is_around_it(tape):
    parent = span(0, 4, name="server")
    book = ledger(tape, [parent, span(0, 4, parent.id, "kernel", devices=["gpu.0"])], end_s=4)
    assert book.entry("kernel").energy.joules == pytest.approx(4 * 100.0, rel=1e-6)
    assert book.entry("kernel").energy.scope == "gpu"
    assert book.entry("server").energy.joules == pytest.approx(4 * 50.0, rel=1e-6)
    adds_up(book)


def test_the_span_around_everything_is_an_owner_only_where_it_is_alone(tape):
    root = span(0, SECONDS, name="train", role="run")
    assert [e.owner.label for e in ledger(tape, [root]).entries] == ["train"]
    book = ledger(tape, [root, span(5, 10, root.id, "epoch")])
    assert [e.owner.label for e in book.entries] == ["epoch", "outside the spans"]
    assert [e.owner.label for e in ledger(tape, []).entries] == ["outside the spans"]


def test_spans_of_several_processes_share_by_use(tape):
    line = {11: 3.0, 12: 1.0}

    def use(pid, device):
        if device == "gpu.0" or pid not in line:
            return None
        return np.array([at(0), at(SECONDS)]), np.array([0.0, line[pid] * SECONDS])

    spans = [
        span(0, 4, name="a", pid=11),
        span(0, 4, name="b", pid=12),
        span(4, 8, name="c", pid=13),
        span(4, 8, name="d", pid=11),
    ]
    book = ledger(tape, spans, end_s=8, use=use)
    adds_up(book)
    cpu = {e.owner.label: e.energy.part("cpu.0").joules for e in book.entries}
    assert cpu == pytest.approx({"a": 150.0, "b": 50.0, "c": 100.0, "d": 100.0}, rel=1e-6)
    assert book.entry("a").method == "overlap and use"
    assert book.entry("a").energy.part("gpu.0").joules == pytest.approx(200.0, rel=1e-6)
    # Idle is shared by overlap, whatever was used.
    book = ledger(tape, spans, end_s=8, use=use, idle_w={"cpu.0": 30.0})
    entry = book.entry("a")
    assert entry.energy.part("cpu.0").joules == pytest.approx(60 + 0.75 * 80, rel=1e-6)
    assert entry.by_part_uj[Part.IDLE] == pytest.approx(60e6, rel=1e-6)
    adds_up(book)


def test_a_span_that_never_ended_is_charged_until_the_end_and_told(tape):
    book = ledger(tape, [span(15, None, name="stuck")])
    assert book.entry("stuck").energy.joules == pytest.approx(5 * 350.0, rel=1e-6)
    assert book.entry("stuck").details["open"] is True
    assert any("did not end" in note for note in book.notes)


def test_budgets_of_few_spans_add_up_to_that_of_the_total(tape):
    book = ledger(tape, [span(0.03, 7.41), span(3.33, 15.77), span(5.01, 5.57), span(12.21, 19.99)])
    budget = sum((e.energy.budget for e in book.entries[1:]), book.entries[0].energy.budget)
    low, high = budget.sides()
    # What is outside is scaled with the total, without the edges of the spans beside it.
    assert low == pytest.approx(book.total.half_width, rel=0.02)
    assert high == pytest.approx(book.total.half_width, rel=0.02)


def test_parents_in_a_circle_do_not_matter(tape):
    one = Span("one", "one", at(0), at(4), "two")
    two = Span("two", "two", at(0), at(4), "one")
    adds_up(ledger(tape, [one, two, Span("me", "me", at(1), at(2), "me")]))


def test_windows_that_were_not_recorded_give_a_refused_total(tape):
    book = ledger(tape, [span(0, 4)], 1000.0, 1001.0)
    assert book.total.joules is None
    assert all(entry.microjoules == 0 for entry in book.entries)


def test_ten_thousand_spans_are_no_trouble(tape):
    random = np.random.default_rng(7)
    starts = random.uniform(0, SECONDS, 10_000)
    spans = [
        span(start, start + 0.2, pid=int(pid)) for start, pid in zip(starts, random.integers(1, 9, 10_000), strict=True)
    ]
    began = time.process_time()
    adds_up(ledger(tape, spans))
    plain_s = time.process_time() - began
    began = time.process_time()
    book = ledger(tape, spans, use=lambda pid, device: (np.array([at(0), at(SECONDS)]), np.array([0.0, float(pid)])))
    adds_up(book)
    assert plain_s + time.process_time() - began < 20, "a hundred at a time, ten thousand in all"
