"""Who is on which GPU, once a second: memory and SM use of each process.

A process list costs about 500 µs of a real driver. So a list is one call into a buffer that was made once, and a GPU
that had no process is not asked again while its used memory, which the state group reads anyway, stays the same to the
byte: whoever opens a context takes memory. All the same it is asked every minute. Graphics processes are looked for
then, and when memory has changed, as long as none is running.

In a run of a few seconds, the exact start and end of a process matter much, so a recorder may read this table more
often while a run is young (`hurry_s`): used memory, which is cheap, then shows whether a process came or left. Each row
says since when that was not known (`since_ns`).
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import Cadence, GroupInfo
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.nvidia.nvml_api import INSUFFICIENT_SIZE, NOT_FOUND, attempt, code_of, is_lost, metric, pointer
from everywatt.sensors.nvidia.nvml_groups import Gpm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from everywatt.sensors.base import GpuProcessRow
    from everywatt.sensors.nvidia.nvml_device import GpuHandle

ASK_ANYWAY_NS = 60 * NS
USUAL_NS = 9 * NS // 10  # reads closer than this are hurried: used memory is then older than they are
_UNKNOWN_ID = 0xFFFFFFFF
_UNKNOWN_MEMORY = 0xFFFFFFFFFFFFFFFF


class _Buffer:
    """Room for the answer of a call, made once; it grows where it has to."""

    def __init__(self, nvml: Any, entry: str, room: int) -> None:
        self._nvml, self._entry, self._room = nvml, entry, room
        self._array: Any = None

    def fill(self, call: Callable[[Any, Any], int]) -> list[Any]:
        """The entries that `call` writes, given the array and its size. NVMLError where it fails."""
        while True:
            if self._array is None:
                self._array = (getattr(self._nvml, self._entry) * self._room)()
            count = ctypes.c_uint(self._room)
            code = call(self._array, ctypes.byref(count))
            if code == INSUFFICIENT_SIZE and self._room < 1 << 16:
                self._room, self._array = max(self._room * 2, count.value + 8), None
                continue
            if code:
                raise self._nvml.NVMLError(code)
            return list(self._array[: count.value])


def process_lister(nvml: Any, kind: str) -> Callable[[Any], list[Any]]:
    """Lists processes of one kind on a card: entries with pid, usedGpuMemory, gpuInstanceId, computeInstanceId."""
    public = f"nvmlDeviceGet{kind}RunningProcesses"
    function = pointer(nvml, f"{public}_v3") or pointer(nvml, f"{public}_v2")
    if function is None:
        return lambda handle: list(getattr(nvml, public)(handle))
    buffer = _Buffer(nvml, "c_nvmlProcessInfo_v2_t", 32)
    return lambda handle: buffer.fill(lambda array, count: function(handle, count, array))


def use_lister(nvml: Any) -> Callable[[Any, int], list[Any]]:
    """Lists samples of SM use that are newer than a time stamp (µs), with pid, timeStamp, smUtil; Not Found if none."""
    function = pointer(nvml, "nvmlDeviceGetProcessUtilization")
    if function is None:
        return lambda handle, since_us: list(nvml.nvmlDeviceGetProcessUtilization(handle, since_us))
    buffer = _Buffer(nvml, "c_nvmlProcessUtilizationSample_t", 64)
    return lambda handle, since_us: buffer.fill(
        lambda array, count: function(handle, array, count, ctypes.c_ulonglong(since_us))
    )


class _Gpu:
    """What is known of one GPU's processes."""

    def __init__(self, device: GpuHandle) -> None:
        self.device = device
        self.rows: dict[tuple[int, int | None, int | None], GpuProcessRow] = {}
        self.since_us = 0
        self.memory: float | None = None
        self.asked_ns = 0
        self.seen_ns: int | None = None  # when it was last known who is there
        self.graphics_ns = 0
        self.samples = True
        self.instances: dict[int, Gpm | None] = {}  # of MIG, None without GPM metrics

    def may_skip(self, now_ns: int, hurried: bool) -> bool:
        """True where its used memory shows that no process came or left; utilisation is read once a second."""
        least_ns = ASK_ANYWAY_NS if not self.rows else USUAL_NS if hurried else 0
        if self.device.memory_used is None or now_ns - self.asked_ns >= least_ns:
            return False
        return self.device.memory_used == self.memory


class ProcessTable:
    """Rows of the processes on some GPUs."""

    hurry_s = 0.2

    def __init__(self, nvml: Any, devices: Sequence[GpuHandle], closed: Callable[[], None]) -> None:
        self.info = GroupInfo("nvml.processes", "nvml", "gpu", (), Cadence.SLOW, table=True, label="GPU processes")
        self._nvml = nvml
        self._gpus = [_Gpu(device) for device in devices]
        self._compute, self._graphics = process_lister(nvml, "Compute"), process_lister(nvml, "Graphics")
        self._use = use_lister(nvml)
        self._clock = devices[0].clock
        self._read_ns = 0
        self._whole = False
        self._closed = closed

    def read_table(self) -> tuple[int, list[GpuProcessRow]]:
        """When it was read, and the rows that changed. A GPU that fails keeps its rows until it answers again."""
        now_ns = self._clock.monotonic_ns()
        changed: list[GpuProcessRow] = []
        failures: list[SensorError] = []
        before_ns = self._read_ns
        hurried = now_ns - before_ns < USUAL_NS and not self._whole
        self._read_ns, self._whole = now_ns, False
        for gpu in self._gpus:
            try:
                # Where another tape reads the state of this card, its memory is not read for this one.
                if hurried or gpu.device.memory_ns <= before_ns:
                    gpu.device.call(partial(metric, gpu.device.read_memory))
                if gpu.may_skip(now_ns, hurried):
                    gpu.seen_ns = now_ns if hurried else gpu.seen_ns
                    continue
                rows = gpu.device.call(partial(self._rows, gpu))
            except SensorError as error:
                failures.append(error)
                continue
            gpu.memory, gpu.asked_ns = gpu.device.memory_used, now_ns
            before: GpuProcessRow = {} if gpu.seen_ns is None else {"since_ns": gpu.seen_ns}
            changed += [{**row, **before} for row in _changes(gpu.rows, rows)]
            gpu.rows, gpu.seen_ns = rows, now_ns
        if failures and len(failures) == len(self._gpus):
            raise failures[0]
        return now_ns, changed

    def ask_all(self) -> None:
        """The next read asks for everything, however short the last one is ago: a run begins or ends there."""
        self._whole = True
        for gpu in self._gpus:
            gpu.asked_ns = -ASK_ANYWAY_NS

    def follow(self, pids: Sequence[int]) -> None:
        """Nothing to do: every process on a GPU is listed, whoever started it."""

    def close(self) -> None:
        for gpm in (gpm for gpu in self._gpus for gpm in gpu.instances.values() if gpm is not None):
            gpm.close()
        self._closed()

    def _rows(self, gpu: _Gpu, handle: Any) -> dict[tuple[int, int | None, int | None], GpuProcessRow]:
        rows: dict[tuple[int, int | None, int | None], GpuProcessRow] = {}
        for kind in ("C", "G"):
            for entry in self._listed(gpu, handle, kind):
                row = _row(gpu.device, entry, kind)
                key = (row["pid"], row["gpu_instance"], row["compute_instance"])
                if key in rows:
                    rows[key]["type"] = "C+G"
                else:
                    rows[key] = row
        if rows and gpu.samples:
            self._add_use(gpu, handle, rows)
        for instance in {row["gpu_instance"] for row in rows.values()}:
            if instance is not None:
                self._add_activity(gpu, handle, instance, rows)
        return rows

    def _listed(self, gpu: _Gpu, handle: Any, kind: str) -> list[Any]:
        if kind == "C":
            return self._compute(handle)
        now_ns = self._clock.monotonic_ns()
        if now_ns < gpu.graphics_ns:
            return []
        listed: list[Any] = metric(self._graphics, handle) or []  # compute-only boards have no graphics list
        gpu.graphics_ns = now_ns if listed else now_ns + ASK_ANYWAY_NS
        return listed

    def _add_activity(self, gpu: _Gpu, handle: Any, instance: int, rows: dict[Any, GpuProcessRow]) -> None:
        """SM use of a MIG instance since the last read, if the board has GPM metrics (Hopper and later)."""
        if instance not in gpu.instances:
            gpu.instances[instance] = attempt(Gpm, self._nvml, gpu.device.index, handle, instance)[0]
        elif (gpm := gpu.instances[instance]) is not None:
            active = gpm.read(handle)[0]
            for row in rows.values():
                if row["gpu_instance"] == instance:
                    row["instance_sm"] = active if active == active else None

    def _add_use(self, gpu: _Gpu, handle: Any, rows: dict[Any, GpuProcessRow]) -> None:
        """SM use since the last read. The driver keeps samples only of processes that did something; others have 0."""
        samples: list[Any] | None
        try:
            samples = self._use(handle, gpu.since_us)
        except Exception as error:
            if is_lost(error):
                raise
            gpu.samples = code_of(error) == NOT_FOUND  # no new sample; anything else is not supported (MIG, old cards)
            samples = [] if gpu.samples else None
        if samples is None:
            return
        newest = max((int(sample.timeStamp) for sample in samples), default=gpu.since_us)
        for row in rows.values():
            own = [float(sample.smUtil) for sample in samples if sample.pid == row["pid"]]
            row["sm"] = sum(own) / len(own) if own else 0.0
            row["sample_us"] = newest or None
        gpu.since_us = newest


def _row(device: GpuHandle, entry: Any, kind: str) -> GpuProcessRow:
    memory = entry.usedGpuMemory
    row: GpuProcessRow = {
        "gpu": device.index,
        "uuid": device.identity.gpu.uuid,
        "pid": int(entry.pid),
        "type": kind,
        "memory_bytes": None if memory in (None, _UNKNOWN_MEMORY) else int(memory),
        "sm": None,
        "sample_us": None,
        "gpu_instance": _instance(entry, "gpuInstanceId"),
        "compute_instance": _instance(entry, "computeInstanceId"),
    }
    for mig in device.identity.gpu.migs:
        if (mig.gpu_instance, mig.compute_instance) == (row["gpu_instance"], row["compute_instance"]):
            row["slices"], row["of_slices"] = mig.slices, mig.of_slices
    return row


def _instance(entry: Any, name: str) -> int | None:
    number = getattr(entry, name, None)
    return None if number in (None, _UNKNOWN_ID) else int(number)


def _changes(before: dict[Any, GpuProcessRow], after: dict[Any, GpuProcessRow]) -> list[GpuProcessRow]:
    changed = [row for key, row in after.items() if before.get(key) != row]
    gone: list[GpuProcessRow] = [{**row, "gone": True} for key, row in before.items() if key not in after]
    return changed + gone


def probe_processes(nvml: Any, handle: Any) -> str | None:
    """Why processes of this GPU cannot be listed, None where they can."""
    return attempt(process_lister(nvml, "Compute"), handle)[1] or None
