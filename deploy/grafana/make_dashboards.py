"""The Grafana dashboards, all from here: `python deploy/grafana/make_dashboards.py` writes them beside this file.

Every query uses names that the agent tells (everywatt.fleet.metrics.FAMILIES) or that deploy/prometheus/rules.yml
records; a test runs each of them against a real Prometheus.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NODE = 'job=~"$job",instance=~"$instance"'
DEVICE = f'{NODE},device=~"$device"'
GPU = f'{NODE},device=~"gpu.+"'
RUNNING = 'kind!="rest"'  # the rest grows by what owners that ended had used, which their own series have
COUNTED = 'and on (instance, job, device, domain) everywatt_device_info{total="1"}'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One panel: what it shows, and in which unit of Grafana's. `queries` are (legend, PromQL)."""

    title: str
    kind: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int = 12
    height: int = 8
    description: str = ""
    stacked: bool = False
    most: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """A page of panels. `variables` are (name, label, query)."""

    uid: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str, str], ...] = field(
        default=(
            ("job", "Job", "label_values(everywatt_build_info, job)"),
            ("instance", "Node", 'label_values(everywatt_build_info{job=~"$job"}, instance)'),
        )
    )


def graph(title: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    return Panel(title, "timeseries", unit, queries, **more)


def stat(title: str, unit: str, query: str, **more: Any) -> Panel:
    return Panel(title, "stat", unit, (("", query),), **{"width": 6, "height": 4, **more})


def table(title: str, unit: str, query: str, **more: Any) -> Panel:
    return Panel(title, "table", unit, (("", query),), **more)


def node_power(selector: str) -> str:
    return f"sum by (instance) (everywatt_power_watts{{{selector}}} {COUNTED})"


def energy_over(selector: str, by: str = "") -> str:
    return f"sum{by}(increase(everywatt_energy_joules_total{{{selector}}}[$__range]) {COUNTED})"


def by_owner(selector: str) -> Panel:
    """What the largest owners draw."""
    joules = f"everywatt_owner_energy_joules_total{{{selector},{RUNNING}}}"
    watts = f"sum by (kind, owner) (rate({joules}[$__rate_interval]))"
    about = "The fifteen largest. Idle is an owner of its own."
    return graph(
        "Power by owner", "watt", ("{{kind}} {{owner}}", f"topk(15, {watts})"), stacked=True, description=about
    )


DEVICES = ("device", "Device", f"label_values(everywatt_energy_joules_total{{{NODE}}}, device)")
FLEET = Dashboard(
    "everywatt-fleet",
    "everywatt: fleet",
    "All nodes: what they draw, what they used, and whether anything is silent.",
    (
        stat("Power now", "watt", f"sum({node_power(NODE)})"),
        stat("Energy in this time", "joule", energy_over(NODE)),
        stat("Nodes", "none", f"count(count by (instance) (everywatt_build_info{{{NODE}}}))"),
        stat("Observed", "percentunit", f"avg(everywatt_coverage_ratio{{{NODE}}})"),
        graph("Power by node", "watt", ("{{instance}}", node_power(NODE)), width=24, stacked=True),
        by_owner(NODE),
        graph(
            "Power by domain",
            "watt",
            ("{{domain}}", f"sum by (domain) (everywatt_power_watts{{{NODE}}} {COUNTED})"),
            stacked=True,
        ),
        table("Energy by node", "joule", energy_over(NODE, " by (instance) ")),
        graph(
            "Age of the newest reading",
            "s",
            ("{{instance}} {{device}}", f"max by (instance, device) (everywatt_tick_age_seconds{{{NODE}}})"),
        ),
        graph("Sensors that answer", "none", ("{{sensor}}", f"sum by (sensor) (everywatt_sensor_up{{{NODE}}})")),
        graph(
            "The agents' own CPU",
            "percentunit",
            ("{{instance}}", f"rate(everywatt_agent_cpu_seconds_total{{{NODE}}}[$__rate_interval])"),
        ),
    ),
)
NODE_PAGE = Dashboard(
    "everywatt-node",
    "everywatt: node",
    "One node: devices, owners, host, and the agent itself.",
    (
        stat("Power now", "watt", f"sum({node_power(NODE)})"),
        stat("Energy in this time", "joule", energy_over(NODE)),
        stat("Mean power", "watt", f"sum(rate(everywatt_energy_joules_total{{{NODE}}}[$__range]) {COUNTED})"),
        stat("Observed", "percentunit", f"min(everywatt_coverage_ratio{{{NODE}}})"),
        graph("Power by device", "watt", ("{{device}} {{domain}}, {{pedigree}}", f"everywatt_power_watts{{{DEVICE}}}")),
        by_owner(DEVICE),
        table(
            "Energy by owner",
            "joule",
            "sort_desc(sum by (kind, owner) "
            f"(increase(everywatt_owner_energy_joules_total{{{DEVICE},{RUNNING}}}[$__range])))",
        ),
        table(
            "Energy by device",
            "joule",
            f"sum by (device, domain, pedigree) (increase(everywatt_energy_joules_total{{{DEVICE}}}[$__range]))",
        ),
        graph(
            "CPUs in use",
            "none",
            ("{{mode}}", f"rate(everywatt_host_cpu_seconds_total{{{NODE}}}[$__rate_interval])"),
            stacked=True,
        ),
        graph(
            "Memory",
            "bytes",
            ("in use", f"everywatt_host_memory_bytes{{{NODE}}}"),
            ("there is", f'everywatt_memory_total_bytes{{{NODE},device="host"}}'),
        ),
        graph("CPU by owner", "none", (
            "{{kind}} {{owner}}",
            f"topk(15, rate(everywatt_owner_cpu_seconds_total{{{NODE}}}[$__rate_interval]))",
        ), stacked=True),
        graph("Memory by owner", "bytes", ("{{kind}} {{owner}}", f"topk(15, everywatt_owner_memory_bytes{{{NODE}}})")),
        graph("Age of the newest reading", "s", ("{{device}} {{domain}}", f"everywatt_tick_age_seconds{{{DEVICE}}}")),
        graph("Observed since the start", "percentunit", (
            "{{device}} {{domain}}", f"everywatt_coverage_ratio{{{DEVICE}}}"
        ), most=1.0),
        graph(
            "The agent",
            "bytes",
            ("resident memory", f"everywatt_agent_resident_memory_bytes{{{NODE}}}"),
            ("tape on disk", f"everywatt_agent_disk_bytes{{{NODE}}}"),
        ),
        table("Versions", "none", f"everywatt_build_info{{{NODE}}}"),
    ),
    (*Dashboard.__dataclass_fields__["variables"].default, DEVICES),
)  # fmt: skip
GPU_PAGE = Dashboard(
    "everywatt-gpu",
    "everywatt: GPUs",
    "Cards: power against the limit, use, clocks, memory, temperature, and whose energy it is.",
    (
        stat("Power of all cards", "watt", f"sum(everywatt_power_watts{{{GPU}}})"),
        stat("Energy in this time", "joule", f"sum(increase(everywatt_energy_joules_total{{{GPU}}}[$__range]))"),
        stat("Cards", "none", f'count(everywatt_device_info{{{NODE},domain="gpu"}})'),
        stat("Hottest", "celsius", f"max(everywatt_temperature_celsius{{{GPU}}})"),
        graph("Power", "watt", ("{{instance}} {{device}}", f"everywatt_power_watts{{{GPU}}}")),
        graph(
            "Power against the limit",
            "percentunit",
            (
                "{{instance}} {{device}}",
                f"everywatt_power_watts{{{GPU}}} / on (instance, job, device) group_left () "
                f"everywatt_power_limit_watts{{{GPU}}}",
            ),
        ),
        graph(
            "Utilisation", "percentunit", ("{{instance}} {{device}}", f"everywatt_utilisation_ratio{{{GPU}}}"), most=1.0
        ),
        graph(
            "Memory in use",
            "percentunit",
            (
                "{{instance}} {{device}}",
                f"everywatt_memory_bytes{{{GPU}}} / on (instance, job, device) everywatt_memory_total_bytes{{{GPU}}}",
            ),
            most=1.0,
        ),
        graph("Clocks", "hertz", ("{{instance}} {{device}} {{clock}}", f"everywatt_clock_hertz{{{GPU}}}")),
        graph("Temperature", "celsius", ("{{instance}} {{device}}", f"everywatt_temperature_celsius{{{GPU}}}")),
        by_owner(GPU),
        table("What they are", "none", f'everywatt_device_info{{{NODE},domain="gpu"}}'),
    ),
)
OWNED = f'{NODE},kind="job",owner=~"$slurm_job"'
JOB_PAGE = Dashboard(
    "everywatt-job",
    "everywatt: jobs",
    "Slurm jobs: energy and power on all their nodes, by device and by user.",
    (
        stat("Energy", "joule", f"sum(everywatt_owner_energy_joules_total{{{OWNED}}})",
             description="Since the job was first seen."),
        stat("Power now", "watt", f"sum(rate(everywatt_owner_energy_joules_total{{{OWNED}}}[$__rate_interval]))"),
        stat("Nodes", "none", f"count(count by (instance) (everywatt_owner_energy_joules_total{{{OWNED}}}))"),
        stat("Jobs here", "none", f"count(count by (exported_job) (everywatt_job_info{{{NODE}}}))"),
        graph("Power by node", "watt", (
            "{{owner}} {{instance}}",
            f"sum by (owner, instance) (rate(everywatt_owner_energy_joules_total{{{OWNED}}}[$__rate_interval]))",
        ), stacked=True),
        graph("Power by device", "watt", (
            "{{owner}} {{device}}",
            f"sum by (owner, device) (rate(everywatt_owner_energy_joules_total{{{OWNED}}}[$__rate_interval]))",
        ), stacked=True),
        graph("CPUs", "none", (
            "{{owner}} {{instance}}", f"rate(everywatt_owner_cpu_seconds_total{{{OWNED}}}[$__rate_interval])"
        )),
        graph("Memory", "bytes", ("{{owner}} {{instance}}", f"everywatt_owner_memory_bytes{{{OWNED}}}")),
        table("Jobs", "joule", "sort_desc(slurm_job:everywatt_energy_joules:sum)"),
        graph("Power by user", "watt", ("{{user}} ({{account}})", "user:everywatt_power_watts:rate1m"), stacked=True),
        table("Who they are", "none", f"everywatt_job_info{{{NODE}}}", width=24),
    ),
    (
        *Dashboard.__dataclass_fields__["variables"].default,
        ("slurm_job", "Slurm job", f'label_values(everywatt_owner_energy_joules_total{{{NODE},kind="job"}}, owner)'),
    ),
)  # fmt: skip
SERVED = f'{NODE},server=~"$server",model=~"$model"'
LLM_PAGE = Dashboard(
    "everywatt-llm",
    "everywatt: language models",
    "Servers of language models: joules per token with their interval, tokens, and energy without tokens.",
    (
        stat("Joules per generated token", "joule", (
            f"sum(rate(everywatt_llm_energy_joules_total{{{SERVED}}}[$__rate_interval])) / "
            f'sum(rate(everywatt_llm_tokens_total{{{SERVED},phase="decode"}}[$__rate_interval]))'
        ), description="Active energy; what cards draw idle, or held awake, is not in it."),
        stat("Generated tokens per second", "none",
             f'sum(rate(everywatt_llm_tokens_total{{{SERVED},phase="decode"}}[$__rate_interval]))'),
        stat("Active power", "watt", f"sum(rate(everywatt_llm_energy_joules_total{{{SERVED}}}[$__rate_interval]))"),
        stat("Servers that answer", "none", f'sum(everywatt_llm_up{{{NODE},server=~"$server"}})'),
        graph("Joules per token, with the 95 % interval", "joule", (
            "{{server}} {{model}}", f'everywatt_llm_joules_per_token{{{SERVED},phase="all"}}'
        ), (
            "{{server}} {{model}} low", f'everywatt_llm_joules_per_token_low{{{SERVED},phase="all"}}'
        ), (
            "{{server}} {{model}} high", f'everywatt_llm_joules_per_token_high{{{SERVED},phase="all"}}'
        ), width=24, description="All active energy by generated token, over the minute before."),
        graph("Joules per token by phase", "joule", (
            "{{server}} {{model}} {{phase}}", f'everywatt_llm_joules_per_token{{{SERVED},phase!="all"}}'
        ), description="Prefill by prompt token, decode by generated token, where the server counts the time in each."),
        graph("Tokens per second", "none", (
            "{{server}} {{model}} {{phase}}", f"rate(everywatt_llm_tokens_total{{{SERVED}}}[$__rate_interval])"
        )),
        graph("Active power by model", "watt", (
            "{{server}} {{model}}", f"rate(everywatt_llm_energy_joules_total{{{SERVED}}}[$__rate_interval])"
        ), stacked=True),
        graph("Power without tokens", "watt", (
            "{{server}} loading, or not counted",
            f'rate(everywatt_llm_other_energy_joules_total{{{NODE},server=~"$server"}}[$__rate_interval])'
        ), (
            "{{server}} cards held awake",
            f'rate(everywatt_llm_held_energy_joules_total{{{NODE},server=~"$server"}}[$__rate_interval])'
        ), stacked=True),
        table("Why there is no figure", "none", f'everywatt_llm_refused_info{{{NODE},server=~"$server"}}', width=24),
    ),
    (
        *Dashboard.__dataclass_fields__["variables"].default,
        ("server", "Server", f"label_values(everywatt_llm_up{{{NODE}}}, server)"),
        ("model", "Model", f'label_values(everywatt_llm_tokens_total{{{NODE},server=~"$server"}}, model)'),
    ),
)  # fmt: skip
BOARD = f'{NODE},domain=~"soc|rail"'
JETSON_PAGE = Dashboard(
    "everywatt-jetson",
    "everywatt: Jetson",
    "Boards: what goes in, what each rail draws, and what was observed.",
    (
        stat("Power now", "watt", f'sum(everywatt_power_watts{{{BOARD}}} {COUNTED})'),
        stat("Energy in this time", "joule", energy_over(BOARD)),
        stat("Boards", "none", f"count(count by (instance) (everywatt_power_watts{{{BOARD}}}))"),
        stat("Observed", "percentunit", f"min(everywatt_coverage_ratio{{{BOARD}}})"),
        graph("Power of the board", "watt", ("{{instance}} {{device}}", f"everywatt_power_watts{{{BOARD}}} {COUNTED}")),
        graph("Power by rail", "watt", ("{{instance}} {{device}}", f'everywatt_power_watts{{{NODE},domain="rail"}}')),
        table("Energy by rail", "joule", (
            f"sum by (instance, device, domain) (increase(everywatt_energy_joules_total{{{BOARD}}}[$__range]))"
        )),
        graph("Power by owner", "watt", (
            "{{instance}} {{kind}} {{owner}}",
            f"topk(15, sum by (instance, kind, owner) (rate(everywatt_owner_energy_joules_total{{{NODE},{RUNNING}}}"
            '[$__rate_interval])) and on (instance) everywatt_power_watts{domain=~"soc|rail"})',
        ), stacked=True),
        graph("CPUs in use", "none", (
            "{{instance}}", f'rate(everywatt_host_cpu_seconds_total{{{NODE},mode="busy"}}[$__rate_interval]) '
            'and on (instance) everywatt_power_watts{domain=~"soc|rail"}'
        )),
        graph("Memory in use", "bytes", (
            "{{instance}}",
            f'everywatt_host_memory_bytes{{{NODE}}} and on (instance) everywatt_power_watts{{domain=~"soc|rail"}}',
        )),
    ),
)  # fmt: skip
ALL = (FLEET, NODE_PAGE, GPU_PAGE, JOB_PAGE, JETSON_PAGE, LLM_PAGE)


def panel_json(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """A panel as Grafana has it."""
    instant = panel.kind in ("stat", "table")
    custom = {} if instant else {
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }  # fmt: skip
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": custom}
    if panel.most is not None:
        defaults |= {"min": 0, "max": panel.most}
    options: dict[str, Any] = {
        "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none", "colorMode": "none"},
        "table": {"showHeader": True},
    }[panel.kind]
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for place, (legend, query) in enumerate(panel.queries)
        ],
    }
    if panel.description:
        made["description"] = panel.description
    if panel.kind == "table":
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}}}]
    return made


def variable_json(name: str, label: str, query: str) -> dict[str, Any]:
    """A drop-down whose choices come from the engine."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 7,
        "includeAll": True,
        "allValue": ".+",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard_json(page: Dashboard) -> dict[str, Any]:
    """A whole dashboard; panels flow from left to right."""
    panels = []
    x = y = row = 0
    for number, panel in enumerate(page.panels, 1):
        if x + panel.width > 24:
            x, y, row = 0, y + row, 0
        panels.append(panel_json(panel, number, x, y))
        x, row = x + panel.width, max(row, panel.height)
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    links = [
        {"type": "dashboards", "tags": ["everywatt"], "title": "everywatt", "asDropdown": True, "includeVars": True,
         "keepTime": True}
    ]  # fmt: skip
    return {
        "uid": page.uid,
        "title": page.title,
        "description": page.about,
        "tags": ["everywatt", "energy"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": links,
        "templating": {"list": [source, *(variable_json(*one) for one in page.variables)]},
        "panels": panels,
    }


def files() -> dict[str, str]:
    """Every file that belongs beside this one, by its name."""
    return {
        f"{page.uid.removeprefix('everywatt-')}.json": json.dumps(dashboard_json(page), indent=1, ensure_ascii=False)
        + "\n"
        for page in ALL
    }


def main() -> int:
    """Write them all."""
    for name, text in files().items():
        (HERE / name).write_text(text, encoding="utf-8")
        print(HERE / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
