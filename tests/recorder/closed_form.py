"""A sensor in closed form for the recorder's tests: a counter of 10 W, a gauge, a tracked counter, processes, faults.

Which fault is said by the file that EVERYWATT_TEST_FAULT names: `raise`, `garbage`, `vanish`, `slow`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from everywatt.core.channels import Cadence, Channel, Domain, Facts, GroupInfo, Kind, Row, fresh
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Report, Request, State

WATTS = 10


def fault() -> str:
    path = os.environ.get("EVERYWATT_TEST_FAULT")
    try:
        return Path(path).read_text().strip() if path else ""
    except OSError:
        return ""


def count_read(name: str) -> None:
    folder = os.environ.get("EVERYWATT_TEST_READS")
    if folder:
        with open(os.path.join(folder, f"{name}-{os.getpid()}"), "a") as file:
            file.write(f"{time.monotonic_ns()}\n")


def microjoules(t_ns: int) -> float:
    return float(t_ns // 1000 * WATTS)


class Counter:
    facts = Facts(period_s=0.001, max_w=100.0)
    info = GroupInfo(
        "fake.counter",
        "fake",
        "cpu.0",
        (Channel("cpu.0.package.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, 1e-6, facts=facts),),
        inline=True,
    )

    def read(self):
        now = time.monotonic_ns()
        count_read("counter")
        what = fault()
        if what == "raise":
            raise SensorError("the device is lost")
        if what == "vanish":
            raise FileNotFoundError("energy_uj")
        if what == "garbage":
            return [(now, "yesterday", None)]
        if what == "slow":
            time.sleep(1.3)  # longer than a sensor may take
        return [fresh(now, (microjoules(now),), 1_000_000)]

    def close(self) -> None: ...


class Published:
    """Publishes every 100 ms, 37 ms after each tenth of a second."""

    facts = Facts(period_s=0.1)
    info = GroupInfo(
        "fake.gpu",
        "fake",
        "gpu.0",
        (Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU, 1e-6, facts=facts),),
        tracked=True,
    )

    def read(self):
        now = time.monotonic_ns()
        count_read("gpu")
        at = (now - 37_000_000) // 100_000_000 * 100_000_000 + 37_000_000
        return [Row(now, now - 100_000_000, now, (microjoules(at),))]

    def close(self) -> None: ...


class Gauge:
    info = GroupInfo(
        "fake.temperature",
        "fake",
        "gpu.0",
        (Channel("gpu.0.temperature", "°C", Kind.GAUGE, "gpu.0"),),
        cadence=Cadence.SLOW,
    )

    def read(self):
        return [fresh(time.monotonic_ns(), (40.0,))]

    def close(self) -> None: ...


class Processes:
    info = GroupInfo("fake.processes", "fake", "host", (), cadence=Cadence.SLOW, table=True)

    def __init__(self, pids) -> None:
        self.pids = list(pids)

    def read_table(self):
        return time.monotonic_ns(), [{"pid": pid} for pid in self.pids]

    def follow(self, pids) -> None:
        self.pids += pids

    def close(self) -> None: ...


class Fake:
    name = "fake"
    after = ()

    def __init__(self, request: Request) -> None:
        self.request = request

    def probe(self) -> Report:
        return Report("fake", State.USABLE)

    def groups(self):
        return [Counter(), Published(), Gauge(), Processes(self.request.pids)]
