"""AMD cards: rocm-smi's JSON as captured from real ones, amdsmi by a library of the test's own, one name a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import play, request_with

from everywatt.core.channels import Domain, Kind
from everywatt.core.errors import SensorError
from everywatt.sensors.amd.amdsmi import AmdSmi
from everywatt.sensors.amd.rocm_smi import RocmSmi, parse_rocm
from everywatt.sensors.base import Request, State
from everywatt.sensors.node.hwmon import Hwmon

TEXT = (Path(__file__).resolve().parents[2] / "data" / "meters" / "rocm_smi.json.txt").read_text()
VEGA, NAVI, MI100 = (part[part.index("\n") : part.rindex("}") + 1] for part in TEXT.split("\n## ")[1:4])
APU = json.dumps({"card0": {"Current Socket Graphics Package Power (W)": "28.159", "PCI Bus": "0000:C4:00.0"}})


def test_real_answers():
    (card,) = parse_rocm(VEGA)
    assert (card.watts, card.pci, card.use_pct) == (15.0, "0000:04:00.0", 0.0)
    (card,) = parse_rocm(NAVI)
    assert card.watts is None and card.why == "rocm-smi prints 'N/A (Secondary die)'"
    (card,) = parse_rocm(MI100)
    assert (card.watts, card.name) == (36.0, "Arcturus GL-XL [Instinct MI100]")
    (card,) = parse_rocm("WARNING: AMD GPU device(s) is/are in a low-power state\n" + APU)
    assert (card.watts, card.pci) == (28.159, "0000:c4:00.0")


def test_the_sensor(tmp_path):
    play(tmp_path / "bin", "rocm-smi", MI100)
    sensor = RocmSmi(request_with(tmp_path / "bin", "rocm-smi"))
    assert sensor.probe().samples == {"amdgpu.0.power": 36.0, "amdgpu.0.utilisation": 0.0}
    (group,) = sensor.groups()
    assert group.info.channels[0].domain is Domain.GPU
    group.poll()
    assert group._rows[0].values == (36.0, 0.0)


@pytest.mark.parametrize(("text", "words"), [(NAVI, "Secondary die"), ("{}", "no card"), ("No AMD GPUs", "no JSON")])
def test_what_tells_no_power(tmp_path, text, words):
    play(tmp_path / "bin", "rocm-smi", text)
    report = RocmSmi(request_with(tmp_path / "bin", "rocm-smi")).probe()
    assert report.state is State.UNUSABLE and words in report.why


def hwmon_card(tree, pci="0000:83:00.0"):
    device = tree.root / "sys" / "devices" / "pci0000:80" / pci
    folder = f"sys/devices/pci0000:80/{pci}/hwmon/hwmon4"
    for name, text in {"name": "amdgpu", "power1_average": 36_000_000, "power1_label": "PPT"}.items():
        tree.write(f"{folder}/{name}", text)
    (tree.root / folder / "device").symlink_to(device)
    place = tree.root / "sys" / "class" / "hwmon"
    place.mkdir(parents=True)
    (place / "hwmon4").symlink_to(tree.root / folder)


def test_a_card_that_hwmon_reads_has_hwmons_name(tree, tmp_path):
    hwmon_card(tree)
    (hwmon,) = Hwmon(tree.request()).groups()
    play(tmp_path / "bin", "rocm-smi", MI100)
    request = request_with(tmp_path / "bin", "rocm-smi", machine=tree.machine)
    assert "hwmon reads the same" in RocmSmi(request).probe().why  # half a second of a processor a reading, for nothing
    request = request_with(tmp_path / "bin", "rocm-smi", sensors=("rocm-smi", "hwmon"), machine=tree.machine)
    sensor = RocmSmi(request)
    assert sensor.probe().usable
    ours, theirs = sensor.groups()[0].info.channels[0], hwmon.info.channels[0]
    # One device and one domain are one source: the joules of a card are never added twice.
    assert (ours.device, ours.domain) == (theirs.device, theirs.domain) == ("gpu.0", Domain.GPU)


class Library:
    """Stands in for amdsmi: cards by their PCI address."""

    def __init__(self, cards, stuck=False):
        self.cards, self.open, self.stuck = cards, 0, stuck

    def amdsmi_init(self):
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return list(self.cards)

    def amdsmi_get_gpu_device_bdf(self, handle):
        return handle

    def amdsmi_get_energy_count(self, handle):
        found = self.cards[handle].get("energy")
        if found is None:
            raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")
        if not self.stuck:
            found["energy_accumulator"] += 1000  # 15.3 mJ since it was last asked
        return dict(found)

    def amdsmi_get_power_info(self, handle):
        return self.cards[handle]["power"]


def counted(watts=140):
    """What amdsmi says of a card with a counter."""
    return {
        "energy": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "power": {"current_socket_power": watts, "average_socket_power": "N/A"},
    }


def test_amdsmi_counts_joules(tree):
    library = Library({"0000:83:00.0": counted(), "0000:84:00.0": {"power": {"average_socket_power": 36}}})
    sensor = AmdSmi(tree.request(), load=lambda: library)
    samples = dict(sensor.probe().samples)
    assert 15.3 <= samples.pop("amdgpu.0.energy") < 15.4  # it counts with every read
    assert samples == {"amdgpu.0.power": 140.0, "amdgpu.1.power": 36.0}
    first, second = sensor.groups()
    assert [channel.kind for channel in first.info.channels] == [Kind.COUNTER, Kind.GAUGE]
    before = first.read()[0].values[0]
    library.cards["0000:83:00.0"]["energy"]["energy_accumulator"] += 199_000
    assert (first.read()[0].values[0] - before) * first.info.channels[0].scale == pytest.approx(3.06)
    library.cards["0000:84:00.0"]["power"] = {"average_socket_power": 0}
    with pytest.raises(SensorError, match=r"amdgpu.1 delivers no power"):
        second.read()
    first.close()
    second.close()
    assert library.open == 0


def test_the_reasons_of_the_library_are_reported(tree):
    library = Library({"0000:84:00.0": {"power": {"average_socket_power": 36}}})
    sensor = AmdSmi(tree.request(), load=lambda: library)
    assert "AMDSMI_STATUS_NOT_SUPPORTED" in sensor.probe().missing["amdgpu.0.energy"]
    (group,) = sensor.groups()

    def lost(handle):
        raise RuntimeError("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    library.amdsmi_get_power_info = lost
    with pytest.raises(SensorError, match="DRIVER_NOT_LOADED"):
        group.read()


def test_amdsmi_shares_the_name_of_hwmon(tree):
    hwmon_card(tree)
    sensor = AmdSmi(tree.request(), load=lambda: Library({"0000:83:00.0": counted()}))
    assert "gpu.0.energy" in sensor.probe().samples


def test_a_counter_that_never_moves_is_not_used(tree):
    sensor = AmdSmi(tree.request(), load=lambda: Library({"0000:83:00.0": counted()}, stuck=True))
    report = sensor.probe()
    assert report.samples == {"amdgpu.0.power": 140.0}
    assert report.missing["amdgpu.0.energy"] == "the counter did not move in 0.2 s"


def test_a_counter_that_fails_after_its_first_value_is_not_used(tree):
    library = Library({"0000:83:00.0": counted()})
    values = iter([dict(library.cards["0000:83:00.0"]["energy"])])

    def once(handle):
        return next(values)  # StopIteration stands for any error of the library

    library.amdsmi_get_energy_count = once
    report = AmdSmi(tree.request(), load=lambda: library).probe()
    assert report.samples == {"amdgpu.0.power": 140.0}
    assert report.missing["amdgpu.0.energy"] == "the counter did not move in 0.2 s"


@pytest.mark.parametrize("silent", [0, 1, 7])
def test_partitions_of_one_socket_count_once(tree, silent):
    """Two MI300X of 150 W and 148 W in CPX mode: eight partitions each, all of which may repeat the socket's power."""
    unknown = {"power": {"current_socket_power": "N/A"}}
    cards = {
        f"0000:{bus}:00.{part}": unknown if part < silent else counted(watts)
        for bus, watts in (("05", 150), ("26", 148))
        for part in range(8)
    }
    sensor = AmdSmi(tree.request(), load=lambda: Library(cards))
    report = sensor.probe()
    assert {name: w for name, w in report.samples.items() if name.endswith(".power")} == {
        "amdgpu.0.power": 150.0,
        "amdgpu.1.power": 148.0,
    }
    assert report.why == "16 partitions of 2 socket(s), each socket counted once"
    assert [group.info.device for group in sensor.groups()] == ["amdgpu.0", "amdgpu.1"]


def test_rocm_smi_counts_partitions_once(tmp_path):
    key = "Current Socket Graphics Package Power (W)"
    answer = {f"card{n}": {key: "150.0", "PCI Bus": f"0000:05:00.{n}"} for n in range(4)}
    answer["card4"] = {key: "148.0", "PCI Bus": "0000:26:00.0"}
    play(tmp_path / "bin", "rocm-smi", json.dumps(answer))
    report = RocmSmi(request_with(tmp_path / "bin", "rocm-smi")).probe()
    assert report.samples == {"amdgpu.0.power": 150.0, "amdgpu.1.power": 148.0}


def test_amdsmi_that_is_missing_or_broken(tree):
    def missing():
        raise ImportError("amdsmi")

    def broken():
        raise OSError("libamd_smi.so: cannot open shared object file")

    assert AmdSmi(tree.request(), load=missing).probe().state is State.ABSENT
    assert AmdSmi(tree.request(), load=broken).probe().state is State.UNUSABLE
    assert AmdSmi(tree.request(), load=lambda: object()).probe().state is State.UNUSABLE
    empty = AmdSmi(tree.request(), load=lambda: Library({"x": {"power": {"average_socket_power": "N/A"}}})).probe()
    assert empty.state is State.UNUSABLE and "neither energy nor power" in empty.why
    assert AmdSmi(Request(machine=tree.machine)).probe().state is State.ABSENT


def test_intel_cards_count_joules_by_hwmon(tree):
    tree.write("sys/class/hwmon/hwmon1/name", "i915")
    for name, text in {"name": "xe", "energy1_label": "card", "energy2_label": "pkg"}.items():
        tree.write(f"sys/class/hwmon/hwmon2/{name}", text)
    counters = {"hwmon1/energy1_input": 9_000_000, "hwmon2/energy1_input": 5_000_000, "hwmon2/energy2_input": 4_000_000}
    for name, start_uj in counters.items():
        tree.count(f"sys/class/hwmon/{name}", start_uj, 1e-3)  # as good as the joules it starts at
    sensor = Hwmon(tree.request())
    assert sensor.probe().samples == pytest.approx(
        {"hwmon.i915.energy1.energy": 9.0, "hwmon.xe.card.energy": 5.0, "hwmon.xe.pkg.energy": 4.0}
    )
    domains = {c.name: c.domain for group in sensor.groups() for c in group.info.channels}
    assert list(domains.values()) == [Domain.GPU, Domain.GPU, None]  # a card contains its package


@given(st.text(max_size=120) | st.tuples(st.integers(0, len(MI100)), st.text(max_size=3)).map(lambda p: spoil(*p)))
@settings(max_examples=200, deadline=None)
def test_anything_gives_cards_or_an_error(text):
    try:
        cards = parse_rocm(text)
    except SensorError:
        return
    for card in cards:
        assert card.watts is None or 0 <= card.watts < 100_000


def spoil(at, letters):
    return MI100[:at] + letters + MI100[at + 1 :]
