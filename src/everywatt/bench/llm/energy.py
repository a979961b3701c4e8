"""The energy charged to queries: the server's energy while they were open, shared by what each of them got in that
time.

Of the ledger by process the server's processes are taken (active and held), and the idle of the devices that they use;
what other processes, everywatt itself and unused cards used is not. Where no process of the server is known it is the
whole machine. The joules of each device are then shared by the queries that were open: idle equally, the rest by tokens
that arrived.

A query has three phases: the queue (and attempts that failed), prefill, in which the server reads the prompt just
before the first token, and decode. Prefill lasts as long as the server says; where it does not say, as long as it takes
if a query does not have to wait. It counts like tokens at the run's median rate, and alone where the decodes of others
stand still meanwhile; a query in the queue gets nothing and is charged idle alone. Amounts are whole microjoules and
add up to the server's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from everywatt.api.run import Run
from everywatt.bench.llm.phases import NAMES, PHASES, Phases, phases_of
from everywatt.bench.llm.records import Record
from everywatt.core.budget import Budget
from everywatt.core.clocks import NS, union
from everywatt.core.device import is_gpu
from everywatt.core.energy import Energy, sum_energies
from everywatt.energy.sources import Source, addable, sources, splittable
from everywatt.energy.ticks import Ticks
from everywatt.energy.window import source_ticks, window_figures
from everywatt.ledger.build import ledger
from everywatt.ledger.engine import UJ, apportion, microjoules
from everywatt.ledger.idle import accept_net
from everywatt.ledger.levels import idle_levels
from everywatt.ledger.owners import Ledger, OwnerKind
from everywatt.ledger.span_sweep import Line, Stretches
from everywatt.ledger.spans import UseOfPids
from everywatt.ledger.use.account import tape_use
from everywatt.ledger.use.usage import Series
from everywatt.tape.columns import Floats, Ints
from everywatt.tape.reader import Tape

SERVER, MACHINE = "server", "machine"
FEWEST_TICKS = 3  # readings of the slowest sensor in a phase: with fewer its joules are those of its neighbours
EDGE_TICKS = 0.5  # on average half of the reading into which an edge falls is the neighbouring phase's
OF_THE_SPLIT = ("baseline", "split")  # sources of error that come from sharing and not from measuring


@dataclass(frozen=True, slots=True)
class QueryEnergy:
    """The gross energy of one query, and of its phases joules and how many ticks of the slowest sensor fell into each.

    Failed attempts are in the queue. `net_j` is None where energy above idle is refused. `devices` are the joules by
    device, `contested_j` those of its prefill and decode that were drawn while the server also decoded, or read, for
    other queries.
    """

    energy: Energy
    net_j: float | None
    phases: Mapping[str, tuple[float, int]]
    devices: Mapping[str, float] = field(default_factory=dict)
    contested_j: Mapping[str, float] = field(default_factory=dict)

    def phase(self, name: str) -> tuple[float, bool]:
        """Joules of `queue`, `prefill` or `decode`, and whether the sensor saw enough of it; no queue is 0 J."""
        joules, ticks = self.phases[name]
        return joules, ticks >= FEWEST_TICKS or (name == "queue" and not joules and not ticks)


@dataclass(frozen=True)
class Bill:
    """Energy of some queries. `gross` is the server and idle, `net` the server alone, `others` all other processes.

    `boundary` is `server` or `machine`, `about` says in words what is in it, `cpu_s` is the CPU time of its processes
    (None: not known). `queries` are by span id. `edge_j` is how
    far a phase may be off because its edges lie between two readings: all phases alike, and each by itself.
    """

    gross: Energy
    net: Energy
    others: Energy
    boundary: str
    about: str
    queries: Mapping[str, QueryEnergy]
    seconds: float
    tick_s: float | None = None
    edge_j: tuple[float, float] = (0.0, 0.0)
    cpu_s: float | None = None

    def phase_sides(self, name: str, covered: Sequence[QueryEnergy]) -> tuple[float, float]:
        """How many joules of these queries' prefill or decode may be the other phase's, and of the other theirs."""
        other = {"prefill": "decode", "decode": "prefill"}.get(name)
        if other is None:
            return 0.0, 0.0
        alike_j, by_itself_j = self.edge_j
        edges_j = alike_j * len(covered) + by_itself_j * math.sqrt(len(covered))
        mine = math.fsum(one.contested_j.get(name, 0.0) for one in covered)
        theirs = math.fsum(one.contested_j.get(other, 0.0) for one in self.queries.values())
        return mine + edges_j, theirs + edges_j


Edges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Asked:
    """The queries of one tape, and when each was open on that tape's clock, by span id."""

    tape: Tape
    records: tuple[Record, ...]
    edges: Edges

    @property
    def windows(self) -> list[tuple[int, int]]:
        """The time in which at least one of them was open."""
        return union([self.edges[record.span or ""] for record in self.records])


def bill(run: Run, records: Sequence[Record], boundary: str = SERVER) -> Bill:
    """The energy of these queries, refused with the reason where there is no figure."""
    return settle(asked_of(run, records), boundary, run.trouble, run.how_to_idle())


def asked_of(run: Run, records: Sequence[Record]) -> list[Asked]:
    """The queries and their earlier attempts by the tape that their spans are on; those without a span that ended are
    left out."""
    records = [one for record in records for one in (*record.earlier, record)]
    found = []
    for tape in run.tapes:
        edges = {
            span.id: (span.start_ns, span.end_ns)
            for span in tape.spans()
            if span.end_ns is not None and span.end_ns > span.start_ns
        }
        found.append(Asked(tape, tuple(record for record in records if record.span in edges), edges))
    return found


def settle(asked: Sequence[Asked], boundary: str = SERVER, notes: Sequence[str] = (), how_to_idle: str = "") -> Bill:
    """The energy of the queries of some tapes; `how_to_idle` says what to do where idle was not observed."""
    windows = [one.windows for one in asked]
    seconds = sum(end - start for one in windows for start, end in one) / NS
    if not any(one.records for one in asked):
        return refused("no query has a span on the tape", boundary)
    book = ledger([one.tape for one in asked], windows, "process", notes=notes)
    if book.total.joules is None:
        return refused(book.total.refused or "no energy was measured", boundary, seconds)
    if boundary == SERVER and not any(entry.owner.kind is OwnerKind.PROCESS for entry in book.entries):
        boundary = MACHINE
    accounts = _accounts(book, boundary)
    tick_s, edge_j = None, np.zeros(2)
    for one in asked:
        if one.records:
            share = _tape_weights(one, book, boundary)
            tick_s = max(filter(None, (tick_s, share.tick_s)), default=None)
            edge_j = np.maximum(edge_j, share.edge_j)
            accounts.weights.append(share)
    found = _with_attempts(accounts.settle(), [record for one in asked for record in one.records])
    net = _accepted(accounts, asked, how_to_idle)
    if net.joules is None:
        found = {span: replace(query, net_j=None) for span, query in found.items()}
    whole, edges_j = (accounts.gross, net, accounts.others), (float(edge_j[0]), float(edge_j[1]))
    used = [
        entry.use["cpu_s"] for entry in book.entries if entry.owner.kind in _kinds(boundary) and "cpu_s" in entry.use
    ]
    cpu_s = math.fsum(used) if used else None
    return Bill(*whole, boundary, about(boundary), found, seconds, tick_s, edges_j, cpu_s)


def _accepted(accounts: _Accounts, asked: Sequence[Asked], how_to_idle: str) -> Energy:
    """The net energy, as the one policy of idle accepts it on every tape with queries."""
    net = accounts.net
    for one, levels in zip(asked, idle_levels([one.tape for one in asked]), strict=True):
        if one.records and net.joules is not None:
            net = accept_net(net, _parts(accounts.gross), levels)
    return net if net.joules is not None else replace(net, refused=f"{net.refused}; {how_to_idle}".removesuffix("; "))


def _with_attempts(found: dict[str, QueryEnergy], records: Sequence[Record]) -> dict[str, QueryEnergy]:
    """The energy of each query with that of its earlier attempts, which then have none of their own."""
    for record in records:
        for attempt in record.earlier:
            before, last = found.pop(attempt.span or "", None), found.get(record.span or "")
            if before is None or last is None:
                continue
            devices = {
                name: before.devices.get(name, 0.0) + last.devices.get(name, 0.0)
                for name in {**before.devices, **last.devices}
            }
            queue_j, queue_ticks = last.phases["queue"]
            queue = queue_j + before.energy.value, queue_ticks + sum(ticks for _, ticks in before.phases.values())
            found[record.span or ""] = replace(
                last,
                energy=last.energy + before.energy,
                net_j=(last.net_j or 0.0) + (before.net_j or 0.0),
                phases={**last.phases, "queue": queue},
                devices=devices,
            )
    return found


def refused(why: str, boundary: str = SERVER, seconds: float = 0.0) -> Bill:
    none = Energy.refuse(why)
    return Bill(none, none, none, boundary, about(boundary), {}, seconds)


def about(boundary: str) -> str:
    when = "while at least one query was open"
    if boundary == SERVER:
        return (
            f"the server's processes and the idle energy of the devices that they use, {when}; without other "
            "processes and everywatt itself"
        )
    return f"the whole machine, {when}"


@dataclass(frozen=True)
class _Weights:
    """Of one tape: what the phases of each query weigh, by device, active and idle; and the phases' ticks.

    `own` is what measuring leaves open of the time of each query, as far as the devices' energy is the query's.
    `contested` is the part of the active weights in which the server read and decoded at once, `edge_j` of `Bill`.
    """

    spans: tuple[str, ...]
    active: Mapping[str, Floats]
    idle: Mapping[str, Floats]
    ticks: Ints
    own: tuple[Budget, ...]
    tick_s: float | None
    contested: Mapping[str, Floats]
    edge_j: Floats


@dataclass(frozen=True)
class _Accounts:
    """The server's joules by device, to be shared by what the queries of all tapes weigh; or a whole machine's."""

    gross: Energy
    net: Energy
    others: Energy
    idle_j: Mapping[str, float]
    whole: bool
    weights: list[_Weights] = field(default_factory=list)

    def settle(self) -> dict[str, QueryEnergy]:
        """The joules of each query."""
        spans = [span for one in self.weights for span in one.spans]
        count = len(spans)
        active, idle = np.zeros(PHASES * count), np.zeros(PHASES * count)
        labels = sorted({label for one in self.weights for label in one.active})
        active_uj = {label: microjoules(part.joules or 0.0) for label, part in _parts(self.net).items()}
        by_device, contested = np.zeros((len(labels), count)), np.zeros(PHASES * count)
        for place, label in enumerate(labels):
            one_active = np.concatenate([_of(label, one.active, one) for one in self.weights])
            one_idle = np.concatenate([_of(label, one.idle, one) for one in self.weights])
            idle_uj = microjoules(self.idle_j.get(label, 0.0))
            mine = _shared(active_uj.get(label, 0), one_active, one_idle)
            if self.whole:
                # Of a whole machine each query has what was drawn while it was open, whatever of that is called idle.
                rest = _shared(active_uj.get(label, 0) + idle_uj, one_active + one_idle, one_idle) - mine
            else:
                rest = _shared(idle_uj, one_idle, one_active)
            active += mine
            idle += rest
            if (whole := one_active.sum()) > 0:
                both = np.concatenate([_of(label, one.contested, one) for one in self.weights])
                contested += both * (mine.sum() / whole / UJ)
            by_device[place] = (mine + rest).reshape(-1, PHASES).sum(axis=1) / UJ
        nothing = np.zeros((0, PHASES), dtype=int)
        ticks = np.concatenate([nothing, *(one.ticks for one in self.weights)])
        own = [budget for one in self.weights for budget in one.own]
        both, net = ((active + idle) / UJ).reshape(-1, PHASES), (active / UJ).reshape(-1, PHASES)
        return {
            span: QueryEnergy(
                self._part(float(both[n].sum()), own[n]),
                float(net[n].sum()),
                {name: (float(both[n, place]), int(ticks[n, place])) for place, name in enumerate(NAMES)},
                {label: float(by_device[place, n]) for place, label in enumerate(labels)},
                {name: float(contested[PHASES * n + place]) for place, name in enumerate(NAMES)},
            )
            for n, span in enumerate(spans)
        }

    def _part(self, joules: float, own: Budget) -> Energy:
        """A query's energy: what measuring its own time leaves open, and its share of what splitting does."""
        share = joules / self.gross.value if self.gross.value else 0.0
        split = [term for term in self.gross.budget.scaled(share).terms if term.source in OF_THE_SPLIT]
        return replace(self.gross, joules=joules, budget=own + Budget(tuple(split)), parts=(), notes=())


def _of(label: str, weights: Mapping[str, Floats], one: _Weights) -> Floats:
    return weights.get(label, np.zeros(PHASES * len(one.spans)))


def _shared(whole_uj: int, weights: Floats, otherwise: Floats) -> Floats:
    for one in (np.maximum(weights, 0.0), np.maximum(otherwise, 0.0)):
        if one.sum() > 0:
            return np.array(apportion(whole_uj, one), dtype=np.float64)
    return np.zeros(len(weights))


def _parts(energy: Energy) -> dict[str, Energy]:
    return {label: part for label, part in energy.parts if part.joules is not None}


def _accounts(book: Ledger, boundary: str) -> _Accounts:
    unused = _unused_cards(book) if boundary == SERVER else set()
    whole_idle = [entry.energy for entry in book.entries if entry.owner.kind is OwnerKind.IDLE]
    idle = [one for energy in whole_idle for one in _of_devices(energy, lambda label: label not in unused)]
    not_ours = [one for energy in whole_idle for one in _of_devices(energy, lambda label: label in unused)]
    idle_j = {label: part.joules or 0.0 for one in idle for label, part in _parts(one).items()}
    nothing = replace(book.total, joules=0.0, budget=Budget(), parts=(), notes=())
    inside = _kinds(boundary)
    net = _together([entry.energy for entry in book.entries if entry.owner.kind in inside], nothing)
    left = set(OwnerKind) - inside - {OwnerKind.IDLE}
    rest = [entry.energy for entry in book.entries if entry.owner.kind in left]
    others = _together([*rest, *not_ours], nothing)
    gross = _together([net, *idle], nothing)
    return _Accounts(replace(gross, notes=book.notes), net, others, idle_j, boundary == MACHINE)


def _kinds(boundary: str) -> set[OwnerKind]:
    """The owners within a boundary, beside idle."""
    return {OwnerKind.PROCESS} if boundary == SERVER else set(OwnerKind) - {OwnerKind.IDLE}


def _unused_cards(book: Ledger) -> set[str]:
    """GPUs on which no process of the server was. None, where it is not known which process uses which card."""
    seen: dict[OwnerKind, set[str]] = {}
    for entry in book.entries:
        used = {label for label, part in _parts(entry.energy).items() if is_gpu(label) and part.value > 0}
        seen.setdefault(entry.owner.kind, set()).update(used)
    mine, unknown = seen.get(OwnerKind.PROCESS, set()), seen.get(OwnerKind.UNATTRIBUTED, set())
    if unknown and not mine:
        return set()
    return seen.get(OwnerKind.IDLE, set()) - mine


def _of_devices(energy: Energy, wanted: Callable[[str], bool]) -> list[Energy]:
    """The parts of an energy that are of certain devices: all of it, some of its parts, or none."""
    parts = [(label, part) for label, part in energy.parts if wanted(label)]
    if len(parts) == len(energy.parts):
        return [energy] if parts or wanted("") else []
    return [replace(part, scope=energy.scope, parts=((label, part),)) for label, part in parts]


def _together(energies: Sequence[Energy], nothing: Energy) -> Energy:
    """The sum of several owners' energy, by device too: a device that only one of them has is kept."""
    whole = sum_energies([nothing, *(one for one in energies if one.joules is not None)], join_scopes=True)
    parts = tuple((label, part) for label, part in whole.parts if part.joules is not None)
    return replace(nothing, joules=whole.joules, budget=whole.budget, parts=parts)


def _tape_weights(asked: Asked, book: Ledger, boundary: str) -> _Weights:
    tape, records, windows = asked.tape, asked.records, asked.windows
    phases = phases_of(records, asked.edges)
    pieces, worked, lines = phases
    share = _server_share(tape) if boundary == SERVER else None
    active: dict[str, Floats] = {}
    idle: dict[str, Floats] = {}
    ticks: Ints | None = None
    budgets: list[list[Budget]] = [[] for _ in records]
    open_ns = [np.array(side) for side in zip(*(asked.edges[record.span or ""] for record in records), strict=True)]
    tick_s: float | None = None
    unsure: dict[str, Floats] = {}
    edge_j = np.zeros(2)
    for source in addable(splittable(sources(tape))):
        loaded = source_ticks(source, windows[0][0], windows[-1][1])
        if loaded is None:
            continue
        idle_w = float(book.idle.get(source.label, {}).get("watts", 0.0))
        totals = np.zeros(len(lines)), np.zeros(len(lines))
        unsure[source.label] = np.zeros(len(lines))
        for start_ns, end_ns in windows:
            cut = Stretches.cut(worked, start_ns, end_ns)
            joules, base = _drawn(loaded, cut, idle_w)
            mine = (joules - base) * _fraction(share, source, cut.edges_ns)
            for joules, into in ((mine, totals[0]), (mine * phases.contested(cut), unsure[source.label])):
                into += cut.by_use(joules, len(lines), np.arange(len(lines)), lambda n: lines[n])[0]
            cut = Stretches.cut(pieces, start_ns, end_ns)
            _, base = _drawn(loaded, cut, idle_w)
            totals[1][:] += cut.equally(base, PHASES * len(records))
        active[source.label], idle[source.label] = totals
        at_ns = loaded.at_ns[loaded.real]
        counted = np.searchsorted(at_ns, pieces.end_ns) - np.searchsorted(at_ns, pieces.start_ns)
        ticks = counted if ticks is None else np.minimum(ticks, counted)
        tick_s = max(tick_s or 0.0, loaded.expected_s)
        edge_j += _edge_j(loaded, windows, phases)
        mine = (totals[0] + totals[1]).reshape(len(records), -1).sum(axis=1)
        for own, joules, figure in zip(budgets, mine, window_figures(source, loaded, *open_ns), strict=True):
            if figure.value > 0:
                own.append(figure.budget.scaled(min(joules / figure.value, 1.0)))
    by_phase = np.zeros((len(records), PHASES), dtype=np.int64) if ticks is None else ticks.reshape(-1, PHASES)
    return _Weights(
        tuple(record.span or "" for record in records),
        active,
        idle,
        by_phase,
        tuple(Budget.sum(own) for own in budgets),
        tick_s,
        unsure,
        edge_j,
    )


def _edge_j(loaded: Ticks, windows: Sequence[tuple[int, int]], phases: Phases) -> Floats:
    """How far a phase may be off for its edges, which fall into readings: by the difference of power with and without a
    prompt being read, which is the same at all edges, and by the standard deviation of the readings, which is not."""
    starts, ends = (np.array(side) for side in zip(*windows, strict=True))
    at = loaded.at_ns
    inside = (np.searchsorted(starts, at) > np.searchsorted(ends, at)) & loaded.real & np.isfinite(loaded.watts)
    if np.count_nonzero(inside) < FEWEST_TICKS:
        return np.zeros(2)
    apart_s = np.diff(at, prepend=at[0])[inside] / NS
    watts, usual_s = loaded.watts[inside], float((apart_s**2).sum() / apart_s.sum())
    busy = phases.reading(at[inside], at[inside])
    contrast_w = 0.0 if busy.all() or not busy.any() else abs(float(watts[busy].mean() - watts[~busy].mean()))
    return EDGE_TICKS * usual_s * np.array([contrast_w, float(watts.std())])


def _drawn(loaded: Ticks, cut: Stretches, idle_w: float) -> tuple[Floats, Floats]:
    """Joules of each stretch, and how many of them are idle."""
    joules = np.maximum(np.nan_to_num(loaded.many(cut.edges_ns[:-1], cut.edges_ns[1:])[0]), 0.0)
    return joules, np.minimum(joules, idle_w * np.diff(cut.edges_ns) / NS)


def _server_share(tape: Tape) -> tuple[Line, Series] | None:
    """CPU seconds of the followed processes over time, and of the host."""
    use = tape_use(tape)
    if use.processes is None or use.busy is None:
        return None
    of_pid = UseOfPids(use)
    found = [of_pid(pid, "cpu.0") for pid in use.processes.seen]
    lines = [line for line in found if line is not None and len(line[0])]
    if not lines:
        return None
    at = np.unique(np.concatenate([line[0] for line in lines]))
    return (at, sum((np.interp(at, *line) for line in lines), np.zeros(len(at)))), use.busy


def _fraction(share: tuple[Line, Series] | None, source: Source, edges_ns: Ints) -> Floats:
    """The server's part of what the host's CPUs did in each stretch; 1 where that is not known, and for GPUs."""
    whole = np.ones(len(edges_ns) - 1)
    if share is None or is_gpu(source.label):
        return whole
    line, busy = share
    mine = np.interp(edges_ns[1:], *line) - np.interp(edges_ns[:-1], *line)
    host = np.nan_to_num(busy.used(edges_ns[:-1], edges_ns[1:]))
    return np.clip(np.divide(mine, host, out=whole, where=host > 0), 0.0, 1.0)
