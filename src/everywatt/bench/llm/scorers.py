"""Scorers: whether an answer is right.

`unparsed` (no answer could be found in the text) is distinguished from wrong, and so is `unevaluated`: it was not
scored. Constraints are rules that a program can check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

from everywatt.bench.llm.records import RIGHT, UNPARSED, WRONG, Item, Score
from everywatt.core.errors import UsageError
from everywatt.core.plugins import LLM_SCORERS, library, required_plugin

SPECIFICATION = "https://json-schema.org/draft/2020-12/schema"
# JSON Schema itself ignores a keyword that it does not know, and may fetch what `$ref` names: both are refused here.
STRICT = {
    "$schema": SPECIFICATION,
    "$id": "urn:everywatt:strict-json-schema",
    "$dynamicAnchor": "meta",
    "$ref": SPECIFICATION,
    "properties": {"$ref": {"pattern": "^#"}, "$dynamicRef": {"pattern": "^#"}},
    "unevaluatedProperties": False,
}


def schema_validator(schema: Any) -> Any:
    """A validator for a JSON Schema (2020-12). UsageError if it is not a valid schema or has an unknown keyword."""
    return _validator(json.dumps(schema))


@cache
def _validator(schema: str) -> Any:
    """Made once, before the run: to check a schema takes 10 ms, in which the pieces of other answers would wait."""
    validator = library("jsonschema", "llm").Draft202012Validator
    data = json.loads(schema)
    if (odd := next(validator(STRICT).iter_errors(data), None)) is not None:
        raise UsageError(f"The JSON Schema cannot be used: {odd.json_path}: {odd.message}.")
    return validator(data)


def _is_json_with(text: str, keys: Iterable[str]) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and set(data) == set(keys)


CHECKS: Mapping[str, Callable[[str, Any], bool]] = {
    "words_exactly": lambda text, n: len(text.split()) == n,
    "words_at_most": lambda text, n: 0 < len(text.split()) <= n,
    "lines_exactly": lambda text, n: sum(bool(line.strip()) for line in text.split("\n")) == n,
    "contains": lambda text, word: str(word).casefold() in text.casefold(),
    "lacks_letter": lambda text, letter: str(letter).casefold() not in text.casefold(),
    "ends_with": lambda text, end: text.rstrip().endswith(str(end)),
    "starts_with": lambda text, start: text.lstrip().startswith(str(start)),
    "upper": lambda text, _: text == text.upper() and any(c.isalpha() for c in text),
    "lower": lambda text, _: text == text.lower() and any(c.isalpha() for c in text),
    "no_comma": lambda text, _: "," not in text,
    "items_exactly": lambda text, n: len([part for part in text.split(",") if part.strip()]) == n,
    "bullets_exactly": lambda text, n: len(re.findall(r"(?m)^\s*[-*]\s+\S", text)) == n,
    "json_keys": _is_json_with,
}


def broken_constraints(text: str, constraints: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those that do not hold, as `name value`. Each is {"check": NAME, "value": …}."""
    text = text.strip()
    broken = []
    for one in constraints:
        name = str(one.get("check"))
        if name not in CHECKS:
            raise UsageError(f"There is no constraint '{name}'.", cure=f"one of: {', '.join(CHECKS)}")
        if not CHECKS[name](text, one.get("value")):
            broken.append(f"{name} {one.get('value')}".strip())
    return broken


MOST_TEXT = 200_000  # characters of an answer that patterns search: some take the square of its length
Scorer = Callable[[str, Item], Score]


def exact(text: str, item: Item) -> Score:
    """The whole answer, without case, outer spaces, quotes and the final stop; `rules` may have `aliases`."""
    wanted = [item.answer or "", *(str(alias) for alias in item.rules.get("aliases", ()))]
    found = plain_words(text)
    return Score(RIGHT if found in {plain_words(one) for one in wanted} else WRONG, found[:200], "whole answer")


def plain_words(text: str) -> str:
    """A text without case, outer spaces, quotes and the final stop."""
    return re.sub(r"\s+", " ", text).strip().strip("\"'`*.").strip().casefold()


_LETTER_RULES = (
    ("the answer is", r"(?i:answer\s+is)\s*:?\s*\**\(?\[?([A-{last}])\)?(?![A-Za-z])"),
    ("answer:", r"(?i:answer)\s*:\s*\**\s*\(?\[?([A-{last}])\)?(?![A-Za-z])"),
    ("boxed", r"\\boxed\{{\s*(?:\\text\{{)?\(?([A-{last}])\)?\}}?"),
    ("alone on a line", r"(?m)^\s*\**\(?([A-{last}])\)?[.):]?\**\s*$"),
    ("first on a line", r"(?m)^\s*\**\(?([A-{last}])[.):]\)?\**\s"),
)


def letter(text: str, item: Item) -> Score:
    """A choice's letter: `the answer is (X)`, `answer: X`, boxed, alone on a line, else the last lone letter.

    `rules` has `choices` (how many or which). A letter out of range is not one; no letter at all is unparsed.
    """
    choices = item.rules.get("choices", 10)
    count = choices if isinstance(choices, int) else len(choices)
    last = chr(ord("A") + max(1, min(count, 26)) - 1)
    wanted = (item.answer or "").strip().upper()
    for how, pattern in _LETTER_RULES:
        found = re.findall(pattern.format(last=last), text)
        if found:
            return _compared(found[-1], wanted, how)
    # `A` as a word and `I` are English; as a choice they stand before a stop, a bracket or the end.
    lone = re.findall(rf"(?<![A-Za-z'])([A-{last}])(?=[).,:\s]*$|[).:])", text)
    return _compared(lone[-1], wanted, "last lone letter") if lone else Score(UNPARSED)


def _compared(found: str, wanted: str, how: str) -> Score:
    return Score(RIGHT if found == wanted else WRONG, found, how)


_NUMBER = r"[-+−]?\s?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+−]?\.\d+"
_FRACTION = rf"(?:{_NUMBER})\s*/\s*\d+"
_FRAC = r"([-+−]?)\s*\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}"


def numeric(text: str, item: Item) -> Score:
    """A number: the last `\\boxed{}`, `#### n`, `answer is n`, else the last number; fractions are exact.

    `rules` may have `tolerance` (absolute). `1,000`, `3/4`, `\\frac{3}{4}`, `12.5%` (as 12.5) and `$5` are read.
    """
    wanted = number(item.answer or "")
    if wanted is None:
        raise UsageError(f"The answer of item {item.id} is not a number: {item.answer!r}.")
    value, how = find_number(text)
    if value is None:
        return Score(UNPARSED)
    try:
        near = Fraction(str(item.rules.get("tolerance", 0)))
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"Item {item.id}: the tolerance {item.rules['tolerance']!r} is not a number.") from None
    return Score(RIGHT if abs(value - wanted) <= near else WRONG, str(value), how)


def find_number(text: str) -> tuple[Fraction | None, str]:
    """The number that a text ends up with, and by which rule it was found."""
    text = text[-MOST_TEXT:]
    rules = (
        ("boxed", boxed(text)),
        ("####", re.findall(r"####\s*([^\n]+)", text)),
        ("the answer is", re.findall(r"(?i)answer\s*(?:is|:|=)\s*:?\s*\**\$?\s*([^\n]+)", text)),
    )
    for how, found in rules:
        if found and (value := number(found[-1])) is not None:
            return value, how
    every = re.findall(rf"\\[dt]?frac\s*\{{[^{{}}]+\}}\s*\{{[^{{}}]+\}}|{_FRACTION}|{_NUMBER}", text)
    return (number(every[-1]), "last number") if every else (None, "")


def boxed(text: str) -> list[str]:
    """The contents of every `\\boxed{…}`, including braces inside it."""
    found = []
    for start in re.finditer(r"\\f?boxed\s*\{", text):
        depth, at = 1, start.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            found.append(text[start.end() : at - 1])
    return found


def number(text: str) -> Fraction | None:
    """The first number in a text as an exact fraction, or None if it has no number."""
    fraction = re.search(_FRAC, text)
    if fraction:
        top, bottom = number(fraction.group(2)), number(fraction.group(3))
        if top is None or not bottom:
            return None
        return -top / bottom if fraction.group(1) in ("-", "−") else top / bottom
    found = re.search(f"{_FRACTION}|{_NUMBER}", text)
    if not found:
        return None
    plain = re.sub(r"[,\s+]", "", found.group()).replace("−", "-")
    # An exponent is a number of digits: 1e999999999 must not be written out.
    exponent = re.search(r"[eE](-?\d+)", plain)
    if exponent and abs(int(exponent.group(1))) > 400:
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def regex(text: str, item: Item) -> Score:
    """The pattern in `rules` (`pattern`), found in the answer; with a group, the group has to be the item's answer."""
    pattern = item.rules.get("pattern") or item.answer or ""
    try:
        found = re.search(pattern, text[:MOST_TEXT])
    except re.error as error:
        raise UsageError(f"Item {item.id}: {pattern!r} is not a regular expression: {error}.") from None
    if not found:
        return Score(UNPARSED if re.compile(pattern).groups else WRONG, None, "pattern")
    if not found.groups():
        return Score(RIGHT, found.group(), "pattern")
    return _compared(str(found.group(1)).strip(), (item.answer or "").strip(), "pattern")


def json_schema(text: str, item: Item) -> Score:
    """JSON that fits the schema in `rules` (`schema`); a fence around it is taken off. No JSON at all is unparsed."""
    fenced = re.search(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)
    try:
        data = json.loads((fenced.group(1) if fenced else text).strip())
    except ValueError:
        return Score(UNPARSED, None, "JSON")
    wrong = next(schema_validator(item.rules.get("schema", {})).iter_errors(data), None)
    if wrong is None:
        return Score(RIGHT, None, "JSON schema")
    return Score(WRONG, f"{wrong.json_path}: {wrong.message}"[:200], "JSON schema")


def constraints(text: str, item: Item) -> Score:
    """Every constraint in `rules` (`constraints`) holds; `found` names the first that does not."""
    if not text.strip():
        return Score(UNPARSED, None, "constraints")
    wrong = broken_constraints(text, item.rules.get("constraints", ()))
    return Score(WRONG, wrong[0], "constraints") if wrong else Score(RIGHT, None, "constraints")


def scorer(name: str) -> Scorer:
    """The scorer that is registered under that name in the entry point group `everywatt.llm_scorers`."""
    made: Scorer = required_plugin(LLM_SCORERS, name, "scorer")
    return made
