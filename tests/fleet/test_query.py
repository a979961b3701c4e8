"""Questions to an engine: their pieces, their answers, and what is made of refusals."""

import json
import re

import pytest
from api_server import ApiServer

from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.fleet.query import EVERYWATT, Piece, Wanted, fetch, nothing, plan
from everywatt.net.api import ApiClient
from everywatt.net.http1 import Backoff

A, START = Wanted("a"), 1_700_000_000


def engine(asked, *, most=None, status=422, text="query processing would load too many samples into memory"):
    """A Prometheus with one series `a` that has a sample at every second: value = seconds since START."""
    if asked.path.endswith("/series"):
        return ok([{"__name__": "a"}])
    if asked.path.endswith("/query"):
        ms = int(re.search(r"\[(\d+)ms\]", asked.query["query"])[1])
        end = round(float(asked.query["time"]) * 1000)
        times, points = range(-(-(end - ms) // 1000), end // 1000 + 1), ms / 1000
    else:
        start, end, step = (float(asked.query[key]) for key in ("start", "end", "step"))
        points = round((end - start) / step) + 1
        times = [start + number * step for number in range(points)]
    if most is not None and points > most:
        return status, {}, json.dumps({"status": "error", "error": text}).encode()
    values = [[at, str(float(at - START))] for at in times]
    return ok({"resultType": "matrix", "result": [{"metric": {"__name__": "a", "x": "1"}, "values": values}]})


def ok(data, **more):
    return 200, {}, json.dumps({"status": "success", "data": data, **more}).encode()


def asked_of(answer, start=START, end=START + 100, wanted=(A,), **more):
    with ApiServer(answer) as server:
        client = ApiClient(server.url, waits=Backoff(retries=1), sleep=lambda s: None)
        return fetch(client, list(wanted), start * NS, end * NS, **more), server.asked


def test_samples_come_once_each_and_both_ends_are_in():
    answer, _ = asked_of(engine)
    (series,) = answer.series
    assert (series.name, series.labels) == ("a", {"x": "1"})
    assert list(series.at_ms) == [(START + s) * 1000 for s in range(101)]
    assert list(series.values) == [float(s) for s in range(101)]


def test_a_long_time_goes_in_pieces_below_the_limit():
    answer, asked = asked_of(engine, end=START + 25_000, step_s=1)
    sizes = [round(float(one.query["end"]) - float(one.query["start"])) + 1 for one in asked]
    assert sorted(sizes) == [5001, 10_000, 10_000] and len(answer.series[0].at_ms) == 25_001
    answer, asked = asked_of(engine, end=START + 25_000)
    assert len(asked) == 4 and len(answer.series[0].at_ms) == 25_001


@pytest.mark.parametrize("status, text", [
    (422, "query processing would load too many samples into memory in query execution"),
    (400, "exceeded maximum resolution of 11,000 points per timeseries"),
    (503, "query timed out in expression evaluation"),
])  # fmt: skip
@pytest.mark.parametrize("step_s", [None, 1])
def test_what_is_too_large_is_halved(status, text, step_s):
    answer, asked = asked_of(
        lambda one: engine(one, most=30, status=status, text=text), start=START, end=START + 100, step_s=step_s
    )
    assert list(answer.series[0].at_ms) == [(START + s) * 1000 for s in range(101)]
    assert len(asked) >= 7


def test_what_is_too_large_whatever_its_size_is_told():
    with pytest.raises(MeasurementRefused, match="rejects a: it has too many series"):
        asked_of(lambda one: engine(one, most=0, text="it has too many series"))


def test_a_wrong_query_is_told_in_the_servers_words():
    body = b'{"status":"error","errorType":"bad_data","error":"1:3: parse error: unexpected character"}'
    with pytest.raises(MeasurementRefused, match=r"rejects a\{: 1:3: parse error") as caught:
        asked_of(lambda one: (400, {}, body), wanted=[Wanted("a{")], step_s=1)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"{}", b"1"])
def test_something_else_than_prometheus(body):
    with pytest.raises(MeasurementRefused, match="is not a Prometheus server"):
        asked_of(lambda one: (200, {}, body))


def test_a_page_instead_of_json():
    with pytest.raises(MeasurementRefused, match="is not valid"):
        asked_of(lambda one: (200, {}, b"<html>log in</html>"))


def test_warnings_and_partial_answers_are_kept():
    def answer(asked):
        if asked.path.endswith("/series"):
            return ok([{}])
        return ok({"result": []}, warnings=["a store is away"], isPartial=True)

    found, _ = asked_of(answer)
    assert found.series == [] and found.warnings == ["a store is away", "the response is partial"]


def test_marks_of_an_end_and_samples_from_outside_are_left_out():
    values = [
        [START - 5, "1"],
        [START, "2"],
        [START + 1, "NaN"],
        [START + 1, "9"],
        [START + 2.0004, "+Inf"],
        [START + 200, "4"],
    ]

    def answer(asked):
        return ok([{}]) if asked.path.endswith("/series") else ok({"result": [{"metric": {}, "values": values}]})

    (series,) = asked_of(answer)[0].series
    assert series.name == "a" and list(series.values) == [2.0, 9.0, float("inf")]


def test_computing_wants_a_step():
    with pytest.raises(UsageError, match="requires --step"):
        asked_of(engine, wanted=[Wanted("rate(a[1m])")])
    answer, asked = asked_of(engine, wanted=[Wanted("rate(a[1m])")], step_s=10)
    assert len(answer.series[0].at_ms) == 11 and len(asked) == 1


@pytest.mark.parametrize("start, end, step", [(5, 5, None), (6, 5, None), (0, 5, 0.0), (0, 5, 1e6)])
def test_times_that_make_no_sense(start, end, step):
    with pytest.raises(UsageError):
        list(plan(ApiClient("http://store"), [Wanted("rate(a[1m])")], start * NS, end * NS, step))


def test_no_series_is_no_question():
    answer, asked = asked_of(lambda one: ok([]))
    assert answer.series == [] and len(asked) == 1


def test_halves_end():
    piece = Piece(A, 0, 2000)
    left, right = piece.halves()
    assert (left.end_ms, right.after_ms, left.halves()) == (1000, 1000, None)
    left, right = Piece(A, 0, 5000, 1000).halves()
    assert (left.end_ms, right.end_ms) == (2000, 5000)


def test_nothing_says_what_was_asked():
    error = nothing(ApiClient("http://u:p@store"), [EVERYWATT], 0, 3600 * NS)
    assert error.exit_code == 3 and "u:p" not in str(error)
    assert 'http://store has no samples of {__name__=~"everywatt_.+"} from 1970-01-01T00:00:00Z' in str(error)
