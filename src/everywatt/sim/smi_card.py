"""One card of a simulated machine, read by plain ctypes through the machine's own libnvidia-ml.

Part of the simulated nvidia-smi, which is copied into the machine's folder: it imports the standard library alone.
"""

import ctypes
from ctypes import byref, c_int, c_uint, c_uint32, c_ulonglong, c_void_p


class _Row(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_ulonglong), ("instance", c_uint), ("compute", c_uint)]


class _Use(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("stamp", c_ulonglong), *((n, c_uint) for n in ("sm", "mem", "enc", "dec"))]


class _Sample(ctypes.Structure):
    _fields_ = [("stamp", c_ulonglong), ("value", c_ulonglong)]


class Unavailable(Exception):
    """A call that did not answer; the number is NVML's."""


class Card:
    """One card through the machine's libnvidia-ml."""

    def __init__(self, lib: ctypes.CDLL, handle: c_void_p) -> None:
        self.lib = lib
        self.handle = handle

    def call(self, name: str, *args: object) -> None:
        code = getattr(self.lib, name)(self.handle, *args)
        if code:
            raise Unavailable(code)

    def number(self, name: str, *args: object) -> int:
        out = c_uint()
        self.call(name, *args, byref(out))
        return out.value

    def text(self, name: str) -> str:
        out = ctypes.create_string_buffer(128)
        self.call(name, out, c_uint(128))
        return out.value.decode()

    def field(self, field: int) -> int:
        out = (c_uint32 * 10)(field)  # id, scope, time (2), latency (2), type, result, value (2)
        self.call("nvmlDeviceGetFieldValues", c_int(1), out)
        if out[7]:
            raise Unavailable(out[7])
        return out[8]

    def rates(self) -> list[int]:
        out = (c_uint * 2)()
        self.call("nvmlDeviceGetUtilizationRates", out)
        return list(out)

    def memory(self) -> list[int]:
        """Total, free and used MiB."""
        out = (c_ulonglong * 3)()
        self.call("nvmlDeviceGetMemoryInfo", out)
        return [size >> 20 for size in out]

    def bus(self) -> str:
        out = ctypes.create_string_buffer(80)
        self.call("nvmlDeviceGetPciInfo_v3", out)
        return out.raw[36:68].split(b"\0")[0].decode()

    def processes(self) -> list[tuple[int, str, int]]:
        rows = []
        for kind, name in (("C", "Compute"), ("G", "Graphics")):
            count, out = c_uint(64), (_Row * 64)()
            self.call(f"nvmlDeviceGet{name}RunningProcesses_v3", byref(count), out)
            rows += [(row.pid, kind, row.memory) for row in out[: count.value]]
        return rows

    def power_samples(self) -> list[tuple[int, int]]:
        """The driver's buffer of power samples: when (µs since 1970) and how many milliwatts."""
        kind, count, out = c_int(), c_uint(256), (_Sample * 256)()
        self.call("nvmlDeviceGetSamples", c_int(0), c_ulonglong(0), byref(kind), byref(count), out)
        return [(row.stamp, row.value & 0xFFFFFFFF) for row in out[: count.value]]

    def uses(self) -> dict[int, tuple[int, int]]:
        count, out = c_uint(64), (_Use * 64)()
        try:
            self.call("nvmlDeviceGetProcessUtilization", out, byref(count), c_ulonglong(0))
        except Unavailable:
            return {}
        return {row.pid: (row.sm, row.mem) for row in out[: count.value]}


def mig(card: Card) -> str:
    current, pending = c_uint(), c_uint()
    card.call("nvmlDeviceGetMigMode", byref(current), byref(pending))
    return "Enabled" if current.value else "Disabled"


Cards = list[tuple[int, Card]]
