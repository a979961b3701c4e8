"""The NVML sensor against a scripted pynvml: values, fallbacks, and errors at any call."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace as Box

import pytest
from fake_clock import FakeClock

from everywatt.core.channels import Cadence, Domain, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request, State
from everywatt.sensors.nvidia.nvml import Nvml

NOT_SUPPORTED, NO_PERMISSION, LIBRARY, LOST, MISMATCH = 3, 4, 12, 15, 18


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


@dataclass(eq=False)
class Card:
    """One scripted GPU: 100 W unless told otherwise, its counter moves every 100 ms."""

    watts: float = 100.0
    average: bool = True
    instant: bool = True
    counter: bool = True
    counter_field: bool = True
    stuck: bool = False
    broken: set = field(default_factory=set)
    migs: tuple = ()
    gpm: bool = False
    processes: list = field(default_factory=list)
    use: list = field(default_factory=list)
    memory: int = 2**30
    lost: bool = False
    module: float | None = None  # watts of its module beside it
    counts: float | None = None  # watts that its counter counts, where they are not its own
    name: str = "NVIDIA A100-PCIE-40GB"


class Fake:
    """As much of pynvml as the sensor asks for. `fail[name]` is an error number; `fail_at` raises at the n-th call."""

    NVMLError = NVMLError
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY = 2, 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 5, 10

    def __init__(self, cards, clock):
        self.cards, self.clock = cards, clock
        self.fail, self.calls, self.fail_at, self.fail_with = {}, [], None, None
        self.users = 0

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if not name.startswith("nvml"):
            return value

        def call(*arguments):
            self.calls.append(name)
            if self.fail_at is not None and len(self.calls) >= self.fail_at:
                raise self.fail_with
            if name in self.fail:
                raise NVMLError(self.fail[name])
            if arguments and isinstance(arguments[0], Card):
                card = arguments[0]
                if card.lost:
                    raise NVMLError(LOST)
                if name in card.broken or ("all" in card.broken and name != "nvmlDeviceGetUUID"):
                    raise NVMLError(NOT_SUPPORTED)
            return value(*arguments)

        return call

    def nvmlInit(self):
        self.users += 1

    def nvmlShutdown(self):
        self.users -= 1

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlSystemGetDriverVersion(self):
        return "535.54.03"

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._handle(self.cards[index])

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return self._handle(next(c for i, c in enumerate(self.cards) if uuid == f"GPU-{i:04d}-aaaa"))

    def _handle(self, card):
        if card.lost:
            raise NVMLError(LOST)
        return card

    def nvmlDeviceGetUUID(self, card):
        return card.uuid if isinstance(card, Box) else f"GPU-{self.cards.index(card):04d}-aaaa"

    def nvmlDeviceGetName(self, card):
        return card.name

    def nvmlDeviceGetPciInfo(self, card):
        return Box(busId=f"00000000:{self.cards.index(card) + 1:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, card):
        return Box(total=40 * 2**30, used=card.memory)

    def nvmlDeviceGetCudaComputeCapability(self, card):
        return (8, 0)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, card):
        return [100_000, 250_000]

    def nvmlDeviceGetEnforcedPowerLimit(self, card):
        return 240_000

    def nvmlDeviceGetMigMode(self, card):
        return [1 if card.migs else 0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, place):
        if place >= len(card.migs):
            raise NVMLError(6)
        return Box(uuid=card.migs[place], place=place)

    def nvmlDeviceGetGpuInstanceId(self, mig):
        return mig.place + 3

    def nvmlDeviceGetComputeInstanceId(self, mig):
        return 0

    def _millijoules(self, card):
        ticks = 0 if card.stuck else self.clock.monotonic_ns() // (NS // 10)
        counted_w = card.watts if card.counts is None else card.counts
        return 5_000_000 + round(ticks * counted_w * 100)

    def nvmlDeviceGetFieldValues(self, card, ids):
        return [self._field(card, field_id) for field_id in ids]

    def _field(self, card, field_id):
        if isinstance(field_id, tuple):
            return self._scoped(card, *field_id)
        given = {83: card.counter and card.counter_field, 185: card.average, 186: card.instant}[field_id]
        value = {83: self._millijoules(card), 185: 90_000, 186: round(card.watts * 1000)}[field_id]
        kind = 3 if field_id == 83 else 1
        return Box(nvmlReturn=0 if given else NOT_SUPPORTED, valueType=kind, value=Box(uiVal=value, ullVal=value))

    def _scoped(self, card, field_id, scope):
        given = card.module is not None and scope == 1
        value = round((card.watts + (card.module or 0.0)) * 1000)
        return Box(nvmlReturn=0 if given else NOT_SUPPORTED, valueType=1, value=Box(uiVal=value, ullVal=value))

    def nvmlDeviceGetTotalEnergyConsumption(self, card):
        if not card.counter:
            raise NVMLError(NOT_SUPPORTED)
        return self._millijoules(card)

    def nvmlDeviceGetPowerUsage(self, card):
        return round(card.watts * 1000)

    def nvmlDeviceGetUtilizationRates(self, card):
        return Box(gpu=73, memory=21)

    def nvmlDeviceGetTemperature(self, card, sensor):
        return 61

    def nvmlDeviceGetClockInfo(self, card, kind):
        return {1: 1410, 2: 1215}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, card):
        return 4

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card):
        return 8

    def nvmlDeviceGetComputeRunningProcesses(self, card):
        return card.processes

    def nvmlDeviceGetGraphicsRunningProcesses(self, card):
        return []

    def nvmlDeviceGetProcessUtilization(self, card, since):
        new = [sample for sample in card.use if sample.timeStamp > since]
        if not new:
            raise NVMLError(6)
        return new

    def nvmlGpmQueryDeviceSupport(self, card):
        return Box(isSupportedDevice=int(card.gpm))

    def nvmlGpmSampleAlloc(self):
        return Box(at=0)

    def nvmlGpmSampleFree(self, sample):
        sample.at = None

    def nvmlGpmSampleGet(self, card, sample):
        sample.at = self.clock.monotonic_ns()

    def nvmlGpmMetricsGet(self, request):
        assert request.sample2.at > request.sample1.at
        for entry in request.metrics[: request.numMetrics]:
            entry.nvmlReturn, entry.value = 0, {2: 80.0, 3: 40.0, 5: 25.0, 10: 55.0}[entry.metricId]

    def c_nvmlGpmMetricsGet_t(self):
        return Box(metrics=[Box(metricId=0, nvmlReturn=0, value=0.0) for _ in range(98)])


def _sensor(cards, *, devices=None, tmp=Path("/nonexistent"), environ=None):
    clock = FakeClock()
    machine = Machine(sys=tmp, proc=tmp, dev=tmp, environ=environ or {}, clock=clock)
    fake = Fake(cards, clock)
    return Nvml(Request(machine=machine, devices=devices), nvml=fake), fake, clock


def _values(group):
    (row,) = group.read()
    return {c.name: v * c.scale for c, v in zip(group.info.channels, row.values, strict=True)}


def _by_name(sensor):
    return {group.info.name: group for group in sensor.groups()}


def test_every_value_is_the_scripted_one():
    sensor, _, clock = _sensor([Card(gpm=True)])
    report = sensor.probe()
    assert report.usable and report.why == "gpu.0: energy counter"
    assert report.samples["gpu.0.power"] == 100.0
    groups = _by_name(sensor)
    power, state = groups["nvml.gpu.0.power"], groups["nvml.gpu.0.state"]
    before = _values(power)
    clock.advance(1.0)
    after = _values(power)
    assert after["gpu.0.energy"] - before["gpu.0.energy"] == pytest.approx(100.0)
    assert after["gpu.0.power"] == 100.0
    assert after["gpu.0.power_average"] == 90.0
    assert after["gpu.0.utilisation"] == 73.0
    assert _values(state) == {
        "gpu.0.memory_utilisation": 21.0,
        "gpu.0.memory": 2**30,
        "gpu.0.temperature": 61.0,
        "gpu.0.clock_sm": 1410.0,
        "gpu.0.clock_memory": 1215.0,
        "gpu.0.throttle": 4.0,
        "gpu.0.power_limit": 240.0,
        "gpu.0.sm_active": 80.0,
        "gpu.0.sm_occupancy": 40.0,
        "gpu.0.tensor_active": 25.0,
        "gpu.0.dram_active": 55.0,
    }


def test_channels_say_what_they_are():
    sensor, _, _ = _sensor([Card()])
    power, state = (_by_name(sensor)[f"nvml.gpu.0.{kind}"].info for kind in ("power", "state"))
    energy, gauge, average, use = power.channels
    assert power.tracked and power.cadence is Cadence.FAST and not power.inline
    assert state.cadence is Cadence.SLOW and not state.tracked
    assert (energy.unit, energy.kind, energy.domain, energy.pedigree) == (
        "J",
        Kind.COUNTER,
        Domain.GPU,
        Pedigree.COUNTER,
    )
    assert (gauge.unit, gauge.kind, gauge.domain, gauge.pedigree) == ("W", Kind.GAUGE, Domain.GPU, Pedigree.INTEGRATED)
    assert gauge.mirror_of == average.mirror_of == "gpu.0.energy" and energy.mirror_of is None
    assert not use.carries_energy
    assert (gauge.facts.period_s, gauge.facts.window_s, gauge.facts.max_w) == (0.1, 0.025, 250.0)
    assert gauge.facts.cards == "A100-PCIE-40GB"


@pytest.mark.parametrize(
    ("counts", "told", "words"),
    [
        (None, {"gpu.0.energy": Domain.GPU, "module.0.power": Domain.MODULE}, "gpu.0: energy counter"),
        (240.0, {"module.0.energy": Domain.MODULE, "gpu.0.power": Domain.GPU}, "module.0: energy counter"),
        (170.0, {"gpu.0.power": Domain.GPU, "module.0.power": Domain.MODULE}, "gpu.0: power, integrated"),
    ],
)
def test_a_superchips_counter_gets_the_scope_that_its_joules_fit(counts, told, words):
    """A GPU of 100 W on a module of 240 W; a counter that fits neither is left out."""
    sensor, _, clock = _sensor([Card(module=140.0, counts=counts, name="NVIDIA GH200 480GB")])
    report = sensor.probe()
    assert words in report.why
    group = _by_name(sensor)["nvml.gpu.0.power"]
    first = {c.name: c.domain for c in group.info.channels if c.carries_energy and c.mirror_of is None}
    assert first == told
    before = _values(group)
    clock.advance(1.0)
    after = _values(group)
    joules = {name: after[name] - before[name] for name in after if name.endswith(".energy")}
    assert joules in ({"gpu.0.energy": pytest.approx(100.0)}, {"module.0.energy": pytest.approx(240.0)}, {})
    assert after["module.0.power"] == 240.0 and after["gpu.0.power"] == 100.0


@pytest.mark.parametrize("late_s", [0.28, 0.6])
def test_a_scope_is_found_where_the_machine_is_busy(late_s):
    """Each time it is woken up so much later than it asked for."""
    sensor, _, clock = _sensor([Card(module=140.0, counts=240.0, name="NVIDIA GH200 480GB")])
    wake = clock.sleep_until
    clock.sleep_until = lambda deadline_ns: wake(deadline_ns + int(late_s * NS))
    assert "module.0: energy counter" in sensor.probe().why


def test_a_card_that_reports_no_module_is_beside_it(tmp_path):
    """The driver reports a module for the GPU of a superchip, and none for the card in a slot of the same machine."""
    sensor, _, _ = _sensor([Card(module=140.0, name="NVIDIA GH200 480GB"), Card(name="NVIDIA X1000")], tmp=tmp_path)
    cards = [c for g in sensor.groups() for c in g.info.channels if c.domain is Domain.GPU]
    assert {c.device for c in cards if c.in_slot} == {"gpu.1"}


def test_gpus_of_one_module_report_it_once(tmp_path):
    for index, node in enumerate((0, 0, 1, 1)):
        place = tmp_path / "bus" / "pci" / "devices" / f"0000:{index + 1:02x}:00.0"
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    sensor, _, _ = _sensor([Card(module=900.0) for _ in range(4)], tmp=tmp_path)
    modules = [c.device for g in sensor.groups() for c in g.info.channels if c.domain is Domain.MODULE]
    assert modules == ["module.0", "module.1"]
    unknown, _, _ = _sensor([Card(module=900.0) for _ in range(2)])
    assert "no NUMA node" in unknown.probe().missing["gpu.1.module"]
    assert not [c for g in unknown.groups() for c in g.info.channels if c.domain is Domain.MODULE]


def test_a_row_says_when_it_can_have_been_published():
    sensor, _, clock = _sensor([Card()])
    (row,) = _by_name(sensor)["nvml.gpu.0.power"].read()
    assert row.early_ns == row.read_ns - NS // 10
    assert row.late_ns == row.read_ns == clock.now_ns


def test_without_a_counter_power_is_integrated_and_said_so():
    sensor, _, _ = _sensor([Card(counter=False)])
    report = sensor.probe()
    assert report.why == "gpu.0: power, integrated"
    assert report.missing["gpu.0.energy"] == "Not Supported"
    channels = _by_name(sensor)["nvml.gpu.0.power"].info.channels
    assert [c.name for c in channels] == ["gpu.0.power", "gpu.0.power_average", "gpu.0.utilisation"]
    assert channels[0].mirror_of is None and channels[1].mirror_of == "gpu.0.power"


def test_a_counter_that_fails_after_its_first_value_was_not_seen_to_move():
    card = Card()
    sensor, fake, _ = _sensor([card])
    first = fake._millijoules

    def once(card):
        card.counter_field = False
        return first(card)

    fake._millijoules = once
    report = sensor.probe()
    assert "gpu.0.energy" not in report.samples and "did not move" in report.missing["gpu.0.energy"]
    assert _by_name(sensor)["nvml.gpu.0.power"].info.channels[0].name == "gpu.0.power"


def test_a_counter_that_stands_still_is_not_trusted():
    sensor, _, _ = _sensor([Card(stuck=True)])
    report = sensor.probe()
    assert "did not move in 1.2 s while the card drew 100 W" in report.missing["gpu.0.energy"]
    assert "gpu.0.energy" not in report.samples
    channels = _by_name(sensor)["nvml.gpu.0.power"].info.channels
    assert channels[0].name == "gpu.0.power" and channels[0].mirror_of is None


def test_a_counter_that_moved_since_the_last_probe_is_not_waited_for():
    sensor, fake, clock = _sensor([Card(), Card()])
    assert sensor.probe().usable and clock.monotonic_ns() > 0
    clock.advance(1.0)
    began_ns = clock.monotonic_ns()
    again = Nvml(Request(machine=sensor._request.machine), nvml=fake)
    assert again.probe().usable
    assert clock.monotonic_ns() == began_ns
    assert Nvml(Request(machine=sensor._request.machine), nvml=fake).probe().usable
    assert clock.monotonic_ns() > began_ns  # no time has passed since: they have to be seen to move


def test_single_calls_where_fields_do_not_work():
    sensor, fake, clock = _sensor([Card()])
    fake.fail["nvmlDeviceGetFieldValues"] = 13
    groups = _by_name(sensor)
    power = groups["nvml.gpu.0.power"]
    assert [c.name for c in power.info.channels] == ["gpu.0.energy", "gpu.0.power", "gpu.0.utilisation"]
    before = _values(power)["gpu.0.energy"]
    clock.advance(2.0)
    assert _values(power)["gpu.0.energy"] - before == pytest.approx(200.0)
    assert power.info.channels[1].facts.window_s == 0.025


def test_utilisation_is_asked_for_while_power_stands_still():
    sensor, fake, clock = _sensor([Card(counter=False, instant=False, average=False)])
    power = _by_name(sensor)["nvml.gpu.0.power"]
    fake.calls.clear()
    for _ in range(50):
        clock.advance(0.02)
        power.read()
    assert fake.calls.count("nvmlDeviceGetPowerUsage") == 50
    assert 5 <= fake.calls.count("nvmlDeviceGetUtilizationRates") <= 7


def test_a_counter_that_is_no_field_is_asked_by_its_call():
    sensor, _, _ = _sensor([Card(counter_field=False)])
    assert sensor.probe().why == "gpu.0: energy counter"
    assert _values(_by_name(sensor)["nvml.gpu.0.power"])["gpu.0.power"] == 100.0


def test_one_call_a_tick_and_utilisation_only_as_often_as_drivers_publish_it():
    sensor, fake, clock = _sensor([Card()])
    power = _by_name(sensor)["nvml.gpu.0.power"]
    power.read()
    fake.calls.clear()
    for _ in range(50):  # one second, polled every 20 ms, ten publications
        clock.advance(0.02)
        power.read()
    assert fake.calls.count("nvmlDeviceGetFieldValues") == 50
    assert 5 <= fake.calls.count("nvmlDeviceGetUtilizationRates") <= 7  # every 160 ms
    assert len(fake.calls) <= 57


def test_jetson_where_every_call_says_not_supported_is_rejected():
    sensor, fake, _ = _sensor([Card(broken={"all"}, counter=False, instant=False, average=False)])
    report = sensor.probe()
    assert report.state is State.UNUSABLE
    assert report.why == "NVML starts, but no GPU reports energy or power: Not Supported."
    assert sensor.groups() == ()
    assert fake.users == 0


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (LIBRARY, State.ABSENT, "No NVIDIA driver"),
        (MISMATCH, State.UNUSABLE, "version mismatch"),
        (NO_PERMISSION, State.UNUSABLE, "no permission"),
        (9, State.UNUSABLE, "kernel driver is not loaded"),
        (999, State.UNUSABLE, "unknown error"),
    ],
)
def test_each_refusal_has_its_own_message(code, state, words):
    sensor, fake, _ = _sensor([Card()])
    fake.fail["nvmlInit"] = code
    report = sensor.probe()
    assert report.state is state and words in report.why


def test_a_driver_without_its_library_is_a_container(tmp_path):
    (tmp_path / "nvidiactl").touch()
    sensor, fake, _ = _sensor([Card()], tmp=tmp_path)
    fake.fail["nvmlInit"] = LIBRARY
    report = sensor.probe()
    assert report.state is State.UNUSABLE and "container" in report.why and report.cure


def test_no_device_at_all():
    report = _sensor([])[0].probe()
    assert report.state is State.ABSENT and "no GPU" in report.why


def test_inventory():
    (device,) = _sensor([Card(migs=("MIG-a", "MIG-b"))])[0].probe().devices
    assert device["uuid"] == "GPU-0000-aaaa" and device["pci_bus_id"] == "00000000:01:00.0"
    assert device["memory_bytes"] == 40 * 2**30 and device["driver"] == "535.54.03"
    assert device["compute_capability"] == "8.0"
    assert device["mig"] == [
        {"uuid": "MIG-a", "gpu_instance": 3, "compute_instance": 0},
        {"uuid": "MIG-b", "gpu_instance": 4, "compute_instance": 0},
    ]


def test_a_mig_board_is_one_board():
    sensor, _, _ = _sensor([Card(migs=("MIG-a", "MIG-b"), broken={"nvmlDeviceGetUtilizationRates"})], devices="MIG-b")
    report = sensor.probe()
    assert report.missing["gpu.0.utilisation"] == "Not Supported"
    carrying = [c.name for g in sensor.groups() for c in g.info.channels if c.carries_energy and c.mirror_of is None]
    assert carrying == ["gpu.0.energy"]


@pytest.mark.parametrize("mask", ["2,3", "GPU-0002,GPU-0003", "GPU-0002-aaaa,GPU-0003-aaaa"])
def test_a_mask_selects_exactly_those_gpus(mask):
    sensor, _, _ = _sensor([Card(), Card(), Card(), Card()], devices=mask)
    assert {group.info.device for group in sensor.groups()} == {"gpu.2", "gpu.3", "gpu"}
    assert [d["selected"] for d in sensor.probe().devices] == [False, False, True, True]


def test_a_mask_of_none():
    report = _sensor([Card()], devices="-1")[0].probe()
    assert report.state is State.ABSENT and "selects none of 1" in report.why


def test_four_gpus_are_four_series():
    cards = [Card(watts=50.0 * (n + 1)) for n in range(4)]
    sensor, _, clock = _sensor(cards)
    groups = _by_name(sensor)
    first = [_values(groups[f"nvml.gpu.{n}.power"])[f"gpu.{n}.energy"] for n in range(4)]
    clock.advance(10)
    joules = [_values(groups[f"nvml.gpu.{n}.power"])[f"gpu.{n}.energy"] - first[n] for n in range(4)]
    assert joules == pytest.approx([500.0, 1000.0, 1500.0, 2000.0])


def test_a_lost_gpu_is_a_gap_of_its_own_and_comes_back():
    cards = [Card(), Card()]
    sensor, fake, clock = _sensor(cards)
    groups = _by_name(sensor)
    one, two = groups["nvml.gpu.0.power"], groups["nvml.gpu.1.power"]
    cards[1].lost = True
    with pytest.raises(SensorError, match="GPU 1: the GPU is lost"):
        two.read()
    assert _values(one)["gpu.0.power"] == 100.0
    fake.calls.clear()
    for _ in range(9):  # it is not asked again at every tick
        clock.advance(0.1)
        with pytest.raises(SensorError):
            two.read()
    assert fake.calls == []
    cards[1].lost = False
    clock.advance(0.2)
    assert _values(two)["gpu.1.power"] == 100.0
    assert fake.calls[0] == "nvmlDeviceGetHandleByUUID"


def test_a_gpu_that_is_lost_from_the_start_leaves_the_others():
    sensor, _, _ = _sensor([Card(), Card(lost=True)])
    report = sensor.probe()
    assert report.usable
    assert report.missing["gpu.1"] == "the GPU is lost (it fell off the bus)"
    assert report.devices[1]["error"] == report.missing["gpu.1"]
    assert {group.info.device for group in sensor.groups()} == {"gpu.0", "gpu"}


@pytest.mark.parametrize("error", [NVMLError(999), NVMLError(LOST), NVMLError(1), RuntimeError("surprise")])
def test_raising_at_any_call_is_a_sensor_error_or_a_missing_metric(error):
    """From the first call of the probe to the hundredth of reading: nothing but a report or a SensorError comes out."""
    for at in range(1, 140, 3):
        sensor, fake, clock = _sensor([Card(gpm=True, processes=[Box(pid=7, usedGpuMemory=1)]), Card()])
        fake.fail_at, fake.fail_with = at, error
        report = sensor.probe()
        assert report.state in State
        groups = sensor.groups()
        for _ in range(3):
            clock.advance(0.1)
            for group in groups:
                try:
                    group.read_table() if group.info.table else group.read()
                except SensorError as caught:
                    assert "GPU" in str(caught)
        fake.fail_at = None  # and afterwards it works again
        clock.advance(2.0)
        for group in groups:
            if not group.info.table:
                assert len(group.read()) == 1
            group.close()


def test_one_failed_metric_is_nan_and_the_others_stay():
    card = Card()
    sensor, _, _ = _sensor([card])
    state = _by_name(sensor)["nvml.gpu.0.state"]
    card.broken = {"nvmlDeviceGetTemperature"}
    values = _values(state)
    assert values["gpu.0.temperature"] != values["gpu.0.temperature"]
    assert values["gpu.0.clock_sm"] == 1410.0


def _calls_in(fake, state, clock, seconds):
    fake.calls.clear()
    for _ in range(seconds):
        clock.advance(1.0)
        state.read()
    return {name: fake.calls.count(name) for name in set(fake.calls)}


def test_a_metric_that_stands_still_is_asked_less_often_until_memory_changes():
    card = Card()
    sensor, fake, clock = _sensor([card])
    state = _by_name(sensor)["nvml.gpu.0.state"]
    first = _calls_in(fake, state, clock, 20)
    calls = _calls_in(fake, state, clock, 40)
    assert first["nvmlDeviceGetMemoryInfo"] == 20 and calls["nvmlDeviceGetMemoryInfo"] == 40
    assert calls["nvmlDeviceGetTemperature"] == 10  # every 4 s
    assert calls["nvmlDeviceGetEnforcedPowerLimit"] == 4
    assert 18 <= calls["nvmlDeviceGetClockInfo"] <= 19  # SM every 4 s, memory every 5 s
    card.memory += 1
    fake.calls.clear()
    clock.advance(1.0)
    state.read()
    assert {"nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo"} <= set(fake.calls)


def test_a_metric_that_moves_is_asked_as_ever():
    sensor, fake, clock = _sensor([Card()])
    state = _by_name(sensor)["nvml.gpu.0.state"]
    values = []
    for number in range(40):
        fake.nvmlDeviceGetTemperature = lambda card, kind, number=number: 40 + number
        clock.advance(1.0)
        values.append(_values(state)["gpu.0.temperature"])
    assert len(set(values)) == 20  # every other second


def test_older_drivers_call_the_reasons_throttle():
    sensor, _, _ = _sensor([Card(broken={"nvmlDeviceGetCurrentClocksEventReasons"})])
    assert sensor.probe().samples["gpu.0.throttle"] == 8.0
    assert "gpu.0.throttle" not in sensor.probe().missing


def test_gpm_is_absent_with_its_reason():
    report = _sensor([Card(gpm=False)])[0].probe()
    assert "Hopper" in report.missing["gpu.0.sm_active"]
    assert "gpu.0.sm_active" not in report.samples


def test_nvml_is_shut_down_when_the_last_group_is_closed():
    sensor, fake, _ = _sensor([Card(gpm=True)])
    groups = sensor.groups()
    for group in groups[:-1]:
        group.close()
    assert fake.users == 1
    groups[-1].close()
    assert fake.users == 0


def test_processes_with_memory_and_sm_use():
    card = Card(
        processes=[Box(pid=11, usedGpuMemory=2**20, gpuInstanceId=0xFFFFFFFF, computeInstanceId=0xFFFFFFFF)],
        use=[Box(pid=11, timeStamp=1000, smUtil=40), Box(pid=11, timeStamp=2000, smUtil=60)],
    )
    sensor, _, clock = _sensor([card])
    table = _by_name(sensor)["nvml.processes"]
    at_ns, rows = table.read_table()
    assert at_ns == clock.now_ns
    assert rows == [
        {
            "gpu": 0,
            "uuid": "GPU-0000-aaaa",
            "pid": 11,
            "type": "C",
            "memory_bytes": 2**20,
            "sm": 50.0,
            "sample_us": 2000,
            "gpu_instance": None,
            "compute_instance": None,
        }
    ]
    clock.advance(1.0)
    _, rows = table.read_table()  # no new sample: it did nothing
    assert [(row["pid"], row["sm"]) for row in rows] == [(11, 0.0)]
    clock.advance(1.0)
    assert table.read_table()[1] == []
    card.processes = []
    table.ask_all()  # at once, where a run ends
    _, rows = table.read_table()
    assert [(row["pid"], row.get("gone")) for row in rows] == [(11, True)]


def test_sm_use_that_is_not_supported_is_none_not_zero():
    card = Card(processes=[Box(pid=5, usedGpuMemory=None)], broken={"nvmlDeviceGetProcessUtilization"})
    sensor, _, _ = _sensor([card])
    ((row,),) = (_by_name(sensor)["nvml.processes"].read_table()[1],)
    assert row["sm"] is None and row["memory_bytes"] is None


def test_a_mig_process_names_its_instance():
    card = Card(processes=[Box(pid=5, usedGpuMemory=1, gpuInstanceId=3, computeInstanceId=0)], migs=("MIG-a",))
    sensor, _, _ = _sensor([card])
    ((row,),) = (_by_name(sensor)["nvml.processes"].read_table()[1],)
    assert (row["gpu_instance"], row["compute_instance"]) == (3, 0)


def test_an_empty_gpu_is_not_listed_again_until_its_memory_changes():
    card = Card()
    sensor, fake, clock = _sensor([card])
    groups = _by_name(sensor)
    table, state = groups["nvml.processes"], groups["nvml.gpu.0.state"]
    listing = "nvmlDeviceGetComputeRunningProcesses"
    fake.calls.clear()
    for _ in range(5):
        clock.advance(1.0)
        state.read()
        table.read_table()
    assert fake.calls.count(listing) == 1
    card.memory, card.processes = card.memory + 300, [Box(pid=9, usedGpuMemory=300)]
    clock.advance(1.0)
    state.read()
    assert [row["pid"] for row in table.read_table()[1]] == [9]


def test_a_hurried_read_looks_at_memory_itself_and_says_since_when():
    card = Card()
    sensor, fake, clock = _sensor([card])
    table = _by_name(sensor)["nvml.processes"]
    table.read_table()
    clock.advance(0.2)
    seen_ns = clock.now_ns
    assert table.read_table()[1] == []
    card.memory, card.processes = card.memory + 300, [Box(pid=9, usedGpuMemory=300)]
    fake.calls.clear()
    clock.advance(0.2)
    (row,) = table.read_table()[1]
    assert (row["pid"], row["since_ns"]) == (9, seen_ns)
    listing = "nvmlDeviceGetComputeRunningProcesses"
    for _ in range(3):  # nobody came or left: its memory says so
        clock.advance(0.2)
        assert table.read_table()[1] == []
    assert (fake.calls.count(listing), fake.calls.count("nvmlDeviceGetMemoryInfo")) == (1, 4)
    stayed_ns = clock.now_ns
    card.memory, card.processes = card.memory - 300, []
    clock.advance(0.2)
    (row,) = table.read_table()[1]
    assert row["gone"] and row["since_ns"] == stayed_ns


def test_a_table_beside_another_tape_sees_a_process_that_comes_later():
    """The state of the card is read for the first tape: nothing else reads its memory for this table."""
    card = Card()
    sensor, _, clock = _sensor([card])
    table = _by_name(sensor)["nvml.processes"]
    for seconds in (0.0, 0.2, 1.0, 1.0):
        clock.advance(seconds)
        assert table.read_table()[1] == []
    card.memory, card.processes = card.memory + 300, [Box(pid=9, usedGpuMemory=300)]
    clock.advance(1.0)
    assert [row["pid"] for row in table.read_table()[1]] == [9]


def test_how_busy_processes_are_is_asked_once_a_second_however_hurried():
    card = Card(processes=[Box(pid=9, usedGpuMemory=300)])
    sensor, fake, clock = _sensor([card])
    table = _by_name(sensor)["nvml.processes"]
    fake.calls.clear()
    for _ in range(26):  # 0.0, 0.2, … 5.0 s
        table.read_table()
        clock.advance(0.2)
    assert fake.calls.count("nvmlDeviceGetComputeRunningProcesses") == 6


def test_nothing_is_imported_or_kept_before_the_probe():
    import subprocess
    import sys

    code = (
        "import sys; import everywatt.sensors.nvidia.nvml, everywatt.sensors.nvidia.nvidia_smi;"
        "print([m for m in ('pynvml', 'numpy', 'psutil', 'click', 'rich', 'asyncio') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environ())
    assert out.stdout.strip() == "[]"


def _environ():
    import os

    import everywatt

    return {**os.environ, "PYTHONPATH": str(Path(next(iter(everywatt.__path__))).parent)}
