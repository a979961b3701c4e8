"""Filter files, old and new."""

import json

import pytest

from everywatt.core.errors import UsageError
from everywatt.fleet.query import Wanted, quoted, read_filter, selector


def test_the_old_file(tmp_path):
    path = tmp_path / "f.json"
    path.write_text(json.dumps([["cpu_usage", {"container": "stressme"}], ["tegra_cpu", {}], ["up"], "power_watts"]))
    assert [one.promql for one in read_filter(path)] == [
        '{__name__=~"(?s).*cpu_usage.*",container=~"(?s).*stressme.*"}',
        '{__name__=~"(?s).*tegra_cpu.*"}',
        '{__name__=~"(?s).*up.*"}',
        '{__name__=~"(?s).*power_watts.*"}',
    ]
    assert all(one.plain for one in read_filter(path))


def test_texts_are_texts_and_no_patterns():
    assert selector("a.b", {"x": 'q"\\\n+'}).promql == (
        '{__name__=~"(?s).*a\\\\.b.*",x=~"(?s).*q\\"\\\\\\\\\\\\\\n\\\\+.*"}'
    )
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


def test_lines_of_promql(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text('# mine\n\nnode_load1\n up{job="x"} \nrate(a[1m])\n')
    found = read_filter(path)
    assert [one.promql for one in found] == ["node_load1", 'up{job="x"}', "rate(a[1m])"]
    assert [one.plain for one in found] == [True, True, False]
    assert Wanted('{__name__="a"}').plain and not Wanted("a + b").plain


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "[]", "[[]]", '[["a", {}, 1]]', '[["", {}]]', '[["a", ["b"]]]', '[["a", {"b": 1}]]', "[1",
     "[1]", '[["a", {"b-c": "x"}]]'],
)  # fmt: skip
def test_what_makes_no_sense_is_said(tmp_path, text):
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"f\.json"):
        read_filter(path)


def test_files_that_are_none(tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    for name in ("a", "b"):
        with pytest.raises(UsageError, match=r"cannot be read|is not UTF"):
            read_filter(tmp_path / name)
