"""What a node does for its jobs: takes events from the spool, books the tape, puts records into the store.

Everything that must survive is in one state file beside the spool, replaced whole; an event is forgotten when what it
said is there. So a kill at any moment loses nothing, and does nothing twice that matters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.errors import EverywattError
from everywatt.energy.sources import addable, sources, splittable
from everywatt.slurm.node import scontrol
from everywatt.slurm.node.booking import book, horizon_s, merge_hours, sensor_of
from everywatt.slurm.node.cards import CardOrder, card_order
from everywatt.slurm.node.node_jobs import NodeJob, NodeJobs
from everywatt.slurm.node.record import record
from everywatt.slurm.node.spool import Event, forget, put_aside, quarantined, read_events
from everywatt.slurm.node.state import STATE, State
from everywatt.slurm.node.tape_use import gpu_uuids, name_processes
from everywatt.slurm.schema import JobOnNode
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
LATEST_S: Final = 60.0  # a job is recorded with what there is when the tape has not told of its end for so long


class Watch(Protocol):
    """Somebody who wants to know when jobs start and end."""

    def started(self, job: NodeJob) -> None:
        """A job has started, or more is known of it."""
        ...

    def ended(self, job: NodeJob) -> None:
        """A job has ended."""
        ...


class Node:
    """One node of a cluster. `tapes` gives the tapes that cover a stretch of UTC time, oldest first.

    `ask` and `pids` are scontrol's answers; `watch` is told of jobs, `announce` of records that are in the store.
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
        watch: Watch | None = None,
        announce: Callable[[NodeJob, JobOnNode], None] | None = None,
        clock: Clock | None = None,
        boot: str | None = None,
    ) -> None:
        self.name, self.spool, self.store = name, spool, store
        self._tapes, self._ask, self._pids = tapes, ask, pids
        self._clock: Clock = clock or SystemClock()
        self._watch, self._announce = watch, announce
        self._asked: set[str] = set()
        self._unknown: dict[str, None] = {}  # runs of jobs that scontrol is still to be asked of, oldest first
        self._tried: dict[str, int] = {}
        self._ended_ns: dict[str, int] = {}  # when (monotonic) it was first known that a run of a job had ended
        self._heard_s: float | None = None
        self._taken: dict[Path, Event] = {}  # what they said is known and could not be kept yet
        self._hours_wait = False
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
        """How many jobs have not ended."""
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
        # What was being taken when a process died is taken by itself, so that the next time tells which event it was.
        suspects = [[event] for event in events if event.path.name in self._suspects]
        rest = [event for event in events if event.path.name not in self._suspects]
        ours = sum(self._take(group, heard_s) for group in (rest, *suspects))
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
        """Say which events are being taken, for whoever starts after a kill. It need not survive the machine."""
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
        """Complete jobs that events told of, as many as there is time for: a slow controller must not hold us up."""
        until_ns = self._clock.monotonic_ns() + round(SLOW_S * NS)
        later = []
        while self._unknown and self._clock.monotonic_ns() < until_ns:
            jobs = self._next_unknown()
            try:
                told = self._ask([job.job_id for job in jobs], self.name, jobs[0].conf) if jobs else {}
            except Exception as error:  # noqa: BLE001 - a job's own text is in the answer
                told = {}
                self._troubles["scontrol"] = f"scontrol: {type(error).__name__}: {error}"
            for job in jobs:
                facts = told.get(job.job_id)
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
        told = {name: value for name, value in answer.items() if name in scontrol.TELLS}
        state = str(answer.get("state", ""))
        later = answer.get("restart", 0) > job.restart  # what it says is of a later run: this one was requeued
        if ended:
            told.pop("memory_bytes", None)
            if later or state in ("PENDING", "REQUEUED"):
                job.state = "REQUEUED"
            elif state in ("CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "FAILED", "DEADLINE"):
                job.state = state
                if state == "NODE_FAIL":
                    job.complete, job.note = False, job.note or WENT_DOWN
        job.tell(told)

    def settle(self, *, all_of_it: bool = False) -> int:
        """Book the tape up to now, record the jobs that have ended; gives how many were.

        `all_of_it` does not wait for the tape to settle: the recording has ended.
        """
        now_s = self._now_s()
        if not all_of_it and self._heard_s is not None:
            # Of what came since nobody has heard who it was; a hook may be about to rename its file.
            now_s = min(now_s, self._heard_s - HOOK_S)
        known = list(self._jobs.jobs.values())
        start_s = self.state.booked_s or min((job.start_s for job in known), default=now_s)
        devices: dict[str, tuple[str, str]] = {}
        scope: dict[str, None] = {}
        told_s = start_s
        for tape in self._tapes(start_s, now_s):
            for source in addable(splittable(sources(tape))):
                devices[source.label] = (source.domain.value, sensor_of(source))
                scope[source.family] = None
            self.state.uuids.update(gpu_uuids(tape))
            self._place_cards(known)
            until_s = horizon_s(tape, now_s)
            if until_s > told_s:
                self._find_processes(tape, until_s)
                pieces = book(tape, self.name, known, self.state.accounts, told_s, until_s, self.state.idle)
                self.state.hours = merge_hours([*self.state.hours, *(hour for one in pieces for hour in one.hours)])
                told_s = until_s
        if told_s <= now_s:  # else nothing may be booked yet: an event could not be read
            self.state.booked_s = told_s
        done = [
            job
            for job in known
            if job.end_s is not None
            and (all_of_it or (job.end_s <= told_s and job.key not in self._unknown) or self._waited_s(job) > LATEST_S)
        ]
        rows = [
            record(job, self.state.accounts.get(job.key), devices, "+".join(scope), self.state.uuids) for job in done
        ]
        if rows and not self._kept("jobs", lambda: self.store.append(rows, self.name)):
            done, rows = [], []
        if self._announce is not None:
            for job, row in zip(done, rows, strict=True):
                self._announce(job, row)
        for job in done:
            self._jobs.leave(job)
            self.state.accounts.pop(job.key, None)
            self._asked.discard(job.key)
            self._tried.pop(job.key, None)
            self._ended_ns.pop(job.key, None)
        self._store_hours(told_s, all_of_it or bool(done))
        self._save()
        return len(rows)

    def _waited_s(self, job: NodeJob) -> float:
        """How long the record of a job that has ended has been waited for, whatever was done to the wall clock."""
        now_ns = self._clock.monotonic_ns()
        since_ns = self._ended_ns.setdefault(job.key, now_ns)
        return max((now_ns - since_ns) / NS, self._now_s() - (job.end_s or job.start_s))

    def _place_cards(self, known: Iterable[NodeJob]) -> None:
        """Say which cards of the tape jobs have, as soon as the tape has told its cards."""
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
        """Hours that are over go into the store for good; the present one as it stands, to be replaced later."""
        over = [hour for hour in self.state.hours if hour.hour_s + 3600 <= until_s]
        self._hours_wait = self._hours_wait or bool(over) or (now and bool(self.state.hours))
        if self._hours_wait and self._kept("hours", lambda: self.store.append_hours(self.state.hours, self.name)):
            self._hours_wait = False
            self.state.hours = [hour for hour in self.state.hours if hour not in over]

    def _save(self) -> None:
        """Keep what is known; then the events that told it are forgotten."""
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


def boot_id(proc: Path = Path("/proc")) -> str:
    """This boot of the machine; "" where the kernel does not tell."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def tapes_in(*folders: Path) -> Callable[[float, float], Iterable[Tape]]:
    """The tapes of some runs' folders that cover a stretch of time. Segments stay open between calls, and follow."""
    opened: dict[Path, Tape] = {}

    def cover(start_s: float, end_s: float) -> Iterable[Tape]:
        for path in (path for folder in folders for path in sorted(folder.glob("*.tape"))):
            if _written_s(path) < start_s - 60:
                continue
            try:
                tape = opened.get(path)
                if tape is None or tape.replaced:
                    tape = opened[path] = Tape.open(path)
                tape.refresh()
                low_ns, high_ns = tape.extent_ns()
                if tape.to_utc_ns(high_ns) / 1e9 > start_s and tape.to_utc_ns(low_ns) / 1e9 < end_s:
                    yield tape
            except (EverywattError, FileNotFoundError):
                opened.pop(path, None)
        for path in [path for path in opened if not path.exists()]:
            opened.pop(path).close()

    return cover


def _written_s(path: Path) -> float:
    """When a tape was last written to: while it is live that is in its log."""
    times = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            times.append(file.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=0.0)
