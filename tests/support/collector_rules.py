"""What an OpenTelemetry Collector does with a series, as far as `deploy/otel/collector.yaml` asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator


def told(config, labels) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and attributes of each metric that a scraped series becomes."""
    scrape = config["receivers"]["prometheus"]["config"]["scrape_configs"][0]
    kept = relabelled(labels, scrape["metric_relabel_configs"])
    (rule,) = config["processors"]["filter"]["metrics"]["datapoint"]
    names, domains = re.fullmatch(
        r'IsMatch\(metric.name, "(.+)"\) and IsMatch\(attributes\["domain"\], "(.+)"\)', rule
    ).groups()
    for name, found in transformed(kept, config["processors"]["metricstransform"]["transforms"]) if kept else ():
        if not (re.search(names, name) and re.search(domains, found.get("domain", ""))):
            yield name, found


def relabelled(labels, rules):
    """Prometheus' rules for `keep` and `replace`, with the collector's $$ for $."""
    for rule in rules:
        value = rule.get("separator", ";").join(labels.get(name, "") for name in rule["source_labels"])
        match = re.fullmatch(rule["regex"], value)
        if rule.get("action") == "keep":
            if not match:
                return None
        elif match:
            labels = {**labels, rule["target_label"]: match.expand(rule["replacement"].replace("$$", "\\"))}
    return labels


def transformed(labels, transforms) -> Iterator[tuple[str, dict[str, str]]]:
    """The collector's metricstransform: `insert` adds a copy under a new name, `update` renames; labels are renamed."""
    labels = dict(labels)
    name = labels.pop("__name__")
    for one in transforms:
        wanted = one.get("experimental_match_labels", {})
        if one["include"] != name or not all(re.fullmatch(text, labels[key]) for key, text in wanted.items()):
            continue
        renamed = dict(labels)
        for step in one["operations"]:
            assert step["action"] == "update_label"
            if step["label"] in renamed:
                renamed[step["new_label"]] = renamed.pop(step["label"])
        yield one["new_name"], renamed
        if one["action"] == "update":
            return


def check_collector(config) -> bool:
    """Whether every part that a pipeline names is there, every part there is used, and every metric has its unit."""
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) == set(config[kind]), kind
    statements = config["processors"]["transform"]["metric_statements"][0]["statements"]
    units = dict(
        re.fullmatch(r'set\(unit, "(\w)"\) where name == "([\w.]+)"', one).groups()[::-1] for one in statements
    )
    return units == {"hw.energy": "J", "hw.power": "W", "hw.host.energy": "J", "hw.host.power": "W"}
