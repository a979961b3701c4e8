"""Large sealed tapes in a short time: the same bytes that recording and sealing would leave, made with numpy."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.jsonio import dumps
from everywatt.tape import codec, schema
from everywatt.tape.accumulate import Cum, pack_cum
from everywatt.tape.sealing import Tally, frame_rows

START_NS = 1_000_000_000_000
PERIOD_NS = 100_000_000
_TAGS = ((np.int8, codec.DIFF_1), (np.int16, codec.DIFF_2), (np.int32, codec.DIFF_4))


@dataclass(frozen=True)
class Group:
    """A group of `info`, and whether its gauges are noise that no encoding makes smaller."""

    info: GroupInfo
    noisy: bool = False


def machine(noisy: bool = False) -> list[Group]:
    """8 GPUs, 2 packages and the host: 40 channels."""
    groups = []
    for i in range(8):
        facts = Facts(period_s=0.1, window_s=0.1, quantum=0.001, max_w=400.0, gain_pct=5.0, offset_w=2.0)
        name, energy = f"gpu.{i}", f"gpu.{i}.energy"
        channels = (
            Channel(energy, "J", Kind.COUNTER, name, Domain.GPU, 1e-3, facts=facts),
            Channel(f"{name}.power", "W", Kind.GAUGE, name, Domain.GPU, 1e-3, Pedigree.INTEGRATED, energy, facts),
            Channel(
                f"{name}.power_average", "W", Kind.GAUGE, name, Domain.GPU, 1e-3, Pedigree.INTEGRATED, energy, facts
            ),
            Channel(f"{name}.utilisation", "%", Kind.GAUGE, name),
        )
        groups.append(Group(GroupInfo(f"nvml.{name}.power", "nvml", name, channels, tracked=True), noisy))
    for i in range(2):
        facts = Facts(period_s=0.001, quantum=6.1e-5, max_w=200.0)
        channels = tuple(
            Channel(f"cpu.{i}.{part}.energy", "J", Kind.COUNTER, f"cpu.{i}", domain, 1e-6, facts=facts)
            for part, domain in (("package", Domain.PACKAGE), ("core", Domain.CORE))
        )
        groups.append(Group(GroupInfo(f"rapl.cpu.{i}", "rapl", f"cpu.{i}", channels, inline=True), noisy))
    host = tuple(
        Channel(f"host.{part}", unit, kind, "host")
        for part, unit, kind in (
            ("cpu_time", "s", Kind.COUNTER), ("idle_time", "s", Kind.COUNTER),
            ("steal_time", "s", Kind.COUNTER), ("memory", "B", Kind.GAUGE),
        )
    )  # fmt: skip
    return [*groups, Group(GroupInfo("use.host", "use", "host", host), noisy)]


def one_gauge() -> list[Group]:
    """One card whose power is published once a millisecond."""
    facts = Facts(period_s=0.001, window_s=0.001, quantum=0.001, max_w=2000.0, gain_pct=5.0, offset_w=2.0)
    channel = Channel("gpu.0.power", "W", Kind.GAUGE, "gpu.0", Domain.GPU, 1e-3, Pedigree.INTEGRATED, None, facts)
    return [Group(GroupInfo("nvml.gpu.0.power", "nvml", "gpu.0", (channel,)))]


def build(
    path: Path,
    rows: int,
    *,
    noisy: bool = False,
    seed: int = 1,
    groups: list[Group] | None = None,
    period_ns: int = PERIOD_NS,
    spike: tuple[int, float] | None = None,
) -> int:
    """A sealed tape with `rows` rows of every group, one a period; gives its ticks (values).

    `spike` gives one row of the gauges another raw value.
    """
    groups = groups or machine(noisy)
    random = np.random.default_rng(seed)
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in ("page_size=4096", "journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("BEGIN")
    db.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={schema.VERSION}")
    for statement in schema.TABLES.values():
        db.execute(statement)
    counts: dict[str, list[int]] = {table: [0, 0] for table in schema.COLUMNS if table != "seal"}
    _insert(db, counts, "meta", [("host", dumps({"name": "bench"}))])
    infos = [(i, dumps({**g.info.to_dict(), "expected_period_s": period_ns / 1e9})) for i, g in enumerate(groups, 1)]
    _insert(db, counts, "grp", infos)
    utc_ns = 1_700_000_000_000_000_000
    _insert(db, counts, "anchor", [(1, START_NS, utc_ns, START_NS, 100)])
    _insert(db, counts, "frame", _frames(groups, rows, random, period_ns, spike))
    for statement in schema.INDEXES.values():
        db.execute(statement)
    db.execute(schema.INSERT["seal"], codec.sealed_row("seal", (1, START_NS + rows * period_ns, dumps(counts))))
    db.execute("COMMIT")
    db.close()
    return rows * sum(len(group.info.channels) for group in groups)


def _insert(db, counts, table, rows):
    tally = Tally()
    db.executemany(schema.INSERT[table], tally.over(codec.sealed_row(table, row) for row in rows))
    counts[table] = tally.result()


def _frames(groups, rows, random, period_ns, spike):
    number = 0
    for place, group in enumerate(groups, 1):
        state = _State(group, random, period_ns, spike)
        for seq, first in enumerate(range(0, rows, state.most), 1):
            number += 1
            n = min(state.most, rows - first)
            first_ns, last_ns, cum, data = state.frame(first, n)
            yield number, place, seq, first_ns, last_ns, n, cum, data


class _State:
    """What the channels of a group have accumulated, frame after frame."""

    def __init__(
        self, group: Group, random: np.random.Generator, period_ns: int, spike: tuple[int, float] | None
    ) -> None:
        self.period_ns, self.spike, self.first = period_ns, spike, 0
        self.channels = group.info.channels
        self.noisy = group.noisy
        self.random = random
        self.most = frame_rows(len(self.channels))
        self.counts = [0.0] * len(self.channels)
        self.started = [None] * len(self.channels)
        self.totals = [0.0] * len(self.channels)
        self.last_ns = 0
        self.observed = 0
        self.noise = random.normal(200_000.0, 40_000.0, self.most)

    def frame(self, first: int, n: int) -> tuple[int, int, bytes, bytes]:
        self.first = first
        published = START_NS + (first + np.arange(n, dtype=np.int64)) * self.period_ns
        read = published + self.random.integers(self.period_ns // 50, self.period_ns // 2, n)
        width = self.random.integers(self.period_ns // 111, self.period_ns // 50, n) // 2 * 2
        late = published + width // 2
        columns = [_ints(read), _ints(read - late), _ints(width)]
        held = np.diff(published, prepend=self.last_ns or published[0])
        cums = []
        for index, channel in enumerate(self.channels):
            values, steps = self._values(index, channel, n, held)
            columns.append(
                (codec.PLAIN, values.tobytes()) if self.noisy and channel.kind is Kind.GAUGE else _floats(values)
            )
            if channel.carries_energy:
                total = self.totals[index] + float(steps[0])
                cums.append(Cum(total, self.observed + int(held[0]), float(values[0]), int(published[0])))
                self.totals[index] = float(np.cumsum(np.concatenate(([self.totals[index]], steps)))[-1])
        self.observed += int(held.sum())
        self.last_ns = int(published[-1])
        data = codec.encode_frame(columns, n)
        return int(published[0]), self.last_ns, pack_cum(cums, int(published[0])), data

    def _values(self, index, channel, n, held):
        """The channel's values, and what each of them adds to what has accumulated."""
        if channel.kind is Kind.COUNTER:
            steps = self.random.integers(10_000, 30_000, n).astype(np.float64)
            values = self.counts[index] + np.cumsum(steps)
            self.counts[index] = float(values[-1])
            if self.started[index] is None:
                self.started[index] = True
                steps[0] = 0.0
            return values, steps
        if self.noisy:
            values = self.noise[:n]
        elif channel.unit == "%":
            values = self.random.integers(0, 101, n).astype(np.float64)
        else:
            values = self.random.integers(100_000, 300_000, n).astype(np.float64)
        if self.spike is not None and self.first <= self.spike[0] < self.first + n:
            values[self.spike[0] - self.first] = self.spike[1]
        return values, values * held


def _ints(values: np.ndarray) -> tuple[int, bytes]:
    return codec._smallest(*(_steps(values, values[:1].tobytes()) or (codec.PLAIN, values.tobytes())))


def _floats(values: np.ndarray) -> tuple[int, bytes]:
    steps = _steps(values.astype(np.int64), values[:1].tobytes())
    return codec._smallest(*(steps or (codec.PLAIN, values.tobytes())))


def _steps(values: np.ndarray, first: bytes) -> tuple[int, bytes] | None:
    steps = np.diff(values)
    for kind, tag in _TAGS:
        limits = np.iinfo(kind)
        if limits.min <= steps.min(initial=0) and steps.max(initial=0) <= limits.max:
            return tag, first + steps.astype(kind).tobytes()
    return None
