"""The nvidia-smi of a simulated machine: prints what the machine's own NVML says, with the manners of the real one.

It is copied into the machine's folder and run without site-packages, so it imports nothing of everywatt. Faults are
words in the file `smi-faults`: na, not-supported, unknown-error, hang, hang-after:N, exit-after:N, buffered, no-handle,
no-loop.
"""

import collections.abc
import ctypes
import os
import sys
import time
from ctypes import byref, c_char_p, c_int, c_uint, c_uint32, c_ulonglong, c_void_p

FOLDER = os.environ.get("EVERYWATT_SIM", "")
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
HELP = (
    "nvidia-smi [-L] [-q [-x]] [--query-gpu=FIELDS --format=csv[,noheader][,nounits]] [-i ID] [-l S | -lms MS] "
    "[-pl WATTS] [dmon|pmon]\n"
)


class _Row(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_ulonglong), ("instance", c_uint), ("compute", c_uint)]


class _Use(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("stamp", c_ulonglong), *((n, c_uint) for n in ("sm", "mem", "enc", "dec"))]


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

    def uses(self) -> dict[int, tuple[int, int]]:
        count, out = c_uint(64), (_Use * 64)()
        try:
            self.call("nvmlDeviceGetProcessUtilization", out, byref(count), c_ulonglong(0))
        except Unavailable:
            return {}
        return {row.pid: (row.sm, row.mem) for row in out[: count.value]}


Cards = list[tuple[int, Card]]
Read = collections.abc.Callable[[], int]
Show = collections.abc.Callable[[Cards, "Printer"], None]


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


def mig(card: Card) -> str:
    current, pending = c_uint(), c_uint()
    card.call("nvmlDeviceGetMigMode", byref(current), byref(pending))
    return "Enabled" if current.value else "Disabled"


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


def fail(text: str, code: int) -> int:
    sys.stdout.write(text)
    sys.stdout.flush()
    return code


class Printer:
    """Lines to stdout, with the faults that come with a number of lines."""

    def __init__(self) -> None:
        self.rows = 0

    def row(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        if "buffered" not in FAULTS:
            sys.stdout.flush()
        self.rows += 1
        for word in FAULTS:
            name, _, number = word.partition(":")
            if name == "hang-after" and self.rows >= int(number):
                hang()
            if name == "exit-after" and self.rows >= int(number):
                sys.stdout.flush()
                os._exit(1)


def hang() -> None:
    while True:
        time.sleep(3600)


class Options:
    """What the command line asks for."""

    def __init__(self) -> None:
        self.mode: list[str] = []
        self.format: list[str] = []
        self.every: float | None = None
        self.count: int | None = None
        self.delay = 1.0
        self.words: dict[str, str] = {}


NAMES = {
    "-i": "ids", "--id": "ids", "-l": "loop", "--loop": "loop", "-lms": "ms", "--loop-ms": "ms", "-c": "count",
    "-d": "delay", "-pl": "limit", "--power-limit": "limit", "--format": "format", "--query-gpu": "gpu",
    "--query-compute-apps": "apps",
}  # fmt: skip


def parse(args: list[str]) -> Options:
    """Options as the real one takes them: `-l 0.1` becomes 5 s, and `-lms100` is refused."""
    options = Options()
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-L", "--list-gpus", "-q", "--query", "-x", "--xml-format", "dmon", "pmon", "-h", "--help"):
            options.mode.append(name)
            continue
        wanted = NAMES.get(name)
        if wanted is None:
            raise SystemExit(fail(f"ERROR: Option {word} is not recognized. Please run 'nvidia-smi -h'.\n", 2))
        if not equals:
            value = waiting.pop(0) if waiting else ""
        if wanted == "loop":
            options.every = float(int(float(value or 0))) or 5.0
        elif wanted == "ms":
            options.every = float(value or 0) / 1e3
        elif wanted == "format":
            options.format = [part.strip() for part in value.split(",")]
        elif wanted == "count":
            options.count = int(value)
        elif wanted == "delay":
            options.delay = float(value)
        else:
            options.words[wanted] = value
    return options


def cards(options: Options, lib: ctypes.CDLL) -> Cards:
    """The chosen cards with their indices."""
    count = c_uint()
    lib.nvmlDeviceGetCount_v2(byref(count))
    chosen = []
    for index in range(count.value):
        handle = c_void_p()
        code = lib.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle))
        if code or "no-handle" in FAULTS:
            reason = "GPU is lost.  Reboot the system to recover this GPU" if code == 15 else "Unknown Error"
            bus = f"0000:{index + 1:02X}:00.0"
            raise SystemExit(
                fail(f"Unable to determine the device handle for GPU {bus}: {reason}\n", 15 if code else 255)
            )
        card = Card(lib, handle)
        wanted = options.words.get("ids")
        names = (str(index), card.text("nvmlDeviceGetUUID"), card.bus()) if wanted else ()
        if wanted is None or any(part.strip() in names for part in wanted.split(",")):
            chosen.append((index, card))
    if not chosen:
        raise SystemExit(fail("No devices were found\n", 6))
    return chosen


def process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123 - runs without everywatt, light
            return file.read().strip()
    except OSError:
        return "[Not Found]"


def apps(chosen: Cards, options: Options, printer: Printer) -> None:
    fields = [part.strip() for part in options.words["apps"].split(",")]
    if "noheader" not in options.format:
        printer.row(", ".join("used_gpu_memory [MiB]" if f.startswith("used") else f for f in fields))
    tail = "" if "nounits" in options.format else " MiB"
    for _, card in chosen:
        for pid, _, memory in card.processes():
            values = {
                "pid": str(pid),
                "process_name": process_name(pid),
                "name": process_name(pid),
                "gpu_uuid": card.text("nvmlDeviceGetUUID"),
                "used_memory": f"{memory >> 20}{tail}",
                "used_gpu_memory": f"{memory >> 20}{tail}",
            }
            printer.row(", ".join(values.get(name, "[N/A]") for name in fields))


def try_number(read: Read, scale: int = 1) -> str:
    try:
        return str(read() // scale)
    except Unavailable:
        return "-"


def dmon(chosen: Cards, printer: Printer) -> None:
    for index, card in chosen:
        values = dmon_values(card)
        printer.row(f"{index:5d}" + "".join(f"{value:>7}" for value in values) + " ")


def dmon_values(card: Card) -> list[str]:
    return [
        try_number(lambda: card.number("nvmlDeviceGetPowerUsage"), 1000),
        try_number(lambda: card.number("nvmlDeviceGetTemperature", c_int(0))),
        "-",
        try_number(lambda: card.rates()[0]),
        try_number(lambda: card.rates()[1]),
        *("0",) * 4,
        try_number(lambda: card.number("nvmlDeviceGetClockInfo", c_int(2))),
        try_number(lambda: card.number("nvmlDeviceGetClockInfo", c_int(1))),
    ]


def pmon(chosen: Cards, printer: Printer) -> None:
    for index, card in chosen:
        uses = card.uses()
        rows = [(str(pid), kind, process_name(pid)[:15]) for pid, kind, _ in card.processes()]
        for pid, kind, name in rows or [("-", "-", "-")]:
            sm, mem = uses.get(int(pid), ("-", "-")) if rows else ("-", "-")
            printer.row(f"{index:5d}{pid:>11}{kind:>6}{sm:>7}{mem:>7}" + "      -" * 4 + f"    {name:<15}")


DMON = ("gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk ",
        "Idx      W      C      C      %      %      %      %      %      %    MHz    MHz ")  # fmt: skip
PMON = ("gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command ",
        "Idx           #    C/G      %      %      %      %      %      %    name ")  # fmt: skip


def monitor(chosen: Cards, options: Options, printer: Printer, heads: tuple[str, str], show: Show) -> None:
    for head in heads:
        printer.row("# " + head)
    left = options.count
    while left is None or left > 0:
        show(chosen, printer)
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(options.delay)


XML_POWER = {
    "power_state": "pstate",
    "average_power_draw": "power.draw.average",
    "instant_power_draw": "power.draw.instant",
    "current_power_limit": "power.limit",
    "requested_power_limit": "power.limit",
    "default_power_limit": "power.default_limit",
    "min_power_limit": "power.min_limit",
    "max_power_limit": "power.max_limit",
}


def xml(chosen: Cards, driver: str, printer: Printer) -> None:
    lines = ['<?xml version="1.0" ?>', "<nvidia_smi_log>", f"\t<driver_version>{driver}</driver_version>"]
    lines.append(f"\t<attached_gpus>{len(chosen)}</attached_gpus>")
    for index, card in chosen:

        def get(field: str, index: int = index, card: Card = card) -> str:
            return query(card, index, field, driver, len(chosen))

        lines += [f'\t<gpu id="{card.bus()}">', f"\t\t<product_name>{get('name')}</product_name>"]
        lines += [f"\t\t<uuid>{get('uuid')}</uuid>", "\t\t<gpu_power_readings>"]
        lines += [f"\t\t\t<{tag}>{get(field)}</{tag}>" for tag, field in XML_POWER.items()]
        lines += ["\t\t</gpu_power_readings>", "\t</gpu>"]
    for line in [*lines, "</nvidia_smi_log>"]:
        printer.row(line)


def set_limit(chosen: Cards, text: str) -> int:
    for _, card in chosen:
        before = card.number("nvmlDeviceGetPowerManagementLimit")
        try:
            card.call("nvmlDeviceSetPowerManagementLimit", c_uint(round(float(text) * 1000)))
        except Unavailable:
            return fail(
                f"Provided power limit {float(text):.2f} W is not a valid power limit for GPU {card.bus()}.\n", 3
            )
        sys.stdout.write(
            f"Power limit for GPU {card.bus()} was set to {float(text):.2f} W from {before / 1e3:.2f} W.\n"
        )
    return 0


def listing(chosen: Cards, printer: Printer) -> None:
    for index, card in chosen:
        name, identity = card.text("nvmlDeviceGetName"), card.text("nvmlDeviceGetUUID")
        printer.row(f"GPU {index}: {name} (UUID: {identity})")


def overview(chosen: Cards, driver: str, printer: Printer) -> None:
    printer.row(f"NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: 13.0")
    for index, card in chosen:
        fields = ["name", "temperature.gpu", "pstate", "power.draw", "power.limit", "memory.used", "utilization.gpu"]
        texts = [query(card, index, field, driver, len(chosen)) for field in fields]
        printer.row(f"| {index}  " + " | ".join(texts) + " |")


def main(args: list[str]) -> int:
    options = parse(args)
    if {"-h", "--help"} & set(options.mode):
        return fail(HELP, 0)
    if "hang" in FAULTS:
        hang()
    try:
        lib = ctypes.CDLL(os.path.join(FOLDER, "lib", "libnvidia-ml.so.1"))  # noqa: PTH118 - light
        started = lib.nvmlInit_v2() == 0
    except OSError:
        started = False
    if not started:
        return fail(NO_DRIVER, 9)
    buffer = ctypes.create_string_buffer(80)
    lib.nvmlSystemGetDriverVersion(buffer, c_uint(80))
    lib.nvmlErrorString.restype = c_char_p
    driver, printer = buffer.value.decode(), Printer()
    if options.every is not None and "no-loop" in FAULTS:
        return fail("ERROR: Loop is not supported.\n", 3)
    header = "noheader" not in options.format
    while True:
        chosen = cards(options, lib)
        code = once(chosen, options, driver, printer, header)
        header = False
        if options.every is None:
            return code
        time.sleep(options.every)


def once(chosen: Cards, options: Options, driver: str, printer: Printer, header: bool) -> int:
    modes = options.mode
    if "limit" in options.words:
        return set_limit(chosen, options.words["limit"])
    if "gpu" in options.words:
        if "csv" not in options.format:
            return fail("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n", 2)
        fields = [part.strip() for part in options.words["gpu"].split(",")]
        rows = [csv_row(card, index, fields, options.format, driver, len(chosen)) for index, card in chosen]
        for row in [csv_header(fields), *rows] if header else rows:
            printer.row(row)
    elif "apps" in options.words:
        apps(chosen, options, printer)
    elif "dmon" in modes:
        monitor(chosen, options, printer, DMON, dmon)
    elif "pmon" in modes:
        monitor(chosen, options, printer, PMON, pmon)
    elif "-x" in modes or "--xml-format" in modes:
        xml(chosen, driver, printer)
    elif "-L" in modes or "--list-gpus" in modes:
        listing(chosen, printer)
    else:
        overview(chosen, driver, printer)
    return 0


def faults() -> list[str]:
    try:
        with open(os.path.join(FOLDER, "smi-faults")) as file:  # noqa: PTH118, PTH123 - light
            return file.read().split()
    except OSError:
        return []


FAULTS = faults()

if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        code = 1
    os._exit(code or 0)
