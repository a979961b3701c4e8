"""The run: health, then a recording, idle, warm-up and the queries, each a span on the tape and a line on disk."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.api.meter import Meter
from everywatt.api.run import Run, load
from everywatt.bench.experiment import Experiment, JsonLines, Show
from everywatt.bench.llm.clients import Client, CountsPhases, PhaseCounters
from everywatt.bench.llm.loads import Level
from everywatt.bench.llm.plan import LlmPlan
from everywatt.bench.llm.records import (
    OK,
    QUERIES,
    REFUSED,
    SCORES,
    SERVER_PHASES,
    Answer,
    Ask,
    Item,
    Record,
    Score,
    read_records,
    score_entry,
)
from everywatt.bench.llm.scoring import LATER, Scoring
from everywatt.bench.llm.serving import MOST_STARTS, READY_S, Serving
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.errors import EverywattError, MeasurementRefused, NoSensor, UsageError
from everywatt.core.jsonio import declared
from everywatt.recorder.client import Recording

QUERY, WARM_UP, LOADING = "query", "warm-up", "loading"
LOOK_S = 0.1  # between two looks whether a server is ready
LOST = "server lost"
SAME_ITEMS = (
    "all loads use the same items: a server that caches prompts (llama.cpp does, unless --set cache_prompt=false) has "
    "less to compute from the second load on"
)
PROBE_WAITS_S = (1.0, 2.0, 5.0)  # between probes of a server that failed a query; then the run stops
_WARM = "Count from one to ten. (warm-up {number})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: the finished run (None where nothing could be recorded), its folder and all records."""

    run: Run | None
    folder: Path
    records: tuple[Record, ...]
    ended: str
    notes: tuple[str, ...] = ()


class ServerLost(MeasurementRefused):
    """The server failed a query and no longer answers probes. What is finished is on disk."""


One = Callable[[Item], Coroutine[Any, Any, None]]


class Bench:
    """One benchmark of one client over some items. An interrupt loses nothing that is finished."""

    def __init__(
        self,
        client: Client,
        items: Sequence[Item],
        plan: LlmPlan,
        meter: Meter,
        *,
        warmup: int = 2,
        idle_s: float = 2.0,
        show: Show | None = None,
        reaper: int | None = None,
        scoring: Scoring | None = None,
        server: Serving | None = None,
        clock: Clock | None = None,
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """`warmup` queries have prompts of their own, so they eat no items and fill no cache with them. `clock` and
        `loop`, which makes the event loop, tell the time; both are the system's unless given."""
        self._client, self._items, self._meter = client, tuple(items), meter
        self.plan, self._warmup = plan, warmup
        self._tell = show or (lambda text: None)
        self._reaper = reaper
        self._notes: list[str] = []
        self._probing = asyncio.Lock()
        self._server = server
        self._scoring = scoring or Scoring()
        self._scoring.check(self._items)
        self._clock: Clock = clock or SystemClock()
        self._runner = asyncio.Runner(loop_factory=loop)
        idle_s = 0.0 if client.where == "nowhere" else idle_s
        self._experiment = Experiment(meter, idle_s=idle_s, cool=False, show=self._show, clock=self._clock)

    def _learn(self) -> None:
        """The count of parameters as the server reports it, where the user gave none."""
        facts, count = self.plan.facts, getattr(self._client, "parameters", None)
        if count and facts.parameters is None:
            self.plan = replace(self.plan, facts=replace(facts, parameters=count, parameters_from="the server"))

    def _keep_plan(self, folder: Path, resume: Path | None) -> None:
        if resume is None or LlmPlan.read(folder) != self.plan:
            self.plan.write(folder)

    def run(self, *, resume: Path | None = None) -> Outcome:
        """Do it. Nothing exists on disk until the client has said that it can answer."""
        if resume is not None and not self._left(resume):
            self._keep_plan(resume, resume)
            return Outcome(load(resume), resume, tuple(read_records(resume)), "done")
        ended = "done"
        folder: list[Path] = []
        try:
            with self._runner:
                self._all(resume, folder)
        except KeyboardInterrupt:
            if not folder:
                raise
            ended = "interrupted"
        except ServerLost as error:
            ended = LOST
            self._notes.append(error.message)
        except BaseException:
            self._meter.stop()
            raise
        finished = self._meter.stop()
        return Outcome(finished, folder[0], tuple(read_records(folder[0])), ended, tuple(self._notes))

    def _all(self, resume: Path | None, folder: list[Path]) -> None:
        wait = self._runner.run
        try:
            if self._server is None:
                self._notes += wait(self._client.health())
            if self._scoring.judge is not None and (why := wait(self._scoring.judge.health())) is not None:
                self._notes.append(f"the judge is not available, so its answers stay unscored: {why}")
            if len(self.plan.loads) > 1 and self.plan.settings.get("cache_prompt") is not False:
                self._notes.append(SAME_ITEMS)
            recording = self._start()
            if self._server is not None:
                try:
                    self._notes += wait(self._load(recording))
                except BaseException:
                    self._meter.discard()
                    raise
            self._learn()
            folder.append(recording.path.parent)
            self._keep_plan(folder[0], resume)
            self._loads(recording, folder[0])
            wait(self._judge(folder[0]))
        finally:
            wait(self._client.close())
            wait(self._scoring.close())

    def _loads(self, recording: Recording, folder: Path) -> None:
        """Idle, warm-up, then every load; where loads are repeated, a block is one repetition of each."""
        finished = {record.key for record in read_records(folder) if record.ok}
        journal = JsonLines(folder / QUERIES)

        def trial(level: Level, block: int, place: int) -> None:
            level = replace(level, repeat=block + 1) if level.repeat else level
            left = [item for item in self._items if (level.label, item.id) not in finished]
            self._runner.run(self._level(recording, journal, level, left))
            self._runner.run(self._ask_again(recording, journal, level, folder))

        levels = self.plan.loads
        try:
            self._experiment.idle()
            self._runner.run(self._warm_up(recording))
            self._experiment.blocks(
                [level for level in levels if level.repeat <= 1],
                trial,
                trials=max(1, *(level.repeat for level in levels)),
            )
        finally:
            self._closed(journal)

    def _closed(self, journal: JsonLines) -> None:
        if why := journal.close():
            self._notes.append(f"{why}: some queries have no record")

    def _show(self, doing: str) -> None:
        self._tell(f"{doing}: 0 of {len(self._items)}")

    async def _load(self, recording: Recording) -> list[str]:
        """Start the server and wait until it answers, in a span of its own. MeasurementRefused where it does not."""
        server = self._server
        assert server is not None
        uid, began_ns = recording.span_open(LOADING), self._clock.monotonic_ns()
        try:
            server.start()
            while True:
                try:
                    return await self._client.health()
                except UsageError:
                    raise
                except EverywattError:
                    if not server.alive:
                        raise server.failed("it ended") from None
                    if self._clock.monotonic_ns() - began_ns > READY_S * NS:
                        raise server.failed(f"it does not answer after {READY_S:g} s") from None
                self._show("loading the model")
                await asyncio.sleep(LOOK_S)
        finally:
            recording.span_close(uid, attributes={"start": server.starts})

    async def _ask_again(self, recording: Recording, journal: JsonLines, level: Level, folder: Path) -> None:
        """What failed because the server died and was started again."""
        starts = 1
        while self._server is not None and self._server.starts > starts:
            starts = self._server.starts
            answered = {record.id for record in read_records(folder) if record.ok and record.level == level.label}
            await self._level(recording, journal, level, [item for item in self._items if item.id not in answered])

    def _left(self, folder: Path) -> bool:
        """Whether something has still to be asked or judged."""
        found = {record.key: record for record in read_records(folder)}
        later = {item.id for item in self._items if item.scorer in LATER}
        for level in self.plan.loads:
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
        journal = JsonLines(folder / SCORES)
        try:
            for done, record in enumerate(open_ones):
                self._tell(f"judging: {done} of {len(open_ones)}")
                score = await self._scoring.later(record.answer, items[record.id])
                if score is not None:
                    journal.write(score_entry(record, score))
        finally:
            self._closed(journal)

    def _start(self) -> Recording:
        self._meter.start(command=["everywatt", *sys.argv[1:]], root=False, reaper=self._reaper)
        recording = self._meter.recording
        if recording is None:
            raise MeasurementRefused(f"Nothing can be recorded: {self._meter.energy.refused}")
        carries = any(channel.carries_energy for group in recording.groups for channel in group.channels)
        elsewhere = self.plan.server_tape or self.plan.no_energy
        if not carries and not elsewhere and self._client.where != "nowhere":
            self._meter.discard()
            raise NoSensor("No sensor on this machine measures power, and --no-estimate rules out a model.")
        return recording

    async def _warm_up(self, recording: Recording) -> None:
        if self._client.where == "nowhere":
            return
        for number in range(self._warmup):
            self._show("warm-up")
            uid = recording.span_open(WARM_UP)
            ask = Ask(_WARM.format(number=number + 1), self.plan.system, self.plan.settings)
            answer = await self._ask(ask)
            recording.span_close(uid, attributes={"status": answer.status})
            if answer.status != OK:
                self._notes.append(f"warm-up {number + 1} got no answer: {answer.error}")

    async def _level(self, recording: Recording, journal: JsonLines, level: Level, items: Sequence[Item]) -> None:
        done = 0
        uid = recording.span_open("load", attributes={"level": level.label, "queries": len(items)})

        async def one(item: Item) -> None:
            nonlocal done
            record = await self._query(recording, level, item, uid)
            journal.write(record.to_dict())
            done += 1
            self._tell(f"{level.label}: {done} of {len(items)}")
            if not record.ok and record.answer.status != REFUSED and self._client.where == "server":
                await self._probe(recording)

        before, phases = await self._phase_counters(), {}
        try:
            if level.concurrency is not None:
                await _closed(items, one, level.concurrency)
            else:
                await _opened(items, one, level)
            phases = grown(before, await self._phase_counters())
        finally:
            recording.span_close(uid, attributes={SERVER_PHASES: phases} if phases else None)

    async def _phase_counters(self) -> PhaseCounters:
        return await self._client.phase_counters() if isinstance(self._client, CountsPhases) else {}

    async def _probe(self, recording: Recording) -> None:
        """Pause after a failed query until the server answers again; one that we started is started again.

        ServerLost if it does not come back.
        """
        async with self._probing:
            for wait_s in (*PROBE_WAITS_S, None):
                try:
                    await self._client.health()
                except EverywattError as error:
                    gone = self._server is not None and not self._server.alive
                    if wait_s is None or gone:
                        await self._start_again(recording, error.message)
                        return
                    self._tell(f"the server does not answer; next probe in {wait_s:g} s")
                    await asyncio.sleep(wait_s)
                else:
                    return

    async def _start_again(self, recording: Recording, why: str) -> None:
        if self._server is None or self._server.starts >= MOST_STARTS:
            raise ServerLost(why)
        self._server.kill()
        self._notes.append(f"the server was started again: {self._server.last_words() or why}")
        try:
            await self._load(recording)
        except MeasurementRefused as error:
            raise ServerLost(error.message) from None

    async def _ask(self, ask: Ask) -> Answer:
        began_ns = self._clock.monotonic_ns()
        try:
            return await self._client.ask(ask)
        except EverywattError:
            raise
        except Exception as error:  # noqa: BLE001 - a client may be third-party code: its error costs one query
            why = f"the client failed: {type(error).__name__}: {error}".rstrip(": ")
            ended_ns = self._clock.monotonic_ns()
            return Answer("failed", began_ns=began_ns, sent_ns=began_ns, ended_ns=ended_ns, error=why)

    async def _query(self, recording: Recording, level: Level, item: Item, parent: str) -> Record:
        uid = recording.span_open(QUERY, parent=parent, attributes={"item": item.id, "level": level.label})
        try:
            answer = await self._ask(Ask(item.prompt, self.plan.system, self.plan.settings, item.id))
        except BaseException:
            recording.span_close(uid, attributes={"status": "interrupted"})
            raise
        mark = recording.mark()
        score = self._scoring.at_once(answer, item)
        recording.span_close(uid, attributes=_attributes(answer, score), mark=mark)
        record = Record(item.id, level.label, uid, answer, score, item.group, asked=item)
        return record.masked() if self.plan.mask else record


def _attributes(answer: Answer, score: Score | None) -> dict[str, Any]:
    """Attributes of a query's span on the tape; the raw times are in the record."""
    known = declared(answer, "status input_tokens output_tokens ttft_s attempts")
    return {**known, "pieces": len(answer.piece_ns), "verdict": None if score is None else score.verdict}


def grown(before: PhaseCounters, after: PhaseCounters) -> dict[str, list[float]]:
    """Seconds and requests of each phase between two readings; a phase whose counters were reset is left out."""
    found = {name: [after[name][i] - before[name][i] for i in (0, 1)] for name in before if name in after}
    return {name: pair for name, pair in found.items() if pair[0] >= 0 and pair[1] > 0}


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
