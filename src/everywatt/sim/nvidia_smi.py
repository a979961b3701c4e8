"""The nvidia-smi of a simulated machine: prints what the machine's own NVML says, with the manners of the real one.

It is copied into the machine's folder with `smi_card` and run without
site-packages, so it imports nothing else of everywatt. Faults are words in the file `smi-faults`: na, not-supported,
unknown-error, hang, hang-after:N, exit-after:N, buffered, no-handle, no-loop.
"""

import argparse
import collections.abc
import ctypes
import os
import sys
import time
import typing
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p

from everywatt.sim.smi_card import (
    FAULTS,
    FOLDER,
    Card,
    Cards,
    Read,
    Unavailable,
    csv_header,
    csv_row,
    fail,
    query,
    watts,
)

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
SEE_HELP = "Please run 'nvidia-smi -h'."
HELP = (
    "nvidia-smi [-L] [-q [-x] [-d MEMORY,UTILIZATION,TEMPERATURE,POWER,CLOCK]] "
    "[--query-gpu=FIELDS --format=csv[,noheader][,nounits]] [-i ID] [-l S | -lms MS] "
    "[-pl WATTS] [dmon|pmon]\n"
)


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


Show = collections.abc.Callable[[Cards, Printer], None]


def hang() -> None:
    while True:
        time.sleep(3600)


def process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123 - runs without everywatt, light
            return file.read().strip()
    except OSError:
        return "[Not Found]"


def apps(chosen: Cards, fields: list[str], form: list[str], printer: Printer) -> None:
    if "noheader" not in form:
        printer.row(", ".join("used_gpu_memory [MiB]" if f.startswith("used") else f for f in fields))
    tail = "" if "nounits" in form else " MiB"
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
        printer.row(f"GPU {card.bus()}")
        for name in sections:
            title, fields = SECTIONS[name]
            printer.row(f"    {title}")
            for label, field in fields.items():
                text = query(card, index, field, driver, len(chosen)).strip("[]")
                line(2, label, f"{text} C" if name == "TEMPERATURE" and text.isdigit() else text)
            if name == "POWER":
                for label, text in power_samples(card).items():
                    line(2, label, text) if text else printer.row(f"    {label}")
        printer.row("")


def power_samples(card: Card) -> dict[str, str]:
    """The lines about the driver's own buffer of power samples."""
    try:
        samples = card.power_samples()
    except Unavailable:
        samples = []
    shown = dict.fromkeys(("Duration", "Number of Samples", "Max", "Min", "Avg"), "Not Found")
    if samples:
        values = [milliwatts for _, milliwatts in samples]
        shown["Duration"] = f"{(samples[-1][0] - samples[0][0]) / 1e6:.2f} sec"
        shown["Number of Samples"] = str(len(values))
        shown |= {"Max": watts(max(values)), "Min": watts(min(values)), "Avg": watts(round(sum(values) / len(values)))}
    return {"Power Samples": "", **shown}


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


class Parser(argparse.ArgumentParser):
    """Complains where the real one does: in one line on stdout, with exit code 2."""

    def error(self, message: str) -> typing.NoReturn:
        raise SystemExit(fail(f"ERROR: {message}. {SEE_HELP}\n", 2))


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


def cards(wanted: list[str] | None, lib: ctypes.CDLL) -> Cards:
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
        if wanted is None or {str(index), card.text("nvmlDeviceGetUUID"), card.bus()} & set(wanted):
            chosen.append((index, card))
    if not chosen:
        raise SystemExit(fail("No devices were found\n", 6))
    return chosen


def monitor(chosen: Cards, options: argparse.Namespace, printer: Printer, heads: tuple[str, str], show: Show) -> None:
    for head in heads:
        printer.row("# " + head)
    left = options.count
    while left is None or left > 0:
        show(chosen, printer)
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(options.delay)


def set_limit(chosen: Cards, limit_w: float) -> int:
    for _, card in chosen:
        before = card.number("nvmlDeviceGetPowerManagementLimit")
        try:
            card.call("nvmlDeviceSetPowerManagementLimit", c_uint(round(limit_w * 1000)))
        except Unavailable:
            return fail(f"Provided power limit {limit_w:.2f} W is not a valid power limit for GPU {card.bus()}.\n", 3)
        sys.stdout.write(f"Power limit for GPU {card.bus()} was set to {limit_w:.2f} W from {before / 1e3:.2f} W.\n")
    return 0


def main(args: list[str]) -> int:
    options = parse(args)
    if options.help:
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
    if options.every_s is not None and "no-loop" in FAULTS:
        return fail("ERROR: Loop is not supported.\n", 3)
    header = "noheader" not in options.format
    while True:
        chosen = cards(options.id, lib)
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
        rows = [csv_row(card, index, fields, options.format, driver, len(chosen)) for index, card in chosen]
        for row in [csv_header(fields), *rows] if header else rows:
            printer.row(row)
    elif options.query_compute_apps:
        apps(chosen, options.query_compute_apps, options.format, printer)
    elif options.monitor:
        heads, show = (DMON, dmon) if options.monitor == "dmon" else (PMON, pmon)
        monitor(chosen, options, printer, heads, show)
    elif options.xml_format:
        xml(chosen, driver, printer)
    elif options.list_gpus:
        listing(chosen, printer)
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
