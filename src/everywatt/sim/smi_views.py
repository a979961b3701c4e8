"""What the simulated nvidia-smi shows of its cards: lists, tables, the monitors' lines, text and XML."""

import os
import sys
import time
from ctypes import c_int

from everywatt.sim.smi_card import Card, Cards, Unavailable
from everywatt.sim.smi_fields import FAULTS, Read, query, watts


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
