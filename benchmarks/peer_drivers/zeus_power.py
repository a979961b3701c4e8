"""Zeus PowerMonitor: polls in processes of its own; energies of windows are asked for afterwards."""

from __future__ import annotations

from lanes import Tool, drive


class Power(Tool):
    def __init__(self, config):  # type: ignore[no-untyped-def]
        super().__init__(config)
        from zeus.monitor import PowerMonitor

        # The fastest period that it accepts without a warning; left to itself it polls without a pause.
        self.monitor = PowerMonitor(gpu_indices=self.devices, update_period=0.05)

    def open(self, key):  # type: ignore[no-untyped-def]
        return None

    def close(self, key, handle):  # type: ignore[no-untyped-def]
        return None

    def finish(self, windows):  # type: ignore[no-untyped-def]
        import time

        time.sleep(0.5)
        for window in windows:
            found = self.monitor.get_energy(*window["wall"]) or {}
            window["joules"] = {str(device): found.get(device, 0.0) for device in self.devices}
        self.monitor.stop()


if __name__ == "__main__":
    drive(Power)
