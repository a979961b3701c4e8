"""What else tells of power: from trees with written values, and from this machine."""

import pytest

from everywatt.core.machine import Machine
from everywatt.sensors.base import Request
from everywatt.sensors.usage import activity
from everywatt.sensors.usage.use import Use

DISKS = b"""   8       0 sda 10 0 100 5 20 0 300 7 0 0 0
   8       1 sda1 10 0 100 5 20 0 300 7 0 0 0
 253       0 dm-0 10 0 100 5 20 0 300 7 0 0 0
 259       0 nvme0n1 1 0 2 5 20 0 4 7 0 0 0
"""
NET = b"""Inter-|   Receive | Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 700 1 0 0 0 0 0 0 700 1 0 0 0 0 0 0
  eth0: 1000 2 0 0 0 0 0 0 50 1 0 0 0 0 0 0
  eth1: 24 2 0 0 0 0 0 0 6 1 0 0 0 0 0 0
"""


@pytest.fixture
def machine(tmp_path):
    """Two disks, two interfaces, two CPUs at 2 and 3 GHz, no perf events to be had."""
    files = {
        "proc/stat": b"cpu  100 20 300 5000 60 7 3 0 0 0\ncpu0 1 2 3\n",
        "proc/meminfo": b"MemTotal: 100 kB\nMemAvailable: 40 kB\n",
        "proc/diskstats": DISKS,
        "proc/net/dev": NET,
        "sys/block/sda/size": b"1",
        "sys/block/nvme0n1/size": b"1",
        "sys/block/dm-0/size": b"1",
        "sys/block/loop0/size": b"1",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": b"2000000\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": b"3000000\n",
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Machine(sys=tmp_path / "sys", proc=tmp_path / "proc", dev=tmp_path / "dev")


PLAIN = {name: part for name, part in activity.PARTS.items() if part is not activity.counts_part}


def values_of(group):
    (row,) = group.read()
    return {channel.name: value for channel, value in zip(group.info.channels, row.values, strict=True)}


def test_every_part_says_what_its_file_says(machine):
    group = activity.StateGroup(machine, PLAIN, "use.activity")
    ticks = activity.TICKS_PER_S
    assert values_of(group) == {
        "host.user_time": 120 / ticks,
        "host.system_time": 300 / ticks,
        "host.iowait_time": 60 / ticks,
        "host.irq_time": 10 / ticks,
        "host.cpu_frequency": 2.5e9,
        "host.disk_read": 102 * 512.0,
        "host.disk_written": 304 * 512.0,
        "host.network_received": 1024.0,
        "host.network_sent": 56.0,
        "host.loopback": 700.0,
    }
    assert group.missing == {}
    group.close()


def test_what_the_machine_has_not_is_told(machine):
    for path in (machine.sys / "block").iterdir():
        (path / "size").unlink()
        path.rmdir()
    for cpu in (0, 1):
        (machine.sys / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq").unlink()
    group = activity.StateGroup(machine, PLAIN, "use.activity")
    assert group.missing.keys() == {"disk bytes", "CPU frequency"}
    assert group.missing["disk bytes"] == "no disk of its own"
    (machine.proc / "cpuinfo").write_text("cpu MHz\t\t: 1000.0\nx\t: y\ncpu MHz\t\t: 3000.5\n")
    again = activity.StateGroup(machine, PLAIN, "use.activity")
    assert values_of(again)["host.cpu_frequency"] == pytest.approx(2.00025e9)
    for one in (group, again):
        one.close()


def test_a_part_that_cannot_be_read_later_has_no_value(machine):
    group = activity.StateGroup(machine, PLAIN, "use.activity")
    (machine.proc / "diskstats").write_bytes(b"8 0 sda 1 0 lots 5 20 0 300 7 0\n")
    values = values_of(group)
    assert values["host.disk_read"] != values["host.disk_read"] and values["host.loopback"] == 700
    group.close()


def test_counters_of_the_kernel_count_on_every_cpu():
    """A software event (task clock, in nanoseconds) stands in for those of a PMU, which a virtual machine has not."""
    try:
        part = activity.counts_part(Machine(), {"clock": (1, 0)})
    except OSError as error:
        pytest.skip(f"perf events are closed here: {error.strerror}")
    (channel,), read, close = part
    (before,) = read()
    sum(range(200_000))
    (after,) = read()
    close()
    assert channel.name == "host.clock" and after > before


def test_off_unless_asked_for(machine):
    def names(**options):
        groups = Use(Request(machine=machine, options=options)).groups()
        for group in groups:
            group.close()
        return [group.info.name for group in groups]

    assert names() == ["use.host", "use.processes", "use.cgroups"]
    assert names(use={"features": True}) == ["use.host", "use.processes", "use.cgroups", "use.activity"]
    report = Use(Request(options={"use": {"features": True}})).probe()
    assert report.usable


def test_each_cpu_has_a_utilisation_and_a_clock(machine):
    stat = machine.proc / "stat"
    (machine.sys / "devices/system/cpu/present").write_text("0-2\n")
    stat.write_text("cpu  9 0 0 9 0 0 0 0 0 0\ncpu0 100 0 0 900 0 0 0 0 0 0\ncpu1 0 0 0 10 0 0 0 0 0 0\nintr 5 6\n")
    *others, group = Use(Request(machine=machine, options={"use": {"cpus": True}})).groups()
    assert group.info.name == "use.cpus"
    stat.write_text("cpu  9 0 0 9 0 0 0 0 0 0\ncpu0 130 0 0 970 0 0 0 0 0 0\ncpu2 0 0 0 10 0 0 0 0 0 0\nintr 5 6\n")
    values = values_of(group)
    clocks = {c.name: values[c.name] * c.scale for c in group.info.channels if c.unit == "MHz"}
    assert clocks == {"host.cpu0.clock": 2000.0, "host.cpu1.clock": 3000.0}
    assert values["host.cpu0.utilisation"] == pytest.approx(30.0)
    assert values["host.cpu1.utilisation"] != values["host.cpu1.utilisation"], "it was switched off"
    assert values["host.cpu2.utilisation"] != values["host.cpu2.utilisation"], "it has just been switched on"
    again = values_of(group)
    assert again["host.cpu0.utilisation"] == pytest.approx(30.0), "no tick has passed"
    for one in (*others, group):
        one.close()


def test_the_probe_lists_channels_that_settings_ask_for(machine):
    (machine.sys / "devices/system/cpu/present").write_text("0-1\n")
    report = Use(Request(machine=machine, options={"use": {"cpus": True, "features": True}})).probe()
    assert report.samples["host.cpu0.clock"] == 2000.0
    assert {"host.cpu0.utilisation", "host.cpu1.clock", "host.user_time"} <= set(report.samples)
    for name, value in report.samples.items():
        assert value is not None or report.missing[name], name
