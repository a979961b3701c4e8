"""The GPUs that a batch may use: found through NVML, else nvidia-smi, and never more than the caller's mask leaves.

And a lane: one worker process on one device, seen from the batch. A worker that dies is replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from everywatt.batch import worker
from everywatt.batch.items import Item
from everywatt.batch.journal import Attempt, Device
from everywatt.core.errors import EverywattError, SensorError, UsageError
from everywatt.core.jsonio import ToDict
from everywatt.sensors.child import let_go, run_once, send_line
from everywatt.sensors.nvidia.gpu_select import Gpu, parse_listing, select
from everywatt.sensors.nvidia.nvml_api import (
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    code_of,
    started,
    text,
    tried,
    words_for,
)
from everywatt.sensors.nvidia.nvml_device import identify

MIB = 2**20
SMI_TIMEOUT_S = 30.0


CPU = Device("cpu", title="CPU")


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the machine, whoever may use them, with their memory by index; or why none was found."""

    gpus: tuple[Gpu, ...] = ()
    memory: Mapping[int, float | None] = field(default_factory=dict)
    message: str = ""
    denied: bool = False


def take_inventory(environ: Mapping[str, str], *, start: Callable[[], Any] = started) -> Inventory:
    """Every GPU that NVML lists, once it is started, else nvidia-smi."""
    try:
        library = start()
    except Exception as error:  # noqa: BLE001 - a driver's border
        if code_of(error) == NO_PERMISSION:
            return _denied(words_for(error))
        absent = isinstance(error, ImportError) or code_of(error) == LIBRARY_NOT_FOUND
        return _by_command(environ, "NVML was not found" if absent else f"NVML: {words_for(error)}")
    try:
        return _by_nvml(library)
    finally:
        library.nvmlShutdown()


def _by_nvml(nvml: Any) -> Inventory:
    gpus: list[Gpu] = []
    memory: dict[int, float | None] = {}
    failures: list[str] = []
    denied = False
    try:
        count = int(nvml.nvmlDeviceGetCount())
        driver = text(nvml.nvmlSystemGetDriverVersion())
    except Exception as error:  # noqa: BLE001 - a driver's border
        return Inventory(message=f"NVML lists no GPU: {words_for(error)}.")
    for index in range(count):
        try:
            found = identify(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index), driver)
        except Exception as error:  # noqa: BLE001 - a driver's border
            denied |= code_of(error) == NO_PERMISSION
            failures.append(f"GPU {index}: {words_for(error)}")
            continue
        gpus.append(found.gpu)
        memory[index] = found.memory_bytes
    if gpus:
        return Inventory(tuple(gpus), memory)
    if denied:
        return _denied(failures[0])
    why = failures[0] if failures else "the NVIDIA driver is running but lists no GPU"
    return Inventory(message=f"No GPU is available: {why}.")


def _denied(detail: str) -> Inventory:
    message = f"NVIDIA GPUs are present, but you have no permission to use them ({detail})."
    return Inventory(message=message, denied=True)


def _by_command(environ: Mapping[str, str], nvml: str) -> Inventory:
    """By `nvidia-smi -L`, where NVML cannot be used from here."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return Inventory(message=f"GPUs could not be listed: {nvml}, and nvidia-smi is not installed.")
    try:
        lines, code = run_once([program, "-L"], environ, SMI_TIMEOUT_S)
    except OSError as error:
        return Inventory(message=f"GPUs could not be listed: {nvml}, and nvidia-smi failed: {error}.")
    if "insufficient permission" in "\n".join(lines).lower():
        return _denied("nvidia-smi: Insufficient Permissions")
    gpus = parse_listing(lines)
    if gpus:
        return Inventory(gpus, dict.fromkeys((gpu.index for gpu in gpus), None))
    ended = f"no response within {SMI_TIMEOUT_S:g} s" if code is None else f"nvidia-smi ended with {code}"
    reason = next((line for line in lines if line.strip()), ended)
    return Inventory(message=f"No GPU is available: {nvml}; nvidia-smi: {reason}")


def _devices(inventory: Inventory, boards: Sequence[int], migs: Sequence[str], *, by_uuid: bool) -> list[Device]:
    """A device for each board, and for each MIG device of a board that is divided."""
    devices = []
    for gpu in (gpu for number in boards for gpu in inventory.gpus if gpu.index == number):
        name, memory = f"gpu.{gpu.index}", inventory.memory.get(gpu.index)
        if gpu.migs:
            parts = [mig.uuid for mig in gpu.migs if not migs or mig.uuid in migs]
            devices += [Device(name, uuid, gpu.name, uuid) for uuid in parts]
        else:
            devices.append(Device(name, gpu.uuid if by_uuid else str(gpu.index), gpu.name, gpu.uuid, memory))
    return devices


def _wanted(devices: Sequence[Device], wanted: Sequence[str], mask: str | None) -> list[Device]:
    chosen = []
    for word in wanted:
        matching = [d for d in devices if word in (d.index, d.name, d.uuid) or (len(word) > 8 and word in d.uuid)]
        if not matching:
            left = ", ".join(dict.fromkeys(device.index for device in devices))
            limits = f" visible under CUDA_VISIBLE_DEVICES={mask}" if mask is not None else " of this machine"
            raise UsageError(f"GPU {word} is not among the GPUs{limits}: {left}.")
        chosen += [device for device in matching if device not in chosen]
    return chosen


@dataclass(frozen=True, slots=True)
class Lanes:
    """Where items run at the same time, one entry for each worker, and what has to be said about it."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()


def lay_out(
    environ: Mapping[str, str],
    *,
    gpus: Sequence[str] | None = None,
    per_gpu: int = 1,
    cpu_workers: int | None = None,
) -> Lanes:
    """The lanes: `per_gpu` for each GPU, first one of each, then the CPU's; without a GPU at least one on the CPU.

    GPUs are those that CUDA_VISIBLE_DEVICES leaves, and of those `gpus`, the wanted ones (indices or UUIDs; () for
    none): a mask is never widened. Raises UsageError where a wanted one is not there, and SensorError where
    there are GPUs that may not be used: a batch that quietly ran on the CPU would be worse.
    """
    cpu = [CPU] * (cpu_workers or 0)
    if gpus is not None and not gpus:
        return Lanes(tuple(cpu or [CPU]))
    inventory, mask = take_inventory(environ), environ.get("CUDA_VISIBLE_DEVICES")
    message = inventory.message
    if inventory.denied:
        cure = "check ls -l /dev/nvidia* and join the owning group, or use --gpus none to run on the CPU"
        raise SensorError(message, cure=cure)
    if inventory.gpus:
        chosen = select(mask, inventory.gpus, environ.get("CUDA_DEVICE_ORDER"))
        devices = _devices(inventory, chosen.gpus, chosen.migs, by_uuid="GPU-" in (mask or ""))
        if devices:
            devices = devices if gpus is None else _wanted(devices, gpus, mask)
            return Lanes((*devices * per_gpu, *cpu), (chosen.note,) if chosen.note else ())
        message = chosen.note or f"CUDA_VISIBLE_DEVICES='{mask}' hides all {len(inventory.gpus)} GPUs."
    if gpus is not None:
        raise UsageError(message, cure="leave --gpus out, or use --gpus none to run on the CPU")
    return Lanes(tuple(cpu or [CPU]), (f"{message.rstrip('.')}. Items run on the CPU.",))


@dataclass(frozen=True, slots=True)
class GpuState(ToDict):
    """A GPU at one instant, in BADC's names: utilisation in percent, memory in MiB."""

    index: int
    utilization: int
    memory_used_mb: int
    memory_total_mb: int


class GpuNow:
    """Utilisation and memory of a GPU at this instant, by NVML; None where that cannot be had."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    @cached_property
    def _nvml(self) -> Any:
        """The library, started when first needed; None where that fails."""
        return tried(started)[0]

    def read(self, device: Device) -> GpuState | None:
        if not device.is_gpu or self._nvml is None:
            return None
        try:
            handle = self._handles.get(device.name)
            if handle is None:
                handle = self._handles[device.name] = self._nvml.nvmlDeviceGetHandleByIndex(int(device.index))
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            busy = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            return GpuState(int(device.index), busy, round(memory.used / MIB), round(memory.total / MIB))
        except Exception:  # noqa: BLE001 - a driver's border; the tape has the figures that count
            return None


GRACE_S = 10.0  # for a worker to end by itself
MOST_STILLBORN = 5  # workers in a row that die before they ran anything


class Lane:
    """Where one item runs at a time. `item` and `attempt` are what it is busy with."""

    def __init__(self, number: int, device: Device, environ: Mapping[str, str]) -> None:
        self.number, self.device = number, device
        self.item: Item | None = None
        self.attempt: Attempt | None = None
        self.command_pid: int | None = None
        self.file: Mapping[str, Any] | None = None
        self.began_ns = 0
        self._environ = {**environ, **device.environment()}
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._stillborn = 0

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def worker_pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def fileno(self) -> int:
        """Readable when the worker has said something, or has died."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(self) -> None:
        if self._stillborn >= MOST_STILLBORN:
            raise EverywattError(f"Workers for {self.device.name} die as soon as they are started.")
        self._stillborn += 1
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(worker.__file__))],
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the batch to decide on
        )
        os.set_blocking(self.fileno(), False)

    def give(self, item: Item, attempt: Attempt, job: Mapping[str, Any]) -> None:
        """Let the worker run a command. A worker that is dead shows on `fileno`."""
        self.item, self.attempt = item, attempt
        self.command_pid, self.file = None, None
        self._send({"run": job})

    def kill(self) -> None:
        """Ask the command to end; five seconds later it is ended."""
        self._send({"kill": True})

    def messages(self) -> list[dict[str, Any]] | None:
        """What the worker has said; None where it has died."""
        chunks, dead = [], False
        while True:
            try:
                chunk = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                dead = True
                break
            chunks.append(chunk)
        *lines, self._rest = (self._rest + b"".join(chunks)).split(b"\n")
        if dead and not lines:
            return None
        if lines:
            self._stillborn = 0
        return [json.loads(line) for line in lines]

    def bury(self) -> None:
        """The worker has died: end what it ran, and wait for it."""
        worker_pid = self.worker_pid
        self.close()
        worker.end_session(worker_pid)

    def free(self) -> None:
        self.item, self.attempt, self.command_pid, self.file = None, None, None, None

    def close(self) -> None:
        """Let the worker go; it ends by itself when its input does."""
        process, self._process = self._process, None
        if process is not None:
            let_go(process, GRACE_S)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        send_line(self._process, message)
