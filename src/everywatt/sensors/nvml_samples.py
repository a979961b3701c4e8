"""Utilisation as the driver itself keeps it: all samples of the last second in one call, each with its own time.

Asking for the rates tells how things stand at that moment, so it has to be done at every publication, five times a
second. The driver's buffer is used where it really works: it answers, its newest sample is young, samples come often
enough to say the same, it reaches back far enough to be asked once in a while, and the call is not dearer than those
that it saves.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import NAN
from everywatt.core.clocks import NS, Clock
from everywatt.sensors.nvml_api import NOT_FOUND, pointer

if TYPE_CHECKING:
    from collections.abc import Callable

GPU_UTILISATION = 1  # NVML's number of this kind of samples
CLOSEST_NS, FARTHEST_NS = 40_000_000, 300_000_000
REACH_NS = 3 * NS
YOUNG_NS = NS // 2
KEEP_NS = 5 * NS
SAVED_CALLS = 3
_SAMPLE = struct.Struct("<QQ")
_UNSIGNED = 1


class UtilisationSamples:
    """The busy share of one GPU over time, in percent."""

    def __init__(self, nvml: Any, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._function = pointer(nvml, "nvmlDeviceGetSamples")
        self._kind = ctypes.c_int(GPU_UTILISATION)
        self._type = ctypes.c_int(0)
        self._room = 256
        self._buffer = (ctypes.c_ubyte * (self._room * _SAMPLE.size))()
        self._since_us = 0
        self.times_ns: list[int] = []
        self.percents: list[float] = []

    def update(self, handle: Any) -> None:
        """Take in the samples since the last time. Raises NVML's error; that there is no newer one is none."""
        count = ctypes.c_uint(self._room)
        code = self._function(
            handle, self._kind, ctypes.c_ulonglong(self._since_us), ctypes.byref(self._type), ctypes.byref(count),
            self._buffer,
        )  # fmt: skip
        if code == NOT_FOUND:
            return
        if code:
            raise self._nvml.NVMLError(code)
        # Stamps are UTC; what the wall clock says beside the monotonic one now is good enough for a second.
        offset_ns = self._clock.utc_ns() - self._clock.monotonic_ns()
        for stamp_us, value in _SAMPLE.iter_unpack(bytes(self._buffer)[: count.value * _SAMPLE.size]):
            if stamp_us > self._since_us:
                self._since_us = stamp_us
                self.times_ns.append(stamp_us * 1000 - offset_ns)
                self.percents.append(float(value & 0xFFFFFFFF))
        self._forget()

    def _capacity(self, handle: Any) -> int:
        """How many samples the driver keeps, as far as there is room for them here."""
        count = ctypes.c_uint(0)
        since = ctypes.c_ulonglong(0)
        code = self._function(handle, self._kind, since, ctypes.byref(self._type), ctypes.byref(count), None)
        return 0 if code else min(count.value, self._room)

    def _cost_ns(self, call: Callable[[Any], Any], handle: Any) -> int:
        """What a call takes: the best of three, since the machine may be busy."""
        took = []
        for _ in range(3):
            began_ns = self._clock.monotonic_ns()
            call(handle)
            took.append(self._clock.monotonic_ns() - began_ns)
        return min(took)

    def _forget(self) -> None:
        old = bisect_right(self.times_ns, self.times_ns[-1] - KEEP_NS) if self.times_ns else 0
        if old > 64:
            del self.times_ns[:old], self.percents[:old]

    def at(self, t_ns: int) -> float:
        """What stood published at that time; the oldest that is known where nothing is, NaN where nothing is at all."""
        if not self.times_ns:
            return NAN
        return self.percents[max(bisect_right(self.times_ns, t_ns) - 1, 0)]

    def works(self, handle: Any, rates: Callable[[Any], Any]) -> bool:
        """Whether the buffer can stand in for calls of `rates`."""
        if self._function is None or _SAMPLE.size != ctypes.sizeof(self._nvml.c_nvmlSample_t):
            return False
        try:
            self.update(handle)
            saved_ns = self._cost_ns(rates, handle)
            cost_ns = self._cost_ns(self.update, handle)
            room = self._capacity(handle)
        except Exception:  # noqa: BLE001 - then the rates are asked for, which tells what is wrong
            return False
        times = self.times_ns
        if self._type.value != _UNSIGNED or len(times) < 4 or max(self.percents) > 100:
            return False
        steps = sorted(after - before for before, after in pairwise(times))
        step_ns = steps[len(steps) // 2]
        often = CLOSEST_NS <= step_ns <= FARTHEST_NS
        reaches = room * step_ns >= REACH_NS and abs(self._clock.monotonic_ns() - times[-1]) <= YOUNG_NS
        return often and reaches and cost_ns <= SAVED_CALLS * max(saved_ns, 20_000)
