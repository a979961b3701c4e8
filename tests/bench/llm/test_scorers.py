"""Scorers against answers as models write them."""

import json
from fractions import Fraction

import pytest

from everywatt.bench.llm.records import Item
from everywatt.bench.llm.scorers import boxed, broken_constraints, find_number, number, schema_validator, scorer
from everywatt.bench.llm.scoring import Scoring
from everywatt.core.errors import UsageError


def verdict(name, text, answer=None, **rules):
    return scorer(name)(text, Item("1", "", answer, name, rules=rules)).verdict


@pytest.mark.parametrize(
    ("text", "answer", "wanted"),
    [
        ("The answer is (B).", "B", "right"),
        ("the answer is: **C**", "C", "right"),
        ("Answer: D", "D", "right"),
        ("Let me see. A looks wrong.\nB", "B", "right"),
        (r"so $\boxed{A}$", "A", "right"),
        ("C) because it is", "C", "right"),
        ("First I thought the answer is (A). No: the answer is (D).", "D", "right"),
        ("It must be D.", "D", "right"),
        ("It must be D.", "C", "wrong"),
        ("The answer is a dog", "A", "unparsed"),
        ("I do not know", "A", "unparsed"),
        ("The answer is (J).", "J", "unparsed"),  # four choices have no J
        ("", "A", "unparsed"),
    ],
)
def test_letter(text, answer, wanted):
    assert verdict("letter", text, answer, choices=4) == wanted


@pytest.mark.parametrize(
    ("text", "value", "how"),
    [
        (r"thus \boxed{\frac{3}{4}}", Fraction(3, 4), "boxed"),
        (r"\boxed{1} or rather \boxed{-2}", Fraction(-2), "boxed"),
        ("so 5 * 3\n#### 1,200", Fraction(1200), "####"),
        ("The answer is $12.50.", Fraction(25, 2), "the answer is"),
        ("3 apples and then 7", Fraction(7), "last number"),
        ("it is 7/8", Fraction(7, 8), "last number"),
        ("minus: −4", Fraction(-4), "last number"),
        ("1e3", Fraction(1000), "last number"),
        ("no number", None, ""),
    ],
)
def test_numbers_in_answers(text, value, how):
    assert find_number(text) == (value, how)


def test_numeric():
    assert verdict("numeric", "0.75", "3/4") == "right"
    assert verdict("numeric", "0.751", "3/4") == "wrong"
    assert verdict("numeric", "0.751", "3/4", tolerance=0.01) == "right"
    assert verdict("numeric", "none", "1") == "unparsed"
    with pytest.raises(UsageError, match="not a number"):
        verdict("numeric", "1", "many")


def test_a_number_that_cannot_be_written_out_is_none():
    assert number("1e999999999") is None
    assert number("1/0") is None
    assert boxed(r"\boxed{a{b}c} \boxed{open") == ["a{b}c"]


def test_exact():
    assert verdict("exact", " Paris. ", "paris") == "right"
    assert verdict("exact", "Lyon", "Paris") == "wrong"
    assert verdict("exact", "NYC", "New York", aliases=["nyc"]) == "right"


def test_regex():
    assert verdict("regex", "x = 42;", None, pattern=r"= 42") == "right"
    assert verdict("regex", "x = 41;", None, pattern=r"= 42") == "wrong"
    assert verdict("regex", "x = 42;", "42", pattern=r"= (\d+)") == "right"
    assert verdict("regex", "nothing", "42", pattern=r"= (\d+)") == "unparsed"
    with pytest.raises(UsageError, match="regular expression"):
        verdict("regex", "x", None, pattern="(")


SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
}


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        ({"name": "x", "age": 3}, ""),
        ({"name": "x", "age": 3.0, "tags": ["a"]}, ""),
        ({"name": "x"}, "age"),
        ({"name": "", "age": 3}, "$.name"),
        ({"name": "x", "age": True}, "$.age"),
        ({"name": "x", "age": 200}, "$.age"),
        ({"name": "x", "age": 1, "other": 1}, "other"),
        ({"name": "x", "age": 1, "tags": ["c"]}, "$.tags[0]"),
        ([], "$"),
    ],
)
def test_json_schema(data, wrong):
    score = scorer("json-schema")(json.dumps(data), Item("1", "", None, "json-schema", rules={"schema": SCHEMA}))
    assert score.verdict == ("wrong" if wrong else "right")
    assert wrong in (score.found or "")


def test_json_schema_of_answers():
    assert verdict("json-schema", '```json\n{"name": "x", "age": 1}\n```', schema=SCHEMA) == "right"
    assert verdict("json-schema", '{"name": "x"}', schema=SCHEMA) == "wrong"
    assert verdict("json-schema", "Here you are", schema=SCHEMA) == "unparsed"
    with pytest.raises(UsageError, match="minimun"):
        verdict("json-schema", '{"age": 3}', schema={"properties": {"age": {"minimun": 3}}})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"items": {"minimun": 3}}, "minimun"),
        ({"type": "whole number"}, "whole number"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}, "does not match"),
    ],
)
def test_a_schema_that_cannot_be_used_is_found_before_the_run(schema, why):
    with pytest.raises(UsageError, match=why):
        Scoring().check([Item("1", "", None, "json-schema", rules={"schema": schema})])


def test_a_schema_is_checked_once():
    """Answers are scored while others arrive: whatever takes milliseconds was done before."""
    assert schema_validator(SCHEMA) is schema_validator(dict(SCHEMA))


@pytest.mark.parametrize(
    ("check", "value", "good", "bad"),
    [
        ("words_at_most", 3, "one two three", "one two three four"),
        ("words_exactly", 2, "one two", "one"),
        ("upper", None, "ALL OF IT", "Not all"),
        ("lower", None, "all of it", "Not all"),
        ("no_comma", None, "no commas here", "one, two"),
        ("lacks_letter", "q", "plain", "Quick"),
        ("contains", "silver", "A Silver spoon", "gold"),
        ("items_exactly", 3, "a, b, c", "a, b"),
        ("bullets_exactly", 2, "- a\n- b", "- a"),
        ("json_keys", ["a", "b"], '{"b": 1, "a": 2}', '{"a": 1}'),
        ("ends_with", "The end.", "So it was. The end. ", "The end. Or not"),
        ("lines_exactly", 2, "a\n\nb", "a"),
        ("starts_with", "Dear", "Dear you", "Hello"),
    ],
)
def test_constraints(check, value, good, bad):
    rule = [{"check": check, "value": value}]
    assert broken_constraints(good, rule) == []
    assert len(broken_constraints(bad, rule)) == 1


def test_an_unknown_scorer_is_named():
    with pytest.raises(UsageError, match="no scorer 'taste'"):
        scorer("taste")
