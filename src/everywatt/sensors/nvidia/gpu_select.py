"""Which GPUs a CUDA_VISIBLE_DEVICES mask selects. A pure function over a list of devices.

The rules are CUDA's (CUDA C++ Programming Guide, "CUDA Environment Variables", and the MIG user guide):

- entries are indices, GPU UUIDs, unambiguous beginnings of a UUID (with `GPU-`), or MIG ids: `MIG-<uuid>`, or as older
  drivers name them `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`;
- the list ends at the first entry that is not valid, so `0,2,-1,1` is devices 0 and 2, and `` or `-1` selects none;
- the first entry says which kind of list it is: one of another kind is not valid;
- an index may have a tail (`1gpu` is 1, CUDA reads it as C's strtol does);
- a device that is named twice makes the whole list empty.

Indices count devices in CUDA_DEVICE_ORDER. With PCI_BUS_ID that is NVML's order. The default, FASTEST_FIRST, is known
to CUDA alone; on a machine with cards of one model the two orders agree, elsewhere `Selection.note` says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everywatt.core.jsonio import ToDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"\d+", re.ASCII)
_LISTED = re.compile(r"GPU (\d+): (.*) \(UUID: (GPU-[^)]+)\)")
_LISTED_MIG = re.compile(r"\s+MIG .* \(UUID: (MIG-[^)]+)\)")


@dataclass(frozen=True, slots=True)
class Mig(ToDict):
    """One MIG device: a compute instance of a GPU instance, with so many of the board's compute slices."""

    JSON = "uuid gpu_instance compute_instance"

    uuid: str
    gpu_instance: int
    compute_instance: int
    slices: int | None = None
    of_slices: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU as NVML lists it: `index` is NVML's."""

    index: int
    uuid: str
    name: str = ""
    pci_bus_id: str = ""
    migs: tuple[Mig, ...] = ()


def parse_listing(lines: Iterable[str]) -> tuple[Gpu, ...]:
    """The GPUs of `nvidia-smi -L`, with their MIG devices."""
    found: list[tuple[int, str, str, list[Mig]]] = []
    for line in lines:
        if match := _LISTED.match(line):
            found.append((int(match[1]), match[3], match[2], []))
        elif found and (match := _LISTED_MIG.match(line)):
            found[-1][3].append(Mig(match[1], -1, -1))
    return tuple(Gpu(index, uuid, name, migs=tuple(migs)) for index, uuid, name, migs in found)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a mask selects.

    gpus   NVML indices of the boards, in the mask's order, each once (also where only a MIG slice of it is visible)
    migs   UUIDs of the MIG devices that were named; empty where whole GPUs were
    note   what a reader has to know: an entry that ended the list, an order that is only assumed; "" where all is plain
    """

    gpus: tuple[int, ...]
    migs: tuple[str, ...] = ()
    note: str = ""


def select(mask: str | None, gpus: Sequence[Gpu], order: str | None = None) -> Selection:
    """The devices that `mask`, a value of CUDA_VISIBLE_DEVICES, selects out of `gpus`. None selects all of them.

    `order` is the value of CUDA_DEVICE_ORDER.
    """
    if mask is None:
        return Selection(tuple(gpu.index for gpu in gpus))
    ranked = sorted(gpus, key=lambda gpu: (gpu.pci_bus_id.lower(), gpu.index))
    if any(not gpu.pci_bus_id for gpu in gpus):
        ranked = sorted(gpus, key=lambda gpu: gpu.index)
    found, migs, seen, note = list[int](), list[str](), set[str](), ""
    entries = [part.strip() for part in mask.split(",")]
    for entry in entries:
        match = _resolve(entry, ranked) if _kind(entry) == _kind(entries[0]) else None
        if match is None:
            if mask.strip() not in ("", "-1"):
                note = (
                    f"CUDA_VISIBLE_DEVICES={mask}: '{entry}' is not a device here, so CUDA ignores it and the rest "
                    "of the list."
                )
            break
        gpu, mig = match
        key = mig.uuid if mig else gpu.uuid or str(gpu.index)
        if key in seen:
            return Selection(
                (), note=f"CUDA_VISIBLE_DEVICES={mask}: '{entry}' is listed twice, so CUDA sees no device."
            )
        seen.add(key)
        if gpu.index not in found:
            found.append(gpu.index)
        if mig:
            migs.append(mig.uuid)
    return Selection(tuple(found), tuple(migs), note or _order_note(mask, ranked, order))


def _kind(entry: str) -> str:
    return next((kind for kind in ("GPU-", "MIG-") if entry.upper().startswith(kind)), "index")


def _resolve(entry: str, ranked: Sequence[Gpu]) -> tuple[Gpu, Mig | None] | None:
    """The device that one entry names, None where it is not valid."""
    if number := _NUMBER.match(entry):
        place = int(number.group())
        return (ranked[place], None) if place < len(ranked) else None
    if entry.upper().startswith("MIG-"):
        return _resolve_mig(entry, ranked)
    if not entry.upper().startswith("GPU-"):
        return None
    wanted = entry.lower()
    exact = [gpu for gpu in ranked if gpu.uuid.lower() == wanted]
    near = exact or [gpu for gpu in ranked if gpu.uuid.lower().startswith(wanted)]
    return (near[0], None) if len(near) == 1 else None


def _resolve_mig(entry: str, ranked: Sequence[Gpu]) -> tuple[Gpu, Mig] | None:
    wanted = entry.lower()
    pairs = [(gpu, mig) for gpu in ranked for mig in gpu.migs]
    if "/" in wanted:
        board, _, rest = wanted.removeprefix("mig-").partition("/")
        found = [
            (gpu, mig)
            for gpu, mig in pairs
            if gpu.uuid.lower() == board and rest == f"{mig.gpu_instance}/{mig.compute_instance}"
        ]
    else:
        found = [pair for pair in pairs if pair[1].uuid.lower() == wanted]
        found = found or [pair for pair in pairs if pair[1].uuid.lower().startswith(wanted)]
    return found[0] if len(found) == 1 else None


def _order_note(mask: str, ranked: Sequence[Gpu], order: str | None) -> str:
    """Indices into cards of several models mean NVML's order only where CUDA_DEVICE_ORDER says so."""
    by_index = _NUMBER.match(mask.strip()) is not None
    if not by_index or order == "PCI_BUS_ID" or len({gpu.name for gpu in ranked}) <= 1:
        return ""
    return (
        f"CUDA_VISIBLE_DEVICES={mask} uses CUDA's own order, which may differ from the PCI bus order used here; set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs."
    )
