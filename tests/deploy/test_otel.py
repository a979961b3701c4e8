"""The collector's rules, on series of an agent: host totals have names of their own."""

from pathlib import Path

import pytest
import yaml
from collector_rules import check_collector, told

CONFIG = yaml.safe_load((Path(__file__).resolve().parents[2] / "deploy/otel/collector.yaml").read_text())


@pytest.mark.parametrize(
    ("device", "domain", "metric", "kind"),
    [
        ("cpu.0", "package", "hw.energy", "cpu"),
        ("gpu.0", "gpu", "hw.energy", "gpu"),
        ("gpu.0 memory", "gpu-memory", "hw.energy", "memory"),
        ("module.0", "module", "hw.energy", "enclosure"),
        ("psu.0", "psu", "hw.energy", "power_supply"),
        ("host", "node", "hw.host.energy", None),
        ("plug", "wall", "hw.host.energy", None),
    ],
)
def test_what_a_whole_machine_draws_is_not_added_to_its_components(device, domain, metric, kind):
    series = {"__name__": "everywatt_energy_joules_total", "device": device, "domain": domain, "pedigree": "counter"}
    ((name, attributes),) = told(CONFIG, series)
    assert (name, attributes["hw.id"], attributes.get("hw.type")) == (metric, f"{device}/{domain}", kind)


def test_every_part_of_the_collector_is_used():
    assert check_collector(CONFIG)
