"""One GPU behind NVML: who it is, its handle, and getting the handle again after the GPU was lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import SensorError
from everywatt.sensors.nvidia.gpu_select import Gpu, Mig
from everywatt.sensors.nvidia.nvml_api import UNINITIALIZED, code_of, is_lost, metric, text, words_for

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_NS = 1 * NS  # asking for a lost GPU may itself take long


@dataclass(frozen=True, slots=True)
class Identity:
    """What is fixed about a GPU. `max_w` is the highest power limit the board accepts, None where it does not say."""

    gpu: Gpu
    driver: str
    max_w: float | None = None
    memory_bytes: float | None = None
    compute_capability: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a report."""
        return {
            "device": f"gpu.{self.gpu.index}",
            "index": self.gpu.index,
            "name": self.gpu.name,
            "uuid": self.gpu.uuid,
            "pci_bus_id": self.gpu.pci_bus_id,
            "memory_bytes": self.memory_bytes,
            "driver": self.driver,
            "compute_capability": self.compute_capability,
            "max_w": self.max_w,
            "mig": [
                {"uuid": mig.uuid, "gpu_instance": mig.gpu_instance, "compute_instance": mig.compute_instance}
                for mig in self.gpu.migs
            ],
        }


class Device:
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
        """NVML's index of the board."""
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
            try:
                self._handle = self._find()
                self._lost = None
                return self._handle
            except Exception as error:  # noqa: BLE001 - a driver's border
                self._lost = words_for(error)
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
            try:
                self.nvml.nvmlInit()
            except Exception as again:  # noqa: BLE001 - a driver's border
                self._lost = words_for(again)

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
