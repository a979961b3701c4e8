"""NVML's GPM metrics (Hopper and later): the share of SMs, warps, tensor pipes and DRAM bandwidth that was in use.

A metric is the mean between two samples, so each read takes one new sample and compares it with the one before.
"""

from __future__ import annotations

from typing import Any

from everywatt.core.channels import NAN, Channel, Kind
from everywatt.sensors.nvidia.nvml_api import attempt

METRICS = {
    "sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


class Gpm:
    """Two samples and one request, made once. `channels` are percent."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self._nvml = nvml
        self.channels = [Channel(f"gpu.{index}.{name}", "%", Kind.GAUGE, f"gpu.{index}", scale=1.0) for name in METRICS]
        self._older, self._newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, constant in enumerate(METRICS.values()):
            self._request.metrics[place].metricId = getattr(nvml, constant)
        nvml.nvmlGpmSampleGet(handle, self._older)

    def read(self, handle: Any) -> list[float]:
        """Percent since the last read, NaN where a metric failed. Raises where the device is lost."""
        why = attempt(self._sample, handle)[1]
        if why:
            return [NAN] * len(METRICS)
        self._older, self._newer = self._newer, self._older
        entries = [self._request.metrics[place] for place in range(len(METRICS))]
        return [NAN if entry.nvmlReturn else float(entry.value) for entry in entries]

    def _sample(self, handle: Any) -> None:
        self._nvml.nvmlGpmSampleGet(handle, self._newer)
        self._request.sample1, self._request.sample2 = self._older, self._newer
        self._nvml.nvmlGpmMetricsGet(self._request)

    def close(self) -> None:
        """Free both samples."""
        for sample in (self._older, self._newer):
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except Exception:  # noqa: BLE001 - it fails for a lost GPU, whose reads have reported that; it frees memory only
                pass


def probe_gpm(nvml: Any, index: int, handle: Any) -> tuple[Gpm | None, dict[str, str]]:
    """The GPM reader of a GPU, or None with the reason for each of its channels."""
    supported, why = attempt(lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    if supported:
        gpm, why = attempt(Gpm, nvml, index, handle)
        if gpm is not None:
            return gpm, {}
    why = f"GPM metrics: {why}" if why else "this GPU has no GPM metrics (available from Hopper on)"
    return None, {f"gpu.{index}.{name}": why for name in METRICS}
