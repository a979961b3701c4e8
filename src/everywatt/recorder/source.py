"""One opened group, read once however many tapes want it: tracking, outages, rows that make no sense.

`Pool` holds all of them: one opened group for each target, device selection and options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from everywatt.core.channels import Cadence, GroupInfo, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import EverywattError, SensorError
from everywatt.core.jsonio import dumps
from everywatt.core.lazy_dataclass import dataclass
from everywatt.recorder.phase_lock import Tracker
from everywatt.sensors import registry
from everywatt.sensors.base import (
    FedGroup,
    Group,
    HurriedTable,
    RawGroup,
    Report,
    Request,
    Sensor,
    TableGroup,
    TableRow,
    TroubledGroup,
    able,
    checked,
)

SLOW_NS = NS
LONG_READ_NS = NS
LONG_RAW_NS = NS // 10
STEP_NS = NS // 10
HURRY_COST = 100  # a table that is read more often for a while may take one part in so many of the time
FIRST_RETRY_NS = NS // 10
LAST_RETRY_NS = 5 * NS
Read = tuple[int, int, Any]  # when it began and ended, and what came: rows, a table with its time, or raw


class Listener(Protocol):
    """A tape that wants the rows of a source."""

    period_ns: int

    def rows(self, source: Source, rows: Sequence[Row]) -> None: ...
    def table(self, source: Source, at_ns: int, rows: Sequence[TableRow]) -> None: ...
    def gap(self, source: Source, start_ns: int, end_ns: int, kind: str) -> None: ...
    def remark(self, at_ns: int, kind: str, text: str, **data: Any) -> None: ...
    def ticks(self, source: Source, late: int, missed: int) -> None: ...


@dataclass
class Outage:
    """A sensor that does not answer."""

    since_ns: int
    tries: int = 1

    @property
    def wait_ns(self) -> int:
        """How long to wait before the next try."""
        return min(FIRST_RETRY_NS << min(self.tries - 1, 10), LAST_RETRY_NS)


@dataclass(eq=False)
class Source:
    """A group and the tapes that listen to it. `read` never raises."""

    group: Group | TableGroup
    clock: Clock
    listeners: list[Listener] = field(default_factory=list)
    tracker: Tracker | None = None
    outage: Outage | None = None
    last: Row | None = None
    reads: int = 0
    usual_cost_ns: int = 0  # of the last few reads
    hurry_ns: int = 0  # until when a table is read more often, because a run is young
    _read_ns: int = 0
    _long: bool = False
    _trouble: str | None = None
    _raw: list[Read] = field(default_factory=list)
    _primary: float | None = None  # of the read before, where publications are foreseen
    info: GroupInfo = field(init=False)  # what the group says of itself

    def __post_init__(self) -> None:
        self.info = self.group.info
        whole = self.group.read_table if self.info.table else self.group.read  # type: ignore[union-attr]
        raw = able(self.group, RawGroup)
        self._fetch: Callable[[], Any] = whole if raw is None else raw.read_raw
        self._convert = None if raw is None else raw.to_rows
        self._fed, self._troubled = able(self.group, FedGroup), able(self.group, TroubledGroup)
        self.hurried = able(self.group, HurriedTable)

    @property
    def slow(self) -> bool:
        """True where once a second is enough."""
        return self.info.cadence is Cadence.SLOW or self.info.table

    def asked_ns(self) -> int:
        """The fastest period that a listener asks for; slow groups and tables at most once a second.

        A hurried table is read more often while a run is young, if that is cheap.
        """
        fastest = min((listener.period_ns for listener in self.listeners), default=SLOW_NS)
        if not self.slow:
            return fastest
        if self.hurried is None or fastest >= SLOW_NS or self.clock.monotonic_ns() >= self.hurry_ns:
            return max(fastest, SLOW_NS)
        often_ns = max(round(self.hurried.hurry_s * NS), HURRY_COST * self.usual_cost_ns)
        steps: int = -(-often_ns // STEP_NS)  # on the grid of the others, so that it adds no wake-up
        return min(steps * STEP_NS, SLOW_NS)

    @property
    def fed_s(self) -> float | None:
        """How often rows come to a group that is fed from elsewhere (a child process, a meter on the network)."""
        return None if self._fed is None else self._fed.rows_every_s

    def expected_s(self, period_ns: int) -> float:
        """How often rows come for a listener that asked for this period."""
        declared = self.fed_s
        if declared is None and self.info.tracked and self.info.channels:
            declared = self.info.channels[0].facts.period_s
        return max(period_ns, SLOW_NS if self.slow else 0, round((declared or 0.0) * NS)) / NS

    def read(self) -> bool:
        """Read once and hand on what came. False where the sensor failed."""
        before = self.clock.monotonic_ns()
        try:
            table = self.info.table
            came = self._checked(self.group.read_table() if table else self.group.read())  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - a plug-in may do anything
            self._failed(before, error)
            self._check_trouble(self.clock.monotonic_ns())
            return False
        after = self.clock.monotonic_ns()
        if self.outage is not None:
            self._recovered(after)
        if after - before > LONG_READ_NS and not self._long:
            self._long = True
            text = f"Reading {self.info.name} took {(after - before) / NS:.1f} s and delayed other sensors."
            self._remark(after, "slow-read", text, group=self.info.name)
        self._deliver([(before, after, came)])
        return True

    def _check_trouble(self, now_ns: int) -> None:
        if self._troubled is not None:
            try:
                trouble = self._troubled.trouble
            except Exception as error:  # noqa: BLE001 - a plug-in may do anything
                trouble = f"{type(error).__name__}: {error}"
            self._report_trouble(None if trouble is None else str(trouble), now_ns, "trouble")

    def read_whole(self) -> bool:
        """`read`, where a run begins or ends: a hurried table leaves nothing out."""
        if self.hurried is not None:
            self.hurried.ask_all()
        return self.read()

    def read_raw(self, earliest_ns: int, latest_ns: int) -> bool:
        """Read now, and look at it when it is time to `process`; False where that has to be at once.

        Nothing was read where it is too early, or where the sensor failed: an ordinary read then finds out why. The
        value of a tracked group must be another one than before, and read within the bounds, unless it is a probe,
        whose bounds are one instant.
        """
        before = self.clock.monotonic_ns()
        if before < earliest_ns:
            return False
        try:
            raw = self._fetch()
        except Exception:  # noqa: BLE001 - a plug-in may do anything; the ordinary read reports it
            return False
        after = self.clock.monotonic_ns()
        if raw is None:
            return False
        self._raw.append((before, after, raw))
        if self.tracker is None:
            return after - before < LONG_RAW_NS
        if latest_ns == earliest_ns:
            return True
        value = raw[0] if self._convert is not None else raw[0].values[0] if len(raw) == 1 else None
        primary, self._primary = self._primary, value
        return after <= latest_ns and value != primary

    def process(self) -> list[tuple[int, int]]:
        """Look at the raw reads and hand them on; gives when each began and ended."""
        reads, self._raw = self._raw, []
        if not reads:
            return []
        times = [(before, after) for before, after, _ in reads]
        try:
            found = self._converted(reads)
        except Exception as error:  # noqa: BLE001 - a plug-in may do anything
            if len(reads) > 1:  # what came before the one that cannot be read is good
                for one in reads:
                    self._raw = [one]
                    self.process()
                    if self.outage is not None:
                        break
            else:
                self._failed(reads[-1][1], error)
            return times
        self._deliver(found)
        return times

    def _deliver(self, reads: Sequence[Read]) -> None:
        """Hand on what these reads gave, and note what the last of them has cost."""
        rows = [] if self.info.table else self._publications(reads)
        before, after, _ = reads[-1]
        self.reads += len(reads)
        self._read_ns = after
        self.usual_cost_ns += (after - before - self.usual_cost_ns) // 4
        self._check_trouble(after)
        if self.info.table:
            for _, _, (at_ns, table) in reads:
                for listener in self.listeners:
                    listener.table(self, at_ns, table)
        self.hand_on(rows)

    def _checked(self, came: Any) -> Any:
        """Rows, or a table with its time, as clean data; an error where what a plug-in gave makes no sense."""
        if self.info.table:
            at_ns, table = came
            if not isinstance(table, list | tuple) or not all(isinstance(row, Mapping) for row in table):
                raise SensorError("invalid table: it is not a list of rows")
            return int(at_ns), table
        return [checked(row, self.info) for row in came]

    def _converted(self, reads: Sequence[Read]) -> list[Read]:
        if self._convert is None:
            return [(before, after, self._checked(came)) for before, after, came in reads]
        rows = self._checked(self._convert(reads))
        return [(before, after, [row]) for (before, after, _), row in zip(reads, rows, strict=True)]

    def _publications(self, reads: Sequence[Read]) -> list[Row]:
        """The rows of reads, as publications where the group is tracked."""
        tracker = self.tracker
        if tracker is None:
            return [row for _, _, rows in reads for row in rows]
        if any(len(rows) > 1 for _, _, rows in reads):
            self.tracker = None  # the driver keeps the publications itself
            return self._publications(reads)
        absent, last_ns = tracker.absent, reads[-1][1]
        found = [row for before, after, rows in reads if rows for row in tracker.feed(before, after, rows[0])]
        if not reads[-1][2]:
            tracker.lost(last_ns, last_ns + self.asked_ns())
        self.count(0, tracker.absent - absent)
        self._report_trouble(tracker.trouble, last_ns)
        return found

    def _report_trouble(self, trouble: str | None, at_ns: int, kind: str = "slow-sensor") -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                self._remark(at_ns, kind, trouble)

    def hand_on(self, rows: list[Row]) -> None:
        if rows:
            self.last = rows[-1]
            for listener in self.listeners:
                listener.rows(self, rows)

    def _failed(self, now_ns: int, error: Exception) -> None:
        why = str(error) if isinstance(error, EverywattError) else f"{type(error).__name__}: {error}"
        self.reads += 1
        if self.outage is None:
            self.outage = Outage(self._read_ns or now_ns)
            self._remark(now_ns, "sensor", f"{self.info.name} cannot be read: {why}", group=self.info.name)
        else:
            self.outage.tries += 1
        if self.tracker is not None:
            self.tracker.lost(now_ns, now_ns + self.outage.wait_ns)

    def _recovered(self, now_ns: int) -> None:
        outage, self.outage = self.outage, None
        if outage is None:
            return
        failed = f"{outage.tries} failed read{'' if outage.tries == 1 else 's'}"
        text = f"{self.info.name} is back after {(now_ns - outage.since_ns) / NS:.1f} s ({failed})."
        self._remark(now_ns, "sensor", text, group=self.info.name)
        for listener in self.listeners:
            listener.gap(self, outage.since_ns, now_ns, "lost")

    def _remark(self, at_ns: int, kind: str, text: str, **data: Any) -> None:
        for listener in self.listeners:
            listener.remark(at_ns, kind, text, **data)

    def seen(self) -> dict[str, Any]:
        """What the tracker has found out: how often the hardware publishes, how its phase is known."""
        if self.tracker is None:
            return {}
        period_ns, line = self.tracker.period_ns, self.tracker.line
        return {
            "publishes_s": None if period_ns is None else period_ns / NS,
            "phase": str(self.tracker.state),
            "jitter_s": None if line is None else round(line.jitter_ns / NS, 6),
        }

    def count(self, late: int, missed: int) -> None:
        """Report to the tapes ticks that were late or are missing."""
        if late or missed:
            for listener in self.listeners:
                listener.ticks(self, late, missed)

    def leave(self, listener: Listener, now_ns: int) -> None:
        """A tape does not want the rows any more; an outage that goes on is a gap to its end."""
        if listener in self.listeners:
            self.listeners.remove(listener)
            if self.outage is not None:
                listener.gap(self, self.outage.since_ns, now_ns, "lost")

    def close(self) -> None:
        try:
            self.group.close()
        except Exception:  # noqa: BLE001 - a plug-in may do anything; no tape is left that could note it
            pass


@dataclass
class _Entry:
    """A sensor that is open, and the sources of its groups that can be shared."""

    report: Report
    sources: list[Source]
    has_tables: bool


@dataclass
class Pool:
    """All open sources. `choose` opens what a tape wants and nothing twice."""

    clock: Clock
    entries: dict[str, _Entry] = field(default_factory=dict)

    def choose(
        self,
        targets: Mapping[str, str],
        request: Request,
        wanted: Sequence[str] | None,
        sign: Callable[[], None] = lambda: None,
    ) -> tuple[list[Source], list[Report]]:
        """The sources for a tape (its own tables, shared everything else) and what every sensor said.

        `sign` is called before each sensor is asked, which may take a while.
        """

        def ask(name: str, target: str, request: Request) -> tuple[registry.Opens | None, Report]:
            sign()
            return self._ask(name, target, request)

        choice = registry.choose(targets, request, wanted, ask=ask)
        return [group for group in choice.groups if isinstance(group, Source)], list(choice.reports)

    def _ask(self, name: str, target: str, request: Request) -> tuple[registry.Opens | None, Report]:
        key = _key(name, target, request)
        entry = self.entries.get(key)
        if entry is None or entry.has_tables:  # processes are followed for each tape apart
            sensor, report = registry.probe(name, target, request)
            if sensor is None or not report.usable:
                return sensor, report
            return _Shared(self, key, sensor, report), report
        return _Shared(self, key, None, entry.report), entry.report

    def together(self, source: Source) -> Sequence[Source]:
        """The sources that are opened and closed with this one, because one sensor made them; none for a table."""
        return next((entry.sources for entry in self.entries.values() if source in entry.sources), ())

    def drop(self, source: Source) -> None:
        """Close a source without listeners."""
        source.close()
        for key, entry in list(self.entries.items()):
            if source in entry.sources:
                entry.sources.remove(source)
                if not entry.sources:
                    del self.entries[key]


@dataclass
class _Shared:
    """Stands in for a sensor that was probed: its groups are sources, the shared ones taken from the pool."""

    pool: Pool
    key: str
    sensor: Sensor | None
    report: Report

    def groups(self) -> Sequence[Group | TableGroup]:
        entry = self.pool.entries.get(self.key)
        opened = list(self.sensor.groups()) if self.sensor is not None else []
        tables = [Source(group, self.pool.clock) for group in opened if group.info.table]
        others = [group for group in opened if not group.info.table]
        if entry is None:
            entry = _Entry(self.report, [Source(group, self.pool.clock) for group in others], bool(tables))
            if entry.sources:
                self.pool.entries[self.key] = entry
        else:
            for group in others:
                group.close()
        return [*entry.sources, *tables]  # type: ignore[list-item]


def _key(name: str, target: str, request: Request) -> str:
    machine = request.machine
    roots = [str(machine.sys), str(machine.proc), str(machine.dev)]
    options: Any = request.options.get(name) or {}
    return dumps([name, target, request.devices, request.estimate, options, roots])
