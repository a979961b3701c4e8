"""Small tapes with a truth that is written down."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_clock import FakeClock

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import take_anchor
from everywatt.core.spans import Note, Point, Span
from everywatt.tape.writer import TapeWriter

PERIOD_NS = 100_000_000


def counter(name: str = "gpu.0.energy", *, wrap: float | None = None, max_w: float | None = None) -> Channel:
    return Channel(
        name, "J", Kind.COUNTER, "gpu.0", Domain.GPU, 1e-3, facts=Facts(wrap=wrap, max_w=max_w, period_s=0.1)
    )


def gauge(name: str = "gpu.0.power", domain: Domain | None = Domain.GPU) -> Channel:
    return Channel(name, "W" if domain else "%", Kind.GAUGE, "gpu.0", domain, 1e-3 if domain else 1.0)


def group(*channels: Channel, name: str = "gpu.0", table: bool = False) -> GroupInfo:
    return GroupInfo(name, "test", "gpu.0", channels, table=table)


def row(at_ns: int, *values: float, read_ns: int | None = None, width_ns: int = 0) -> Row:
    """A row that was published at `at_ns`."""
    late = at_ns + width_ns // 2
    return Row(late if read_ns is None else read_ns, late - width_ns, late, values)


@dataclass
class Small:
    """A small tape of everything, and its truth: 100 W for `rows` − 1 periods."""

    path: Path
    rows: int
    counts: float
    value_ns: float
    start_ns: int


def write_small(path: Path, *, rows: int = 60, flush_every: int = 10, seal: bool = True) -> Small:
    clock = FakeClock()
    random_ = random.Random(7)
    writer = TapeWriter(path, {"host": "here", "tag": "small"}, clock=clock)
    writer.anchor(take_anchor(clock))
    gpu = writer.add_group(group(counter(wrap=2.0**20, max_w=700.0), gauge(), gauge("gpu.0.utilisation", None)), 0.1)
    procs = writer.add_group(group(name="use.processes", table=True), 1.0)
    writer.span_open(Span("s1", "run", clock.now_ns, attributes={"k": 1}))
    start_ns = clock.now_ns
    for i in range(rows):
        value = float((2**20 - 100_000 + i * 10_000) % 2**20)
        writer.append(gpu, [row(clock.now_ns, value, 100_000.0, float(random_.randrange(101)), width_ns=2_000_000)])
        if i % flush_every == flush_every - 1:
            writer.append_table(procs, clock.now_ns, [{"pid": 1, "cpu_s": i / 10}, {"pid": 22, "cpu_s": 0.5}])
            writer.point(Point(clock.now_ns, "loss", 1.0 / (i + 1), "s1"))
            writer.flush()
        clock.advance(0.1)
    writer.edge(gpu, row(clock.now_ns, 5.0, 1.0, 2.0))
    writer.span_close("s1", clock.now_ns, {"done": True})
    writer.note(Note(clock.now_ns, "late", "A tick was late.", {"ms": 3}))
    writer.anchor(take_anchor(clock))
    if seal:
        writer.seal()
    else:
        writer.flush()
        writer._db.close()
    return Small(path, rows, 10_000.0 * (rows - 1), 100_000.0 * (rows - 1) * PERIOD_NS, start_ns)


class Lab:
    """The helpers above, for tests (which import nothing from one another)."""

    period_ns = PERIOD_NS
    counter = staticmethod(counter)
    gauge = staticmethod(gauge)
    group = staticmethod(group)
    row = staticmethod(row)
    write_small = staticmethod(write_small)


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    return Lab
