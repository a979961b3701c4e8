"""Small tapes with a known truth, for tests."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS, Anchor
from everywatt.core.spans import Span
from everywatt.tape import codec, schema
from everywatt.tape.sealing import Tally
from everywatt.tape.writer import TapeWriter

ORIGIN_NS = 5_000 * NS
UTC_NS = 1_700_000_000 * NS


def counter_group(
    device: str = "cpu.0",
    domain: Domain = Domain.PACKAGE,
    *,
    inline: bool = False,
    mirror: Channel | None = None,
    **facts: Any,
) -> GroupInfo:
    """A group with one energy counter in joules, and a mirror of it where given."""
    channel = Channel(f"{device}.{domain}.energy", "J", Kind.COUNTER, device, domain, facts=Facts(**facts))
    channels = (channel,) if mirror is None else (channel, mirror)
    return GroupInfo(f"test.{device}.{domain}", "test", device, channels, inline=inline)


def gauge_group(
    device: str = "gpu.0", domain: Domain = Domain.GPU, pedigree: Pedigree = Pedigree.INTEGRATED, **facts: Any
) -> GroupInfo:
    """A group with one power gauge in watts."""
    channel = Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=pedigree, facts=Facts(**facts))
    return GroupInfo(f"test.{device}.power", "test", device, (channel,))


def at(seconds: float) -> int:
    """Monotonic nanoseconds of a time after the tape's origin."""
    return ORIGIN_NS + round(seconds * NS)


def rows(value: Callable[[float], float], start_s: float, end_s: float, period_s: float) -> list[Row]:
    """One row every period with the value at its publication; published exactly then, read 2 ms later."""
    count = math.floor((end_s - start_s) / period_s + 1e-9)
    times = [start_s + index * period_s for index in range(count + 1)]
    return [Row(at(t) + 2_000_000, at(t), at(t), (value(t),)) for t in times]


def write_tape(
    path: Path,
    groups: Sequence[tuple[GroupInfo, float, Sequence[Row]]],
    spans: Sequence[tuple[str, float, float | None, str | None, dict[str, Any]]] = (),
    edges: Sequence[tuple[int, Row]] = (),
    *,
    host: str = "box",
    seal: bool = True,
    **meta: Any,
) -> Path:
    """A sealed tape with these groups (info, expected period, rows), spans (name, start, end, parent, attributes)."""
    writer = TapeWriter(path, {"host": {"name": host}, "period_s": 0.1, "tags": {"project": "alpha"}, **meta})
    writer.anchor(Anchor(ORIGIN_NS, UTC_NS, ORIGIN_NS, 0))
    numbers = []
    for info, period_s, ticks in groups:
        numbers.append(writer.add_group(info, period_s))
        writer.append(numbers[-1], ticks)
    for index, (name, start, end, parent, attributes) in enumerate(spans):
        writer.span_open(Span(f"s{index}", name, at(start), None, parent, attributes))
        if end is not None:
            writer.span_close(f"s{index}", at(end))
    for group, row in edges:
        writer.edge(numbers[group], row)
    writer.flush()
    if seal:
        return writer.seal()
    writer.abandon()
    return path


def forge(path: Path, table: str, row: Any, column: str, value: Any) -> bool:
    """Put a value into a row (its key or number), with the right checksums. False where there is no such row."""
    key, *_ = columns = schema.COLUMNS[table]
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        found = db.execute(f"{schema.SELECT[table]} WHERE {key}=?", (row,)).fetchone()
        if found is None and table != "meta":
            return False
        values = dict(zip(columns, found or (row, None), strict=False)) | {column: value}
        db.execute(schema.REPLACE[table], codec.sealed_row(table, [values[name] for name in columns]))
        seal = db.execute(schema.SELECT["seal"]).fetchone()
        if seal is not None:
            tally = Tally()
            for entry in db.execute(f"SELECT crc FROM {table} ORDER BY {key}"):
                tally.add(*entry)
            counts = json.dumps(json.loads(seal[2]) | {table: tally.result()})
            db.execute(schema.REPLACE["seal"], codec.sealed_row("seal", (*seal[:2], counts)))
    return True


def starved_rows(seed, seconds=120.0, low_w=100.0, high_w=300.0, half_s=2.0, publishes_s=0.1):
    """A counter under a square, as a recorder that gets little CPU time reads it.

    It reads 0.1 to 0.8 s after the read before, and only knows that the newest publication was since then; for some
    seconds now and then it knows the schedule, and so each publication to 2 ms.
    """
    chance, found, since = random.Random(seed), [], 0.0

    def joules(t):
        cycles, rest = divmod(t, 2 * half_s)
        return cycles * half_s * (low_w + high_w) + low_w * min(rest, half_s) + high_w * max(rest - half_s, 0.0)

    while since < seconds:
        after = since + chance.uniform(0.1, 0.8)
        published = math.floor(after / publishes_s) * publishes_s
        known = chance.random() < 0.5 if seed % 2 and 5 < since % 15 < 10 else False
        early, late = (published - 0.001, published + 0.001) if known else (since, after)
        if published > since and (not found or at((early + late) / 2) > found[-1].late_ns):
            found.append(Row(at(max(after, late)), at(early), at(late), (joules(published),)))
        since = after
    return found
