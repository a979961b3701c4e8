"""The driver's buffer of utilisation, played by a function that fills it as NVML does."""

import ctypes
import struct
from types import SimpleNamespace as Box

import pytest
from fake_clock import FakeClock

from everywatt.core.clocks import NS
from everywatt.sensors.nvidia.nvml_device import UtilisationSamples

US = 1000


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


class Sample(ctypes.Structure):
    _fields_ = [("timeStamp", ctypes.c_ulonglong), ("sampleValue", ctypes.c_ulonglong)]


class Driver:
    """Keeps a sample every `step_ns`: 10 %, 20 %, … 90 %, 0 %, and again. Each call costs `cost_ns`."""

    NVMLError = NVMLError
    c_nvmlSample_t = Sample

    def __init__(self, clock, step_ns=NS // 6, keeps=120, cost_ns=50_000, code=0, kind=1):
        self.clock, self.step_ns, self.keeps, self.cost_ns, self.code, self.kind = (
            clock, step_ns, keeps, cost_ns, code, kind,
        )  # fmt: skip
        self.calls, self.asked = 0, 1

    def _nvmlGetFunctionPointer(self, name):
        assert name == "nvmlDeviceGetSamples"
        return self.fill

    def fill(self, handle, kind, since, value_type, count, into):
        self.calls += 1
        self.clock.now_ns += self.cost_ns
        assert (handle, kind.value) == ("card", self.asked)
        if self.code:
            return self.code
        value_type._obj.value = self.kind
        if into is None:
            count._obj.value = self.keeps
            return 0
        last = self.clock.utc_ns() // self.step_ns
        entries = [(k * self.step_ns // US, k % 10 * 10) for k in range(last - self.keeps + 1, last + 1)]
        entries = [entry for entry in entries if entry[0] > since.value][: count._obj.value]
        ctypes.memmove(into, b"".join(struct.pack("<QQ", *entry) for entry in entries), 16 * len(entries))
        count._obj.value = len(entries)
        return 0 if entries else 6

    def rates(self, handle):
        self.clock.now_ns += 50_000
        return Box(gpu=50, memory=20)


def _samples(**changes):
    clock = FakeClock()
    driver = Driver(clock, **changes)
    return driver, UtilisationSamples(driver, clock), clock


def test_each_moment_has_the_value_that_stood_published():
    driver, samples, clock = _samples()
    assert samples.works("card", driver.rates)
    clock.advance(1.0)
    before = driver.calls
    samples.update("card")
    assert driver.calls == before + 1
    for back_s in (0.0, 0.1, 0.35, 0.9):
        at_ns = clock.now_ns - round(back_s * NS)
        k = (at_ns + clock.utc_offset_ns) // driver.step_ns
        assert samples.at(at_ns) == k % 10 * 10
    samples.update("card")  # nothing new since
    assert samples.at(clock.now_ns) == (clock.utc_ns() // driver.step_ns) % 10 * 10


def test_what_is_kept_does_not_grow():
    _, samples, clock = _samples()
    for _ in range(200):
        samples.update("card")
        clock.advance(1.0)
    assert len(samples.times_ns) == len(samples.values) < 200


@pytest.mark.parametrize(
    "odd",
    [
        {"code": 3},  # not supported
        {"step_ns": NS},  # too seldom to be the second witness
        {"step_ns": 2_000_000},  # a buffer that holds a quarter of a second
        {"keeps": 5},
        {"kind": 0},  # a double, which no driver should give
        {"cost_ns": 500_000},  # dearer than what it saves
    ],
)
def test_a_buffer_that_is_no_use_is_not_used(odd):
    driver, samples, _ = _samples(**odd)
    assert not samples.works("card", driver.rates)


def test_an_error_of_the_driver_is_the_drivers():
    driver, samples, _ = _samples()
    driver.code = 15
    with pytest.raises(NVMLError):
        samples.update("card")
    assert samples.at(0) != samples.at(0)
