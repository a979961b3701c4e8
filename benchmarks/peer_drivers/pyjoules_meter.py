"""pyJoules: an energy meter for each window."""

from __future__ import annotations

from lanes import Tool, drive


class PyJoules(Tool):
    def __init__(self, config):  # type: ignore[no-untyped-def]
        super().__init__(config)
        from pyJoules.device import DeviceFactory
        from pyJoules.device.nvidia_device import NvidiaGPUDomain
        from pyJoules.device.rapl_device import RaplPackageDomain
        from pyJoules.energy_meter import EnergyMeter

        domain = NvidiaGPUDomain if config["kind"] == "gpu" else RaplPackageDomain
        self.unit = 1e-3 if config["kind"] == "gpu" else 1e-6
        self.made = DeviceFactory.create_devices([domain(device) for device in self.devices])
        self.meter = EnergyMeter

    def open(self, key):  # type: ignore[no-untyped-def]
        meter = self.meter(self.made)
        meter.start(tag=key)
        return meter

    def close(self, key, handle):  # type: ignore[no-untyped-def]
        handle.stop()
        energy = handle.get_trace()[0].energy
        name = "nvidia_gpu_" if self.config["kind"] == "gpu" else "package_"
        return {str(device): energy[f"{name}{device}"] * self.unit for device in self.devices}


if __name__ == "__main__":
    drive(PyJoules)
