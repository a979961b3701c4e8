"""GPU: matrix products with a duty cycle on the time that the device was busy, synchronised after each burst."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from everywatt.core.errors import UsageError
from everywatt.stress.pacing import Role, StepReport, Stretch

BURST_S = 0.002
"""Approximate length of a burst on the device before synchronising with it."""


class Products(Protocol):
    """Something that multiplies matrices on one device."""

    size: int

    def burst(self, count: int) -> float:
        """Multiply so many times, wait until the device has finished, and give the seconds that it was busy."""


class GpuWork(Role):
    """Keeps one device busy; a level of 1 is all of the time."""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        device = int(options["device"])
        engine, self.about = find_engine(device)
        self._products = _ENGINES[engine](device)
        self._count = self._calibrated()
        self._busy_s = 0.0
        self._products_done = 0
        self._before = (0.0, 0)

    def _calibrated(self) -> int:
        self._products.burst(1)
        took_s = min(self._products.burst(1) for _ in range(3))
        return max(1, round(BURST_S / max(took_s, 1e-6)))

    def done(self) -> float:
        return self._busy_s

    def work(self) -> None:
        self._busy_s += self._products.burst(self._count)
        self._products_done += self._count

    def begin(self, stretch: Stretch) -> None:
        self._before = (self._busy_s, self._products_done)

    def report(self) -> StepReport:
        """Seconds that the device was busy, and the operations of its products."""
        busy_s, products = self._before
        operations = (self._products_done - products) * 2 * self._products.size**3
        return StepReport(done=self._busy_s - busy_s, operations=operations)


class TorchProducts:
    """On a CUDA or ROCm device, by torch."""

    size = 2048

    def __init__(self, device: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", device)
        self._left, self._right = (torch.randn(self.size, self.size, device=self._device) for _ in range(2))
        self._out = torch.empty_like(self._left)

    def burst(self, count: int) -> float:
        """By the wall clock between two synchronisations."""
        began = time.perf_counter()
        for _ in range(count):
            self._torch.matmul(self._left, self._right, out=self._out)
        self._torch.cuda.synchronize(self._device)
        return time.perf_counter() - began


class OpenclProducts:
    """On an OpenCL device, by PyOpenCL: a plain kernel, one work item for each element."""

    size = 128

    _SOURCE = """
    __kernel void product(__global const float *a, __global const float *b, __global float *c, const int n) {
        int row = get_global_id(0), column = get_global_id(1);
        float sum = 0.0f;
        for (int k = 0; k < n; k++) sum = mad(a[row * n + k], b[k * n + column], sum);
        c[row * n + column] = sum;
    }
    """

    def __init__(self, device: int) -> None:
        import numpy
        import pyopencl

        devices = opencl_devices()
        context = pyopencl.Context([devices[device]])
        self._queue = pyopencl.CommandQueue(context, properties=pyopencl.command_queue_properties.PROFILING_ENABLE)
        matrix = numpy.random.default_rng(1).random((self.size, self.size), dtype=numpy.float32)
        flags = pyopencl.mem_flags
        self._buffers = [
            pyopencl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=matrix) for _ in range(3)
        ]
        self._kernel = pyopencl.Program(context, self._SOURCE).build().product
        self._kernel.set_args(*self._buffers, numpy.int32(self.size))
        self._enqueue = pyopencl.enqueue_nd_range_kernel

    def burst(self, count: int) -> float:
        """By the device's own clock."""
        events = [self._enqueue(self._queue, self._kernel, (self.size, self.size), None) for _ in range(count)]
        self._queue.finish()
        return sum(float(event.profile.end - event.profile.start) for event in events) / 1e9


class SimulatedGpuWork(Role):
    """On a card of `everywatt sim`: a share of it is declared, and that is what its power follows."""

    about = "the simulated machine's cards"

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._device = int(options["device"])
        self._done_s = 0.0

    def begin(self, stretch: Stretch) -> None:
        self._done_s = 0.0

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        from everywatt.sim.loads import use_gpu

        with use_gpu(stretch.level, gpu=self._device):
            began_ns = time.monotonic_ns()
            try:
                wait(stretch.end_ns)
            finally:
                self._done_s = stretch.level * (time.monotonic_ns() - began_ns) / 1e9

    def report(self) -> StepReport:
        """The declared share, over the time that it was declared."""
        return StepReport(done=self._done_s)


_ENGINES: dict[str, Callable[[int], Products]] = {"torch": TorchProducts, "opencl": OpenclProducts}


def opencl_devices() -> list[Any]:
    """Every OpenCL device that can run a program: real GPUs first, then those that run on the CPU (PoCL).

    A driver that is older than the processor compiles nothing for it. RuntimeError where there is no other.
    """
    import pyopencl

    found, failed = [], []
    for device in (device for platform in pyopencl.get_platforms() for device in platform.get_devices()):
        try:
            pyopencl.Program(pyopencl.Context([device]), "__kernel void nothing() {}").build()
            found.append(device)
        except pyopencl.Error as error:
            lines = str(error).split("\n")
            why = next((line for line in lines if line.startswith("error:")), lines[0])
            failed.append(f"the driver of {device.name.strip()} compiles nothing for it: {why}")
    if failed and not found:
        raise RuntimeError("; ".join(failed))
    return sorted(found, key=lambda device: not device.type & pyopencl.device_type.GPU)


def find_engine(device: int) -> tuple[str, str]:
    """What can load this device here (`torch` or `opencl`), and its name. UsageError says why nothing can."""
    reasons = []
    for name, count in (("torch", _torch_count), ("opencl", _opencl_count)):
        try:
            there, what = count()
        except ImportError:
            reasons.append(f"{'torch' if name == 'torch' else 'PyOpenCL'} is not installed")
            continue
        except Exception as error:  # noqa: BLE001 - drivers may do anything; the sentence says what
            reasons.append(f"{name}: {error}")
            continue
        if device < there:
            return name, what
        reasons.append(f"{what} has {there} device{'s' * (there != 1)}")
    raise UsageError(f"GPU {device} cannot be loaded here ({'; '.join(reasons)}).")


def _torch_count() -> tuple[int, str]:
    import torch

    return torch.cuda.device_count(), "torch with CUDA"


def _opencl_count() -> tuple[int, str]:
    found = opencl_devices()
    return len(found), f"OpenCL on {found[0].name.strip()}" if found else "OpenCL"
