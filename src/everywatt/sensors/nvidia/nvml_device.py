"""One GPU behind NVML: who it is, its handle, getting the handle again after the GPU was lost, and its own samples.

The driver itself keeps utilisation: all samples of the last second in one call, each with its own time. Asking for the
rates gives those of that moment, so it has to be done at every publication, five times a second. The driver's buffer is
used where it really works: it answers, its newest sample is young, samples come often enough to say the same, it
reaches back far enough to be asked once in a while, and the call is no more expensive than those that it saves.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import lt
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import NAN
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import SensorError
from everywatt.core.jsonio import ToDict
from everywatt.sensors.nvidia.gpu_select import Gpu, Mig
from everywatt.sensors.nvidia.nvml_api import (
    NOT_FOUND,
    UNINITIALIZED,
    code_of,
    is_lost,
    metric,
    pointer,
    text,
    tried,
    words_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_NS = 1 * NS  # asking for a lost GPU may itself take long


@dataclass(frozen=True, slots=True)
class Identity(ToDict):
    """What is fixed about a GPU. `max_w` is the highest power limit the board accepts, None where it does not say."""

    JSON = (
        "device index=gpu.index name=gpu.name uuid=gpu.uuid pci_bus_id=gpu.pci_bus_id memory_bytes driver "
        "compute_capability max_w mig=gpu.migs"
    )

    gpu: Gpu
    driver: str
    max_w: float | None = None
    memory_bytes: float | None = None
    compute_capability: str | None = None

    @property
    def device(self) -> str:
        return f"gpu.{self.gpu.index}"


class GpuHandle:
    """A GPU's handle, and the readings that several groups share."""

    def __init__(self, nvml: Any, identity: Identity, handle: Any, clock: Clock) -> None:
        self.nvml = nvml
        self.identity = identity
        self.clock = clock
        self.memory_used: float | None = None
        self.memory_ns = 0  # when that was read
        self._handle = handle
        self._lost: str | None = None
        self._retry_ns = 0
        self._rates: tuple[float, float] | None = None
        self._rates_ns = 0

    def read_memory(self, handle: Any) -> float:
        """Bytes of memory in use; kept as `memory_used`."""
        used = self.memory_used = float(self.nvml.nvmlDeviceGetMemoryInfo(handle).used)
        self.memory_ns = self.clock.monotonic_ns()
        return used

    @property
    def index(self) -> int:
        return self.identity.gpu.index

    @property
    def handle(self) -> Any:
        """The handle while the GPU answers, else None."""
        return self._handle if self._lost is None else None

    def call(self, function: Callable[[Any], Any]) -> Any:
        """`function(handle)`. Whatever goes wrong is a SensorError that names this GPU; a lost one is sought again."""
        handle = self._alive()
        try:
            return function(handle)
        except SensorError as error:
            raise self._error(error.message) from error
        except Exception as error:
            if is_lost(error):
                self._lose(error)
            raise self._error(words_for(error)) from error

    def rates(self, handle: Any, age_ns: int) -> tuple[float, float]:
        """Utilisation of GPU and memory in percent, asked again where the last answer is older than `age_ns`."""
        now_ns = self.clock.monotonic_ns()
        if self._rates is None or now_ns - self._rates_ns >= age_ns:
            rates = self.nvml.nvmlDeviceGetUtilizationRates(handle)
            self._rates, self._rates_ns = (float(rates.gpu), float(rates.memory)), now_ns
        return self._rates

    def _alive(self) -> Any:
        if self._lost is None:
            return self._handle
        now_ns = self.clock.monotonic_ns()
        if now_ns >= self._retry_ns:
            self._retry_ns = now_ns + RETRY_NS
            handle, why = tried(self._find)
            if not why:
                self._handle, self._lost = handle, None
                return handle
            self._lost = why
        raise self._error(self._lost)

    def _find(self) -> Any:
        uuid = self.identity.gpu.uuid
        if uuid:
            return self.nvml.nvmlDeviceGetHandleByUUID(uuid)
        return self.nvml.nvmlDeviceGetHandleByIndex(self.index)

    def _lose(self, error: Exception) -> None:
        self._lost = words_for(error)
        self._retry_ns = self.clock.monotonic_ns() + RETRY_NS
        self._rates = None
        if code_of(error) == UNINITIALIZED:
            self._lost = tried(self.nvml.nvmlInit)[1] or self._lost

    def _error(self, why: str) -> SensorError:
        return SensorError(f"GPU {self.index}: {why}.")


def identify(nvml: Any, index: int, handle: Any, driver: str) -> Identity:
    """Who the GPU behind a handle is. Raises where it is lost; a detail it does not give is left out."""
    uuid = text(nvml.nvmlDeviceGetUUID(handle))
    pci = metric(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    memory = metric(lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).total))
    capability = metric(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Identity(
        Gpu(index, uuid, text(metric(nvml.nvmlDeviceGetName, handle) or ""), text(pci or ""), _migs(nvml, handle)),
        driver,
        _max_w(nvml, handle),
        memory,
        f"{capability[0]}.{capability[1]}" if capability else None,
    )


def _max_w(nvml: Any, handle: Any) -> float | None:
    limits = metric(nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    limit_mw = limits[1] if limits else metric(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return limit_mw / 1e3 if limit_mw else None


def _migs(nvml: Any, handle: Any) -> tuple[Mig, ...]:
    mode = metric(nvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != 1:
        return ()
    found = []
    most = metric(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0  # as many as the board has slices
    for place in range(most):
        mig = metric(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        uuid = None if mig is None else metric(nvml.nvmlDeviceGetUUID, mig)
        if uuid is None:
            continue  # slots may be empty
        gpu_instance = metric(nvml.nvmlDeviceGetGpuInstanceId, mig)
        compute_instance = metric(nvml.nvmlDeviceGetComputeInstanceId, mig)
        slices = metric(_slices, nvml, mig)
        found.append(Mig(text(uuid), _or_unknown(gpu_instance), _or_unknown(compute_instance), slices, most))
    return tuple(found)


def _slices(nvml: Any, mig: Any) -> int | None:
    attributes = getattr(nvml, "nvmlDeviceGetAttributes_v2", None)
    return None if attributes is None else int(attributes(mig).computeInstanceSliceCount) or None


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else int(number)


GPU_UTILISATION = 1  # NVML's number of this kind of samples
CLOSEST_NS, FARTHEST_NS = 40_000_000, 300_000_000
REACH_NS = 3 * NS
YOUNG_NS = NS // 2
KEEP_NS = 5 * NS
SAVED_CALLS = 3
_SAMPLE = struct.Struct("<QI4x")  # a stamp and, of the eight bytes of a value, those of an unsigned one
_UNSIGNED = 1


class UtilisationSamples:
    """The busy share of one GPU over time, in percent: `times_ns` (monotonic) and `values` as the driver gives them."""

    def __init__(self, nvml: Any, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._function = pointer(nvml, "nvmlDeviceGetSamples")
        self._kind = ctypes.c_int(GPU_UTILISATION)
        self._type = ctypes.c_int(0)
        self._room = 256
        self._buffer = (ctypes.c_ubyte * (self._room * _SAMPLE.size))()
        self._count = ctypes.c_uint(0)
        self._since = ctypes.c_ulonglong(0)
        self._references = ctypes.byref(self._type), ctypes.byref(self._count)
        self._since_us = 0
        self.times_ns: list[int] = []
        self.values: list[float] = []

    def update(self, handle: Any) -> None:
        """Add the samples since the last time. Raises NVML's error, except if there is no newer sample."""
        self._count.value, self._since.value = self._room, self._since_us
        code = self._function(handle, self._kind, self._since, *self._references, self._buffer)
        if code == NOT_FOUND:
            return
        if code:
            raise self._nvml.NVMLError(code)
        # Stamps are UTC; what the wall clock says beside the monotonic one now is good enough for a second.
        offset_ns = self._clock.utc_ns() - self._clock.monotonic_ns()
        size = self._count.value * _SAMPLE.size
        fresh = self._newer(list(_SAMPLE.iter_unpack(memoryview(self._buffer)[:size])))
        if fresh:
            self._since_us = fresh[-1][0]
            self.times_ns += [stamp_us * 1000 - offset_ns for stamp_us, _ in fresh]
            self.values += [float(value) for _, value in fresh]
            self._forget()

    def _newer(self, samples: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those whose stamps are newer than all before them. Drivers give them in order."""
        stamps = [self._since_us, *(stamp_us for stamp_us, _ in samples)]
        if all(map(lt, stamps, stamps[1:])):
            return samples
        newest = accumulate(stamps, max)
        return [sample for sample, before_us in zip(samples, newest, strict=False) if sample[0] > before_us]

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
            del self.times_ns[:old], self.values[:old]

    def at(self, t_ns: int) -> float:
        """What stood published at that time; the oldest that is known where nothing is, NaN where nothing is at all."""
        if not self.times_ns:
            return NAN
        return self.values[max(bisect_right(self.times_ns, t_ns) - 1, 0)]

    def usable(self, handle: Any) -> bool:
        """Whether the driver keeps such samples, some are there and they are young. Raises what the driver raises."""
        if self._function is None or _SAMPLE.size != ctypes.sizeof(self._nvml.c_nvmlSample_t):
            return False
        self.update(handle)
        times = self.times_ns
        if self._type.value != _UNSIGNED or len(times) < 4:
            return False
        return abs(self._clock.monotonic_ns() - times[-1]) <= YOUNG_NS

    def _step_ns(self) -> int:
        """How far apart samples usually are."""
        steps = sorted(after - before for before, after in pairwise(self.times_ns))
        return steps[len(steps) // 2]

    def works(self, handle: Any, rates: Callable[[Any], Any]) -> bool:
        """Whether the buffer can stand in for calls of `rates`."""
        try:
            if not self.usable(handle) or max(self.values) > 100:
                return False
            saved_ns = self._cost_ns(rates, handle)
            cost_ns = self._cost_ns(self.update, handle)
            reaches = self._capacity(handle) * self._step_ns() >= REACH_NS
        except Exception:  # noqa: BLE001 - then the rates are read, which shows what is wrong
            return False
        often = CLOSEST_NS <= self._step_ns() <= FARTHEST_NS
        return often and reaches and cost_ns <= SAVED_CALLS * max(saved_ns, 20_000)
