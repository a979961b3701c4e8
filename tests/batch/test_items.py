"""Manifests become items, and placeholders their commands."""

import pytest

from everywatt.batch.items import Item, check_words, fill, parse_items, read_items, unused
from everywatt.core.errors import UsageError

BADC = """recording_id,chunk_id,source_path,start_ms,end_ms,overlap_ms,sha256,notes
r1,r1_0,a.wav,0,60000,0,00,
r1,r1_1,a.wav,60000,90000,0,00,short
"""


def test_lines_are_items_and_comments_are_not():
    items = parse_items("one\n\n# not me\n two words\none\n", "")
    assert [(i.index, i.id, i.input) for i in items] == [
        (0, "one", "one"),
        (1, " two words", " two words"),
        (2, "one#2", "one"),
    ]


def test_a_manifest_of_badc_is_understood():
    first, second = parse_items(BADC, ".csv")
    assert (first.id, first.input, first.size) == ("r1_0", "a.wav", 60000)
    assert (second.id, second.size, second.row["notes"]) == ("r1_1", 30000, "short")


def test_json_lines_may_be_objects_or_texts():
    items = parse_items('{"path": "x", "size": 3}\n"y"\n', ".jsonl")
    assert [(i.input, i.size) for i in items] == [("x", 3.0), ("y", None)]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", "", "no items"),
        ("a,b\n1\n", ".csv", "line 2 has 1 cells"),
        ("a,a\n1,2\n", ".csv", "distinct name"),
        ('a\n"x\ny\n', ".csv", "line 3 cannot be read: unexpected end of data"),
        ("{\n", ".jsonl", "line 1 is not JSON"),
        ("3\n", ".jsonl", "line 1 is neither"),
        ("[" * 100_000 + "\n", ".jsonl", "line 1 is not JSON"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_line(text, kind, said):
    with pytest.raises(UsageError, match=said):
        parse_items(text, kind)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_items(tmp_path / "no.csv")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="line 1 is not UTF-8"):
        read_items(tmp_path / "b.txt")


def test_a_size_column_of_ones_own():
    assert [i.size for i in parse_items("f,n\na,3\nb,x\n", ".csv", size_column="n")] == [3.0, None]
    with pytest.raises(UsageError, match="no column 'm'"):
        parse_items("f,n\na,3\n", ".csv", size_column="m")


def test_sizes_that_are_none_are_told_with_line_and_value():
    said = []
    text = "id,size\na,10\n\nb,huge\nc,\nd,-3\ne,nan\nf,inf\n"
    assert [i.size for i in parse_items(text, ".csv", what="m.csv", warn=said.append)] == [10, *[None] * 5]
    assert said == [
        "m.csv has invalid sizes; these items run with unknown size: "
        "line 4: size is 'huge'; line 6: size is '-3'; line 7: size is 'nan', and 1 more"
    ]
    parse_items('{"path": "x", "start_ms": 9, "end_ms": 2}\n{"path": "y", "size": null}\n', ".jsonl", warn=said.append)
    assert said[1:] == [
        "the item list has invalid sizes; these items run with unknown size: line 1: end_ms 2 is before start_ms 9"
    ]


def test_no_two_items_have_one_name():
    assert [i.id for i in parse_items("id,x\na,1\na,2\na#2,3\na,4\n", ".csv")] == ["a", "a#3", "a#2", "a#4"]


def test_a_very_long_cell_and_a_line_separator_are_part_of_a_name():
    (item,) = parse_items(f"id,input\na,{'x' * 200_000}\n", ".csv")
    assert len(item.input) == 200_000
    assert [i.input for i in parse_items('"a\u2028b"\r\n"c"\r\n', ".jsonl")] == ["a\u2028b", "c"]


def test_placeholders_are_replaced_and_other_braces_stay():
    item = Item(7, "x", "a b.wav", {"rate": "8000"})
    words = ["run", "{input}", "--rate={rate}", "{gpu}:{index}", "{}", "${HOME}", "{not_mine}"]
    assert fill(words, item, "3") == ["run", "a b.wav", "--rate=8000", "3:7", "{}", "${HOME}", "{not_mine}"]


def test_a_column_in_the_command_that_no_item_has():
    with pytest.raises(UsageError, match="No item has a column 'rat'; they have: rate"):
        check_words(["x", "{rat}"], [Item(0, "x", "x", {"rate": "1"})])
    with pytest.raises(UsageError, match="Item 'b' has no 'rate'"):
        check_words(["{rate}"], [Item(0, "a", "a", {"rate": "1"}), Item(1, "b", "b", {"input": "b"})])
    with pytest.raises(UsageError, match="No command"):
        check_words([], [])
    check_words(["sh", "-c", "echo ${HOME}"], [Item(0, "x", "x", {"rate": "1"})])


def test_a_command_that_does_not_use_its_item_is_noted():
    items = [Item(n, str(n), str(n), {"input": str(n)}) for n in range(3)]
    assert unused(["run", "{}"], items) == "the command is the same for all 3 items: {} is not replaced, {input} is"
    assert unused(["run"], items) == "the command is the same for all 3 items: it contains neither {input} nor {index}"
    assert unused(["run", "--n={index}"], items) == unused(["run"], items[:1]) == ""
