"""A sensor with a known truth: one counter that counts exactly 20 W, read inline too."""

from __future__ import annotations

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import SystemClock
from everywatt.sensors.base import Report, Request, State

WATTS = 20.0


class Counter:
    info = GroupInfo(
        "steady.cpu.0",
        "steady",
        "cpu.0",
        (
            Channel(
                "cpu.0.package.energy",
                "J",
                Kind.COUNTER,
                "cpu.0",
                Domain.PACKAGE,
                1e-9,
                facts=Facts(period_s=1e-6, quantum=1e-6, max_w=100.0, gain_pct=0.0, offset_w=0.0),
            ),
        ),
        inline=True,
    )

    def read(self) -> list[Row]:
        now = SystemClock().monotonic_ns()
        return [Row(now, now, now, (now * WATTS,))]

    def close(self) -> None:
        pass


class Steady:
    name = "steady"
    after = ()

    def __init__(self, request: Request) -> None:
        pass

    def probe(self) -> Report:
        return Report(self.name, State.USABLE, samples={"cpu.0.package.energy": WATTS})

    def groups(self) -> list[Counter]:
        return [Counter()]
