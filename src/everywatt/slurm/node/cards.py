"""Which card is meant when Slurm says GPU 0: it goes by gres.conf or by device files, NVML by PCI address.

Nearly always that is the same. Where it is not, a job would be charged with its neighbour's card.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everywatt.slurm.lists import expand

PROC: Final = Path("/proc")
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
        """The cards of these GPUs of Slurm's; one that nobody knows goes by its number."""
        return [self.cards[n] if n < len(self.cards) else f"gpu.{n}" for n in numbers]


def card_order(
    uuids: Mapping[str, str], node: str, conf: str = "", proc: Path = PROC, minors: Mapping[str, int] | None = None
) -> CardOrder:
    """How Slurm numbers the cards of a tape (`gpu.0`: its UUID). `minors`: device numbers by UUID."""
    plain = tuple(sorted(uuids, key=lambda card: int(re.sub(r"\D", "", card) or 0)))
    if len(plain) < 2:
        return CardOrder(plain)
    minors = device_numbers(proc) if minors is None else minors
    by_number = {minors[uuid]: card for card, uuid in uuids.items() if uuid in minors}
    files = gres_numbers(_text(gres_conf(conf)), node)
    if not by_number:
        return CardOrder(plain, "" if files == list(range(len(plain))) else GUESSED)
    if files is None:  # AutoDetect sorts cards by their files
        return CardOrder(tuple(by_number[number] for number in sorted(by_number)))
    if not set(files) <= set(by_number):
        return CardOrder(plain, STRANGE)
    return CardOrder(tuple(by_number[number] for number in files), "" if files == sorted(files) else SHUFFLED)


def device_numbers(proc: Path = PROC) -> dict[str, int]:
    """The number of each card's device file (/dev/nvidiaN) by UUID: as the driver's files say, else as NVML does."""
    found = {}
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        text = _text(path)
        uuid, minor = (re.search(rf"^{key}:\s*(\S+)", text, re.MULTILINE) for key in ("GPU UUID", "Device Minor"))
        if uuid and minor and minor[1].isdecimal():
            found[uuid[1]] = int(minor[1])
    return found or _by_nvml()


def _by_nvml() -> dict[str, int]:
    try:
        import pynvml

        pynvml.nvmlInit()
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


def gres_conf(conf: str = "") -> Path:
    """gres.conf lies beside slurm.conf."""
    return Path(conf or os.environ.get("SLURM_CONF") or DEFAULT_CONF).with_name("gres.conf")


def gres_numbers(text: str, node: str) -> list[int] | None:
    """The numbers of a node's device files in gres.conf's order; None where it does not name them (AutoDetect).

    >>> gres_numbers("NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-1]", "n2")
    [0, 1]
    """
    found: list[int] = []
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        words = dict(re.findall(r"(\w+)\s*=\s*(\S+)", line.partition("#")[0]))
        said = {key.lower(): value for key, value in words.items()}
        if said.get("name", "").lower() != "gpu" or "file" not in said:
            continue
        if "nodename" in said and node not in expand(said["nodename"]):
            continue
        for file in expand(said["file"]):
            number = re.search(r"(\d+)$", file)
            if number is None:
                return None
            found.append(int(number[1]))
    return found or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
