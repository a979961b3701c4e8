"""The tools whose weight is measured, each as people use it at 10 Hz: `python _subjects.py NAME`.

Each says `ready` and then only waits, so that whatever CPU time is used is the tool's own. Runs with the peers' Python,
and imports nothing of ours except for `everywatt`.
"""

from __future__ import annotations

import sys
import threading
import time

PERIOD_S = 0.1


def ready(*words: object) -> None:
    """Tell the benchmark that the tool runs, and wait until the input ends."""
    print("ready", *words, flush=True)
    sys.stdin.read()


def everywatt() -> None:
    """`measure()` with its defaults; the recorder is a process of its own."""
    import tempfile

    import everywatt as ew

    with tempfile.TemporaryDirectory() as home:
        meter = ew.Meter("weight", home=home).start()
        status = meter.recording.status()
        ready(status["pid"], home)
        meter.stop()


def codecarbon() -> None:
    """CodeCarbon's tracker thread, as it comes."""
    _codecarbon(None)


def codecarbon_quiet() -> None:
    """The same without its log."""
    _codecarbon("error")


def _codecarbon(level: str | None) -> None:
    import tempfile

    from codecarbon import OfflineEmissionsTracker

    with tempfile.TemporaryDirectory() as folder:
        extra = {} if level is None else {"log_level": level}
        tracker = OfflineEmissionsTracker(
            measure_power_secs=PERIOD_S, country_iso_code="FRA", output_dir=folder, allow_multiple_runs=True, **extra
        )
        tracker.start()
        ready()
        tracker.stop()


def nvitop_collector() -> None:
    """nvitop's daemon collector over all devices."""
    from nvitop import Device, ResourceMetricCollector

    collector = ResourceMetricCollector(Device.all(), interval=PERIOD_S)
    collector.activate("weight")
    ready()
    collector.deactivate()


def nvitop_snapshots() -> None:
    """A loop of nvitop's device snapshots."""
    from nvitop import Device

    devices = Device.all()
    _loop(lambda: [device.as_snapshot() for device in devices])


def zeus() -> None:
    """Zeus's power monitor, told its period."""
    from zeus.monitor.power import PowerMonitor

    monitor = PowerMonitor(gpu_indices=list(range(8)), update_period=PERIOD_S)
    time.sleep(2)
    ready()
    del monitor


def pynvml_loop() -> None:
    """A bare thread that reads each card's energy counter."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    _loop(lambda: [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles])


def sleep_loop() -> None:
    """A bare thread that only wakes up."""
    _loop(lambda: None)


def _loop(work) -> None:  # type: ignore[no-untyped-def]
    def run() -> None:
        due = time.monotonic()
        while True:
            work()
            due += PERIOD_S
            time.sleep(max(0.0, due - time.monotonic()))

    threading.Thread(target=run, daemon=True).start()
    ready()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
