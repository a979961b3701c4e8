"""The run: health, then a recording, idle, warm-up and the queries, each a span on the tape and a line on disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.api.meter import Meter
from everywatt.api.run import Run, load
from everywatt.bench.llm.clients import Client
from everywatt.bench.llm.loads import Level
from everywatt.bench.llm.records import SCORES, Journal, Record, read_records, score_entry, update_plan, write_plan
from everywatt.bench.llm.scoring import LATER, Scoring
from everywatt.bench.llm.values import OK, Answer, Ask, Item
from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError, MeasurementRefused, NoSensor
from everywatt.recorder.client import Recording

QUERY, WARM_UP = "query", "warm-up"
SAME_ITEMS = (
    "all loads use the same items: a server that caches prompts (llama.cpp does, unless --set cache_prompt=false) has "
    "less to compute from the second load on"
)
LEARNT = ("facts", "scoring", "server_tape")  # of a plan: what may become known when a run goes on
_WARM = "Count from one to ten. (warm-up {number})"


@dataclass(frozen=True, slots=True)
class Plan:
    """How to ask. Warm-up has prompts of its own, so it eats no items and fills no cache with them."""

    levels: tuple[Level, ...] = (Level(),)
    settings: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    warmup: int = 2
    idle_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: the finished run (None where nothing could be recorded), its folder and all records."""

    run: Run | None
    folder: Path
    records: tuple[Record, ...]
    ended: str
    notes: tuple[str, ...] = ()


Watch = Callable[[str, int, int], None]
One = Callable[[Item], Coroutine[Any, Any, None]]


class Bench:
    """One benchmark of one client over some items. An interrupt loses nothing that is finished."""

    def __init__(
        self,
        client: Client,
        items: Sequence[Item],
        plan: Plan,
        meter: Meter,
        about: Mapping[str, Any],
        *,
        watch: Watch | None = None,
        reaper: int | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        self._client, self._items, self._plan, self._meter = client, tuple(items), plan, meter
        self._about = dict(about)
        self._watch = watch or (lambda doing, done, of: None)
        self._reaper = reaper
        self._notes: list[str] = []
        self._done = 0
        self._scoring = scoring or Scoring()
        self._scoring.check(self._items)

    @property
    def about(self) -> dict[str, Any]:
        """What was asked, for the record; with what the server reported about itself, once known."""
        return self._about

    def _learn(self) -> None:
        """The count of parameters that the server tells, where the user told none."""
        facts, told = dict(self._about.get("facts") or {}), getattr(self._client, "parameters", None)
        if told and facts.get("parameters") is None:
            self._about["facts"] = {**facts, "parameters": told, "parameters_from": "the server"}

    def run(self, *, resume: Path | None = None) -> Outcome:
        """Do it. Nothing exists on disk until the client has said that it can answer."""
        if resume is not None and not self._left(resume):
            update_plan(resume, self._about, LEARNT)
            return Outcome(load(resume), resume, tuple(read_records(resume)), "done")
        ended = "done"
        folder: list[Path] = []
        try:
            asyncio.run(self._all(resume, folder))
        except KeyboardInterrupt:
            if not folder:
                raise
            ended = "interrupted"
        except BaseException:
            self._meter.stop()
            raise
        finished = self._meter.stop()
        return Outcome(finished, folder[0], tuple(read_records(folder[0])), ended, tuple(self._notes))

    async def _all(self, resume: Path | None, folder: list[Path]) -> None:
        try:
            self._notes += await self._client.health()
            if self._scoring.judge is not None and (why := await self._scoring.judge.health()) is not None:
                self._notes.append(f"the judge is not available, so its answers stay unscored: {why}")
            self._learn()
            if len(self._plan.levels) > 1:
                self._notes.append(SAME_ITEMS)
            recording = self._start()
            folder.append(recording.path.parent)
            if resume is None:
                write_plan(folder[0], self._about)
            else:
                update_plan(folder[0], self._about, LEARNT)
            finished = {record.key for record in read_records(folder[0]) if record.ok}
            journal = Journal(folder[0])
            try:
                await self._idle(recording)
                await self._warm_up(recording)
                for level in self._plan.levels:
                    left = [item for item in self._items if (level.label, item.id) not in finished]
                    await self._level(recording, journal, level, left)
            finally:
                journal.close()
            await self._judge(folder[0])
        finally:
            await self._client.close()
            await self._scoring.close()

    def _left(self, folder: Path) -> bool:
        """Whether something has still to be asked or judged."""
        found = {record.key: record for record in read_records(folder)}
        later = {item.id for item in self._items if item.scorer in LATER}
        for level in self._plan.levels:
            for item in self._items:
                record = found.get((level.label, item.id))
                if record is None or not record.ok or (item.id in later and not record.judged):
                    return True
        return False

    async def _judge(self, folder: Path) -> None:
        """What no scorer can tell at once, now that no query is open; also what an earlier attempt left unevaluated."""
        items = {item.id: item for item in self._items if item.scorer in LATER}
        open_ones = [
            record for record in read_records(folder) if record.id in items and record.ok and not record.judged
        ]
        if not open_ones:
            return
        journal = Journal(folder, SCORES)
        try:
            for done, record in enumerate(open_ones):
                self._watch("judging", done, len(open_ones))
                score = await self._scoring.later(record.answer, items[record.id])
                if score is not None:
                    journal.write(score_entry(record, score.to_dict()))
        finally:
            journal.close()

    def _start(self) -> Recording:
        self._meter.start(command=["bench", "llm"], root=False, reaper=self._reaper)
        recording = self._meter.recording
        if recording is None:
            raise MeasurementRefused(f"Nothing can be recorded: {self._meter.energy.refused}")
        carries = any(channel.carries_energy for group in recording.groups for channel in group.channels)
        elsewhere = self._about.get("server_tape") or self._about.get("no_energy")
        if not carries and not elsewhere and self._client.where != "nowhere":
            self._meter.discard()
            raise NoSensor("No sensor on this machine measures power, and --no-estimate rules out a model.")
        return recording

    async def _idle(self, recording: Recording) -> None:
        if self._plan.idle_s <= 0 or self._client.where == "nowhere":
            return
        self._watch(f"recording idle power for {self._plan.idle_s:g} s", 0, len(self._items))
        uid = recording.span_open("idle", attributes={"role": "idle"})
        await asyncio.sleep(self._plan.idle_s)
        recording.span_close(uid)

    async def _warm_up(self, recording: Recording) -> None:
        if self._client.where == "nowhere":
            return
        for number in range(self._plan.warmup):
            self._watch("warm-up", 0, len(self._items))
            uid = recording.span_open(WARM_UP)
            ask = Ask(_WARM.format(number=number + 1), self._plan.system, self._plan.settings)
            answer = await self._ask(ask)
            recording.span_close(uid, attributes={"status": answer.status})
            if answer.status != OK:
                self._notes.append(f"warm-up {number + 1} got no answer: {answer.error}")

    async def _level(self, recording: Recording, journal: Journal, level: Level, items: Sequence[Item]) -> None:
        self._done = 0
        uid = recording.span_open("load", attributes={"level": level.label, "queries": len(items)})

        async def one(item: Item) -> None:
            journal.add(await self._query(recording, level, item, uid))
            self._done += 1
            self._watch(level.label, self._done, len(items))

        try:
            if level.concurrency is not None:
                await _closed(items, one, level.concurrency)
            else:
                await _opened(items, one, level)
        finally:
            recording.span_close(uid)

    async def _ask(self, ask: Ask) -> Answer:
        began_ns = time.monotonic_ns()
        try:
            return await self._client.ask(ask)
        except EverywattError:
            raise
        except Exception as error:  # noqa: BLE001 - a client may be third-party code: its error costs one query
            why = f"the client failed: {type(error).__name__}: {error}".rstrip(": ")
            return Answer("failed", began_ns=began_ns, sent_ns=began_ns, ended_ns=time.monotonic_ns(), error=why)

    async def _query(self, recording: Recording, level: Level, item: Item, parent: str) -> Record:
        uid = recording.span_open(QUERY, parent=parent, attributes={"item": item.id, "level": level.label})
        try:
            answer = await self._ask(Ask(item.prompt, self._plan.system, self._plan.settings, item.id))
        except BaseException:
            recording.span_close(uid, attributes={"status": "interrupted"})
            raise
        mark = recording.mark()
        found = self._scoring.at_once(answer, item)
        score = None if found is None else found.to_dict()
        recording.span_close(uid, attributes=_attributes(answer, score), mark=mark)
        return Record(item.id, level.label, uid, answer, score, item.group)


def _attributes(answer: Answer, score: Mapping[str, Any] | None) -> dict[str, Any]:
    """Attributes of a query's span on the tape; the raw times are in the record."""
    first = answer.first_ns
    return {
        "status": answer.status,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "pieces": len(answer.piece_ns),
        "ttft_s": None if first is None else (first - answer.sent_ns) / NS,
        "attempts": answer.attempts,
        "verdict": None if score is None else score["verdict"],
    }


async def _closed(items: Sequence[Item], one: One, width: int) -> None:
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await one(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(width, len(items))):
                group.create_task(worker())
    except* EverywattError as errors:
        raise _first(errors) from None


async def _opened(items: Sequence[Item], one: One, level: Level) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.TaskGroup() as group:
            for item, at_s in zip(items, level.arrivals(), strict=False):
                # An absolute time: a late request does not delay those after it.
                await asyncio.sleep(max(0.0, began + at_s - loop.time()))
                group.create_task(one(item))
    except* EverywattError as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup[EverywattError]) -> EverywattError:
    """One of the errors of several queries at once: the same mistake, as a rule."""
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
