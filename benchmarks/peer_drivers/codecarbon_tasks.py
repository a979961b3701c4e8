"""CodeCarbon: one tracker for each card and lane, its tasks are the windows."""

from __future__ import annotations

from lanes import Tool, drive

JOULES = 3.6e6


class CodeCarbon(Tool):
    def __init__(self, config):  # type: ignore[no-untyped-def]
        super().__init__(config)
        from codecarbon import OfflineEmissionsTracker

        self.gpu = config["kind"] == "gpu"
        self.trackers = {
            (lane, device): OfflineEmissionsTracker(
                country_iso_code="FRA",
                measure_power_secs=0.1,
                save_to_file=False,
                log_level="critical",
                allow_multiple_runs=True,
                gpu_ids=[device] if self.gpu else None,
            )
            for lane in range(len(config["lanes"]))
            for device in self.devices
        }
        for (lane, device), tracker in self.trackers.items():
            tracker.start_task(f"warm-{lane}-{device}")
            tracker.stop_task(f"warm-{lane}-{device}")

    def open(self, key):  # type: ignore[no-untyped-def]
        import time

        lane = int(key.split("-")[0])
        edges = {}
        for device in self.devices:
            before = time.monotonic_ns()
            self.trackers[lane, device].start_task(key)
            edges[device] = [before, time.monotonic_ns()]
        return edges

    def close(self, key, handle):  # type: ignore[no-untyped-def]
        import time

        lane = int(key.split("-")[0])
        found = {}
        for device in self.devices:
            before = time.monotonic_ns()
            data = self.trackers[lane, device].stop_task(key)
            after = time.monotonic_ns()
            kwh = None if data is None else data.gpu_energy if self.gpu else data.cpu_energy
            joules = None if kwh is None else kwh * JOULES
            found[str(device)] = {"joules": joules, "open": handle[device], "close": [before, after]}
        return found


if __name__ == "__main__":
    drive(CodeCarbon)
