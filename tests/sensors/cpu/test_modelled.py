import pytest
from fake_clock import FakeClock

from everywatt.core.channels import Cadence, Domain, Kind, Pedigree
from everywatt.core.errors import SensorError
from everywatt.core.format import format_watts
from everywatt.core.machine import Machine
from everywatt.sensors import registry
from everywatt.sensors.base import Request, State
from everywatt.sensors.cpu.modelled import Modelled, estimate, grounds, identify

CPU = """processor : {n}
vendor_id : AuthenticAMD
cpu family : 25
model : 1
model name : AMD EPYC 7763 64-Core Processor
stepping : 1
physical id : 0
siblings : 4
core id : {n}
flags : fpu {flags}

"""


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("".join(CPU.format(n=n, flags="") for n in range(4)))
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 16777216 kB\n")
    times(tmp_path, busy=1000, idle=3000)
    return Machine(sys=tmp_path / "sys", proc=tmp_path / "proc", environ={}, clock=FakeClock())


def times(root, busy, idle, steal=0):
    (root / "proc" / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n")


def test_rows_follow_the_load_between_two_reads(machine, tmp_path):
    (group,) = Modelled(Request(machine)).groups()
    facts = identify(machine)
    assert group.read() == ()  # the base
    machine.clock.advance(0.1)
    times(tmp_path, busy=1010, idle=3030)
    (row,) = group.read()
    assert row.values[0] == pytest.approx(estimate(0.25, facts)[0])
    assert row.read_ns == row.early_ns == row.late_ns == machine.clock.now_ns
    times(tmp_path, busy=1050, idle=3030)
    assert group.read()[0].values[0] == pytest.approx(estimate(1.0, facts)[0])
    times(tmp_path, busy=1050, idle=3050)
    assert group.read()[0].values[0] == pytest.approx(estimate(0.0, facts)[0])
    times(tmp_path, busy=1060, idle=3050, steal=10)  # half of the time belonged to somebody else
    assert group.read()[0].values[0] == pytest.approx(estimate(0.5, facts)[0])
    group.close()


def test_still_counters_give_no_row_and_lose_nothing(machine, tmp_path):
    (group,) = Modelled(Request(machine)).groups()
    group.read()
    assert group.read() == ()
    times(tmp_path, busy=1030, idle=3010)
    assert group.read()[0].values[0] == pytest.approx(estimate(0.75, identify(machine))[0])


def test_counters_that_went_back_start_anew(machine, tmp_path):
    (group,) = Modelled(Request(machine)).groups()
    group.read()
    times(tmp_path, busy=10, idle=10)
    assert group.read() == ()
    times(tmp_path, busy=20, idle=20)
    assert group.read()[0].values[0] == pytest.approx(estimate(0.5, identify(machine))[0])
    (tmp_path / "proc" / "stat").write_text("")
    with pytest.raises(SensorError):
        group.read()


def test_the_channel_says_that_it_is_modelled_and_how_far_off(machine):
    (group,) = Modelled(Request(machine)).groups()
    channel, *beside = group.info.channels
    assert (group.info.name, group.info.cadence, group.info.inline, group.info.tracked) == (
        "modelled.host",
        Cadence.FAST,
        False,
        False,
    )
    assert (channel.name, channel.unit, channel.kind, channel.domain) == ("host.power", "W", Kind.GAUGE, Domain.NODE)
    assert channel.pedigree is Pedigree.MODELLED and channel.carries_energy
    assert [one.name for one in beside] == ["modelled.low", "modelled.high", "modelled.outside"]
    assert not any(one.carries_energy for one in beside)
    facts = channel.facts
    watts, low, _ = estimate(1.0, identify(machine))
    assert 0 < facts.gain_pct / 100 <= 1 - low / watts + 1e-9 and facts.offset_w is None
    assert facts.max_w == pytest.approx(estimate(1.0, identify(machine))[2])


def test_the_probe_gives_one_real_estimate_and_its_grounds(machine):
    report = Modelled(Request(machine)).probe()
    assert report.usable and report.power
    # the clock of the test does not move the counters, so it is the mean since boot: 1000 of 4000
    assert report.samples == {"host.power": pytest.approx(estimate(0.25, identify(machine))[0])}
    assert "modelled from CPU utilisation" in report.why and "EPYC 7763" in report.why and "95 %" in report.why


def test_the_probe_prints_its_interval_as_every_face(machine):
    watts, low, high = estimate(0.25, identify(machine))
    assert format_watts(watts, watts - low, high - watts).rstrip(")") in Modelled(Request(machine)).probe().why


def test_the_sample_has_its_interval(machine):
    watts, low, high = estimate(0.25, identify(machine))
    report = Modelled(Request(machine)).probe()
    assert report.intervals == {"host.power": (low, high)} and low < watts < high


def test_a_guest_says_so(machine, tmp_path):
    (tmp_path / "proc" / "cpuinfo").write_text("".join(CPU.format(n=n, flags="hypervisor") for n in range(2)))
    why = Modelled(Request(machine)).probe().why
    assert "2 vCPUs" in why and "unknown" in why


def test_what_is_no_server_says_so(machine, tmp_path):
    text = (tmp_path / "proc" / "cpuinfo").read_text().replace("EPYC 7763 64-Core", "Ryzen 7")
    (tmp_path / "proc" / "cpuinfo").write_text(text)
    assert "an unknown machine" in grounds(identify(machine)) and "fitted on servers" in grounds(identify(machine))


def test_a_container_estimates_its_whole_host(machine):
    inside = Machine(sys=machine.sys, proc=machine.proc, environ={"container": "podman"}, clock=machine.clock)
    assert "whole machine" in Modelled(Request(inside)).probe().missing["container"]


def test_turned_off_and_impossible(machine, tmp_path):
    report = Modelled(Request(machine, estimate=False)).probe()
    assert report.state is State.UNUSABLE and "disabled" in report.why and "--no-estimate" in report.cure
    (tmp_path / "proc" / "stat").unlink()
    assert Modelled(Request(machine)).probe().state is State.ABSENT
    (tmp_path / "proc" / "cpuinfo").write_text("")
    assert Modelled(Request(machine)).probe().state is State.ABSENT


class Meter:
    """A sensor that measures power, as the registry sees one."""

    name = "meter"
    after = ()

    def __init__(self, request):
        self.inner = Modelled(request)

    def probe(self):
        return self.inner.probe()

    def groups(self):
        return self.inner.groups()


def test_it_stands_behind_every_sensor_that_measures(machine, monkeypatch):
    targets = {"modelled": "everywatt.sensors.cpu.modelled:Modelled", "use": "everywatt.sensors.usage.use:Use"}
    chosen = registry.choose(targets, Request(machine))
    assert "modelled.host" in [group.info.name for group in chosen.groups]
    real = registry.make
    monkeypatch.setattr(
        registry, "make", lambda target, request: Meter(request) if target == "m" else real(target, request)
    )
    chosen = registry.choose({**targets, "meter": "m"}, Request(machine))
    assert [group.info.name for group in chosen.groups].count("modelled.host") == 1  # the meter's own
    chosen = registry.choose(targets, Request(machine, estimate=False))
    assert not any(channel.carries_energy for group in chosen.groups for channel in group.info.channels)


def test_a_second_probe_uses_the_time_since_the_first_and_waits_no_longer(machine, tmp_path):
    Modelled(Request(machine)).probe()
    machine.clock.advance(2.0)
    times(tmp_path, busy=1150, idle=3050)
    began_ns = machine.clock.monotonic_ns()
    report = Modelled(Request(machine)).probe()
    assert machine.clock.monotonic_ns() == began_ns
    assert report.samples == {"host.power": pytest.approx(estimate(0.75, identify(machine))[0])}
    machine.clock.advance(3600.0)
    began_ns = machine.clock.monotonic_ns()
    Modelled(Request(machine)).probe()
    assert machine.clock.monotonic_ns() > began_ns  # what it knows is an hour old: it looks again
