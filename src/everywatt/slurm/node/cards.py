"""Which card is meant when Slurm says GPU 0: it goes by gres.conf or by device files, sensors by PCI address.

Nearly always that is the same. Where it is not, a job would be charged with its neighbour's card.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everywatt.core.machine import Machine
from everywatt.sensors.node.hwmon import card_devices
from everywatt.sensors.nvidia.nvml_api import started
from everywatt.sensors.sysfs import address_of, entries, socket_of
from everywatt.slurm.lists import expand

DEFAULT_CONF: Final = Path("/etc/slurm/slurm.conf")
GUESSED: Final = "Slurm's GPU numbers were used as the driver's: the cards' device numbers are unknown"
SHUFFLED: Final = "gres.conf lists cards out of order, and Slurm may number them by their files"
STRANGE: Final = (
    "gres.conf names device files that the driver does not report: Slurm's GPU numbers were used as the driver's"
)


@dataclass(frozen=True, slots=True)
class CardOrder:
    """The cards of a node as its tape names them (`gpu.1`), in Slurm's order; `doubt` says where that is a guess."""

    cards: tuple[str, ...]
    doubt: str = ""

    def of(self, numbers: Sequence[int]) -> list[str]:
        """The cards of these GPUs of Slurm's; an unknown one goes by its number."""
        return [self.cards[n] if n < len(self.cards) else f"gpu.{n}" for n in numbers]


def card_order(uuids: Mapping[str, str], node: str, conf: str = "", machine: Machine | None = None) -> CardOrder:
    """How Slurm numbers the cards of a tape (`gpu.0`: its UUID, or its name where it has none)."""
    plain = tuple(sorted(uuids, key=_last_number))
    if len(plain) < 2:
        return CardOrder(plain)
    known = device_files(uuids, machine or Machine.here())
    files = gres_files(_text(slurm_conf(conf).with_name("gres.conf")), node)
    if not known:
        in_order = files is not None and [_last_number(file) for file in files] == list(range(len(plain)))
        return CardOrder(plain, "" if in_order else GUESSED)
    if files is None:  # AutoDetect sorts cards by their files, of AMD and Intel by their render nodes
        files = sorted((file for file in known if not file.startswith("/dev/dri/card")), key=_by_number)
        return CardOrder(tuple(dict.fromkeys(known[file] for file in files)))
    if not set(files) <= set(known):
        return CardOrder(plain, STRANGE)
    return CardOrder(tuple(known[file] for file in files), "" if files == sorted(files, key=_by_number) else SHUFFLED)


def device_files(uuids: Mapping[str, str], machine: Machine) -> dict[str, str]:
    """The card (`gpu.1`) of each device file: /dev/nvidiaN by UUID, those of AMD and Intel by PCI address."""
    numbers = nvidia_numbers(machine.proc)
    found = {f"/dev/nvidia{numbers[uuid]}": card for card, uuid in uuids.items() if uuid in numbers}
    cards = card_devices(machine.sys)
    for folder in entries(machine.sys / "class" / "drm"):
        socket = socket_of(address_of(folder)) if re.fullmatch(r"(renderD|card)\d+", folder.name) else None
        if socket in cards and cards[socket][0] in uuids:
            found[f"/dev/dri/{folder.name}"] = cards[socket][0]
    return found


def cards_here(machine: Machine) -> dict[str, str]:
    """The cards of this machine as `card_order` takes them, as far as drivers list them in files."""
    nvidia = {f"gpu.{place}": uuid for place, uuid in enumerate(nvidia_numbers(machine.proc))}
    return {**nvidia, **{device: device for device, _ in card_devices(machine.sys).values()}}


def nvidia_numbers(proc: Path) -> dict[str, int]:
    """The number of each card's device file (/dev/nvidiaN) by UUID, in the order of PCI addresses, which is NVML's."""
    found = {}
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        text = _text(path)
        uuid, minor = (re.search(rf"^{key}:\s*(\S+)", text, re.MULTILINE) for key in ("GPU UUID", "Device Minor"))
        if uuid and minor and minor[1].isdecimal():
            found[uuid[1]] = int(minor[1])
    return found or _by_nvml()


def _by_nvml() -> dict[str, int]:
    try:
        pynvml = started()
    except Exception:  # noqa: BLE001 - a driver that is not there fails in ways of its own
        return {}
    found = {}
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(card)
            found[uuid if isinstance(uuid, str) else uuid.decode()] = int(pynvml.nvmlDeviceGetMinorNumber(card))
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()
    return found


def slurm_conf(conf: str = "") -> Path:
    """The site's slurm.conf, where Slurm's own commands look for it."""
    return Path(conf or os.environ.get("SLURM_CONF") or DEFAULT_CONF)


def gres_files(text: str, node: str) -> list[str] | None:
    """A node's device files in gres.conf's order; None where it does not name them (AutoDetect).

    >>> gres_files("NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-1]", "n2")
    ['/dev/nvidia0', '/dev/nvidia1']
    """
    found: list[str] = []
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        words = dict(re.findall(r"(\w+)\s*=\s*(\S+)", line.partition("#")[0]))
        said = {key.lower(): value for key, value in words.items()}
        if said.get("name", "").lower() != "gpu" or "file" not in said:
            continue
        if "nodename" in said and node not in expand(said["nodename"]):
            continue
        for file in expand(said["file"]):
            if re.search(r"\d$", file) is None:
                return None
            found.append(file)
    return found or None


def _by_number(file: str) -> tuple[str, int]:
    """Device files in the order in which Slurm sorts them: /dev/nvidia10 after /dev/nvidia9."""
    return file.rstrip("0123456789"), _last_number(file)


def _last_number(name: str) -> int:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
