"""Live joules per token: token counters of language-model servers beside the ledger's joules of their processes.

A server is an owner in an account of its own for every device, charged with the same intervals, idle levels and uses
as the agent's owners. Its active joules at the instant of each scrape (straight between two settlements) are
shared by its models, and divided by the tokens of the last minute. Held and idle energy are not in the ratio.

What the counters cannot say widens the interval. Models of one server are shared by tokens, where a token of one model
may cost up to `MODEL_COST` times that of another. Phases are shared by the time in them where the server counts that;
requests that overlap are summed there, so the engine's own time is bounded by how many ran at once, and the active
power of one phase may be up to `PHASE_POWER` times that of the other. Where a server counts tokens when requests end,
those that were under way at both ends of the minute count as unknown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from everywatt.core.budget import Budget, Term
from everywatt.core.clocks import NS, Clock
from everywatt.core.stats import Z95
from everywatt.fleet.llm_servers import MOST_MODELS, Engine, Scrape, Scraper, Server, Target, Tokens
from everywatt.ledger.counters import ANYTHING, OTHER, Factors, OwnerKey
from everywatt.ledger.engine import (
    ACTIVE_J,
    ACTIVE_NOISE,
    ASSUMED,
    HELD_J,
    HELD_NOISE,
    NO_HOLDERS,
    OWNED_S,
    USED,
    DeviceAccount,
)
from everywatt.ledger.split.intervals import budgets, occupancy
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.ledger.use.owner_use import GpuTime, OwnedUse, OwnerUse

if TYPE_CHECKING:
    from everywatt.fleet.device_counters import Line

WINDOW_NS = 60 * NS
LATE_NS = 5 * NS  # a sensor that has not been read for longer is not waited for
MODEL_COST = 3.0
PHASE_POWER = 2.0
REST_ADVICE = "let the server rest for 30 s while the agent runs, which then keeps the level"
WIDEST = 10.0  # no figure is given if the upper end is more than this many times the lower one
POINTS = 32  # settlements that are kept of a device: scrapes come soon after their instant
WHOLE_J, SECONDS, USED_SQUARES = 0, 1, 2  # places in a device's sums; then come those of the others and of each server
BEFORE = 3
SUMS = (ACTIVE_J, ACTIVE_NOISE, USED, HELD_J, HELD_NOISE, OWNED_S)
IDLE_J = -1  # beside them: what was taken off for idle in the time that an owner owned
AT = {name: place for place, name in enumerate((*SUMS, IDLE_J))}
Labels = tuple[tuple[str, str], ...]
Doubt = Callable[["Line"], tuple[float, int | None]]  # `Watcher.doubt`


class Figure(NamedTuple):
    """Joules per token with the ends of the 95 % interval."""

    value: float
    low: float
    high: float


class Sums(NamedTuple):
    """What a device had counted at an instant. `edge_j` bounds how far the server's joules may be off there."""

    values: tuple[float, ...]
    edge_j: float = 0.0

    def of(self, owner: int, sum_: int) -> float:
        """A sum of the others (0) or of a server (1, 2, …)."""
        return self.values[BEFORE + owner * len(AT) + AT[sum_]]


@dataclass(slots=True)
class _Device:
    """A device's account, and what it had counted at its last settlements."""

    line: Line
    account: DeviceAccount[OwnerKey] = field(default_factory=DeviceAccount)
    seconds: float = 0.0
    idle_j: dict[OwnerKey, float] = field(default_factory=dict)
    points: deque[tuple[int, tuple[float, ...]]] = field(default_factory=lambda: deque(maxlen=POINTS))

    def add(
        self, joules: float, seconds: float, uses: Mapping[OwnerKey, float], holders: Mapping[OwnerKey, float]
    ) -> None:
        """One interval, at the line's idle level."""
        level = self.line.level
        if level is not None:
            before = {owner: row[OWNED_S] for owner, row in self.account.owners.items()}
            self.account.add(joules, seconds, level, uses, holders)
            for owner, row in self.account.owners.items():
                owned_s = row[OWNED_S] - before.get(owner, 0.0)
                self.idle_j[owner] = self.idle_j.get(owner, 0.0) + level.idle_w * owned_s

    def note(self, keys: Sequence[OwnerKey]) -> None:
        """Keep the sums as they are at the line's last tick."""
        rows = self.account.owners
        others = [owner for owner in rows if owner not in keys]
        values = [self.account.whole_j, self.seconds, self.account.used_squares]
        for owners in (others, *([key] for key in keys)):
            there = [rows[owner] for owner in owners if owner in rows]
            values += [sum(row[place] for row in there) for place in SUMS]
            values.append(sum(self.idle_j.get(owner, 0.0) for owner in owners))
        self.points.append((self.line.settled_ns, tuple(values)))

    def at(self, at_ns: int, owner: int) -> Sums:
        """The sums at an instant, straight between the settlements around it."""
        before = next((point for point in reversed(self.points) if point[0] <= at_ns), self.points[0])
        after = next((point for point in self.points if point[0] >= at_ns), self.points[-1])
        if after[0] <= before[0]:
            return Sums(before[1])
        share = min(max((at_ns - before[0]) / (after[0] - before[0]), 0.0), 1.0)
        values = tuple(a + share * (b - a) for a, b in zip(before[1], after[1], strict=True))
        step_j = Sums(after[1]).of(owner, ACTIVE_J) - Sums(before[1]).of(owner, ACTIVE_J)
        return Sums(values, abs(step_j) * max(share, 1 - share))


@dataclass(slots=True)
class Counted:
    """A counter of joules with the ends of its 95 % interval: each increment has what was known of it then."""

    joules: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def add(self, joules: float, factors: Factors) -> None:
        self.joules += joules
        self.low += joules * factors.low
        self.high += joules * factors.high


class Mark(NamedTuple):
    """A scrape joined with the joules at its instant, and what had been charged to each model by then."""

    scrape: Scrape
    sums: Mapping[str, Sums]
    joules: Mapping[str, float]


@dataclass
class Join:
    """One server: charges to its models since the agent started, and its figures now."""

    server: Server
    number: int
    counted: dict[str, Counted] = field(default_factory=dict)
    tokens: dict[str, Tokens] = field(default_factory=dict)
    other: Counted = field(default_factory=Counted)
    held: Counted = field(default_factory=Counted)
    figures: dict[tuple[str, str], Figure] = field(default_factory=dict)
    refused: str = "its counters have not been read yet"
    up: bool = False
    _charged_j: float = 0.0
    _marks: deque[Mark] = field(default_factory=deque)
    # Intervals of what is counted next.
    _factors: dict[int, Factors] = field(default_factory=lambda: {ACTIVE_J: ANYTHING, HELD_J: ANYTHING})

    def take(self, scrape: Scrape, devices: Mapping[str, _Device], doubt: Doubt) -> None:
        """Join one scrape. After a failed one and after a restart of the server, charging restarts."""
        self.up, self.figures = not scrape.trouble, {}
        if scrape.trouble:
            self._marks.clear()
            self.refused = scrape.trouble
            return
        sums = {name: device.at(scrape.at_ns, self.number) for name, device in devices.items()}
        active_j = math.fsum(one.of(self.number, ACTIVE_J) for one in sums.values())
        if self._marks and all(device.line.level is not None for device in devices.values()):
            for which in (ACTIVE_J, HELD_J):
                joules, budget = self._budget(devices, doubt, self._marks[0].sums, sums, which)
                if joules > 0:
                    self._factors[which] = Factors.of(budget, joules)
        held_j = math.fsum(one.of(self.number, HELD_J) for one in sums.values())
        self.held.add(max(held_j - self.held.joules, 0.0), self._factors[HELD_J])
        before = self._marks[-1].scrape.models if self._marks else None
        if before is None or any(model not in scrape.models for model in before):
            fresh = None
        else:
            fresh = {model: now.since(before.get(model, Tokens())) for model, now in scrape.models.items()}
        if fresh is None or any(min(more[:2]) < 0 for more in fresh.values()):
            self._marks.clear()
            self._charge_other(active_j)
        elif any(more.prompt or more.generated for more in fresh.values()):
            self._charge(active_j, fresh)
        elif scrape.running == 0:
            self._charge_other(active_j)
        self._marks.append(Mark(scrape, sums, {model: one.joules for model, one in self.counted.items()}))
        while len(self._marks) > 2 and scrape.at_ns - self._marks[1].scrape.at_ns >= WINDOW_NS:
            self._marks.popleft()
        self.refused = self._find_figures(devices, doubt)

    def _charge_other(self, active_j: float) -> None:
        self.other.add(max(active_j - self._charged_j, 0.0), self._factors[ACTIVE_J])
        self._charged_j = max(self._charged_j, active_j)

    def _charge(self, active_j: float, fresh: Mapping[str, Tokens]) -> None:
        due_j, shares = max(active_j - self._charged_j, 0.0), model_shares(fresh)
        self._charged_j += due_j
        for model, more in fresh.items():
            # Names come from the server: beyond so many they are one.
            name = model if model in self.tokens or len(self.tokens) < MOST_MODELS else "other"
            had = self.tokens.get(name, Tokens())
            self.tokens[name] = Tokens(*(a + max(b, 0.0) for a, b in zip(had, more, strict=True)))
            share, least, most = shares[model]
            if share > 0:
                low, high = self._factors[ACTIVE_J]
                factors = Factors(low * least / share, high * most / share)
                self.counted.setdefault(name, Counted()).add(share * due_j, factors)

    def _find_figures(self, devices: Mapping[str, _Device], doubt: Doubt) -> str:
        """Compute the figures of the window; returns the reason if that fails."""
        first, last = self._marks[0], self._marks[-1]
        if self.server.unknown:
            return self.server.unknown
        for name, device in devices.items():
            level = device.line.level
            if level is None:
                return f"{name}: its idle power is not known yet"
            if level.method in ASSUMED and last.sums[name].of(self.number, ACTIVE_J) > 0:
                return f"{name}: its idle power was never observed: {REST_ADVICE}"
            if last.scrape.at_ns - device.points[-1][0] > LATE_NS and last.sums[name].of(self.number, ACTIVE_J) > 0:
                return f"{name}: it is not read any more"
        fresh = {
            model: now.since(first.scrape.models.get(model, Tokens())) for model, now in last.scrape.models.items()
        }
        if not any(more.generated > 0 for more in fresh.values()):
            return "no tokens were generated in the last minute"
        active_j, budget = self._budget(devices, doubt, first.sums, last.sums, ACTIVE_J)
        charged_j = math.fsum(last.joules.values()) - math.fsum(first.joules.values())
        below_j, above_j = budget.sides(active_j)
        if min(active_j, charged_j) <= 0 or below_j >= active_j:
            largest = next(iter(budget.by_source()), "")
            return (
                "it shares its devices with other programs" if largest == "split" else "it draws too little above idle"
            )
        shares = model_shares(fresh)
        served = {model: more for model, more in fresh.items() if more.generated > 0}
        for model, more in served.items():
            joules = active_j * (last.joules.get(model, 0.0) - first.joules.get(model, 0.0)) / charged_j
            share, least, most = shares[model]
            unsure = self._tokens_under_way(model) / more.generated
            low = max(1 - math.hypot(below_j / active_j, unsure), 0.0) * least / share
            high = (1 + math.hypot(above_j / active_j, unsure)) * most / share
            self._put(model, "all", joules / more.generated, low, high)
            # With several models, the time of one contains waiting for the others.
            for phase, part, tokens in self._phases(more) if len(served) == 1 else ():
                if tokens > 0 and part.value > 0:
                    value = part.value * joules / tokens
                    self._put(model, phase, value, low * part.low / part.value, high * part.high / part.value)
        return "" if self.figures else "too few requests ended in the last minute"

    def _put(self, model: str, phase: str, value: float, low: float, high: float) -> None:
        if value > 0 and low > 0 and high / low <= WIDEST:
            self.figures[model, phase] = Figure(value, value * low, value * high)

    def _budget(
        self,
        devices: Mapping[str, _Device],
        doubt: Doubt,
        first: Mapping[str, Sums],
        last: Mapping[str, Sums],
        sum_: int,
    ) -> tuple[float, Budget]:
        """The server's active (or held) joules between two instants, and their error budget over all devices."""
        found: list[Budget] = []
        whole_j = 0.0
        for name, device in devices.items():
            if name not in first:
                continue
            start, end = first[name], last[name]
            more = Sums(tuple(b - a for a, b in zip(start.values, end.values, strict=True)))
            level = device.line.level
            assert level is not None
            # With the idle level that is known by now, whatever it was when the joules were charged.
            mine_j = more.of(self.number, sum_)
            if sum_ == ACTIVE_J:
                mine_j += more.of(self.number, IDLE_J) - level.idle_w * more.of(self.number, OWNED_S)
            if mine_j <= 0:
                continue
            whole_j += mine_j
            servers = range((len(more.values) - BEFORE) // len(AT))
            others = [number for number in servers if number != self.number]
            charged_j = math.fsum(more.of(number, which) for number in servers for which in (ACTIVE_J, HELD_J))
            rest_j = max(charged_j - more.of(self.number, sum_), 0.0)
            idle_j = max(more.values[WHOLE_J] - mine_j - rest_j, 0.0)
            owned_s = [more.of(self.number, OWNED_S), math.fsum(more.of(number, OWNED_S) for number in others), 0.0]
            unsure, cpus = doubt(device.line)
            used = [more.of(self.number, USED), math.fsum(more.of(number, USED) for number in others), 0.0]
            occupied = occupancy(used, more.values[USED_SQUARES], cpus)
            whole = device.line.budget(more.values[WHOLE_J], more.values[SECONDS])
            owed_j, idles_j = [mine_j, rest_j, 0.0], [0.0, 0.0, idle_j]
            made = budgets(
                *(whole, name, level, ["server", "others", "idle"], owed_j, idles_j, owned_s, [0.0] * 3, unsure),
                occupied,
            )
            noise = more.of(self.number, ACTIVE_NOISE if sum_ == ACTIVE_J else HELD_NOISE)
            noise_j = Z95 * math.sqrt(max(noise, 0.0))
            edges = [Term("edges", f"edge:{name}:{end}", width) for end, width in enumerate((start.edge_j, end.edge_j))]
            found += [made[0], Budget((*edges, Term("noise", f"noise:{name}", noise_j)))]
        return whole_j, Budget.sum(found)

    def _tokens_under_way(self, model: str) -> float:
        """95 % half-width of tokens that were made on one side of an end of the window and counted on the other.

        No request that ended had more tokens than were counted between two scrapes; of one that was under way any part
        may have been made.
        """
        engine = self._marks[-1].scrape.engine
        if engine is None or not engine.at_end:
            return 0.0
        counts = [mark.scrape.models.get(model, Tokens()).generated for mark in self._marks]
        most = max(b - a for a, b in pairwise(counts))
        running = sum(1.0 if m.scrape.running is None else m.scrape.running for m in (self._marks[0], self._marks[-1]))
        return Z95 * most * math.sqrt(running / 12)

    def _phases(self, more: Tokens) -> list[tuple[str, Figure, float]]:
        """The shares of prefill and decode in a model's joules, each with its tokens; empty if unknown."""
        engine = self._marks[-1].scrape.engine
        running = [mark.scrape.running or 0.0 for mark in self._marks]
        mean, most = math.fsum(running) / len(running), max(running)
        share = prefill_share(more, engine, mean, most)
        if share is None:
            return []
        decode = Figure(1 - share.value, 1 - share.high, 1 - share.low)
        return [("prefill", share, more.prompt), ("decode", decode, more.generated)]


def model_shares(fresh: Mapping[str, Tokens]) -> dict[str, tuple[float, float, float]]:
    """Each model's share of a server's active joules, with its least and most; the shares add up to 1.

    A prompt token costs between nothing and as much as a generated one; the middle of the two shares is taken.
    """
    found: dict[str, tuple[float, float, float]] = {}
    for model in fresh:
        means, least, most = [], 1.0, 0.0
        for weight in (0.0, 1.0):
            work = {name: max(one.generated + weight * one.prompt, 0.0) for name, one in fresh.items()}
            whole, mine = math.fsum(work.values()), work[model]
            if whole <= 0:
                continue
            rest = max(whole - mine, 0.0)
            means.append(mine / whole)
            least = min(least, mine / (mine + MODEL_COST * rest) if mine else 0.0)
            most = max(most, MODEL_COST * mine / (MODEL_COST * mine + rest) if mine else 0.0)
        found[model] = (sum(means) / len(means), least, most) if means else (0.0, 0.0, 0.0)
    return found


def prefill_share(more: Tokens, engine: Engine | None, mean: float, most: float) -> Figure | None:
    """Prefill's share of a model's active joules, with its bounds; None where the server does not count times.

    `mean` and `most` are the requests that ran at once.
    """
    prefill_s, decode_s = more.prefill_s, more.decode_s
    if engine is None or prefill_s <= 0 or decode_s <= 0:
        return None
    mean, most = (1.0, 1.0) if engine.exclusive else (max(mean, 1.0), max(most, 1.0))
    # Requests that run are in one phase or the other, so the engine was busy for the sum over both by how many ran. If
    # prefills never overlap, which is usual, theirs is the engine's own time; at worst all of them do.
    low = prefill_s / (prefill_s + decode_s)
    share, high = min(mean * low, 1.0), min(most * low, 1.0)
    return Figure(share, _at_power(low, 1 / PHASE_POWER), _at_power(high, PHASE_POWER))


def _at_power(share: float, ratio: float) -> float:
    return share * ratio / (share * ratio + 1 - share)


class LlmBook:
    """All servers of an agent. Fed by its watcher: tables as they come, joules when they are settled."""

    def __init__(self, targets: Sequence[Target], clock: Clock, proc: Path, token: str | None) -> None:
        self.scraper = Scraper(targets, clock, proc, token)
        self.joins = [Join(server, number) for number, server in enumerate(self.scraper.servers, 1)]
        self._keys = [OwnerKey("llm", server.target.name) for server in self.scraper.servers]
        self._claimed = {device: key for key, t in zip(self._keys, targets, strict=True) for device in t.devices}
        self._cpu: OwnerUse | None = None  # the agent's, once it was read
        self._owners: dict[tuple[int, int | None], OwnerKey] = {}
        self._roots: dict[int, OwnerKey] = {}
        self._use = OwnedUse()
        self._devices: dict[str, _Device] = {}
        self._exported: dict[str, set[Labels]] = {}

    def _owner(self, process: ProcessFacts) -> OwnerKey:
        """The server that a process is of, or descends from."""
        known = self._owners.get((process.pid, process.start))
        if known is None:
            at: ProcessFacts | None = process
            known, seen = self._roots.get(process.pid), set[int]()
            while known is None and at is not None and at.pid not in seen:
                seen.add(at.pid)
                known, at = self._roots.get(at.ppid or 0), self._facts(at.ppid)
            known = self._owners[process.pid, process.start] = known or OTHER
        return known

    def _facts(self, pid: int | None) -> ProcessFacts | None:
        return None if self._cpu is None or pid is None else self._cpu.facts_of(pid)

    def take_uses(self, cpu: OwnerUse, use: OwnedUse) -> None:
        """What the agent's owners used since the last time, by server; called before the joules of that time come."""
        self._cpu = cpu
        roots = {pid: key for key, server in zip(self._keys, self.scraper.servers, strict=True) for pid in server.pids}
        if roots != self._roots or len(self._owners) > 4 * len(cpu.alive) + 64:
            self._roots = roots
            self._owners.clear()
        self._use = OwnedUse(cpu.packages)
        for facts, cpu_s, on in cpu.taken:
            self._use.add(self._owner(facts), cpu_s, on, facts.workload)
        rest_s = sum(use.uses.values()) - sum(self._use.uses.values())
        if rest_s > 0:  # what cgroups or the host used beyond all processes
            self._use.add(OTHER, rest_s)

    def add(
        self,
        line: Line,
        joules: float,
        seconds: float,
        gpu_time: GpuTime | None,
        package: int | None = None,
        cores_s: float | None = None,
    ) -> None:
        """One interval of a device of the total, with who used it if it is a GPU, else with where (`OwnedUse.on`)."""
        device = self._devices.setdefault(line.device, _Device(line))
        device.seconds += seconds
        uses: Mapping[OwnerKey, float]
        holders: Mapping[OwnerKey, float] = NO_HOLDERS
        claimed = self._claimed.get(line.channel.device)
        if claimed is not None:
            uses = holders = {claimed: 1.0}
        elif gpu_time is not None:
            uses, holders = gpu_time.by_owner(self._of_pid)
        else:
            uses = self._use.on(package, cores_s)
        device.add(joules, seconds, uses, holders)
        device.note(self._keys)

    def _of_pid(self, pid: int) -> OwnerKey:
        facts = self._facts(pid)
        return OTHER if facts is None else self._owner(facts)

    def join(self, now_ns: int, doubt: Doubt) -> None:
        """Join the scrapes whose instant all devices have passed by now."""
        reached_ns = min((device.points[-1][0] for device in self._devices.values()), default=0)
        for one in self.joins:
            scrapes = one.server.scrapes
            while self._devices and scrapes and (scrapes[0].at_ns <= reached_ns or scrapes[0].at_ns < now_ns - LATE_NS):
                one.take(scrapes.popleft(), self._devices, doubt)

    def series(self) -> dict[str, dict[Labels, float | None]]:
        """All series by name and labels; None for those that had a value before and have none now."""
        found: dict[str, dict[Labels, float | None]] = {}

        def put(name: str, value: float, **labels: str) -> None:
            found.setdefault(f"everywatt_llm_{name}", {})[tuple(labels.items())] = round(value, 9)

        def put_energy(name: str, one: Counted, **labels: str) -> None:
            for end, joules in (("", one.joules), ("low_", one.low), ("high_", one.high)):
                put(f"{name}_{end}joules_total", joules, **labels)

        for one in self.joins:
            server = one.server.target.name
            put("up", float(one.up), server=server)
            if one.refused:
                put("refused_info", 1.0, server=server, reason=one.refused)
            put_energy("other_energy", one.other, server=server)
            put_energy("held_energy", one.held, server=server)
            for model, tokens in one.tokens.items():
                put("tokens_total", tokens.prompt, server=server, model=model, phase="prefill")
                put("tokens_total", tokens.generated, server=server, model=model, phase="decode")
                put_energy("energy", one.counted.get(model, Counted()), server=server, model=model)
            for (model, phase), figure in one.figures.items():
                for suffix, value in (("", figure.value), ("_low", figure.low), ("_high", figure.high)):
                    put(f"joules_per_token{suffix}", value, server=server, model=model, phase=phase)
        for name, labels in self._exported.items():
            for gone in labels - found.get(name, {}).keys():
                found.setdefault(name, {})[gone] = None
        self._exported = {name: {key for key, value in row.items() if value is not None} for name, row in found.items()}
        return found
