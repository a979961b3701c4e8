"""Talking to NVML through nvidia-ml-py: what its errors mean, and batched calls with buffers that are made once.

Real NVML calls cost 30 to 500 µs, so they are few. `nvml` is always the pynvml module, or an object with the same
functions; where it lacks the private entry points, the public ones are used.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import NAN
from everywatt.sensors.base import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
LIB_RM_VERSION_MISMATCH = 18
UNINITIALIZED = 1

# The device, not one of its metrics, is what failed.
LOST = frozenset({UNINITIALIZED, 8, DRIVER_NOT_LOADED, 11, 15, 16, 17, 28})

_WORDS = {
    1: "NVML is not initialised",
    2: "Invalid argument",
    3: "Not Supported",
    4: "no permission",
    6: "not found",
    8: "not enough power on the GPU's connectors",
    9: "the NVIDIA kernel driver is not loaded",
    10: "timed out",
    11: "the GPU's interrupts are stuck",
    12: "the NVML library was not found",
    13: "this driver has no such function",
    14: "the GPU's infoROM is corrupt",
    15: "the GPU is lost (it fell off the bus)",
    16: "the GPU requires a reset",
    17: "the operating system blocks the GPU",
    18: "driver/library version mismatch",
    21: "no data",
    26: "deprecated",
    28: "the GPU was not found",
    999: "unknown error",
}


def code_of(error: BaseException) -> int | None:
    """NVML's error number, None where something else was raised."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def words_for(error: BaseException | int) -> str:
    code = error if isinstance(error, int) else code_of(error)
    if code is None:
        return f"{type(error).__name__}: {error}"
    return _WORDS.get(code, f"NVML error {code}")


def started(nvml: Any = None) -> Any:
    """pynvml, or what a test brings, with NVML started. What a driver raises passes, ImportError too."""
    if nvml is None:
        import pynvml

        nvml = pynvml
    nvml.nvmlInit()
    return nvml


def is_lost(error: BaseException | int) -> bool:
    """True where the device itself is gone, so that asking for its other metrics is no use."""
    code = error if isinstance(error, int) else code_of(error)
    return code in LOST


def refusal(error: BaseException, device_files: bool) -> tuple[State, str, str | None]:
    """State, why and cure for an error of nvmlInit; `device_files`: /dev or /proc show that there is a driver."""
    code = code_of(error)
    if isinstance(error, ModuleNotFoundError):
        return State.UNUSABLE, "The Python package nvidia-ml-py is not installed.", "pip install nvidia-ml-py"
    if code == LIBRARY_NOT_FOUND and device_files:
        why = "An NVIDIA driver is present, but its library libnvidia-ml.so.1 is not (in a container without it?)."
        return State.UNUSABLE, why, "start the container with its GPUs (--gpus all), or put the library on the path"
    if code == LIBRARY_NOT_FOUND:
        return State.ABSENT, "No NVIDIA driver was found (libnvidia-ml.so.1 is missing).", None
    if code == LIB_RM_VERSION_MISMATCH:
        why = "NVML: driver/library version mismatch. The driver was updated, but the old one is still loaded."
        return State.UNUSABLE, why, "restart the machine, or reload the nvidia kernel modules"
    if code == DRIVER_NOT_LOADED:
        return State.UNUSABLE, "NVML is present, but the NVIDIA kernel driver is not loaded.", "modprobe nvidia"
    if code == NO_PERMISSION:
        why = "NVML: no permission to open the GPUs' device files."
        return State.UNUSABLE, why, "check ls -l /dev/nvidia*, and join the owning group"
    return State.UNUSABLE, f"NVML does not start: {words_for(error)}.", None


def tried(call: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """`call`'s result and "", or None and the reason: NVML and its substitutes may raise anything."""
    try:
        return call(*arguments), ""
    except Exception as error:  # noqa: BLE001 - the driver's border
        return None, words_for(error)


def attempt(call: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """`call`'s result and "", or None and why this one metric is not available. Raises where the device is lost."""
    try:
        return call(*arguments), ""
    except Exception as error:
        if is_lost(error):
            raise
        return None, words_for(error)


def metric(call: Callable[..., Any], *arguments: Any) -> Any:
    """`call`'s result, None where this one metric is not available. Raises where the device is lost."""
    return attempt(call, *arguments)[0]


def pointer(nvml: Any, name: str) -> Any:
    """The C function, None where the library or this `nvml` does not give it."""
    lookup = getattr(nvml, "_nvmlGetFunctionPointer", None)
    if lookup is None:
        return None
    try:
        return lookup(name)
    except Exception:  # noqa: BLE001 - an older library lacks functions
        return None


def text(value: Any) -> str:
    """A name as text: old nvidia-ml-py gives bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


FieldId = int | tuple[int, int]  # a field, or a field and its scope (0: GPU, 1: module, 2: memory)


class Fields:
    """Several field values in one NVML call, with one buffer for all of them."""

    def __init__(self, nvml: Any, ids: Sequence[FieldId]) -> None:
        self._nvml = nvml
        self.ids = tuple(ids)
        self.errors: dict[FieldId, int] = {}
        self._function = pointer(nvml, "nvmlDeviceGetFieldValues")
        if self._function is not None:
            self._buffer = (nvml.c_nvmlFieldValue_t * len(self.ids))()
            self._address = ctypes.byref(self._buffer)
            self._count = ctypes.c_int32(len(self.ids))
            for entry, field_id in zip(self._buffer, self.ids, strict=True):
                entry.fieldId, entry.scopeId = field_id if isinstance(field_id, tuple) else (field_id, 0)
            # nvmlFieldValue_t: field, scope, timestamp, latency, then type, return code and the value.
            layout = struct.Struct("<" + "24xIIQ" * len(self.ids))
            self._unpack = layout.unpack
            if ctypes.sizeof(self._buffer) != layout.size:
                self._function = None  # another layout than the one that is unpacked here

    def read(self, handle: Any) -> list[float]:
        """The values in the order of `ids`, NaN where one failed (its error number is then in `errors`)."""
        if self._function is not None:
            code = self._function(handle, self._count, self._address)
            if code:
                raise self._nvml.NVMLError(code)
            return self.values(self._unpack(self._buffer))
        self.errors.clear()
        values = []
        entries = self._nvml.nvmlDeviceGetFieldValues(handle, list(self.ids))
        for field_id, entry in zip(self.ids, entries, strict=True):
            if entry.nvmlReturn:
                self.errors[field_id] = entry.nvmlReturn
                values.append(NAN)
            else:
                values.append(_value(entry))
        return values

    def quick(self) -> Callable[[Any], tuple[int, ...] | None] | None:
        """A function that makes the call and nothing else; None where the buffer cannot be had as it is.

        It gives kind, code and value of each field, flat, for `values`; None where the call failed.
        """
        if self._function is None:
            return None
        function, count, address, buffer, unpack = (
            self._function, self._count, self._address, self._buffer, self._unpack
        )  # fmt: skip

        def call(handle: Any) -> tuple[int, ...] | None:
            return None if function(handle, count, address) else unpack(buffer)

        return call

    def values(self, raw: tuple[int, ...]) -> list[float]:
        """The values of what `quick`'s function gave, in the order of `ids`.

        Straight from the buffer: attributes of ctypes structures cost as much as the rest of a read.
        """
        if self.errors:
            self.errors.clear()
        values = []
        numbers = iter(raw)
        for place, (kind, code, number) in enumerate(zip(numbers, numbers, numbers, strict=True)):
            if code:
                self.errors[self.ids[place]] = code
                values.append(NAN)
            elif kind in (_ULONG, _ULONGLONG):
                values.append(float(number))
            elif kind == _UINT:
                values.append(float(number & 0xFFFFFFFF))
            else:
                values.append(_number(kind, number))
        return values


_UINT, _ULONG, _ULONGLONG = 1, 2, 3
_CODES = ("<d", "<I", "<Q", "<Q", "<q", "<i", "<H")


def _number(kind: int, raw: int) -> float:
    """A field's value from its eight bytes."""
    if not 0 <= kind < len(_CODES):
        return NAN
    return float(struct.unpack_from(_CODES[kind], raw.to_bytes(8, "little"))[0])


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _value(entry: Any) -> float:
    kind = entry.valueType
    return float(getattr(entry.value, _MEMBERS[kind])) if 0 <= kind < len(_MEMBERS) else NAN
