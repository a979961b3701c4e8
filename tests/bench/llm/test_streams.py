"""Lines and server-sent events, cut anywhere."""

import pytest

from everywatt.bench.llm import http
from everywatt.bench.llm.http import Events, Lines, Stream


def events(*pieces):
    found = []
    reader = Events(Stream(), lambda text, at_ns, got: found.append((at_ns, text)))
    for number, piece in enumerate(pieces):
        reader.feed(number, piece)
    return found


STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\nevent: message\ndata: one\nid: 7\n\ndata:two\ndata:  lines\ndatum: no\n\n"
    b"data\n\ndata: caf\xc3\xa9 \xff\r\n\r\ndata: never ended\n"
)


def test_events_as_the_standard_has_them():
    texts = [text for _, text in events(STREAM)]
    assert texts == ["one", "two\n lines", "", "café \ufffd"]


def test_any_cut_gives_the_same_events():
    whole = [text for _, text in events(STREAM)]
    for at in range(len(STREAM)):
        assert [text for _, text in events(STREAM[:at], STREAM[at:])] == whole
    assert [text for _, text in events(*(STREAM[at : at + 1] for at in range(len(STREAM))))] == whole


def test_an_event_came_when_its_end_did():
    assert events(b"data: a\n", b"\ndata: b\n\ndata: ", b"c\n\n") == [(1, "a"), (1, "b"), (2, "c")]


def test_lines(monkeypatch):
    def take(text, at_ns, got):
        found.append((at_ns, text))
        got.done = text == "last"

    found = []
    reader = Lines(Stream(), take)
    assert not reader.feed(1, b"a\r\n\nb") and not reader.feed(2, b"c") and not reader.feed(3, b"\nend")
    reader.end(4)
    assert found == [(1, "a"), (1, ""), (3, "bc"), (4, "end")]
    assert Lines(Stream(), take).feed(5, b"last\nmore\n")
    assert found[-1] == (5, "last")
    monkeypatch.setattr(http, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="does not end"):
        Lines(Stream(), take).feed(1, b"x" * 11)


@pytest.mark.parametrize(
    ("pieces", "first"),
    [
        (["4"], 0),
        ([" ", "\n", "4"], 2),
        (["<th", "ink>hm", "</th", "ink>", "\n", "4", "2"], 5),
        (["<think>a</think>b"], 0),
        (["<", "b>"], 1),
        (["<think>", *["word "] * 20_000, "</think>", " ", "x"], 20_003),
        (["<think>", "</thin", "</think>", "x"], 3),
    ],
)
def test_where_the_answer_itself_begins(pieces, first):
    got = Stream()
    for number, text in enumerate(pieces):
        got.piece(number, text)
    assert got.first_answer_ns == first
    assert len(got._begun) < 100


def test_a_thought_without_an_end_has_no_answer():
    got = Stream()
    for number, text in enumerate(["<think>", "on and on"]):
        got.piece(number, text)
    assert got.first_answer_ns is None
