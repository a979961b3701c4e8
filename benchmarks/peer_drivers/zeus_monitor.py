"""Zeus ZeusMonitor: windows opened and closed by its API, without waiting for a framework."""

from __future__ import annotations

from lanes import Tool, drive


class Zeus(Tool):
    def __init__(self, config):  # type: ignore[no-untyped-def]
        super().__init__(config)
        from zeus.monitor import ZeusMonitor

        gpu = config["kind"] == "gpu"
        self.monitor = ZeusMonitor(gpu_indices=self.devices if gpu else [], cpu_indices=[] if gpu else self.devices)

    def open(self, key):  # type: ignore[no-untyped-def]
        self.monitor.begin_window(key, sync_execution=False)

    def close(self, key, handle):  # type: ignore[no-untyped-def]
        found = self.monitor.end_window(key, sync_execution=False)
        joules = found.gpu_energy if self.config["kind"] == "gpu" else found.cpu_energy or {}
        return {str(device): joules.get(device) for device in self.devices}


if __name__ == "__main__":
    drive(Zeus)
