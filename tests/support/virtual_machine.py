"""A machine with a closed-form truth, read at virtual time: a CPU package, two cards, three processes.

`Sensors` is a plug-in sensor of its own (`EVERYWATT_PLUGINS=virtual=virtual_machine:Sensors`), so recorder, client and
agent open it as they open any other. Which machine it reads is `here`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from virtual_time import VirtualTime

from everywatt.core.channels import Cadence, Channel, Domain, Facts, GroupInfo, Kind, Row, fresh
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Report, Request, State
from everywatt.sim.curves import Curve, parse_curve

MS = 1_000_000
COUNTER_NS = MS  # how often the package's counter is brought up to date
CARD_NS = 100 * MS
CARD_PHASE_NS = 37 * MS
GAUGE_PHASE_NS = 71 * MS
READ_NS = 20_000  # what reading a sensor takes
SHARES = {101: 0.5, 102: 0.25}  # of one CPU, by pid


@dataclass
class VirtualMachine:
    """Devices and their curves. A read of `broken[group]` raises that, of `slow_ns[group]` takes so long."""

    time: VirtualTime
    curves: dict[str, Curve]
    broken: dict[str, str] = field(default_factory=dict)
    slow_ns: dict[str, int] = field(default_factory=dict)
    reads: dict[str, list[int]] = field(default_factory=dict)
    card_ns: int = CARD_NS
    board_ns: int = CARD_NS
    window_ns: int = CARD_NS
    gain_pct: float | None = None  # that cards are known to be off by
    tenants: tuple[int, ...] = ()  # processes on the card
    users: dict[int, str] = field(default_factory=dict)  # whose processes are, where they are not Ada's
    ended: tuple[int, ...] = ()  # processes that are there no more
    origin_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.origin_ns = self.time.now_ns

    @classmethod
    def of(cls, time: VirtualTime, **curves: str) -> VirtualMachine:
        """`cpu="square:30W,90W,0.7s"`; devices are cpu, gpu and module (counters), board (a gauge of mean power)."""
        return cls(time, {name: parse_curve(text) for name, text in curves.items()})

    def energy_j(self, device: str, start_ns: int, end_ns: int) -> float:
        """The truth."""
        return self.curves[device].energy_j((start_ns - self.origin_ns) / NS, (end_ns - self.origin_ns) / NS)

    def total_j(self, start_ns: int, end_ns: int) -> float:
        """The truth of all devices."""
        return sum(self.energy_j(device, start_ns, end_ns) for device in self.curves)

    def read(self, group: str) -> int:
        """A sensor is read: takes a while, or fails. Gives the instant."""
        self.reads.setdefault(group, []).append(self.time.now_ns)
        self.time.now_ns += self.slow_ns.get(group, READ_NS)
        what = self.broken.get(group)
        if what == "garbage":
            return -1
        if what:
            raise SensorError(what) if what != "vanish" else FileNotFoundError("energy_uj")
        return self.time.now_ns


here: VirtualMachine | None = None


def machine() -> VirtualMachine:
    """The machine that sensors read."""
    assert here is not None
    return here


class Counter:
    """Microjoules of the package, brought up to date every millisecond; cheap enough for clients."""

    info = GroupInfo(
        "virtual.package",
        "virtual",
        "cpu.0",
        (
            Channel(
                "cpu.0.package.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, 1e-6,
                facts=Facts(period_s=COUNTER_NS / NS, quantum=1e-6, max_w=400.0),
            ),
        ),
        inline=True,
    )  # fmt: skip
    curve = "cpu"

    def read(self) -> Sequence[Any]:
        at_ns = machine().read(self.info.name)
        if at_ns < 0:
            return [(0, "yesterday", None)]
        published = at_ns // COUNTER_NS * COUNTER_NS
        return [
            fresh(at_ns, (round(1e6 * machine().energy_j(self.curve, machine().origin_ns, published)),), COUNTER_NS)
        ]

    def close(self) -> None: ...


class Module(Counter):
    """Microjoules of the module that package and card are on."""

    info = replace(
        Counter.info,
        name="virtual.module",
        device="module.0",
        channels=(replace(Counter.info.channels[0], name="module.0.energy", device="module.0", domain=Domain.MODULE),),
    )
    curve = "module"


class Card:
    """Microjoules of a card, published every 100 ms, or as the machine says."""

    def __init__(self) -> None:
        facts = Facts(period_s=machine().card_ns / NS, quantum=1e-6, max_w=800.0, gain_pct=machine().gain_pct)
        channel = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU, 1e-6, facts=facts)
        self.info = GroupInfo("virtual.card", "virtual", "gpu.0", (channel,), tracked=True)

    def read(self) -> Sequence[Row]:
        at_ns, every_ns = machine().read(self.info.name), machine().card_ns
        published = (at_ns - CARD_PHASE_NS) // every_ns * every_ns + CARD_PHASE_NS
        joules = machine().energy_j("gpu", machine().origin_ns, published)
        return [Row(at_ns, at_ns - every_ns, at_ns, (round(1e6 * joules),))]

    def close(self) -> None: ...


class Board:
    """Mean watts of another card, of the last 100 ms and every 100 ms, or as the machine says."""

    def __init__(self) -> None:
        facts = Facts(period_s=machine().board_ns / NS, window_s=machine().window_ns / NS, max_w=800.0)
        channel = Channel("gpu.1.power", "W", Kind.GAUGE, "gpu.1", Domain.GPU, facts=facts)
        self.info = GroupInfo("virtual.board", "virtual", "gpu.1", (channel,), tracked=True)

    def read(self) -> Sequence[Row]:
        at_ns, every_ns, window_ns = machine().read(self.info.name), machine().board_ns, machine().window_ns
        published = (at_ns - GAUGE_PHASE_NS) // every_ns * every_ns + GAUGE_PHASE_NS
        mean_w = machine().energy_j("board", published - window_ns, published) / (window_ns / NS)
        return [Row(at_ns, at_ns - every_ns, at_ns, (mean_w,))]

    def close(self) -> None: ...


class Temperature:
    info = GroupInfo(
        "virtual.temperature",
        "virtual",
        "gpu.0",
        (Channel("gpu.0.temperature", "°C", Kind.GAUGE, "gpu.0"),),
        cadence=Cadence.SLOW,
    )

    def read(self) -> Sequence[Row]:
        return [fresh(machine().read(self.info.name), (40.0,))]

    def close(self) -> None: ...


class Processes:
    """Who ran: pid 101 half of the time on one CPU, 102 a quarter; and those that are followed."""

    info = GroupInfo("use.processes", "virtual", "host", (), cadence=Cadence.SLOW, table=True)

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = list(pids)
        self._read: set[int] = set()

    def read_table(self) -> tuple[int, list[dict[str, Any]]]:
        at_ns = machine().read(self.info.name)
        seconds = (at_ns - machine().origin_ns) / NS
        gone = [{"pid": pid, "start": pid, "gone": True} for pid in self._read.intersection(machine().ended)]
        self._read = set(SHARES) - set(machine().ended)
        rows = [
            {
                "pid": pid,
                "start": pid,
                "ppid": 1,
                "name": f"p{pid}",
                "uid": 1000,
                "user": machine().users.get(pid, "ada"),
                "cpu_s": share * seconds,
            }
            for pid, share in SHARES.items()
            if pid not in machine().ended
        ]
        others = [pid for pid in self.pids if pid not in SHARES]
        return at_ns, gone + rows + [
            {"pid": pid, "start": pid, "ppid": 1, "name": f"p{pid}", "cpu_s": 0.0} for pid in others
        ]

    def follow(self, pids: Sequence[int]) -> None:
        self.pids += pids

    def close(self) -> None: ...


class Tenants:
    """Who is on the card: the processes of `machine().tenants`, with half of its SM time each."""

    info = GroupInfo("virtual.processes", "virtual", "gpu", (), cadence=Cadence.SLOW, table=True)

    def read_table(self) -> tuple[int, list[dict[str, Any]]]:
        at_ns = machine().read(self.info.name)
        return at_ns, [{"pid": pid, "gpu": 0, "sm": 50.0, "memory_bytes": 2**30} for pid in machine().tenants]

    def follow(self, pids: Sequence[int]) -> None: ...

    def close(self) -> None: ...


class Sensors:
    """All of them, as one sensor named `virtual`."""

    name = "virtual"
    after = ()

    def __init__(self, request: Request) -> None:
        self.request = request

    def probe(self) -> Report:
        return Report("virtual", State.USABLE)

    def groups(self) -> Sequence[Any]:
        by_device = {"cpu": Counter, "gpu": Card, "board": Board, "module": Module}
        devices = [make() for device, make in by_device.items() if device in machine().curves]
        tables = [Processes(self.request.pids), *([Tenants()] if machine().tenants else [])]
        return [*devices, Temperature(), *tables]
