"""A server on another host, measured from its own tape: another clock, another origin, the same wall time."""

import pytest

from everywatt.api.run import load
from everywatt.bench.llm.plan import LlmPlan, ServerTape
from everywatt.bench.llm.records import OK, Answer, Record
from everywatt.bench.llm.result import bill_elsewhere, owed_by
from everywatt.core.channels import Channel, Domain, Kind
from everywatt.core.clocks import NS
from everywatt.meters.series import Part, Table, group, write_part

T0 = 1_790_000_000 * NS  # UTC
QUERIES = ((10.0, 12.0), (13.0, 14.0), (20.0, 24.0))


def tape(path, watts, start_s, end_s, spans=()):
    """A tape of a counter that follows watts(t), t in seconds after T0; its own clock starts where it starts."""
    table = Table(group("host", "meter", [Channel("host.energy", "J", Kind.COUNTER, "host", Domain.NODE)]))
    joules, step = 0.0, 0.1
    for n in range(round((end_s - start_s) / step) + 1):
        at = start_s + n * step
        table.add(T0 + round(at * NS), [joules])
        joules += watts(at) * step
    return write_part(path, Part([table], spans=list(spans)), [path], {})


@pytest.fixture
def place(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    spans = [("query", T0 + round(a * NS), T0 + round(b * NS), {}) for a, b in QUERIES]
    tape(tmp_path / "here" / "h-0001.tape", lambda t: 7.0, 5.0, 30.0, spans)
    return tmp_path


def records(run):
    found = []
    for span in (one for one in run.spans if one.name == "query"):
        answer = Answer(OK, "x", sent_ns=span.start_ns, ended_ns=span.end_ns, piece_ns=(span.start_ns + NS // 2,))
        found.append(Record(f"i{span.id}", "concurrency 1", span.id, answer))
    return found


def there(place, watts, start_s=0.0, end_s=60.0, skew_s=0.0):
    tape(place / "there" / "s-0001.tape", watts, start_s, end_s)
    return ServerTape(str(place / "there"), skew_s)


def test_queries_are_charged_with_what_the_servers_host_drew(place):
    run = load(place / "here")
    owed = bill_elsewhere(run, records(run), there(place, lambda t: 100.0))
    assert owed.gross.value == pytest.approx(700.0, rel=1e-3)
    assert [query.energy.value for query in owed.queries.values()] == pytest.approx([200.0, 100.0, 400.0], rel=1e-3)
    assert "from its own tape" in owed.about
    # Constant power: a clock that is off by half a second changes nothing.
    again = bill_elsewhere(run, records(run), ServerTape(str(place / "there"), 0.5))
    assert again.gross.half_width == pytest.approx(owed.gross.half_width, abs=0.5)


def test_how_far_the_clocks_may_be_apart_is_in_the_interval(place):
    run = load(place / "here")
    # 300 W exactly while the first query is open, else 50 W: moved by 0.2 s it loses 0.2 s of 250 W.
    at_work = there(place, lambda t: 300.0 if 10.0 <= t < 12.0 else 50.0, skew_s=0.2)
    owed = bill_elsewhere(run, records(run), at_work)
    first = next(iter(owed.queries.values())).energy
    assert first.value == pytest.approx(600.0, rel=0.02)
    assert first.low == pytest.approx(550.0, abs=15) and first.high == pytest.approx(650.0, abs=15)
    assert any("differ by at most 200 ms" in note for note in owed.gross.notes)


def test_a_tape_that_does_not_cover_the_queries_is_refused(place):
    run = load(place / "here")
    owed = bill_elsewhere(run, records(run), there(place, lambda t: 100.0, start_s=11.0))
    assert owed.gross.joules is None
    assert "does not cover 1 of 3 queries" in owed.gross.refused
    owed = owed_by(run, records(run), LlmPlan(server_tape=ServerTape(str(place / "nowhere"), 0.1)))
    assert "cannot be read" in owed.gross.refused


def test_without_a_tape_a_server_elsewhere_has_no_energy(place):
    run = load(place / "here")
    assert owed_by(run, records(run), LlmPlan(no_energy="the server is on another host")).gross.joules is None
