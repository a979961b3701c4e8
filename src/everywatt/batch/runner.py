"""The batch itself: items to lanes, attempts to spans and journal, until every item is done or has failed."""

from __future__ import annotations

import heapq
import importlib
import os
import re
import selectors
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everywatt.batch.devices import Lane
from everywatt.batch.items import Item, fill
from everywatt.batch.journal import (
    DONE,
    EXITS,
    FAILED,
    INTERRUPTED,
    PENDING,
    RUNNING,
    Attempt,
    Device,
    Journal,
    State,
    now,
)
from everywatt.batch.plan import Pace, in_order
from everywatt.batch.worker import MARK
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.device import is_gpu
from everywatt.recorder.client import Mark, Recording

KILLED = 137  # 128 + SIGKILL
_GPU = {
    "torch": r"(?:CUDA|HIP|XPU|MPS) (?:error: )?out of memory|torch(?:\.cuda)?\.OutOfMemoryError",
    "tensorflow": r"OOM when allocating tensor|ResourceExhaustedError|failed to allocate .{0,60} from device",
    "jax": r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)|XlaRuntimeError: RESOURCE_EXHAUSTED",
    "cuda": (
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
        r"|CUFFT_ALLOC_FAILED|cudaMalloc\w*\b.{0,80}out of memory|OutOfMemory.{0,40}(?:cuda|gpu|device)"
    ),
}
_HOST = r"^MemoryError\b|std::bad_alloc|[Cc]annot allocate memory|DefaultCPUAllocator: can't allocate|ArrayMemoryError"
_PATTERNS = [(name, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for name, pattern in _GPU.items()]
_HOST_PATTERN = re.compile(_HOST, re.MULTILINE)


def out_of_memory(exit_code: int, text: str, *, oom_kills: int = 0) -> str | None:
    """Whose memory ran out, as `gpu (torch)` or `host`; None where nothing says that it did.

    `text` is the end of what the program printed, `oom_kills` how many processes the kernel ended for want of memory
    while it ran. A program that succeeded has got over it.
    """
    if exit_code == 0:
        return None
    for name, pattern in _PATTERNS:
        if pattern.search(text):
            return f"gpu ({name})"
    if _HOST_PATTERN.search(text) or (exit_code == KILLED and oom_kills > 0):
        return "host"
    return None


DOMAIN = "everywatt"


class Ranges:
    """One open range at most for each lane. Does nothing where `nvtx` is not installed."""

    def __init__(self) -> None:
        self._nvtx: Any = None
        self._open: dict[int, Any] = {}
        try:
            self._nvtx = importlib.import_module("nvtx")
        except Exception:  # noqa: BLE001 - a library's border: a broken one must not stop a batch
            self._nvtx = None

    def open(self, lane: int, name: str) -> None:
        self.close(lane)
        if self._nvtx is not None:
            self._open[lane] = self._nvtx.start_range(message=name, domain=DOMAIN)

    def close(self, lane: int) -> None:
        """What is open on the lane ends."""
        handle = self._open.pop(lane, None)
        if handle is not None:
            self._nvtx.end_range(handle)


ITEM = "item"
MOST_BACKOFF_S = 60.0
MOST_LOST = 5  # attempts of one item that were lost with their worker
NO_COMMAND = (126, 127)
TAIL_ON_TAPE = 500
SIGNAL_S = 0.3
LISTEN_S = 3600.0  # at a time, where nothing is due
FINISH, KILL = "finish", "kill"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run.

    max_retries  how often an item is tried again after it failed
    backoff_s    seconds before the first retry, doubled for each further one, a minute at most
    timeout_s    an attempt that takes longer has failed
    hash_files   whether the content of files is kept, so that a resumed batch sees what has changed
    wrap         words before the command, such as a profiler's
    wrap_items   ids or indices of the items that get them; None: all
    options      what the command line said, for the journal and whoever resumes; `source` is where the items are from
    """

    command: tuple[str, ...]
    max_retries: int = 2
    backoff_s: float = 1.0
    timeout_s: float | None = None
    hash_files: bool = True
    wrap: tuple[str, ...] = ()
    wrap_items: frozenset[str] | None = None
    options: Mapping[str, Any] | None = None
    source: str | None = None

    def wraps(self, item: Item) -> bool:
        return bool(self.wrap) and (
            self.wrap_items is None or not self.wrap_items.isdisjoint((item.id, str(item.index)))
        )


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for whoever shows or logs it: `start` or `end` of an attempt."""

    kind: str
    state: State
    attempt: Attempt
    device: Device
    lane: int
    final: bool = False
    backoff_s: float | None = None


@dataclass(slots=True)
class Progress:
    """The progress of the batch."""

    total: int
    done: int = 0
    failed: int = 0
    running: int = 0
    pace: Pace = field(default_factory=Pace)
    left: Callable[[], list[Item]] = list
    lanes: int = 1

    @property
    def eta_s(self) -> float | None:
        """Seconds that the rest will take; None while nothing is known."""
        seconds = self.pace.seconds(self.left())
        return None if seconds is None else seconds / self.lanes


class Runner:
    """Runs the pending ones of `states`. `stop` may be called from a signal handler.

    lane   makes the lane of a device; the default starts worker processes
    """

    def __init__(
        self,
        states: Sequence[State],
        devices: Sequence[Device],
        settings: Settings,
        journal: Journal,
        recording: Recording | None,
        *,
        watch: Callable[[Event, Progress], None] | None = None,
        pace: Pace | None = None,
        clock: Clock | None = None,
        lane: Callable[[int, Device, Mapping[str, str]], Lane] = Lane,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        env = {**os.environ, MARK: str(journal.path.parent.resolve())}
        self._states = {state.item.id: state for state in states}
        self._settings, self._journal, self._recording = settings, journal, recording
        self._exits = str(journal.path.with_name(EXITS).resolve())
        devices = devices[: max(len(states), 1)]  # more lanes than items would only be waited for
        self._lanes = [lane(number, device, env) for number, device in enumerate(devices)]
        self._watch = watch or (lambda event, progress: None)
        self._queue = deque(in_order([state.item for state in states]))
        self._later: list[tuple[int, int, Item]] = []  # due (monotonic ns), index, item
        self._failures: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self._stop: str | None = None
        self._killed = False
        self._wake = os.pipe()
        os.set_blocking(self._wake[0], False)
        self._selector = selectors.EpollSelector()
        self._progress = Progress(len(states), pace=pace or Pace(), lanes=len(devices))
        self._progress.left = lambda: [*self._queue, *(item for *_, item in self._later)]
        self._shared = _shared_devices(recording)
        self._inline = recording is not None and any(group.inline for group in recording.groups)
        self._ranges = Ranges()

    def stop(self, how: str) -> None:
        """Begin nothing more: `finish` what runs, or `kill` it too. The second call kills in any case."""
        self._stop = KILL if self._stop is not None else how
        with suppress(OSError):  # it has ended already
            os.write(self._wake[1], b"!")

    @property
    def stopped(self) -> bool:
        """Whether it was stopped before its end."""
        return self._stop is not None

    def run(self) -> None:
        """Until every item is done or has failed, or it was stopped and nothing runs any more."""
        self._selector.register(self._wake[0], selectors.EVENT_READ, None)
        try:
            while True:
                for event in self._hand_out():
                    self._tell(event)
                busy = [lane for lane in self._lanes if lane.item is not None]
                if not busy and (self._stop is not None or not (self._queue or self._later)):
                    return
                if self._stop == KILL and not self._killed:
                    self._killed = True
                    for lane in busy:
                        lane.kill()
                self._listen()
        finally:
            for lane in self._lanes:
                lane.close()
            self._selector.close()
            for end in self._wake:
                os.close(end)

    def _listen(self) -> None:
        wait_s = LISTEN_S
        if self._later and self._stop is None:
            wait_s = max(self._later[0][0] - self._clock.monotonic_ns(), 0) / NS
        # By the clock, on the selector's own descriptor: it becomes readable when one of its descriptors does.
        self._clock.poll(self._selector.fileno(), write=False, timeout_s=wait_s)
        for key, _ in self._selector.select(0):
            if key.data is None:
                os.read(self._wake[0], 1 << 10)
                continue
            lane: Lane = key.data
            messages = lane.messages()
            if messages is None:
                self._bury(lane)
                continue
            for message in messages:
                if "started" in message:
                    self._started(lane, message)
                elif "ended" in message:
                    self._ended(lane, message["ended"])

    # Handing out.

    def _hand_out(self) -> list[Event]:
        """Give free lanes their next items; the caller reports what has started."""
        if self._stop is not None:
            return []
        begun = []
        for lane in self._lanes:
            if lane.item is None:
                if self._later and self._later[0][0] <= self._clock.monotonic_ns():
                    item = heapq.heappop(self._later)[2]
                elif self._queue:
                    item = self._queue.popleft()
                else:
                    break
                begun.append(self._begin(lane, item))
        return begun

    def _begin(self, lane: Lane, item: Item) -> Event:
        if not lane.alive:
            lane.start()
            self._selector.register(lane, selectors.EVENT_READ, lane)
            if self._recording is not None:
                self._recording.follow([lane.worker_pid])
        state = self._states[item.id]
        span = self._recording.span_id() if self._recording is not None else None
        number = max([one.number for one in state.attempts], default=0) + 1
        attempt = Attempt(number, lane.device.name, lane.number, span, at=now())
        state.attempts.append(attempt)
        state.status = RUNNING
        self._journal.start(item, attempt)
        settings = self._settings
        words = (*settings.wrap, *settings.command) if settings.wraps(item) else settings.command
        exits = {"file": self._exits, "id": item.id, "attempt": number}
        job: dict[str, Any] = {"words": fill(words, item, lane.device.index), "exit": exits}
        if self._inline:
            job["prompt"] = True
        if settings.timeout_s is not None:
            job["timeout_s"] = settings.timeout_s
        if settings.hash_files and Path(item.input).is_file():
            job["file"] = item.input
        lane.give(item, attempt, job)
        return Event("start", state, attempt, lane.device, lane.number)

    # What workers say.

    def _started(self, lane: Lane, message: Mapping[str, Any]) -> None:
        item, attempt = lane.item, lane.attempt
        if item is None or attempt is None:
            return
        lane.command_pid, lane.file = message["started"], message.get("file")
        self._ranges.open(lane.number, item.id)
        if self._recording is not None and attempt.span is not None:
            attributes = {
                "role": ITEM,
                "item": item.id,
                "index": item.index,
                "attempt": attempt.number,
                "device": lane.device.name,
                "lane": lane.number,
                "devices": [lane.device.name, *self._shared] if lane.device.is_gpu else self._shared,
                "command_pid": lane.command_pid,
            }
            at_ns = None if self._inline else message.get("at_ns")
            self._recording.span_open(item.id, attributes=attributes, uid=attempt.span, at_ns=at_ns)

    def _ended(self, lane: Lane, outcome: Mapping[str, Any]) -> None:
        mark = self._mark(outcome.get("ended_ns"))
        text = f"{outcome.get('stdout', '')}\n{outcome.get('stderr', '')}"
        oom = out_of_memory(outcome["exit_code"], text, oom_kills=outcome.get("oom_kills", 0))
        outcome = {key: value for key, value in outcome.items() if key != "ended_ns"}
        ended = {**outcome, **({"oom": oom} if oom else {}), **({"file": lane.file} if lane.file else {})}
        if lane.item is not None and self._settings.wraps(lane.item):
            ended["wrapped"] = True
        if self._stop is None and outcome["exit_code"] == 128 + signal.SIGTERM and not outcome.get("timed_out"):
            # Whoever ends a command by SIGTERM may mean the whole batch, as Slurm does: wait for that for a moment.
            self._clock.poll(self._wake[0], write=False, timeout_s=SIGNAL_S)
        if self._stop == KILL and (outcome.get("killed") or outcome["exit_code"]):
            status = INTERRUPTED
        else:
            status = DONE if outcome["exit_code"] == 0 and not outcome.get("timed_out") else FAILED
        self._settle(lane, status, ended, mark)

    def _bury(self, lane: Lane) -> None:
        """The worker has died, and with it what it ran; another takes its place."""
        self._selector.unregister(lane)
        lane.bury()
        if lane.item is not None:
            lost = self._lost[lane.item.id] = self._lost.get(lane.item.id, 0) + 1
            status = INTERRUPTED if lost < MOST_LOST else FAILED
            self._settle(lane, status, {"error": "its worker died"}, self._mark(None))

    def _mark(self, at_ns: int | None) -> Mark | None:
        """Where a span ends: when the worker saw it, or now where cheap counters are read for it."""
        if self._recording is None:
            return None
        return self._recording.mark() if self._inline or at_ns is None else Mark(at_ns, ())

    def _settle(self, lane: Lane, status: str, ended: Mapping[str, Any], mark: Mark | None) -> None:
        """An attempt has ended: the journal first, then the lane's next item, and the rest while that one runs."""
        item, attempt = lane.item, lane.attempt
        lane.free()
        self._ranges.close(lane.number)
        if item is None or attempt is None:
            return
        state = self._states[item.id]
        again_s = self._again(item, status, ended)
        if again_s is not None and status == FAILED:
            ended = {**ended, "backoff_s": again_s}
        final = status == DONE or (again_s is None and status == FAILED)
        self._journal.end(item, attempt.number, status, ended, final=final, device=attempt.device)
        closed = replace(attempt, status=status, ended=dict(ended))
        state.attempts[-1] = closed
        state.status = status if final or status == INTERRUPTED else PENDING
        state.file = ended.get("file") or state.file
        if again_s is not None:
            due_ns = self._clock.monotonic_ns() + round(again_s * NS)
            heapq.heappush(self._later, (due_ns, item.index, item))
        begun = self._hand_out()
        if self._recording is not None and attempt.span is not None:
            self._recording.span_close(attempt.span, attributes=_for_tape(status, ended), mark=mark)
        if status == DONE:
            self._progress.pace.learn(item, float(ended.get("runtime_s", 0.0)))
        self._progress.done += status == DONE
        self._progress.failed += final and status == FAILED
        self._tell(Event("end", state, closed, lane.device, lane.number, final, again_s))
        for event in begun:
            self._tell(event)

    def _again(self, item: Item, status: str, ended: Mapping[str, Any]) -> float | None:
        """Seconds until the item is tried again; None where it is not."""
        if status == DONE or (status == INTERRUPTED and self._stop == KILL):
            return None
        if status == INTERRUPTED:
            return 0.0
        if "exit_code" not in ended or ended["exit_code"] in NO_COMMAND:
            return None
        failures = self._failures[item.id] = self._failures.get(item.id, 0) + 1
        if failures > self._settings.max_retries:
            return None
        return min(self._settings.backoff_s * 2.0 ** (failures - 1), MOST_BACKOFF_S)

    def _tell(self, event: Event) -> None:
        progress = self._progress
        progress.running = sum(lane.item is not None for lane in self._lanes)
        self._watch(event, progress)


def _for_tape(status: str, ended: Mapping[str, Any]) -> dict[str, Any]:
    """What a span keeps of an attempt's end; output in full is the journal's."""
    kept = {key: value for key, value in ended.items() if key not in ("stdout", "stderr", "file")}
    tail = (str(ended.get("stdout", "")) + str(ended.get("stderr", "")))[-TAIL_ON_TAPE:]
    return {"status": status, **kept, **({"tail": tail} if tail else {})}


def _shared_devices(recording: Recording | None) -> list[str]:
    """What measures the machine besides GPUs: every item that runs has a share of it."""
    if recording is None:
        return []
    measuring = [channel.device for group in recording.groups for channel in group.channels if channel.carries_energy]
    # An empty list would mean all devices; an item on the CPU must not be charged for GPUs.
    return [name for name in dict.fromkeys(measuring) if not is_gpu(name)] or ["host"]
