"""Power limits of GPUs: set for a while, and restored on any exit.

A small process of its own, which no terminal signal reaches, holds the old limits and waits on a pipe. When the pipe
closes, because the sweep is over or because it was killed, it puts them back. `python -m everywatt.bench.limits` is
that process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.sensors.nvidia.nvml_api import started, words_for

READY_S = 30.0  # for the guard to restore the limits and end: a driver call takes ms, a busy machine may delay it


def _nvml() -> Any:
    try:
        return started()
    except Exception as error:  # noqa: BLE001 - the border with a driver
        raise MeasurementRefused(f"No GPU was found whose power limit could be set: {words_for(error)}.") from None


class PowerLimits:
    """The limits of some GPUs (NVML indices; all, if none is named), as a context: they are as before when it ends."""

    def __init__(self, gpus: Sequence[int] = ()) -> None:
        self._nvml = _nvml()
        count = self._nvml.nvmlDeviceGetCount()
        wrong = [gpu for gpu in gpus if not 0 <= gpu < count]
        if wrong:
            raise UsageError(f"There is no GPU {wrong[0]}; this machine has {count}.")
        self._handles = {gpu: self._nvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in (gpus or range(count))}
        self._guard: subprocess.Popen[str] | None = None

    def range_w(self) -> tuple[float, float]:
        """The lowest and highest limit that all of these GPUs accept, in watts."""
        try:
            ranges = [self._nvml.nvmlDeviceGetPowerManagementLimitConstraints(h) for h in self._handles.values()]
        except Exception as error:  # noqa: BLE001 - the border with a driver
            raise MeasurementRefused(f"This GPU has no power limit: {words_for(error)}.") from None
        return max(low for low, _ in ranges) / 1e3, min(high for _, high in ranges) / 1e3

    def set_w(self, watts: float) -> None:
        """Give all of these GPUs this limit. MeasurementRefused where that is not allowed."""
        for gpu, handle in self._handles.items():
            try:
                self._nvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts * 1000))
            except Exception as error:  # noqa: BLE001 - the border with a driver
                raise MeasurementRefused(
                    f"The power limit of GPU {gpu} cannot be set to {watts:g} W: {words_for(error)}.",
                    cure="setting it requires root: sudo everywatt sweep …",
                ) from None

    def __enter__(self) -> PowerLimits:
        before_mw = {gpu: self._nvml.nvmlDeviceGetPowerManagementLimit(h) for gpu, h in self._handles.items()}
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "everywatt.bench.limits"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.write(json.dumps(before_mw) + "\n")
        self._guard.stdin.flush()
        if self._guard.stdout.readline().strip() != "ready":
            raise MeasurementRefused("The process that restores the power limits did not start.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait(timeout=READY_S)
            self._guard = None


def guard() -> int:
    """Remember limits from stdin, wait for its end, restore them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    before = json.loads(sys.stdin.readline())
    nvml = _nvml()
    handles = {gpu: nvml.nvmlDeviceGetHandleByIndex(int(gpu)) for gpu in before}
    print("ready", flush=True)
    sys.stdin.read()
    failed = 0
    for gpu, limit in before.items():
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(handles[gpu], limit)
        except Exception:  # noqa: BLE001 - one card that fails must not keep the others from their old limit
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(guard())
