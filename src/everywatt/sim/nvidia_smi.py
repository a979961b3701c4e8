"""The nvidia-smi of a simulated machine: prints what the machine's own NVML says, with the manners of the real one.

It is copied into the machine's folder with its parts (`smi_card`, `smi_fields`, `smi_views`) and run without
site-packages, so it imports nothing else of everywatt. Faults are words in the file `smi-faults`: na, not-supported,
unknown-error, hang, hang-after:N, exit-after:N, buffered, no-handle, no-loop.
"""

import collections.abc
import ctypes
import os
import sys
import time
from ctypes import byref, c_char_p, c_uint, c_void_p

from everywatt.sim.smi_card import Card, Cards, Unavailable
from everywatt.sim.smi_fields import FAULTS, FOLDER, csv_header, csv_row, fail
from everywatt.sim.smi_views import DMON, PMON, SECTIONS, Printer, apps, dmon, hang, listing, log, overview, pmon, xml

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

Show = collections.abc.Callable[[Cards, Printer], None]


class Options:
    """What the command line asks for."""

    def __init__(self) -> None:
        self.mode: list[str] = []
        self.format: list[str] = []
        self.every: float | None = None
        self.count: int | None = None
        self.delay = 1.0
        self.display: list[str] = []
        self.words: dict[str, str] = {}


NAMES = {
    "-i": "ids", "--id": "ids", "-l": "loop", "--loop": "loop", "-lms": "ms", "--loop-ms": "ms", "-c": "count",
    "-d": "display", "--display": "display", "--delay": "delay", "-pl": "limit", "--power-limit": "limit",
    "--format": "format", "--query-gpu": "gpu", "--query-compute-apps": "apps",
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
            raise SystemExit(fail(f"ERROR: Option {word} is not recognized. {SEE_HELP}\n", 2))
        if not equals:
            value = waiting.pop(0) if waiting else ""
        try:
            take(options, wanted, value)
        except (ValueError, OverflowError):
            raise SystemExit(
                fail(f"ERROR: '{value}' is not a valid value for option {name}. {SEE_HELP}\n", 2)
            ) from None
    if options.display:
        settle_display(options)
    return options


def take(options: Options, wanted: str, value: str) -> None:
    """Keep the value of one option; ValueError if it is not valid."""
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
    elif wanted == "display":
        options.display = [part.strip().upper() for part in value.split(",")]
    else:
        if wanted == "limit":
            float(value)
        options.words[wanted] = value


def settle_display(options: Options) -> None:
    """`-d` is the delay of a monitor, and what is displayed of a query; with anything else it is a mistake."""
    if {"dmon", "pmon"} & set(options.mode):
        try:
            options.delay = float(options.display[0])
        except ValueError:
            raise SystemExit(fail(f"ERROR: '{options.display[0]}' is not a valid delay. {SEE_HELP}\n", 2)) from None
    elif not {"-q", "--query"} & set(options.mode):
        raise SystemExit(fail(f"ERROR: Option -d goes with -q, dmon or pmon. {SEE_HELP}\n", 2))
    else:
        unknown = [name for name in options.display if name not in SECTIONS]
        if unknown:
            raise SystemExit(fail(f"ERROR: '{unknown[0]}' cannot be displayed by this nvidia-smi. {SEE_HELP}\n", 2))


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


def monitor(chosen: Cards, options: Options, printer: Printer, heads: tuple[str, str], show: Show) -> None:
    for head in heads:
        printer.row("# " + head)
    left = options.count
    while left is None or left > 0:
        show(chosen, printer)
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(options.delay)


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
        apps(chosen, [part.strip() for part in options.words["apps"].split(",")], options.format, printer)
    elif "dmon" in modes:
        monitor(chosen, options, printer, DMON, dmon)
    elif "pmon" in modes:
        monitor(chosen, options, printer, PMON, pmon)
    elif "-x" in modes or "--xml-format" in modes:
        xml(chosen, driver, printer)
    elif "-L" in modes or "--list-gpus" in modes:
        listing(chosen, printer)
    elif "-q" in modes or "--query" in modes:
        log(chosen, driver, options.display or list(SECTIONS), printer)
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
