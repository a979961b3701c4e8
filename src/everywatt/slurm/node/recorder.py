"""What a node does for its jobs: takes events from the spool, books the tape, puts records into the store.

Everything that must survive is in one state file beside the spool, replaced whole; an event is forgotten when what it
said is there. So a kill at any moment loses nothing, and does nothing twice that matters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Protocol

from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.errors import EverywattError
from everywatt.core.machine import boot_id
from everywatt.energy.sources import addable, sources, splittable
from everywatt.ledger.use.account import PROCESSES
from everywatt.slurm.node import scontrol
from everywatt.slurm.node.booking import (
    SCRAP_S,
    book,
    book_doubt,
    book_unseen,
    horizon_s,
    learn_idle,
    merge_hours,
    move_to_jobs,
    sensor_of,
    with_unseen,
)
from everywatt.slurm.node.cards import CardOrder, card_order
from everywatt.slurm.node.node_jobs import NO_START, NodeJob, NodeJobs
from everywatt.slurm.node.spool import Event, forget, put_aside, quarantined, read_events
from everywatt.slurm.node.state import STATE, Account, State, record
from everywatt.slurm.node.tapes import SAME_BOOT_NS, bridge_end_ns, bridged, gpu_uuids, looks_ns, name_processes
from everywatt.slurm.schema import JobOnNode, NodeHour
from everywatt.slurm.site.sacct import total_cpu_s
from everywatt.slurm.site.store import Store
from everywatt.tape.reader import Tape

WENT_DOWN: Final = "the node went down while it ran"
UNSEEN_S: Final = 5.0
HOOK_S: Final = 1.0
SLOW_S: Final = 3.0  # asking takes so long at most before the spool is looked at again
AT_ONCE: Final = 64  # jobs that one call asks for
RETRIES: Final = 2  # a controller that is busy answers the next time
TRYING: Final = "trying.json"
TRIES: Final = 2
LOOKS: Final = 60  # a file of the spool that cannot be read for so many seconds is put aside
LATE_S: Final = 900.0  # a hook may report a job so long after its processes were charged to the system
OPEN_S: Final = 86_400.0  # no hour stays open for longer
LATEST_S: Final = 60.0  # a job is recorded with what there is when the tape has not reached its end for so long


class Watch(Protocol):
    """Gets to know when jobs start and end."""

    def started(self, job: NodeJob) -> None:
        """A job has started, or more is known of it."""
        ...

    def ended(self, job: NodeJob) -> None:
        """A job has ended."""
        ...


class Node:
    """One node of a cluster. `tapes` gives the tapes that cover a stretch of UTC time, oldest first.

    `ask`, `pids` and `cpu_time_s` (CPU seconds of a run that has ended) are Slurm's answers; `watch` gets jobs,
    `announce` records that are in the store.
    """

    def __init__(
        self,
        name: str,
        spool: Path,
        store: Store,
        tapes: Callable[[float, float], Iterable[Tape]],
        *,
        ask: Callable[[Sequence[int], str, str], Mapping[int, dict[str, Any]]] = scontrol.show_jobs,
        pids: Callable[[int, str, str], dict[int, tuple[int, str]]] = scontrol.list_pids,
        cpu_time_s: Callable[[int, float, float, str], float | None] = total_cpu_s,
        watch: Watch | None = None,
        announce: Callable[[NodeJob, JobOnNode], None] | None = None,
        clock: Clock | None = None,
        boot: str | None = None,
    ) -> None:
        self.name, self.spool, self.store = name, spool, store
        self._tapes, self._ask, self._pids, self._cpu_time_s = tapes, ask, pids, cpu_time_s
        self._clock: Clock = clock or SystemClock()
        self._watch, self._announce = watch, announce
        self._asked: set[str] = set()
        self._unknown: dict[str, None] = {}  # runs of jobs that scontrol is still to be asked of, oldest first
        self._tried: dict[str, int] = {}
        self._ended_ns: dict[str, int] = {}  # when (monotonic) it was first known that a run of a job had ended
        self._heard_s: float | None = None
        self._taken: dict[Path, Event] = {}  # what they said is known and could not be kept yet
        self._hours_wait = False
        self._past: set[int] = set()  # hours that are over, stay open, and are in the store as of now
        self._troubles: dict[str, str] = {}
        self._orders: dict[str, CardOrder] = {}  # of cards, by the slurm.conf that numbers them
        self._path = spool / STATE
        self._suspects = _read_tries(spool)  # events that were being taken when a process died, and how often
        self._unread: dict[Path, int] = {}  # what of the spool could not be read, and how often in a row
        self._aside: list[str] | None = None
        self.state = State.read(self._path)
        self._jobs = NodeJobs(self.state.jobs, self.state.recorded)
        boot = boot_id() if boot is None else boot
        if self.state.boot and self.state.boot != boot:
            self._jobs.close_all(self.state.seen_s, WENT_DOWN)
        self.state.boot = boot
        self._booted_s = (self._clock.utc_ns() - self._clock.boottime_ns()) / NS
        self._seen_before_s = self.state.seen_s
        for job in self._jobs.jobs.values():
            if watch is not None and job.end_s is None:
                watch.started(job)

    def _now_s(self) -> float:
        return self._clock.utc_ns() / NS

    @property
    def trouble(self) -> str:
        """What cannot be written at present, "" where all can. Nothing is lost by it: it is tried again."""
        return "; ".join(dict.fromkeys(self._troubles.values()))

    @property
    def running(self) -> int:
        return sum(job.end_s is None for job in self._jobs.jobs.values())

    @property
    def waiting(self) -> int:
        """How many jobs have ended and are not recorded yet."""
        return sum(job.end_s is not None for job in self._jobs.jobs.values())

    def listen(self) -> int:
        """Take what the hooks said since; gives how many events there were."""
        heard_s, unread = self._now_s(), list[Path]()
        events = [event for event in read_events(self.spool, unread) if event.path not in self._taken]
        if unread:
            heard_s = self._heard_s or (self.state.booked_s or 0.0) + HOOK_S  # nothing more is booked until it is read
        self._unread = {path: self._unread.get(path, 0) + 1 for path in unread}
        for path in (path for path, looks in self._unread.items() if looks > LOOKS and path.suffix == ".event"):
            put_aside(path, self.spool)
        # What was being taken when a process died is taken by itself, so that the next time shows which event it was.
        suspects = [[event] for event in events if event.path.name in self._suspects]
        rest = [event for event in events if event.path.name not in self._suspects]
        ours = sum(self._take(group, heard_s) for group in (rest, *suspects))
        self._jobs.close_all(self._seen_before_s, WENT_DOWN, self._booted_s)  # what no recorder heard before a reboot
        self._report_quarantine()
        return ours

    def _take(self, events: Sequence[Event], heard_s: float) -> int:
        """Take some events; gives how many were ours. One that ended a process twice, or failed twice, is put aside."""
        ours = 0
        tried = {event.path.name: self._suspects.get(event.path.name, 0) + 1 for event in events}
        if events:
            self._note_tries({**self._suspects, **tried})
        for event in events:
            if tried[event.path.name] > TRIES:
                put_aside(event.path, self.spool)
                continue
            try:
                ours += self._take_one(event)
            except Exception as error:  # noqa: BLE001 - one event must not stop the others
                self._suspects[event.path.name] = tried.pop(event.path.name)
                self._troubles["event"] = f"{event.path.name}: {type(error).__name__}: {error}"
        self._heard_s = heard_s
        self._ask_for_some()
        self.state.seen_s = self._now_s()
        self._save()
        for name in tried:
            self._suspects.pop(name, None)
        if events:
            self._note_tries(self._suspects)
        return ours

    def _take_one(self, event: Event) -> bool:
        late = event.text("node") in ("", self.name) and self._jobs.is_late(event)
        job = None if late else self._jobs.take(event, self.name)
        if job is None and event.kind != "task" and not late:
            return False  # another node's, on a host that plays several
        self._taken[event.path] = event
        if job is not None:
            job.node = job.node or self.name
            if event.kind != "task" or not job.name:
                self._unknown[job.key] = None
        return True

    def _note_tries(self, tries: Mapping[str, int]) -> None:
        """Say which events are being taken, for a recorder that starts after a kill. It need not survive a reboot."""
        try:
            path = self.spool / TRYING
            if tries:
                path.write_text(json.dumps(tries), encoding="utf-8")
            else:
                path.unlink(missing_ok=True)
        except OSError:
            pass  # a full disk: then a kill just now is not known

    def _report_quarantine(self) -> None:
        """Name in the store what was put aside here, whenever that changes."""
        aside = quarantined(self.spool)
        if aside != self._aside and self._kept("quarantine", lambda: self.store.name_quarantined(self.name, aside)):
            self._aside = aside

    def _ask_for_some(self) -> None:
        """Complete jobs that events reported, as many as there is time for: a slow controller must not hold us up."""
        until_ns = self._clock.monotonic_ns() + round(SLOW_S * NS)
        later = []
        while self._unknown and self._clock.monotonic_ns() < until_ns:
            jobs = self._next_unknown()
            try:
                answers = self._ask([job.job_id for job in jobs], self.name, jobs[0].conf) if jobs else {}
            except Exception as error:  # noqa: BLE001 - a job's own text is in the answer
                answers = {}
                self._troubles["scontrol"] = f"scontrol: {type(error).__name__}: {error}"
            for job in jobs:
                facts = answers.get(job.job_id)
                if facts is not None:
                    self._complete(job, facts)
                elif self._tried.get(job.key, 0) < RETRIES:
                    self._tried[job.key] = self._tried.get(job.key, 0) + 1
                    later.append(job.key)
                if self._watch is not None:
                    (self._watch.started if job.end_s is None else self._watch.ended)(job)
        self._unknown |= dict.fromkeys(later)

    def _next_unknown(self) -> list[NodeJob]:
        """Jobs to ask for in one call: the oldest and those of the same cluster; what did not answer is asked alone."""
        taken: dict[str, NodeJob] = {}
        for key in list(self._unknown):
            job = self._jobs.jobs.get(key)
            if job is None:
                del self._unknown[key]
            elif not taken or (job.conf == next(iter(taken.values())).conf and not self._tried.get(key)):
                taken[key] = job
                del self._unknown[key]
            if len(taken) == AT_ONCE or any(map(self._tried.get, taken)):
                break
        return list(taken.values())

    def _complete(self, job: NodeJob, answer: Mapping[str, Any]) -> None:
        """Add what scontrol says and hooks do not know: at the start, and how it ended."""
        ended = job.end_s is not None
        taken = {name: value for name, value in answer.items() if name in scontrol.TAKEN}
        state = str(answer.get("state", ""))
        later = answer.get("restart", 0) > job.restart  # what it says is of a later run: this one was requeued
        if ended:
            taken.pop("memory_bytes", None)
            if later or state in ("PENDING", "REQUEUED"):
                job.state = "REQUEUED"
            elif state in ("CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "FAILED", "DEADLINE"):
                job.state = state
                if state == "NODE_FAIL":
                    job.complete, job.note = False, job.note or WENT_DOWN
        job.update(taken)

    def settle(self, *, all_of_it: bool = False) -> int:
        """Book the tape up to now, record the jobs that have ended; gives how many were.

        `all_of_it` does not wait for the tape to settle: the recording has ended.
        """
        now_s = self._now_s()
        if not all_of_it and self._heard_s is not None:
            # Whose later use is has not been read yet: a hook may be about to rename its file.
            now_s = min(now_s, self._heard_s - HOOK_S)
        known = list(self._jobs.jobs.values())
        self._adopt_late(known)
        start_s = self.state.booked_s or min((job.start_s for job in known), default=now_s)
        devices: dict[str, tuple[str, str]] = {}
        scope: dict[str, None] = {}
        booked_s, before = start_s, None
        tapes = list(self._tapes(start_s, now_s))
        for tape in tapes:
            for source in addable(splittable(sources(tape))):
                devices[source.label] = (source.domain.value, sensor_of(source))
                scope[source.family] = None
            self.state.uuids.update(gpu_uuids(tape))
            self._place_cards(known)
            until_s, looks = horizon_s(tape, now_s), looks_ns(tape)
            if looks and until_s > booked_s:
                if before is not None or self.state.booked_s is not None:
                    # A recorder that was killed at once is bridged over, if counters went on.
                    over = tape is not tapes[-1] and before is not None and before.same_boot(tapes[-1], SAME_BOOT_NS)
                    waits = over or (tape is tapes[-1] and not tape.sealed)
                    crossed_s = self._cross_gap(before, tape, known, booked_s, until_s, waits)
                    if crossed_s is None:
                        continue
                    booked_s = crossed_s
                self._find_processes(tape, until_s)
                accounts, idle, late = self.state.accounts, self.state.idle, self.state.late
                self._add_hours(book(tape, self.name, known, accounts, booked_s, until_s, idle, late=late))
                booked_s = until_s
            if looks and tape.to_utc_ns(looks[0]) / NS <= booked_s:  # else nothing on it can be continued from there
                before = tape
        if booked_s > start_s or booked_s <= now_s:  # else nothing may be booked yet: an event could not be read
            self.state.booked_s = booked_s
        self._adopt_late(known)
        done = [
            job
            for job in known
            if job.end_s is not None
            and (
                all_of_it or (job.end_s <= booked_s and job.key not in self._unknown) or self._waited_s(job) > LATEST_S
            )
        ]
        repeated = [job for job in done if self._start_by_processes(job)]
        rows = [
            record(job, self.state.accounts.get(job.key), devices, "+".join(scope), self.state.uuids)
            for job in done
            if job not in repeated
        ]
        if rows and not self._kept("jobs", lambda: self.store.append(rows, self.name)):
            done, rows = [], []
        if self._announce is not None:
            for job, row in zip([job for job in done if job not in repeated], rows, strict=True):
                self._announce(job, row)
        for job in done:
            self._jobs.leave(job)
            self.state.accounts.pop(job.key, None)
            self._asked.discard(job.key)
            self._tried.pop(job.key, None)
            self._ended_ns.pop(job.key, None)
        self._store_hours(booked_s, all_of_it or bool(done))
        self._save()
        return len(rows)

    def _start_by_processes(self, job: NodeJob) -> bool:
        """Give a run whose Prolog Slurm did not call (it was requeued) the time of its first process.

        True where there was no process and an earlier run: then it is that run's Epilog, which was called again.
        """
        account = self.state.accounts.get(job.key)
        if job.note != NO_START or not self._jobs.ran_before(job):
            return False
        if account is None or not account.steps_s:
            return True
        first_s = min(start_s for start_s, _ in account.steps_s.values())
        job.start_s = min(job.start_s, max(first_s, self._jobs.end_before_s(job)))
        account.observed_s = account.covered_s = (job.end_s or job.start_s) - job.start_s
        job.complete, job.note = True, f"{NO_START}, and is that of its first process"
        return False

    def _adopt_late(self, known: Iterable[NodeJob]) -> None:
        """Give jobs what was charged to the system before a hook reported them; drop what no job claims.

        That is all there is of a run whose start was heard late or never. Of others it is what the processes of a first
        run did before its Prolog was called: what there is before a later run may be of an earlier one.
        """
        booked_s = self.state.booked_s or 0.0
        for job in known:
            unheard = job.key not in self.state.accounts and (job.start_s < booked_s or job.note == NO_START)
            for name in (str(job.job_id), job.sluid):
                late = self.state.late.get(name)
                if late is None or not (unheard or (not job.restart and late.charged_s <= job.start_s)):
                    continue
                account = self.state.accounts.setdefault(job.key, Account())
                account.adopt(self.state.late.pop(name))
                if unheard:
                    account.observed_s = max(min(job.end_s or booked_s, booked_s) - job.start_s, 0.0)
                    account.covered_s = account.observed_s
                self.state.hours = move_to_jobs(self.state.hours, late)
        for job_id, late in list(self.state.late.items()):
            oldest_s = min((int(place.partition(" ")[0]) for place in late.hours_uj), default=booked_s)
            if late.charged_s < booked_s - LATE_S or oldest_s < booked_s - OPEN_S:
                del self.state.late[job_id]

    def _add_hours(self, hours: Iterable[NodeHour]) -> None:
        self.state.hours = merge_hours([*self.state.hours, *hours])

    def _cross_gap(
        self, before: Tape | None, tape: Tape, known: Sequence[NodeJob], start_s: float, latest_s: float, waits: bool
    ) -> float | None:
        """Charge the time from `start_s` to a look of a tape at processes, if no recorder ran before the first of them.

        Gives up to when it was charged; None where the tape is too short, and it `waits` for more.
        """
        first_s = tape.to_utc_ns(looks_ns(tape)[0]) / NS
        period_s = next((group.expected_period_s for group in tape.groups if group.info.name == PROCESSES), 0.0)
        if first_s - start_s <= period_s + SCRAP_S:
            return start_s
        end_ns = bridge_end_ns(tape, latest_s, waits)
        if end_ns is None:
            return None
        end_s = tape.to_utc_ns(end_ns) / NS
        for one in (before, tape):  # of the one before, a kill may have kept the end from being booked
            if one is not None:
                learn_idle(one, self.state.idle)
        accounts = self.state.accounts
        # A hook reports an end when the processes are gone already.
        ended = {job.key: job for job in known if job.end_s is not None and start_s < job.end_s <= end_s + HOOK_S}
        used_s = {key: self._cpu_time_left_s(job) for key, job in ended.items()}
        cpu_s: dict[int, float] = {}  # by job: of its runs together
        for key, seconds in used_s.items():
            if seconds is not None:
                cpu_s[ended[key].job_id] = cpu_s.get(ended[key].job_id, 0.0) + seconds
        try:
            with bridged(before, tape, start_s, end_ns, cpu_s) if before is not None else nullcontext() as bridge:
                if bridge is None:
                    end_s = first_s
                    seen_s = min(before.to_utc_ns(before.extent_ns()[1]) / NS, end_s) if before is not None else start_s
                    hours = book(before, self.name, known, accounts, start_s, seen_s, self.state.idle) if before else []
                    hours += book_unseen(tape, self.name, known, accounts, max(seen_s, start_s), end_s)
                else:
                    hours = book(bridge, self.name, known, accounts, start_s, end_s, self.state.idle, bridge=True)
                    unknown = [job for key, job in ended.items() if used_s[key] is None and (job.end_s or 0.0) <= end_s]
                    hours = book_doubt(unknown, accounts, hours, start_s, end_s)
        except EverywattError as error:
            self._troubles["bridge"] = f"the time without a recorder could not be charged: {error}"
            end_s = first_s
            hours = book_unseen(tape, self.name, known, accounts, start_s, end_s)
        self._add_hours(hours)
        return end_s

    def _cpu_time_left_s(self, job: NodeJob) -> float | None:
        """CPU seconds that a job used beyond its account before it ended, as Slurm counts; None where it does not."""
        if job.nodes > 1:
            return None  # Slurm counts all nodes together
        total_s = self._cpu_time_s(job.job_id, job.start_s, job.end_s or job.start_s, job.conf)
        if total_s is None:
            return None
        left_s = total_s - (self.state.accounts.get(job.key, Account()).cpu_s or 0.0)
        # A site that gathers no CPU times reports 0 s, and what is less than was seen cannot be right.
        return None if left_s < 0 or not total_s else left_s

    def _waited_s(self, job: NodeJob) -> float:
        """How long the record of a job that has ended has been waited for, whatever was done to the wall clock."""
        now_ns = self._clock.monotonic_ns()
        since_ns = self._ended_ns.setdefault(job.key, now_ns)
        return max((now_ns - since_ns) / NS, self._now_s() - (job.end_s or job.start_s))

    def _place_cards(self, known: Iterable[NodeJob]) -> None:
        """Say which cards of the tape jobs have, as soon as the tape lists its cards."""
        for job in known if self.state.uuids else ():
            if job.gpus and not job.cards:
                order = self._orders.get(job.conf)
                if order is None:
                    order = self._orders[job.conf] = card_order(self.state.uuids, self.name, job.conf)
                job.cards = order.of(job.gpus)
                job.note = "; ".join(part for part in (job.note, order.doubt) if part)

    def _find_processes(self, tape: Tape, until_s: float) -> None:
        """Ask slurmd for the processes of jobs of which none was found for a while, once for each job."""
        for job in self._jobs.jobs.values():
            account = self.state.accounts.get(job.key)
            unseen = account is not None and account.cpu_s is None and until_s - job.start_s > UNSEEN_S
            if unseen and job.end_s is None and job.key not in self._asked:
                self._asked.add(job.key)
                name_processes(tape, self._pids(job.job_id, self.name, job.conf))

    def _store_hours(self, until_s: float, now: bool) -> None:
        """Hours that are over go into the store for good; the present one as it is so far, to be replaced later.

        An hour stays open as long as there is something in it of a job that no hook has reported yet.
        """
        waited_for = {int(place.partition(" ")[0]) for late in self.state.late.values() for place in late.hours_uj}
        past = {hour.hour_s for hour in self.state.hours if hour.hour_s + 3600 <= until_s}
        over = [hour for hour in self.state.hours if hour.hour_s in past - waited_for]
        fresh = not past <= self._past
        self._past = past & waited_for
        self._hours_wait = self._hours_wait or bool(over) or fresh or (now and bool(self.state.hours))
        rows = [with_unseen(hour) for hour in self.state.hours]
        if self._hours_wait and self._kept("hours", lambda: self.store.append_hours(rows, self.name)):
            self._hours_wait = False
            self.state.hours = [hour for hour in self.state.hours if hour not in over]

    def _save(self) -> None:
        """Keep what is known; then the events that said it are deleted."""
        self.state.jobs, self.state.recorded = list(self._jobs.jobs.values()), list(self._jobs.recorded)
        if self._kept("state", lambda: self.state.write(self._path)):
            for event in self._taken.values():
                forget(event)
            self._taken.clear()

    def _kept(self, what: str, write: Callable[[], object]) -> bool:
        """Whether something could be written. A full disk or a filesystem that is away must not end the recording."""
        try:
            write()
        except OSError as error:
            place = self.spool if what == "state" else self.store.path
            self._troubles[what] = f"{place} cannot be written: {error.strerror or error}"
            return False
        self._troubles.pop(what, None)
        return True


def _read_tries(spool: Path) -> dict[str, int]:
    try:
        tries = json.loads((spool / TRYING).read_text(encoding="utf-8"))
        return {str(name): int(count) for name, count in tries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
