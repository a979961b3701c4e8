"""Owners of AMD's and Intel's GPUs: fdinfo as kernels print it, clients once, and the ledger that follows from it."""

from __future__ import annotations

import machines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import Process, write_machine

import everywatt
from everywatt.core.clocks import NS
from everywatt.ledger.owners import Part
from everywatt.sensors.base import State
from everywatt.sensors.node.hwmon import Hwmon
from everywatt.sensors.usage.drm import Drm, parse_fdinfo

# As amdgpu (Linux 6.8), xe (6.11) and i915 (6.8) print it.
AMDGPU = """pos:\t0
flags:\t02100002
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t{pci}
pasid:\t32781
drm-memory-vram:\t{kib} KiB
drm-memory-gtt: \t2048 KiB
drm-memory-cpu: \t0 KiB
drm-engine-gfx:\t{gfx} ns
drm-engine-compute:\t1000 ns
drm-engine-capacity-compute:\t4
"""
XE = """drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:03:00.0
drm-total-system:\t0
drm-resident-vram0:\t16 MiB
drm-total-vram0:\t32 MiB
drm-cycles-rcs:\t{cycles}
drm-total-cycles-rcs:\t{total}
"""


def test_fdinfo_of_real_drivers():
    client = parse_fdinfo(AMDGPU.format(client=5, pci="0000:83:00.0", kib=1024, gfx=2_000_000))
    assert (client.pci, client.id, client.memory_bytes) == ("0000:83:00.0", "5", 2**20)
    assert (client.busy_ns, client.capacity) == ({"gfx": 2_000_000, "compute": 1000}, {"compute": 4})
    client = parse_fdinfo(XE.format(cycles=250, total=1000))
    assert (client.cycles, client.busy_ns, client.memory_bytes) == ({"rcs": (250, 1000)}, {}, 16 * 2**20)
    assert parse_fdinfo("pos:\t0\nflags:\t02\nmnt_id:\t15\n") is None


@given(st.text(max_size=200) | st.text(max_size=8).map(lambda text: AMDGPU.replace("\t", text)))
@settings(max_examples=200, deadline=None)
def test_any_text_gives_a_client_or_none(text):
    client = parse_fdinfo(text)
    assert client is None or all(value >= 0 for value in client.busy_ns.values())


class Lab:
    """A machine with an AMD card, whose processes use engine time as they are told to."""

    def __init__(self, tree, pci="0000:83:00.0"):
        self.tree, self.pci, self.used = tree, pci, {}
        folder = f"sys/devices/pci0000:80/{pci}/hwmon/hwmon4"
        for name, text in {"name": "amdgpu", "power1_average": 36_000_000, "power1_label": "PPT"}.items():
            tree.write(f"{folder}/{name}", text)
        (tree.root / folder / "device").symlink_to(tree.root / "sys/devices/pci0000:80" / pci)
        place = tree.root / "sys" / "class" / "hwmon"
        place.mkdir(parents=True)
        (place / "hwmon4").symlink_to(tree.root / folder)

    def open(self, pid, fd, client, *, kib=1024):
        """Let a process open the card."""
        folder = self.tree.root / "proc" / str(pid) / "fd"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(fd)).symlink_to("/dev/dri/renderD128")
        self.used[pid, fd] = [client, kib, 0]
        self.write(pid, fd)

    def write(self, pid, fd):
        client, kib, used = self.used[pid, fd]
        text = AMDGPU.format(client=client, pci=self.pci, kib=kib, gfx=used)
        self.tree.write(f"proc/{pid}/fdinfo/{fd}", text)

    def run(self, seconds, **shares):
        """Let processes (`p7=0.75`) use the card for a while."""
        self.tree.clock.advance(seconds)
        for (pid, fd), entry in self.used.items():
            entry[2] += round(shares.get(f"p{pid}", 0.0) * seconds * NS)
            self.write(pid, fd)


@pytest.fixture
def lab(tree):
    return Lab(tree)


def table_of(lab):
    sensor = Drm(lab.tree.request())
    report = sensor.probe()
    assert report.usable and not report.power
    (table,) = sensor.groups()
    return table


def test_the_card_has_one_name_for_power_and_for_processes(lab):
    (group,) = Hwmon(lab.tree.request()).groups()
    assert group.info.channels[0].device == "gpu.0"
    lab.open(7, 3, client=1)
    ((row,),) = (table_of(lab).read_table()[1],)
    assert (row["gpu"], row["pid"], row["memory_bytes"]) == (0, 7, 2**20)


def test_numbers_of_other_cards_begin_after_nvidias(lab):
    for slot in ("0000:01:00.0", "0000:02:00.0"):
        (lab.tree.root / "sys/bus/pci/drivers/nvidia" / slot).mkdir(parents=True)
    (group,) = Hwmon(lab.tree.request()).groups()
    assert group.info.channels[0].device == "gpu.2"


def test_engine_time_is_per_cent_of_the_time_between_two_reads(lab):
    lab.open(7, 3, client=1)
    lab.open(8, 5, client=2)
    table = table_of(lab)
    table.read_table()
    lab.run(1.0, p7=0.75, p8=0.25)
    at_ns, rows = table.read_table()
    assert {row["pid"]: row["sm"] for row in rows} == {7: 75.0, 8: 25.0}
    assert {row["since_ns"] for row in rows} == {at_ns - NS}


def test_a_client_counts_once_however_many_files_show_it(lab):
    lab.open(7, 3, client=1)
    lab.open(7, 4, client=1)  # duplicated
    lab.open(9, 3, client=1)  # inherited by a child
    table = table_of(lab)
    table.read_table()
    lab.run(1.0, p7=0.5, p9=0.5)
    _, rows = table.read_table()
    assert [(row["pid"], row["sm"]) for row in rows] == [(7, 50.0)]


def test_a_process_that_comes_counts_from_its_beginning_and_one_that_leaves_is_gone(lab):
    lab.open(7, 3, client=1)
    table = table_of(lab)
    table.read_table()
    lab.open(8, 3, client=2)
    lab.run(1.0, p8=0.4)
    _, rows = table.read_table()
    assert {row["pid"]: row["sm"] for row in rows} == {8: 40.0}
    (lab.tree.root / "proc/8/fd/3").unlink()
    lab.run(1.0)
    _, rows = table.read_table()
    assert [(row["pid"], row.get("gone")) for row in rows] == [(8, True)]


def test_compute_queues_that_the_kernel_does_not_schedule_are_unknown_not_zero(lab):
    lab.open(7, 3, client=1)
    (lab.tree.root / "sys/class/kfd/kfd/proc/7").mkdir(parents=True)
    table = table_of(lab)
    table.read_table()
    lab.run(1.0)
    assert table._rows[0, 7]["sm"] is None and table._rows[0, 7]["memory_bytes"] == 2**20


def test_without_a_card_that_reports_power_it_is_absent(tree):
    assert Drm(tree.request()).probe().state is State.ABSENT


def test_the_ledger_shares_the_card_by_engine_time(lab, tmp_path, monkeypatch):
    """20 W idle; 220 W for five seconds, of which one process uses three quarters: 750 J and 250 J."""
    lab.open(7, 3, client=1)
    lab.open(8, 3, client=2)
    table = table_of(lab)
    rows = {0: table.read_table()[1]}
    for second in range(1, 11):
        busy = second > 5
        lab.run(1.0, p7=0.6 if busy else 0.0, p8=0.2 if busy else 0.0)
        rows[second] = [
            {key: value for key, value in row.items() if key != "since_ns"} for row in table.read_table()[1]
        ]
    monkeypatch.setattr(machines, "GPUS", table.info)
    processes = [Process(7, [0.1] * 10, name="big"), Process(8, [0.1] * 10, name="small")]
    watts = {"gpu.0": [20.0] * 5 + [220.0] * 5}
    spans = [("idle", 0.0, 4.0, {"role": "idle"})]
    path = write_machine(tmp_path / "t.ewt", watts, processes, seconds=10, gpu_rows=rows, spans=spans)
    ledger = everywatt.load(path).ledger()
    active = {name: ledger.entry(name).by_part_uj[Part.ACTIVE] / 1e6 for name in ("big", "small")}
    assert active == {"big": pytest.approx(750.0, rel=0.03), "small": pytest.approx(250.0, rel=0.03)}
