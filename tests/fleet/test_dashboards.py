"""Dashboards and rules: made from one source, of names that are told, and sound by Prometheus' own tool."""

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from everywatt.fleet.metrics import FAMILIES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
MADE = runpy.run_path(str(DEPLOY / "grafana" / "make_dashboards.py"))["files"]()
PAGES = {name: json.loads(text) for name, text in MADE.items()}
RECORDED = {
    rule["record"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
}
_NAME = re.compile(r"[A-Za-z_]*:?everywatt_[a-z_]+(?::\w+)?")


def names_in(promql):
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', promql)))


def expressions(page):
    yield from (target["expr"] for panel in page["panels"] for target in panel["targets"])
    yield from (one["definition"] for one in page["templating"]["list"] if one["type"] == "query")


def test_what_lies_there_is_what_the_source_makes():
    assert set(MADE) == {"fleet.json", "node.json", "gpu.json", "job.json", "jetson.json", "llm.json"}
    assert {path.name: path.read_text(encoding="utf-8") for path in (DEPLOY / "grafana").glob("*.json")} == MADE


@pytest.mark.parametrize("name", PAGES)
def test_every_name_is_told_or_recorded(name):
    for promql in expressions(PAGES[name]):
        found = names_in(promql)
        assert found and found <= {*FAMILIES, *RECORDED}, promql


@pytest.mark.parametrize("name", PAGES)
def test_panels_do_not_overlap_and_have_what_grafana_wants(name):
    page = PAGES[name]
    taken = set()
    for panel in page["panels"]:
        spot = panel["gridPos"]
        cells = {
            (x, y) for x in range(spot["x"], spot["x"] + spot["w"]) for y in range(spot["y"], spot["y"] + spot["h"])
        }
        assert spot["x"] + spot["w"] <= 24 and not cells & taken
        taken |= cells
        assert panel["targets"] and panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])
    names = {one["name"] for one in page["templating"]["list"]}
    used = {name for promql in expressions(page) for name in re.findall(r"\$(?!__)(\w+)", promql)}
    assert used <= names and page["uid"].startswith("everywatt-") and len(page["uid"]) <= 40


def test_a_wrong_name_is_found():
    assert names_in("sum(everywatt_pover_watts) + owner:everywatt_power_watts:rate1m") == {
        "everywatt_pover_watts",
        "owner:everywatt_power_watts:rate1m",
    }


def test_rules_are_made_of_names_that_are_told():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert names_in(rule["expr"]) <= {*FAMILIES, *RECORDED}, rule
    alerts = {r["alert"] for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"] if "alert" in r}
    assert {"EverywattAgentDown", "EverywattSensorStale", "EverywattRemoteWriteLag", "EverywattPowerOverLimit",
            "EverywattBudgetExceeded"} <= alerts  # fmt: skip


def test_every_rule_has_a_value_and_every_alert_a_fire_that_promtool_tests():
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tests = [one for name in TESTS for one in yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["tests"]]
    fired = {one["alertname"] for test in tests for one in test.get("alert_rule_test", ()) if one["exp_alerts"]}
    told = " ".join(one["expr"] for test in tests for one in test.get("promql_expr_test", ()) if one["exp_samples"])
    assert fired == {rule["alert"] for rule in rules if "alert" in rule}
    budget = "fleet:everywatt_energy_budget_joules:day"  # a number of the site's own
    assert {rule["record"] for rule in rules if "record" in rule} - {budget} == names_in(told)


TESTS = ("rules_test.yml", "rules_day_test.yml")
CHECKS = ("check rules rules.yml", *(f"test rules {name}" for name in TESTS), "check config prometheus.yml")


@pytest.mark.parametrize("words", CHECKS)
def test_promtool_is_content(words):
    if shutil.which("promtool") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "promtool is not installed (make system-packages)"
        )
    done = subprocess.run(
        ["promtool", *words.split()], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
