"""The one JSON writer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.channels import Domain
from everywatt.core.energy import Energy
from everywatt.core.jsonio import ToDict, document, dumps
from everywatt.core.tables import csv_of

data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def clean(value):
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, list):
        return [clean(item) for item in value]
    return {key: clean(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(data)
def test_whatever_it_is_it_is_strict_json(value):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    assert json.loads(dumps(value), parse_constant=refuse) == clean(value)


@dataclass
class Thing:
    where: Path
    share: float


def test_plain_data_of_rich_values():
    found = json.loads(
        dumps(
            {
                "thing": Thing(Path("/a/b"), float("nan")),
                "energy": Energy.refuse("no sensor"),
                "domain": Domain.GPU,
                "scalar": numpy.float32(1.5),
                "count": numpy.int64(7),
                "array": numpy.array([[1.0, float("inf")], [2.0, 3.0]]),
                "set": {4},
                5: (1, 2),
            }
        )
    )
    assert found["thing"] == {"where": "/a/b", "share": None}
    assert found["energy"]["refused"] == "no sensor"
    assert (found["domain"], found["scalar"], found["count"], found["set"]) == ("gpu", 1.5, 7, [4])
    assert found["array"] == [[1.0, None], [2.0, 3.0]]
    assert found["5"] == [1, 2]


def test_a_document_says_what_it_is():
    assert document("run", {"joules": 1}) == {"schema": "everywatt/1", "kind": "run", "joules": 1}


def test_what_is_declared_of_a_value_is_its_json_form_and_its_line_of_csv():
    @dataclass(frozen=True)
    class Part(ToDict):
        share: float
        of: str | None = None

    @dataclass(frozen=True)
    class Whole(ToDict):
        JSON = "name parts first=parts.cpu share=best.share rest=parts.gpu.of"

        name: str
        parts: dict[str, Part]
        best: Part | None = None

    whole = Whole("a", {"cpu": Part(float("inf"), "b")})
    part = {"share": None, "of": "b"}
    assert whole.to_dict() == {"name": "a", "parts": {"cpu": part}, "first": part, "share": None, "rest": None}
    assert csv_of("name cpu=parts.cpu.of gpu=parts.gpu.of", [whole]) == "name,cpu,gpu\na,b,\n"
