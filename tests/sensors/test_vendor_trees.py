"""Machines as vendors' drivers present them, each with its truth: no joule is counted twice, whatever can be read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace

import pytest

from everywatt.energy.sources import addable, scope_of, sources
from everywatt.sensors.registry import choose, known


@dataclass(frozen=True)
class Meter:
    """One meter of a machine: the folder of its driver, what it is called there, and the watts that flow through it."""

    folder: str
    label: str
    watts: float
    whole: bool = False  # no other meter contains it: together these are the machine's total


def acpi(number: int, label: str, watts: float, **more) -> Meter:
    return Meter(f"hwmon{number}/power_meter", label, watts, **more)


def superchip(socket: int, module: float, grace: float, cpu: float, sysio: float) -> list[Meter]:
    first = 4 * socket
    return [
        acpi(first, f"Module Power Socket {socket}", module, whole=True),
        acpi(first + 1, f"Grace Power Socket {socket}", grace),
        acpi(first + 2, f"CPU Power Socket {socket}", cpu),
        acpi(first + 3, f"SysIO Power Socket {socket}", sysio),
    ]


# Truth: the watts of the meters marked `whole`, which contain all the others.
MACHINES: dict[str, list[Meter]] = {
    # 240 W in all. The four meters add up to 412 W, because each is inside the one before.
    "GH200": superchip(0, 240.0, 100.0, 52.0, 20.0),
    # Two modules of 900 W and 850 W: 1750 W.
    "GB200": superchip(0, 900.0, 180.0, 110.0, 30.0) + superchip(1, 850.0, 170.0, 100.0, 28.0),
    # A CPU superchip has no GPU in its module: 410 W.
    "Grace CPU": superchip(0, 410.0, 380.0, 300.0, 55.0),
    # A superchip of 240 W with a graphics card of 60 W in a slot beside its module: 300 W.
    "GH200 and a card": [*superchip(0, 240.0, 100.0, 52.0, 20.0), Meter("hwmon8/amdgpu", "PPT", 60.0, whole=True)],
    # Alchemist and Ponte Vecchio count only their package: 130 W.
    "Arc A770": [Meter("hwmon0/xe", "pkg", 130.0, whole=True)],
    # Battlemage counts the card, its package inside it, and its memory: 160 W.
    "Arc B580": [
        Meter("hwmon0/xe", "card", 160.0, whole=True),
        Meter("hwmon0/xe", "pkg", 130.0),
        Meter("hwmon0/xe", "vram", 15.0),
    ],
    # Two cards, each with a sensor of its own: 150 W and 148 W.
    "two MI300X": [
        Meter("hwmon0/amdgpu", "PPT", 150.0, whole=True),
        Meter("hwmon1/amdgpu", "PPT", 148.0, whole=True),
    ],
    # Granite Rapids by TPMI: two packages of 200 W and 180 W with 30 W and 28 W of DRAM beside them: 438 W.
    "TPMI": [
        Meter("intel-rapl:0", "package-0", 200.0, whole=True),
        Meter("intel-rapl:0:0", "dram", 30.0, whole=True),
        Meter("intel-rapl:1", "package-1", 180.0, whole=True),
        Meter("intel-rapl:1:0", "dram", 28.0, whole=True),
    ],
    # The same machine where the older interface is still shown beside TPMI under a name of its own: 380 W, once.
    "TPMI and MSR": [
        Meter("intel-rapl:0", "package-0", 200.0, whole=True),
        Meter("intel-rapl-tpmi:0", "package-0", 200.0),
        Meter("intel-rapl:1", "package-1", 180.0, whole=True),
        Meter("intel-rapl-tpmi:1", "package-1", 180.0),
    ],
    # A package of 90 W with 40 W of cores and 5 W of graphics in it, and 12 W of DRAM beside it: 102 W.
    "Xeon": [
        Meter("intel-rapl:0", "package-0", 90.0, whole=True),
        Meter("intel-rapl:0:0", "core", 40.0),
        Meter("intel-rapl:0:1", "uncore", 5.0),
        Meter("intel-rapl:0:2", "dram", 12.0, whole=True),
    ],
}


def install(tree, meters):
    """Write the files of these meters, as their drivers do."""
    for place, meter in enumerate(meters):
        if meter.folder.startswith("intel-rapl"):
            above = meter.folder.rpartition(":")[0]
            parent = f"{above}/" if ":" in above else ""
            if parent and not any(other.folder == above for other in meters):
                name = f"package-{above.rpartition(':')[2]}"
                tree.write(f"sys/class/powercap/{above}/name", name)  # it exists and cannot be read
            tree.zone(meter.folder, meter.label, watts=meter.watts, nested=parent)
            continue
        number, chip = meter.folder.split("/")
        folder = f"sys/class/hwmon/{number}"
        tree.write(f"{folder}/name", chip)
        if chip == "power_meter":
            tree.write(f"{folder}/device/power1_oem_info", meter.label)
            tree.write(f"{folder}/device/power1_accuracy", "100.0%")
            tree.write(f"{folder}/device/power1_average", round(meter.watts * 1e6))
            tree.write(f"{folder}/device/power1_average_interval", 50)
        elif chip == "xe":
            tree.write(f"{folder}/energy{place + 1}_label", meter.label)
            tree.count(f"{folder}/energy{place + 1}_input", 5_000_000, meter.watts)
        else:
            tree.write(f"{folder}/power1_label", meter.label)
            tree.write(f"{folder}/power1_average", round(meter.watts * 1e6))


def total(tree) -> tuple[float, str]:
    """Watts and scope of the total that a run on this machine would print."""
    targets = {name: target for name, target in known({}).items() if name in ("rapl", "hwmon")}
    groups = choose(targets, tree.request()).groups
    stored = [SimpleNamespace(info=group.info, id=number, group=group) for number, group in enumerate(groups)]
    found = addable(sources(SimpleNamespace(groups=stored)))
    values = {id(group): group.read()[0].values for group in groups}
    tree.clock.advance(1.0)
    later = {id(group): group.read()[0].values for group in groups}
    watts = 0.0
    for source in found:
        place, group = source.group.info.channels.index(source.channel), id(source.group.group)
        counter = source.channel.unit == "J"
        watts += (later[group][place] - (values[group][place] if counter else 0.0)) * source.channel.scale
    return watts, scope_of(found)


@pytest.mark.parametrize(
    ("name", "watts", "scope"),
    [
        ("GH200", 240.0, "module"),
        ("GB200", 1750.0, "module"),
        ("Grace CPU", 410.0, "module"),
        ("GH200 and a card", 300.0, "module+gpu"),
        ("Arc A770", 130.0, "gpu"),
        ("Arc B580", 160.0, "gpu"),
        ("two MI300X", 298.0, "gpu"),
        ("Xeon", 102.0, "cpu+dram"),
        ("TPMI", 438.0, "cpu+dram"),
        ("TPMI and MSR", 380.0, "cpu"),
    ],
)
def test_the_total_is_the_truth(tree, name, watts, scope):
    assert sum(meter.watts for meter in MACHINES[name] if meter.whole) == watts
    install(tree, MACHINES[name])
    assert total(tree) == (pytest.approx(watts, abs=0.01), scope)


@pytest.mark.parametrize("name", MACHINES)
def test_whatever_can_be_read_the_total_is_the_whole_or_a_named_part_and_never_more(name, tmp_path):
    from trees import Tree

    meters = MACHINES[name]
    truth = sum(meter.watts for meter in meters if meter.whole)
    for count in range(1, len(meters) + 1):
        for number, kept in enumerate(combinations(meters, count)):
            (root := tmp_path / f"{count}-{number}").mkdir()
            tree = Tree(root)
            install(tree, kept)
            watts, scope = total(tree)
            readable = sum(meter.watts for meter in kept if meter.whole)
            assert readable - 0.01 <= watts <= truth + 0.01, kept
            # Meters that hold others are taken instead of them; without them, disjoint parts under names of their own.
            if readable == truth:
                assert watts == pytest.approx(truth, abs=0.01), kept
            if watts:
                assert scope, kept


def test_acpi_meters_that_do_not_say_what_they_measure_are_not_added(tree):
    install(tree, [acpi(0, "left", 200.0), acpi(1, "right", 180.0)])
    assert total(tree) == (0.0, "")
    install(tree, [acpi(0, "Module Power Socket 0", 240.0)])
    assert total(tree) == (pytest.approx(240.0), "module")


def test_two_instruments_for_one_machine_are_not_added(tree):
    """A node of 245 W that ACPI and the node's own counter both measure."""
    install(tree, [acpi(0, "", 245.0)])
    tree.write("sys/cray/pm_counters/energy", "1000 J 1734094386462336 us")
    groups = choose({name: known({})[name] for name in ("hwmon", "cray")}, tree.request()).groups
    stored = [SimpleNamespace(info=group.info, id=number) for number, group in enumerate(groups)]
    assert len(stored) == 2
    (only,) = addable(sources(SimpleNamespace(groups=stored)))
    assert only.channel.name == "node.energy"
