"""One tape being recorded: what clients send and sources deliver goes to its writer; no error of the file stops it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import NAN, GroupInfo, Kind, Row
from everywatt.core.clocks import NS, Clock, take_anchor
from everywatt.core.errors import EverywattError
from everywatt.core.spans import Note, Point, Span
from everywatt.recorder.schedule import Figures
from everywatt.recorder.source import SLOW_NS, Source
from everywatt.sensors import procfs
from everywatt.sensors.base import CgroupTable, ExitTable, TableRow, able
from everywatt.tape import schema
from everywatt.tape.accumulate import energy_channels
from everywatt.tape.writer import TapeWriter

if TYPE_CHECKING:
    from everywatt.recorder.wire import Message, Use
    from everywatt.tape.reader import Tape

ANCHOR_NS = 60 * NS
SPARE_BYTES = 192 << 10  # a small tape with the ends of spans, which a program writes where its own was not sealed
FLUSH_NS = NS
EARLY_NS = NS // 8  # a flush joins a wake-up that happens anyway, and one comes every 100 ms
SMALL_FLUSH_NS = 10 * NS
OTHERS_NS = 10 * NS  # what carries no energy is written this often: a frame of one row is mostly frame
LIVE_OTHERS_NS = 2 * NS
MOST_REMARKS = 200  # in memory; the tape has all
MOST_SHARED = 1000  # runs that a tape names as recorded beside it
MOST_UNFLUSHED = 1000  # messages: a burst of spans must not fill the memory


FAR_NS = 1 << 62


def last_rows(tape: Tape) -> dict[str, tuple[tuple[str, ...], Row]]:
    """The last row of each group of a tape with counters or energy, with the names of its channels."""
    found = {}
    for stored in tape.groups:
        counts = any(channel.kind is Kind.COUNTER for channel in stored.info.channels)
        if (counts or energy_channels(stored.info)) and (last := tape.frames(stored.id, FAR_NS)[-1:]):
            names = tuple(channel.name for channel in stored.info.channels)
            found[stored.info.name] = names, last[0].rows()[-1]
    return found


class Session:
    """An open tape. Listens to sources; takes the clients' messages.

    A segment that goes on from another (`meta["continues"]`, a file beside it) begins with the last rows of its
    counters: those went on while there was no recorder.
    """

    def __init__(
        self,
        path: Path,
        meta: Mapping[str, Any],
        period_ns: int,
        clock: Clock,
        proc: Path | str = "/proc",
        *,
        mode: int = 0o644,
    ) -> None:
        self.clock = clock
        self._proc = proc
        self.period_ns = period_ns
        self.started_ns = clock.monotonic_ns()
        self.writer = TapeWriter(path, meta, clock=clock, checkpoint_s=30.0, spare_bytes=SPARE_BYTES, mode=mode)
        self.sources: list[Source] = []
        self.figures: dict[str, Figures] = {}
        self.remarks: list[str] = []
        self.waiting: set[str] = set()
        self.tenants: Sequence[TableRow] | None = None
        self.program: tuple[int, ...] = ()  # the processes that measure themselves with it
        self._shared_with: list[str] = []
        self.flush_every_ns = SMALL_FLUSH_NS if meta.get("profile") == "small" else FLUSH_NS
        self.flush_ns = self.started_ns + self.flush_every_ns
        self._anchor_ns = self.started_ns + ANCHOR_NS
        self._others_ns = self.started_ns
        # It is being viewed live: what carries no energy has to appear soon, too.
        self._others_every_ns = (LIVE_OTHERS_NS if meta.get("live") else OTHERS_NS) - EARLY_NS
        self._numbers: dict[str, int] = {}
        self._closing_ns = 0
        self._unflushed = 0
        self._trouble: str | None = None
        self._rejected: set[str] = set()
        self._resumed = self._rows_before(path, meta.get("continues"))
        self.anchor()

    def _rows_before(self, path: Path, name: Any) -> dict[str, tuple[tuple[str, ...], Row]]:
        if not isinstance(name, str) or Path(name).name != name:
            return {}
        from everywatt.tape.reader import Tape  # few recordings go on from another

        try:
            with Tape.open(path.with_name(name), verify=False) as before:
                return last_rows(before)
        except (EverywattError, *schema.BROKEN, OSError, ValueError, KeyError, TypeError):
            return {}  # what was lost with it is a gap

    def add_group(self, info: GroupInfo, expected_s: float, asked_ns: int | None = None) -> None:
        """Make room for a group that is not read here but sent by the program (its inline reads)."""
        self._numbers[info.name] = self.writer.add_group(info, expected_s)
        self.figures[info.name] = Figures(asked_ns or self.period_ns, round(expected_s * NS), self.clock.monotonic_ns())
        names, row = self._resumed.pop(info.name, ((), None))
        counts = any(channel.kind is Kind.COUNTER for channel in info.channels)
        if row is not None and counts and names == tuple(channel.name for channel in info.channels):
            self.own_rows(info.name, [row])

    def listen(self, source: Source) -> None:
        """Record the rows of a source from now on."""
        slow = source.slow and self.period_ns < SLOW_NS
        self.add_group(source.info, source.expected_s(self.period_ns), SLOW_NS if slow else None)
        self.sources.append(source)
        source.listeners.append(self)

    def share(self, other: Session) -> None:
        """Another program records the same devices meanwhile: the tape names its run."""
        name = other.writer.path.parent.name
        if name not in self._shared_with and len(self._shared_with) < MOST_SHARED:
            self._shared_with.append(name)
            self._safely(self.writer.set_meta, "shared_with", self._shared_with)

    # What sources deliver.

    def rows(self, source: Source, rows: Sequence[Row]) -> None:
        name = source.info.name
        self.own_rows(name, rows)
        if name in self.waiting and rows[-1].early_ns + rows[-1].late_ns > 2 * self._closing_ns:
            self.waiting.discard(name)

    def own_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Rows that this process read itself, where there is no recorder."""
        if name in self._numbers:
            self.figures[name].rows += len(rows)
            self._safely(self.writer.append, self._numbers[name], rows)

    def table(self, source: Source, at_ns: int, rows: Sequence[TableRow]) -> None:
        self.figures[source.info.name].rows += 1
        if self.tenants is None and source.info.lists_gpu_processes:
            self.tenants = rows
        if rows:
            self._safely(self.writer.append_table, self._numbers[source.info.name], at_ns, rows)

    def gap(self, source: Source, start_ns: int, end_ns: int, kind: str) -> None:
        start_ns = max(start_ns, self.started_ns)
        if end_ns >= start_ns:
            self._safely(self.writer.gap, self._numbers[source.info.name], None, start_ns, end_ns, kind)

    def ticks(self, source: Source, late: int, missed: int) -> None:
        figures = self.figures[source.info.name]
        figures.late += late
        figures.missed += missed

    def remark(self, at_ns: int, kind: str, text: str, **data: Any) -> None:
        self.remarks.append(text)
        del self.remarks[:-MOST_REMARKS]
        self._safely(self.writer.note, Note(at_ns, kind, text, data))

    def followed(self, pids: Sequence[int], cgroup: str | None) -> None:
        """Note which processes this run is about, by pid and start; and the group that was made for them."""
        data: dict[str, Any] = {"pids": list(pids), "starts": [procfs.start_of(self._proc, pid) for pid in pids]}
        if cgroup is not None:
            data["cgroup"] = cgroup
            for source in self.sources:
                table = able(source.group, CgroupTable)
                if table is not None:
                    table.watch(cgroup)
        text = "This run is about the processes " + ", ".join(map(str, pids)) + "."
        self._safely(self.writer.note, Note(self.clock.monotonic_ns(), "follow", text, data))

    def read_tables(self) -> bool:
        """Read all tables now. True where the kernel reports the end of every process."""
        for source in self.sources:
            if source.info.table and source.outage is None:
                source.read_whole()
        tables = [able(source.group, ExitTable) for source in self.sources]
        return any(table is not None and table.exits for table in tables)

    def anchor(self) -> None:
        self._safely(self.writer.anchor, take_anchor(self.clock))

    # What clients send.

    def apply(self, message: Message) -> None:
        """Carry out `span_open`, `span_close`, `point` or `note`. KeyError, TypeError or ValueError on nonsense."""
        op = message["op"]
        self._unflushed += 1
        for edge in message.get("edges") or ():
            self._safely(self._edge, edge)
        if op == "span_open":
            span = Span(
                str(message["uid"]), str(message["name"]), int(message["at_ns"]), None, message.get("parent"),
                message.get("attributes") or {},
            )  # fmt: skip
            self._safely(self.writer.span_open, span)
        elif op == "span_close":
            self._safely(self.writer.span_close, str(message["uid"]), int(message["at_ns"]), message.get("attributes"))
        elif op == "point":
            point = Point(int(message["at_ns"]), str(message["name"]), message["value"], message.get("span"))
            self._safely(self.writer.point, point)
        elif op == "note":
            self.remark(
                int(message["at_ns"]), str(message["kind"]), str(message["text"]), **(message.get("data") or {})
            )
        else:
            raise ValueError(f"unknown operation '{op}'")

    def _edge(self, sent: Any) -> None:
        name, read_ns, early_ns, late_ns, values = sent
        if name in self._numbers:
            clean = tuple(NAN if value is None else float(value) for value in values)
            self.writer.edge(self._numbers[name], Row(int(read_ns), int(early_ns), int(late_ns), clean))

    # Time passing.

    @property
    def full(self) -> bool:
        """True where so much has come from clients that it should be written now."""
        return self._unflushed >= MOST_UNFLUSHED

    def tend(self, now_ns: int) -> None:
        if now_ns >= self._anchor_ns:
            self._anchor_ns = now_ns + ANCHOR_NS
            self.anchor()
        if now_ns >= self.flush_ns - EARLY_NS or self.full:
            self._unflushed = 0
            self.flush_ns = now_ns + self.flush_every_ns
            self._flush(now_ns)

    def _flush(self, now_ns: int) -> None:
        try:
            self.writer.flush(energy_only=now_ns < self._others_ns)
        except Exception as error:  # noqa: BLE001 - whatever the disk does, recording goes on
            if self._trouble is None:
                self.remark(now_ns, "tape", f"The tape could not be written: {error} Retrying.")
            self._trouble = str(error)
        else:
            if self._trouble is not None:
                self.remark(now_ns, "tape", "The tape can be written again.")
            self._trouble = None
            if now_ns >= self._others_ns:
                self._others_ns = now_ns + self._others_every_ns

    def _safely(self, function: Any, *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a client sends, recording goes on
            text = f"The tape rejected a row: {error}"
            if text not in self._rejected and len(self._rejected) < MOST_REMARKS:  # it may come with every span
                self._rejected.add(text)
                self.remark(self.clock.monotonic_ns(), "tape", text)

    def linger(self, now_ns: int) -> None:
        """From here on wait for one more publication of every tracked group, and every fed one, that answers."""
        self._closing_ns = now_ns
        coming = [s for s in self.sources if (s.tracker is not None or s.fed_s is not None) and s.outage is None]
        self.waiting = {source.info.name for source in coming}

    def patience_ns(self) -> int:
        """How long the rows of fed groups may take to come: two of their periods."""
        return round(2 * NS * max((source.fed_s or 0.0 for source in self.sources), default=0.0))

    def finish(self, meter: Use, written: Callable[[], None] = lambda: None) -> str | None:
        """Seal the tape; gives why it could not be sealed, or None. `written` is called when only sealing is left."""
        now_ns = self.clock.monotonic_ns()
        seen = {source.info.name: source.seen() for source in self.sources}
        for source in self.sources:
            source.leave(self, now_ns)
        self.anchor()
        for name, figures in self.figures.items():
            trouble = figures.trouble(now_ns)
            if trouble:
                self.remark(now_ns, "rate", f"{name}: {trouble}", group=name)
        quality = {name: {**figures.to_dict(now_ns), **seen.get(name, {})} for name, figures in self.figures.items()}
        self._safely(self.writer.set_meta, "quality", quality)
        self._safely(self.writer.set_meta, "meter", dict(meter))
        try:
            self.writer.flush()
            written()
            self.writer.seal()
        except Exception as error:  # noqa: BLE001 - the disk may do anything; what was flushed stays
            self._safely(self.writer.abandon)
            return f"{self.writer.path} could not be sealed: {error}"
        return None
