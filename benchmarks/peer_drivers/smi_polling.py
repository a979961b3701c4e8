"""What people write themselves: `nvidia-smi` every 100 ms, the trapezoid rule over the samples of a window."""

from __future__ import annotations

import subprocess
import threading
import time

from lanes import Tool, drive


class Smi(Tool):
    def __init__(self, config):  # type: ignore[no-untyped-def]
        super().__init__(config)
        query = ["nvidia-smi", "--query-gpu=index,power.draw", "--format=csv,noheader,nounits", "-lms", "100"]
        self.child = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        self.samples = {device: [] for device in self.devices}
        threading.Thread(target=self._collect, daemon=True).start()
        while not all(self.samples.values()):
            time.sleep(0.05)

    def _collect(self):  # type: ignore[no-untyped-def]
        for line in self.child.stdout:
            index, _, watts = line.partition(",")
            self.samples[int(index)].append((time.monotonic_ns() / 1e9, float(watts)))

    def open(self, key):  # type: ignore[no-untyped-def]
        return None

    def close(self, key, handle):  # type: ignore[no-untyped-def]
        return None

    def finish(self, windows):  # type: ignore[no-untyped-def]
        time.sleep(0.3)
        self.child.terminate()
        self.child.wait()
        for window in windows:
            a, b = window["open"][0] / 1e9, window["close"][0] / 1e9
            window["joules"] = {str(device): trapezoid(self.samples[device], a, b) for device in self.devices}


def trapezoid(samples, a, b):  # type: ignore[no-untyped-def]
    """Samples inside the window by the trapezoid rule, the first and the last held to its ends; the last one before it
    times its length where there is none inside."""
    inside = [(t, w) for t, w in samples if a <= t <= b]
    if not inside:
        before = [w for t, w in samples if t < a]
        return before[-1] * (b - a) if before else 0.0
    joules = sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in zip(inside, inside[1:]))
    return joules + (inside[0][0] - a) * inside[0][1] + (b - inside[-1][0]) * inside[-1][1]


if __name__ == "__main__":
    drive(Smi)
