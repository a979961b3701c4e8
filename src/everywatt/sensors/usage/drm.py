"""Who is on AMD's and Intel's GPUs: engine time and memory of each process, from /proc/PID/fdinfo.

Every open file of a graphics card shows the use of its client (kernel: Documentation/gpu/drm-usage-stats.rst). Files
that were duplicated or inherited show the same client again, so a client counts once, for the process it was found in
first. ROCm's compute queues bypass the kernel's scheduler and have no engine time; while such a process is on a card,
use of that card is unknown and only memory is reported.

Looking at the files of every process is what costs, so once a second only processes that have a card open, or came in
the last minute, are looked at, and a tenth of the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.channels import Cadence, GroupInfo
from everywatt.core.clocks import NS
from everywatt.core.device import Device
from everywatt.core.machine import Machine
from everywatt.sensors.base import Report, Request, State, TableGroup
from everywatt.sensors.node.hwmon import card_devices
from everywatt.sensors.sysfs import short_pci, socket_of

if TYPE_CHECKING:
    from everywatt.sensors.base import GpuProcessRow

YOUNG_NS = 60 * NS
ROUND = 10  # reads in which every process is looked at once
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_OF_SYSTEM = ("system", "gtt", "cpu", "stolen-system")


@dataclass(frozen=True, slots=True)
class Client:
    """What one open file says of its client.

    `busy_ns` is engine time by engine. Drivers that count cycles report `cycles` of so many `total_cycles` instead.
    """

    pci: str
    id: str
    busy_ns: dict[str, int] = field(default_factory=dict)
    cycles: dict[str, tuple[int, int]] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None


def parse_fdinfo(text: str) -> Client | None:
    """The client of one fdinfo file; None where it is not of a graphics card, or does not say which."""
    found: dict[str, dict[str, str]] = {}
    for line in text.split("\n"):
        key, _, value = line.partition(":")
        if key.startswith("drm-"):
            found.setdefault(_kind(key), {})[key] = value.strip()
    pci = short_pci(found.get("drm-pdev", {}).get("drm-pdev", ""))
    client = found.get("drm-client-id", {}).get("drm-client-id", "")
    if pci is None or not client.isdecimal():
        return None
    busy = _counts(found, "drm-engine-")
    totals = _counts(found, "drm-total-cycles-")
    cycles = {name: (count, totals[name]) for name, count in _counts(found, "drm-cycles-").items() if name in totals}
    return Client(pci, client, busy, cycles, _counts(found, "drm-engine-capacity-"), _memory(found))


_KINDS = (
    *("drm-engine-capacity-", "drm-engine-", "drm-total-cycles-", "drm-cycles-"),
    *("drm-resident-", "drm-memory-", "drm-total-"),
)


def _kind(key: str) -> str:
    """Which family a key belongs to; of several prefixes that match, the longest comes first."""
    return next((kind for kind in _KINDS if key.startswith(kind)), key)


def _counts(found: dict[str, dict[str, str]], kind: str) -> dict[str, int]:
    counts = {}
    for key, value in found.get(kind, {}).items():
        number = value.removesuffix("ns").strip()
        if number.isdecimal() and len(number) <= 20:
            counts[key.removeprefix(kind)] = int(number)
    return counts


def _memory(found: dict[str, dict[str, str]]) -> int | None:
    """Bytes on the card; of a card without memory of its own, in the system's."""
    for kind in ("drm-resident-", "drm-memory-", "drm-total-"):
        regions = {}
        for key, value in found.get(kind, {}).items():
            number, _, unit = value.partition(" ")
            if number.isdecimal() and unit.strip() in _UNITS:
                regions[key.removeprefix(kind)] = int(number) * _UNITS[unit.strip()]
        own = [size for name, size in regions.items() if not name.startswith(_OF_SYSTEM)]
        if regions:
            return sum(own) if own else sum(regions.values())
    return None


def use_pct(before: Client | None, after: Client, seconds: float) -> dict[str, float] | None:
    """Per cent of each engine that a client used since `before` (None: since it was made); None where unknown."""
    if not after.busy_ns and not after.cycles:
        return None
    used: dict[str, float] = {}
    for name, count in after.busy_ns.items():
        start = before.busy_ns.get(name, 0) if before else 0
        used[name] = 100 * max(count - start, 0) / max(seconds * NS, 1.0)
    for name, (count, total) in after.cycles.items():
        start, since = before.cycles.get(name, (0, 0)) if before else (0, 0)
        used[name] = 100 * max(count - start, 0) / max(total - since, 1)
    return {name: value / max(after.capacity.get(name, 1), 1) for name, value in used.items()}


@dataclass(slots=True)
class _Process:
    """Files of a process that are of graphics cards, and since when it is known."""

    first_ns: int
    files: tuple[str, ...] = ()


class DrmTable:
    """Rows as `nvml.processes` has them; `sm` is per cent of the busiest engine."""

    def __init__(self, machine: Machine, cards: dict[str, int]) -> None:
        self.info = GroupInfo("drm.processes", "drm", "gpu", (), Cadence.SLOW, table=True, label="GPU processes")
        self._proc, self._sys, self._clock = machine.proc, machine.sys, machine.clock
        self._cards = cards
        self._processes: dict[int, _Process] = {}
        self._clients: dict[tuple[str, str], tuple[int, Client]] = {}
        self._rows: dict[tuple[int, int], GpuProcessRow] = {}
        self._read_ns: int | None = None
        self._turn = 0

    def follow(self, pids: Sequence[int]) -> None:
        """Nothing to do: every process that may be looked at is listed, whoever started it."""

    def close(self) -> None:
        """Nothing is kept open."""

    def read_table(self) -> tuple[int, list[GpuProcessRow]]:
        now_ns = self._clock.monotonic_ns()
        since_ns, self._read_ns = self._read_ns, now_ns
        self._list(now_ns, since_ns is None)
        rows = self._rows_now(now_ns, since_ns)
        changed = [row for key, row in rows.items() if self._rows.get(key) != row]
        changed += [{**row, "gone": True} for key, row in self._rows.items() if key not in rows]
        self._rows = rows
        before: GpuProcessRow = {} if since_ns is None else {"since_ns": since_ns}
        return now_ns, [{**row, **before} for row in changed]

    def _list(self, now_ns: int, first: bool) -> None:
        pids = {int(name) for name in _names(self._proc) if name.isdecimal()}
        for gone in self._processes.keys() - pids:
            del self._processes[gone]
        self._turn = (self._turn + 1) % ROUND
        for pid in pids:
            known = self._processes.get(pid)
            if known is None:
                born_ns = now_ns - YOUNG_NS if first else now_ns
                known = self._processes[pid] = _Process(born_ns)
            elif not known.files and now_ns - known.first_ns >= YOUNG_NS and pid % ROUND != self._turn:
                continue
            known.files = tuple(_card_files(self._proc / str(pid)))

    def _rows_now(self, now_ns: int, since_ns: int | None) -> dict[tuple[int, int], GpuProcessRow]:
        clients: dict[tuple[str, str], tuple[int, Client]] = {}
        for pid, client in self._read_clients():
            key = (client.pci, client.id)
            if key not in clients or pid == self._clients.get(key, (0, client))[0]:
                clients[key] = (pid, client)
        used: dict[tuple[int, int], list[dict[str, float] | None]] = {}
        memory: dict[tuple[int, int], list[int | None]] = {}
        for key, (pid, client) in clients.items():
            place = (self._cards[socket_of(client.pci) or ""], pid)
            before = self._clients.get(key, (0, None))[1]
            seconds = 0.0 if since_ns is None else (now_ns - since_ns) / NS
            # What a client used before it was first looked at is not of this interval where it may be older than that.
            known = before is not None or (since_ns is not None and self._processes[pid].first_ns >= since_ns)
            used.setdefault(place, []).append(use_pct(before if known else client, client, seconds))
            memory.setdefault(place, []).append(client.memory_bytes)
        self._clients = clients
        # Those with compute queues that the kernel does not schedule.
        bypassing = self._sys / "class" / "kfd" / "kfd" / "proc"
        unknown = {gpu for gpu, pid in used if (bypassing / str(pid)).exists()}
        return {
            (gpu, pid): {
                "gpu": gpu,
                "pid": pid,
                "type": "C",
                "memory_bytes": _sum(memory[gpu, pid]),
                "sm": None if gpu in unknown else _busiest(parts),
            }
            for (gpu, pid), parts in used.items()
        }

    def _read_clients(self) -> Iterable[tuple[int, Client]]:
        for pid, process in sorted(self._processes.items()):
            for name in process.files:
                try:
                    text = (self._proc / str(pid) / "fdinfo" / name).read_text(errors="replace")
                except OSError:
                    continue
                client = parse_fdinfo(text)
                if client is not None and (socket_of(client.pci) or "") in self._cards:
                    yield pid, client


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - fast
    except OSError:
        return []


def _card_files(process: Path) -> list[str]:
    """Open files of a process that are of graphics cards; none where it is another user's, or has ended."""
    found = []
    for name in _names(process / "fd"):
        try:
            if os.readlink(f"{process}/fd/{name}").startswith("/dev/dri/"):  # noqa: PTH115 - fast
                found.append(name)
        except OSError:
            continue
    return found


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _busiest(parts: Sequence[dict[str, float] | None]) -> float | None:
    """The use of the busiest engine over all clients of a process; None where no client reports it."""
    engines: dict[str, float] = {}
    for part in parts:
        for name, value in (part or {}).items():
            engines[name] = engines.get(name, 0.0) + value
    return None if all(part is None for part in parts) else round(max(engines.values(), default=0.0), 3)


class Drm:
    """The sensor: no power of its own, but owners for that of hwmon and amdsmi."""

    name = "drm"
    after: Sequence[str] = ()

    def __init__(self, request: Request) -> None:
        self._machine = request.machine
        self._cards: dict[str, int] = {}

    def probe(self) -> Report:
        """Whether there is a card whose power another sensor measures."""
        devices = {socket: Device.parse(device) for socket, (device, _) in card_devices(self._machine.sys).items()}
        self._cards = {socket: device.index for socket, device in devices.items() if device.index is not None}
        if not self._cards:
            return Report(self.name, State.ABSENT, "No AMD or Intel graphics card reports its power.", power=False)
        table = DrmTable(self._machine, self._cards)
        rows = table.read_table()[1]
        samples = {
            f"gpu.{card}.processes": float(sum(row["gpu"] == card for row in rows)) for card in self._cards.values()
        }
        return Report(self.name, State.USABLE, "engine time of processes", samples=samples, power=False)

    def groups(self) -> list[TableGroup]:
        return [DrmTable(self._machine, self._cards)] if self._cards or self.probe().usable else []
