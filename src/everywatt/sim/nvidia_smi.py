"""The nvidia-smi of a simulated machine: prints what the machine's own NVML says, with the manners of the real one.

It is run without site-packages, so that it starts fast, and imports only the standard library and pynvml. Faults are
words in the file `smi-faults`: na, not-supported, unknown-error, hang, hang-after:N, exit-after:N, buffered, no-handle,
no-loop.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pynvml

FOLDER = os.environ.get("EVERYWATT_SIM", "")
NO_DEVICES = "No devices were found\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
HELP = (
    "nvidia-smi [-L] [-q [-x] [-d MEMORY,UTILIZATION,TEMPERATURE,POWER,CLOCK]] "
    "[--query-gpu=FIELDS --format=csv[,noheader][,nounits]] [-i ID] [-l S | -lms MS] "
    "[-pl WATTS] [dmon|pmon]\n"
)
LOST, UNKNOWN = 15, 999  # NVML's numbers of two errors

Handle = Any  # NVML's of a card
Cards = list[tuple[int, Handle]]  # with their indices


def fail(text: str, code: int) -> int:
    """Say what is wrong, where the real one says it, and give the exit code."""
    sys.stdout.write(text)
    sys.stdout.flush()
    return code


def faults() -> list[str]:
    try:
        with open(os.path.join(FOLDER, "smi-faults")) as file:  # noqa: PTH118, PTH123 - light
            return file.read().split()
    except OSError:
        return []


FAULTS = faults()


def watts(milliwatts: int) -> str:
    return f"{milliwatts / 1e3:.2f} W"


def field(card: Handle, number: int) -> int:
    """The value of one of NVML's fields, in milliwatts."""
    (found,) = pynvml.nvmlDeviceGetFieldValues(card, [number])
    if found.nvmlReturn:
        raise pynvml.NVMLError(found.nvmlReturn)
    return int(found.value.uiVal)


def bus(card: Handle) -> str:
    return str(pynvml.nvmlDeviceGetPciInfo(card).busId)


def clock(card: Handle, kind: int) -> str:
    return f"{pynvml.nvmlDeviceGetClockInfo(card, kind)} MHz"


def memory(card: Handle, part: str) -> str:
    return f"{getattr(pynvml.nvmlDeviceGetMemoryInfo(card), part) >> 20} MiB"


def power(read: Callable[[], int]) -> str:
    for word, text in (("na", "[N/A]"), ("not-supported", "[Not Supported]"), ("unknown-error", "[Unknown Error]")):
        if word in FAULTS:
            return text
    return watts(read())


def stamp() -> str:
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"


# The text of a field of a card, as --query-gpu prints it with units; `count` and `index` are of the whole query.
FIELDS: dict[str, Callable[[Handle], str]] = {
    "timestamp": lambda card: stamp(),
    "driver_version": lambda card: str(pynvml.nvmlSystemGetDriverVersion()),
    "name": pynvml.nvmlDeviceGetName,
    "uuid": pynvml.nvmlDeviceGetUUID,
    "serial": pynvml.nvmlDeviceGetSerial,
    "pci.bus_id": bus,
    "fan.speed": lambda card: f"{pynvml.nvmlDeviceGetFanSpeed(card)} %",
    "pstate": lambda card: f"P{pynvml.nvmlDeviceGetPerformanceState(card)}",
    "memory.total": lambda card: memory(card, "total"),
    "memory.free": lambda card: memory(card, "free"),
    "memory.used": lambda card: memory(card, "used"),
    "utilization.gpu": lambda card: f"{pynvml.nvmlDeviceGetUtilizationRates(card).gpu} %",
    "utilization.memory": lambda card: f"{pynvml.nvmlDeviceGetUtilizationRates(card).memory} %",
    "temperature.gpu": lambda card: str(pynvml.nvmlDeviceGetTemperature(card, 0)),
    "power.draw": lambda card: power(lambda: pynvml.nvmlDeviceGetPowerUsage(card)),
    "power.draw.average": lambda card: power(lambda: field(card, 185)),
    "power.draw.instant": lambda card: power(lambda: field(card, 186)),
    "power.limit": lambda card: watts(pynvml.nvmlDeviceGetPowerManagementLimit(card)),
    "enforced.power.limit": lambda card: watts(pynvml.nvmlDeviceGetEnforcedPowerLimit(card)),
    "power.default_limit": lambda card: watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(card)),
    "power.min_limit": lambda card: watts(field(card, 187)),
    "power.max_limit": lambda card: watts(field(card, 188)),
    "clocks.sm": lambda card: clock(card, 1),
    "clocks.gr": lambda card: clock(card, 0),
    "clocks.mem": lambda card: clock(card, 2),
    "clocks.max.sm": lambda card: f"{pynvml.nvmlDeviceGetMaxClockInfo(card, 1)} MHz",
    "mig.mode.current": lambda card: "Enabled" if pynvml.nvmlDeviceGetMigMode(card)[0] else "Disabled",
    "power.management": lambda card: "[Requested functionality has been deprecated]",
    "temperature.memory": lambda card: "N/A",
}
ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}
ALIASES |= {"clocks.graphics": "clocks.gr", "clocks.memory": "clocks.mem"}


def query(card: Handle, index: int, name: str, total: int = 0) -> str:
    """The text of one field of the card with this index, out of so many."""
    plain = name.replace("clocks.current.", "clocks.")
    plain = ALIASES.get(plain, plain)
    if plain in ("index", "count"):
        return str(index if plain == "index" else total)
    if plain not in FIELDS:
        raise SystemExit(fail(f'Field "{name}" is not a valid field to query.\n', 2))
    try:
        return FIELDS[plain](card)
    except pynvml.NVMLError as error:
        return {LOST: "[GPU is lost]", UNKNOWN: "[Unknown Error]"}.get(error.value, "[N/A]")


def unit(field: str) -> str:
    """What the header has in brackets behind a field's name."""
    if field.startswith("power.") and field != "power.management":
        return "W"
    heads = {"enforced.power": "W", "clocks.": "MHz", "memory.": "MiB", "utilization.": "%", "fan.": "%"}
    return next((text for head, text in heads.items() if field.startswith(head)), "")


def csv_row(card: Handle, index: int, fields: list[str], form: list[str], total: int) -> str:
    texts = [query(card, index, name, total) for name in fields]
    if "nounits" in form:
        texts = [
            text[: -len(unit(name)) - 1] if unit(name) and text.endswith(" " + unit(name)) else text
            for name, text in zip(fields, texts)  # noqa: B905
        ]
    return ", ".join(texts)


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


def process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123 - runs without everywatt, light
            return file.read().strip()
    except OSError:
        return "[Not Found]"


def processes(card: Handle) -> list[tuple[int, str, int]]:
    """Number, kind and bytes of memory of each process on a card."""
    listed = (("C", pynvml.nvmlDeviceGetComputeRunningProcesses), ("G", pynvml.nvmlDeviceGetGraphicsRunningProcesses))
    return [(one.pid, kind, one.usedGpuMemory or 0) for kind, ask in listed for one in ask(card)]


def apps(chosen: Cards, fields: list[str], form: list[str], printer: Printer) -> None:
    if "noheader" not in form:
        printer.row(", ".join("used_gpu_memory [MiB]" if f.startswith("used") else f for f in fields))
    tail = "" if "nounits" in form else " MiB"
    for _, card in chosen:
        for pid, _, used in processes(card):
            values = {
                "pid": str(pid),
                "process_name": process_name(pid),
                "name": process_name(pid),
                "gpu_uuid": pynvml.nvmlDeviceGetUUID(card),
                "used_memory": f"{used >> 20}{tail}",
                "used_gpu_memory": f"{used >> 20}{tail}",
            }
            printer.row(", ".join(values.get(name, "[N/A]") for name in fields))


def dmon(chosen: Cards, printer: Printer) -> None:
    for index, card in chosen:
        values = dmon_values(card, index)
        printer.row(f"{index:5d}" + "".join(f"{value:>7}" for value in values) + " ")


def dmon_values(card: Handle, index: int) -> list[str]:
    """Power, temperatures, utilisation and clocks as whole numbers, "-" where one is not there."""

    def whole(name: str) -> str:
        text = query(card, index, name)
        return "-" if text.startswith("[") else text.partition(" ")[0].partition(".")[0]

    busy = [whole("utilization.gpu"), whole("utilization.memory"), *("0",) * 4]
    return [whole("power.draw"), whole("temperature.gpu"), "-", *busy, whole("clocks.mem"), whole("clocks.sm")]


def pmon(chosen: Cards, printer: Printer) -> None:
    for index, card in chosen:
        try:
            uses = {one.pid: (one.smUtil, one.memUtil) for one in pynvml.nvmlDeviceGetProcessUtilization(card, 0)}
        except pynvml.NVMLError:
            uses = {}
        rows = [(str(pid), kind, process_name(pid)[:15]) for pid, kind, _ in processes(card)]
        for pid, kind, name in rows or [("-", "-", "-")]:
            sm, mem = uses.get(int(pid), ("-", "-")) if rows else ("-", "-")
            printer.row(f"{index:5d}{pid:>11}{kind:>6}{sm:>7}{mem:>7}" + "      -" * 4 + f"    {name:<15}")


DMON = ("gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk ",
        "Idx      W      C      C      %      %      %      %      %      %    MHz    MHz ")  # fmt: skip
PMON = ("gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command ",
        "Idx           #    C/G      %      %      %      %      %      %    name ")  # fmt: skip


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

        def get(field: str, index: int = index, card: Handle = card) -> str:
            return query(card, index, field)

        lines += [f'\t<gpu id="{bus(card)}">', f"\t\t<product_name>{get('name')}</product_name>"]
        lines += [f"\t\t<uuid>{get('uuid')}</uuid>", "\t\t<gpu_power_readings>"]
        lines += [f"\t\t\t<{tag}>{get(field)}</{tag}>" for tag, field in XML_POWER.items()]
        lines += ["\t\t</gpu_power_readings>", "\t</gpu>"]
    for line in [*lines, "</nvidia_smi_log>"]:
        printer.row(line)


# What -q displays: the section's title, and a label and a field for each of its lines.
SECTIONS = {
    "MEMORY": ("FB Memory Usage", {"Total": "memory.total", "Used": "memory.used", "Free": "memory.free"}),
    "UTILIZATION": ("Utilization", {"GPU": "utilization.gpu", "Memory": "utilization.memory"}),
    "TEMPERATURE": ("Temperature", {"GPU Current Temp": "temperature.gpu"}),
    "POWER": (
        "GPU Power Readings",
        {
            "Average Power Draw": "power.draw.average",
            "Instantaneous Power Draw": "power.draw.instant",
            "Current Power Limit": "enforced.power.limit",
            "Requested Power Limit": "power.limit",
            "Default Power Limit": "power.default_limit",
            "Min Power Limit": "power.min_limit",
            "Max Power Limit": "power.max_limit",
        },
    ),
    "CLOCK": ("Clocks", {"Graphics": "clocks.gr", "SM": "clocks.sm", "Memory": "clocks.mem"}),
}


def log(chosen: Cards, driver: str, sections: list[str], printer: Printer) -> None:
    """The text of -q: one line a field, indented by four for each level, the colon in column 43."""

    def line(depth: int, label: str, value: str) -> None:
        printer.row(f"{'    ' * depth + label:<42}: {value}")

    printer.row("\n==============NVSMI LOG==============\n")
    line(0, "Timestamp", time.strftime("%a %b %e %H:%M:%S %Y"))
    line(0, "Driver Version", driver)
    line(0, "CUDA Version", "13.0")
    printer.row("")
    line(0, "Attached GPUs", str(len(chosen)))
    for index, card in chosen:
        printer.row(f"GPU {bus(card)}")
        for name in sections:
            title, fields = SECTIONS[name]
            printer.row(f"    {title}")
            for label, field in fields.items():
                text = query(card, index, field).strip("[]")
                line(2, label, f"{text} C" if name == "TEMPERATURE" and text.isdecimal() else text)
            if name == "POWER":
                for label, text in power_samples(card).items():
                    line(2, label, text) if text else printer.row(f"    {label}")
        printer.row("")


def power_samples(card: Handle) -> dict[str, str]:
    """The lines about the driver's own buffer of power samples."""
    try:
        samples = [(one.timeStamp, one.sampleValue.uiVal) for one in pynvml.nvmlDeviceGetSamples(card, 0, 0)[1]]
    except pynvml.NVMLError:
        samples = []
    shown = dict.fromkeys(("Duration", "Number of Samples", "Max", "Min", "Avg"), "Not Found")
    if samples:
        values = [milliwatts for _, milliwatts in samples]
        shown["Duration"] = f"{(samples[-1][0] - samples[0][0]) / 1e6:.2f} sec"
        shown["Number of Samples"] = str(len(values))
        shown |= {"Max": watts(max(values)), "Min": watts(min(values)), "Avg": watts(round(sum(values) / len(values)))}
    return {"Power Samples": "", **shown}


def overview(chosen: Cards, driver: str, printer: Printer) -> None:
    printer.row(f"NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: 13.0")
    for index, card in chosen:
        fields = ["name", "temperature.gpu", "pstate", "power.draw", "power.limit", "memory.used", "utilization.gpu"]
        texts = [query(card, index, field) for field in fields]
        printer.row(f"| {index}  " + " | ".join(texts) + " |")


class Parser(argparse.ArgumentParser):
    """Complains where the real one does: in one line on stdout, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(fail(f"ERROR: {message}. Please run 'nvidia-smi -h'.\n", 2))


def seconds(text: str) -> float:
    """The real one reads whole seconds: `-l 0.1` is 0, which becomes 5 s."""
    return float(text.partition(".")[0] or 0) or 5.0


def milliseconds(text: str) -> float:
    return float(text) / 1e3


def parse(args: list[str]) -> argparse.Namespace:
    """Options as the real one takes them: `-lms100` is refused."""
    parser = Parser(prog="nvidia-smi", add_help=False, allow_abbrev=False)
    parser.add_argument("monitor", nargs="?", choices=("dmon", "pmon"))
    for short, long in (("-h", "--help"), ("-L", "--list-gpus"), ("-q", "--query"), ("-x", "--xml-format")):
        parser.add_argument(short, long, action="store_true")
    parser.add_argument("--query-gpu", type=words)
    parser.add_argument("--query-compute-apps", type=words)
    parser.add_argument("--format", type=words, default=[])
    parser.add_argument("-i", "--id", type=words)
    parser.add_argument("-l", "--loop", dest="every_s", type=seconds)
    parser.add_argument("-lms", "--loop-ms", dest="every_s", type=milliseconds)
    parser.add_argument("-c", "--count", type=int)
    parser.add_argument("-d", "--display", type=words, default=[])
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("-pl", "--power-limit", type=float)
    options = parser.parse_args(args)
    if options.display and options.monitor:  # there it is the delay
        try:
            options.delay = float(options.display[0])
        except ValueError:
            parser.error(f"'{options.display[0]}' is not a valid delay")
    elif options.display and not options.query:
        parser.error("Option -d goes with -q, dmon or pmon")
    elif unknown := [name for name in options.display if name.upper() not in SECTIONS]:
        parser.error(f"'{unknown[0]}' cannot be displayed by this nvidia-smi")
    return options


def words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def cards(wanted: list[str] | None) -> Cards:
    chosen = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        code = UNKNOWN
        try:
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            card, code = None, error.value
        if card is None or "no-handle" in FAULTS:
            reason = "GPU is lost.  Reboot the system to recover this GPU" if code == LOST else "Unknown Error"
            text = f"Unable to determine the device handle for GPU 0000:{index + 1:02X}:00.0: {reason}\n"
            raise SystemExit(fail(text, 15 if card is None else 255))
        if wanted is None or {str(index), pynvml.nvmlDeviceGetUUID(card), bus(card)} & set(wanted):
            chosen.append((index, card))
    if not chosen:
        raise SystemExit(fail(NO_DEVICES, 6))
    return chosen


def monitor(chosen: Cards, options: argparse.Namespace, printer: Printer, heads: tuple[str, str], show: Any) -> None:
    for head in heads:
        printer.row("# " + head)
    for done in itertools.count():
        if done == options.count:
            return
        time.sleep(options.delay if done else 0.0)
        show(chosen, printer)


def set_limit(chosen: Cards, limit_w: float) -> int:
    for _, card in chosen:
        before = pynvml.nvmlDeviceGetPowerManagementLimit(card)
        try:
            pynvml.nvmlDeviceSetPowerManagementLimit(card, round(limit_w * 1000))
        except pynvml.NVMLError:
            return fail(f"Provided power limit {limit_w:.2f} W is not a valid power limit for GPU {bus(card)}.\n", 3)
        sys.stdout.write(f"Power limit for GPU {bus(card)} was set to {limit_w:.2f} W from {before / 1e3:.2f} W.\n")
    return 0


def main(args: list[str]) -> int:
    options = parse(args)
    if options.help:
        return fail(HELP, 0)
    if "hang" in FAULTS:
        hang()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:  # a machine without cards
            return fail(NO_DEVICES, 6)
        return fail(NO_DRIVER, 9)
    driver, printer = str(pynvml.nvmlSystemGetDriverVersion()), Printer()
    if options.every_s is not None and "no-loop" in FAULTS:
        return fail("ERROR: Loop is not supported.\n", 3)
    header = "noheader" not in options.format
    while True:
        chosen = cards(options.id)
        code = once(chosen, options, driver, printer, header)
        header = False
        if options.every_s is None:
            return code
        time.sleep(options.every_s)


def once(chosen: Cards, options: argparse.Namespace, driver: str, printer: Printer, header: bool) -> int:
    if options.power_limit is not None:
        return set_limit(chosen, options.power_limit)
    if options.query_gpu:
        if "csv" not in options.format:
            return fail("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n", 2)
        fields = options.query_gpu
        rows = [csv_row(card, index, fields, options.format, len(chosen)) for index, card in chosen]
        if header:
            printer.row(", ".join(f"{name} [{unit(name)}]" if unit(name) else name for name in fields))
        for row in rows:
            printer.row(row)
    elif options.query_compute_apps:
        apps(chosen, options.query_compute_apps, options.format, printer)
    elif options.monitor:
        heads, show = (DMON, dmon) if options.monitor == "dmon" else (PMON, pmon)
        monitor(chosen, options, printer, heads, show)
    elif options.xml_format:
        xml(chosen, driver, printer)
    elif options.list_gpus:
        for index, card in chosen:
            printer.row(f"GPU {index}: {pynvml.nvmlDeviceGetName(card)} (UUID: {pynvml.nvmlDeviceGetUUID(card)})")
    elif options.query:
        log(chosen, driver, [name.upper() for name in options.display] or list(SECTIONS), printer)
    else:
        overview(chosen, driver, printer)
    return 0


def start() -> None:
    """Run as the command, and end with its exit code."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        code = 1
    os._exit(code or 0)
