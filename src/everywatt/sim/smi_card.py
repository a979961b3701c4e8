"""One card of a simulated machine, read by plain ctypes through the machine's own libnvidia-ml, and what --query-gpu
prints of it, with the faults of its power fields.

Part of the simulated nvidia-smi, which is copied into the machine's folder: it imports the standard library alone.
"""

import collections.abc
import ctypes
import os
import sys
import time
from ctypes import byref, c_int, c_uint, c_uint32, c_ulonglong, c_void_p

FOLDER = os.environ.get("EVERYWATT_SIM", "")
Read = collections.abc.Callable[[], int]


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


def fail(text: str, code: int) -> int:
    """Say what is wrong, where the real one says it, and give the exit code."""
    sys.stdout.write(text)
    sys.stdout.flush()
    return code


def faults() -> list[str]:
    """The words of the machine's file of faults."""
    try:
        with open(os.path.join(FOLDER, "smi-faults")) as file:  # noqa: PTH118, PTH123 - light
            return file.read().split()
    except OSError:
        return []


FAULTS = faults()


def watts(milliwatts: int) -> str:
    return f"{milliwatts / 1e3:.2f} W"


def query(card: Card, index: int, field: str, driver: str, total: int) -> str:
    """The text of one field, as --query-gpu prints it with units."""
    limit = card.number
    plain = field.replace("clocks.current.", "clocks.")
    table: dict[str, collections.abc.Callable[[], str]] = {
        "timestamp": stamp,
        "driver_version": lambda: driver,
        "count": lambda: str(total),
        "name": lambda: card.text("nvmlDeviceGetName"),
        "gpu_name": lambda: card.text("nvmlDeviceGetName"),
        "index": lambda: str(index),
        "uuid": lambda: card.text("nvmlDeviceGetUUID"),
        "gpu_uuid": lambda: card.text("nvmlDeviceGetUUID"),
        "serial": lambda: card.text("nvmlDeviceGetSerial"),
        "pci.bus_id": card.bus,
        "gpu_bus_id": card.bus,
        "fan.speed": lambda: f"{card.number('nvmlDeviceGetFanSpeed')} %",
        "pstate": lambda: f"P{card.number('nvmlDeviceGetPerformanceState')}",
        "memory.total": lambda: f"{card.memory()[0]} MiB",
        "memory.free": lambda: f"{card.memory()[1]} MiB",
        "memory.used": lambda: f"{card.memory()[2]} MiB",
        "utilization.gpu": lambda: f"{card.rates()[0]} %",
        "utilization.memory": lambda: f"{card.rates()[1]} %",
        "temperature.gpu": lambda: str(card.number("nvmlDeviceGetTemperature", c_int(0))),
        "power.draw": lambda: power(lambda: card.number("nvmlDeviceGetPowerUsage")),
        "power.draw.average": lambda: power(lambda: card.field(185)),
        "power.draw.instant": lambda: power(lambda: card.field(186)),
        "power.limit": lambda: watts(limit("nvmlDeviceGetPowerManagementLimit")),
        "enforced.power.limit": lambda: watts(limit("nvmlDeviceGetEnforcedPowerLimit")),
        "power.default_limit": lambda: watts(limit("nvmlDeviceGetPowerManagementDefaultLimit")),
        "power.min_limit": lambda: watts(card.field(187)),
        "power.max_limit": lambda: watts(card.field(188)),
        "clocks.sm": lambda: f"{card.number('nvmlDeviceGetClockInfo', c_int(1))} MHz",
        "clocks.gr": lambda: f"{card.number('nvmlDeviceGetClockInfo', c_int(0))} MHz",
        "clocks.graphics": lambda: f"{card.number('nvmlDeviceGetClockInfo', c_int(0))} MHz",
        "clocks.mem": lambda: f"{card.number('nvmlDeviceGetClockInfo', c_int(2))} MHz",
        "clocks.memory": lambda: f"{card.number('nvmlDeviceGetClockInfo', c_int(2))} MHz",
        "clocks.max.sm": lambda: f"{card.number('nvmlDeviceGetMaxClockInfo', c_int(1))} MHz",
        "mig.mode.current": lambda: mig(card),
        "power.management": lambda: "[Requested functionality has been deprecated]",
        "temperature.memory": lambda: "N/A",
    }
    if plain not in table:
        raise SystemExit(fail(f'Field "{field}" is not a valid field to query.\n', 2))
    try:
        return table[plain]()
    except Unavailable as error:
        lost = error.args[0] == 15
        return "[GPU is lost]" if lost else "[Unknown Error]" if error.args[0] == 999 else "[N/A]"


def power(read: Read) -> str:
    for word, text in (("na", "[N/A]"), ("not-supported", "[Not Supported]"), ("unknown-error", "[Unknown Error]")):
        if word in FAULTS:
            return text
    return watts(read())


def stamp() -> str:
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"


def unit(field: str) -> str:
    """What the header has in brackets behind a field's name."""
    if field.startswith("power.") and field != "power.management":
        return "W"
    heads = {"enforced.power": "W", "clocks.": "MHz", "memory.": "MiB", "utilization.": "%", "fan.": "%"}
    return next((text for head, text in heads.items() if field.startswith(head)), "")


def csv_header(fields: list[str]) -> str:
    return ", ".join(f"{name} [{unit(name)}]" if unit(name) else name for name in fields)


def csv_row(card: Card, index: int, fields: list[str], form: list[str], driver: str, total: int) -> str:
    texts = [query(card, index, name, driver, total) for name in fields]
    if "nounits" in form:
        texts = [
            text[: -len(unit(name)) - 1] if unit(name) and text.endswith(" " + unit(name)) else text
            for name, text in zip(fields, texts)  # noqa: B905
        ]
    return ", ".join(texts)
