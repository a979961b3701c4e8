"""The text for Prometheus, read by its own parsers."""

import shutil
import subprocess

import pytest

from everywatt.fleet.metrics import FAMILIES, Registry, number, wants_open

UGLY = 'a "quoted" \\ back\nslash ünïcödé 漢字 \udcff'


def registry() -> Registry:
    made = Registry()
    for family in FAMILIES.values():
        made.set(family.name, 1.0, ("owner", UGLY), at_ms=1_700_000_000_123 if family.unit else None)
    made.set("everywatt_power_watts", None, ("device", "gone"))
    return made


def test_both_texts_give_the_same_back():
    parser = pytest.importorskip("prometheus_client.parser")
    from prometheus_client.openmetrics import parser as open_parser

    plain = list(parser.text_string_to_metric_families(registry().text()))
    strict = list(open_parser.text_string_to_metric_families(registry().text(open_metrics=True)))
    assert len(plain) == len(strict) == len(FAMILIES)
    for family in (*plain, *strict):
        assert len(family.samples) == 1, "a series without a value is not told"
        sample = family.samples[0]
        assert sample.labels["owner"] == UGLY.replace("\udcff", "?")
        assert sample.value == 1.0
    energy = next(family for family in strict if family.name == "everywatt_energy_joules")
    assert energy.unit == "joules"
    assert float(energy.samples[0].timestamp) == 1_700_000_000.123


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (make system-packages)")
def test_promtool_finds_nothing_to_say():
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=registry().text().encode(), capture_output=True, timeout=240
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;q=0.75,*/*;q=0.1", True),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=nonsense,text/plain", False),
    ],
)  # fmt: skip
def test_what_the_client_likes_better(accept, expected):
    assert wants_open(accept) is expected


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (1e14, "100000000000000"), (0.1, "0.1"), (1e300, "1e+300")])
def test_numbers_are_short_and_exact(value, text):
    assert number(value) == text
    assert float(text) == value


def test_a_name_that_is_none_of_ours_is_refused():
    with pytest.raises(KeyError):
        Registry().set("everywatt_nothing", 1.0)


def test_names_of_others_are_taken_for_the_tape_and_not_printed_twice():
    registry = Registry()
    registry.set("everywatt_build_info", 1.0, ("version", "1"))
    registry.take_text(
        '# TYPE a_total counter\na_total{x="q\\"\\\\\\n,y=1",z=""} 2.5 1700\nb 3\neverywatt_build_info{version="1"} 9\n'
    )
    found = {(one.family.name, one.family.type, one.labels): one.value for one in registry}
    assert found == {
        ("everywatt_build_info", "gauge", (("version", "1"),)): 1.0,
        ("a_total", "counter", (("x", 'q"\\\n,y=1'), ("z", ""))): 2.5,
        ("b", "gauge", ()): 3.0,
    }
    assert "a_total" not in registry.text() and [one[1:] for one in registry.counters()] == [(2.5, None)]
    registry.take_text("b 4\n")
    assert {one.family.name: one.value for one in registry} == {"everywatt_build_info": 1.0, "a_total": None, "b": 4.0}
