"""Readings out of a running nvidia-smi: one looping child for all GPUs, watched, restarted, replaced by single polls.

Nothing here blocks. `take` reads what has arrived; how the child is run climbs down a ladder where it does not deliver:
`--loop-ms=N`, then `-lms N` (an older spelling), then one short nvidia-smi after another.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import SensorError
from everywatt.sensors.nvidia.smi_csv import Parser, SmiRow, lost_bus_id, short_bus_id
from everywatt.sensors.smi_child import Child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everywatt.sensors.nvidia.gpu_select import Gpu

WATCHDOG_S = 2.0
POLL_TIMEOUT_S = 5.0
RATE_WINDOW_S = 3.0
LOST_RETRY_S = 30.0
BACKOFF_S = 1.0
AHEAD_NS = 5_000_000  # nvidia-smi prints whole milliseconds, and clocks are read one after the other
BEHIND_NS = 250_000_000  # from the time it prints to the line's arrival: reading eight GPUs takes a while
FORMS = ("--loop-ms={ms}", "-lms {ms}", "")


class Reading(NamedTuple):
    """One line of one GPU: when it was read, the earliest time its value can be of, and its values."""

    read_ns: int
    early_ns: int
    row: SmiRow


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: the binary, the fields, how often, and for which GPUs (`everyone`: there are no others)."""

    binary: str
    environ: Mapping[str, str]
    fields: Sequence[str]
    period_s: float
    gpus: Sequence[Gpu]
    everyone: bool = True
    patience_s: float = 0.0

    def command(self, form: str, gpus: Sequence[Gpu]) -> list[str]:
        """The command line in one of the FORMS."""
        loop = form.format(ms=max(1, round(self.period_s * 1000))).split()
        some = [] if self.everyone and len(gpus) == len(self.gpus) else ["--id=" + ",".join(_id(gpu) for gpu in gpus)]
        return [self.binary, f"--query-gpu={','.join(self.fields)}", "--format=csv,nounits", *loop, *some]

    @property
    def silence_s(self) -> float:
        """How long a looping child may say nothing."""
        return max(WATCHDOG_S, 5 * self.period_s)


def _id(gpu: Gpu) -> str:
    return gpu.uuid or str(gpu.index)


@dataclass(slots=True)
class _Rate:
    """Lines of one GPU in a stretch of time, to compare what was asked for with what came."""

    start_ns: int
    count: int = 0


@dataclass(slots=True)
class _Queue:
    readings: deque[Reading] = field(default_factory=deque)
    last_ns: int | None = None
    lost: str | None = None
    retry_ns: int = 0


class Feed:
    """All GPUs' readings out of one child. `trouble` is a sentence about a rate that was not reached, or None."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._queues = {gpu.index: _Queue() for gpu in plan.gpus}
        self._child: Child | None = None
        self._parser = Parser()
        self._form = 0
        self._deaths = 0
        self._start_ns = clock.monotonic_ns()
        self._first_ns: int | None = None
        self._line_ns: int | None = None
        self._pump_ns = clock.monotonic_ns()
        self._failure: str | None = None
        self._rate = _Rate(clock.monotonic_ns())
        self._changed: str | None = None
        self._slow: str | None = None
        self._burst: str | None = None

    @property
    def trouble(self) -> str | None:
        """What a reader of the figures has to know about this source, None where all is as asked for."""
        return " ".join(filter(None, (self._changed, self._burst, self._slow))) or None

    @property
    def polling(self) -> bool:
        """True where single polls have replaced the looping child."""
        return FORMS[self._form] == ""

    @property
    def pid(self) -> int | None:
        """The child that is running now."""
        return self._child.pid if self._child else None

    def take(self, index: int) -> list[Reading]:
        """What has arrived for one GPU since the last call. Raises SensorError while it gives nothing."""
        self._pump()
        queue = self._queues[index]
        readings = list(queue.readings)
        queue.readings.clear()
        if readings:
            return readings
        if queue.lost:
            raise SensorError(f"GPU {index}: {queue.lost}")
        silent_s = (self._clock.monotonic_ns() - (self._line_ns or self._first_ns or 0)) / NS
        if self._failure:
            raise SensorError(f"nvidia-smi: {self._failure}")
        if silent_s > self._limit_s():
            raise SensorError(f"nvidia-smi has printed nothing for {silent_s:.1f} s.")
        return []

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _limit_s(self) -> float:
        silence_s = self._plan.silence_s
        if self.polling:
            return max(POLL_TIMEOUT_S, silence_s, 3 * self._plan.patience_s)
        fresh = self._child is not None and (self._line_ns is None or self._line_ns < self._child.started_ns)
        return max(silence_s, 3 * self._plan.patience_s) if fresh else silence_s

    def _pump(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._first_ns is None:
            self._first_ns = self._pump_ns = now_ns
            self._rate = _Rate(now_ns)
        self._recall_lost(now_ns)
        if self._child is None and now_ns >= self._start_ns:
            self._launch(now_ns)
        if self._child is not None:
            self._read(now_ns)
            self._watch(now_ns)
        self._check_rate(now_ns)
        self._pump_ns = now_ns

    def _launch(self, now_ns: int) -> None:
        gpus = [gpu for gpu in self._plan.gpus if self._queues[gpu.index].lost is None]
        if not gpus:
            return
        self._parser = Parser()
        try:
            self._child = Child(self._plan.command(FORMS[self._form], gpus), self._plan.environ, now_ns)
        except OSError as error:
            self._failure = f"{error.strerror}."
            self._start_ns = now_ns + round(BACKOFF_S * NS)

    def _read(self, now_ns: int) -> None:
        child = self._child
        assert child is not None
        by_gpu: dict[int, list[SmiRow]] = {}
        for line in child.lines():
            row = self._parser.feed(line)
            index = None if row is None else row.numbers.get("index")
            if row is not None and index is not None and int(index) in self._queues:
                by_gpu.setdefault(int(index), []).append(row)
        for index, rows in by_gpu.items():
            self._place(self._queues[index], rows, now_ns)
        if by_gpu:
            if self._line_ns is None or (self._line_ns < child.started_ns and not self.polling):
                self._rate = _Rate(now_ns)  # waking the driver is not part of the rate
            self._line_ns, self._failure = now_ns, None
            self._rate.count += max(len(rows) for rows in by_gpu.values())
        elif self._parser.failures:
            self._failed(self._parser.failures.pop(), now_ns)
        if child.finished and self._child is child:
            self._ended(child, now_ns)

    def _place(self, queue: _Queue, rows: list[SmiRow], now_ns: int) -> None:
        """Give lines their times: the ones nvidia-smi printed where they can be, else when they arrived."""
        times = self._printed_times(rows, queue.last_ns, now_ns)
        period_ns = round(self._plan.period_s * NS)
        burst = len(rows) > 2 and now_ns - self._pump_ns < (len(rows) - 1) * period_ns // 2
        if burst and self._burst is None:
            how = "its own timestamps are used" if times else "single polls are used instead"
            self._burst = f"nvidia-smi buffers its output and delivers {len(rows)} lines at once; {how}."
        if times is None and burst:
            rows, times = rows[-1:], [now_ns]
            self._form = len(FORMS) - 1
            self._restart(now_ns)
        elif times is None:
            times = [now_ns - period_ns * back for back in range(len(rows) - 1, -1, -1)]
        for row, read_ns in zip(rows, times, strict=True):
            last_ns = queue.last_ns
            if last_ns is not None and read_ns <= last_ns:
                read_ns = last_ns + 1
            near = last_ns is not None and read_ns - last_ns < 3 * period_ns
            early_ns = last_ns if near and last_ns is not None else read_ns - period_ns
            queue.readings.append(Reading(read_ns, early_ns, row))
            queue.last_ns = read_ns

    def _printed_times(self, rows: list[SmiRow], last_ns: int | None, now_ns: int) -> list[int] | None:
        """The lines' own times as monotonic ns; None where they cannot be right (no stamp, another zone, a step)."""
        ahead_ns = self._clock.utc_ns() - self._clock.monotonic_ns()
        times = []
        for row in rows:
            if row.time is None:
                return None
            utc_ns = int(time.mktime(row.time.timetuple())) * NS + row.time.microsecond * 1000
            times.append(min(utc_ns - ahead_ns, now_ns) if utc_ns - ahead_ns < now_ns + AHEAD_NS else now_ns + NS)
        rising = all(before < after for before, after in pairwise(times))
        after_last = last_ns is None or times[0] > last_ns
        recent = self._pump_ns - BEHIND_NS <= times[-1] <= now_ns
        return times if rising and after_last and recent else None

    def _failed(self, text: str, now_ns: int) -> None:
        bus_id = lost_bus_id(text)
        gone = [gpu for gpu in self._plan.gpus if bus_id and short_bus_id(gpu.pci_bus_id) == bus_id]
        for gpu in gone:
            queue = self._queues[gpu.index]
            queue.lost, queue.retry_ns = text, now_ns + round(LOST_RETRY_S * NS)
        if gone:
            self._restart(now_ns)
        else:
            self._failure = text

    def _recall_lost(self, now_ns: int) -> None:
        due = [queue for queue in self._queues.values() if queue.lost and now_ns >= queue.retry_ns]
        for queue in due:
            queue.lost = None
        if due:
            self._restart(now_ns)

    def _ended(self, child: Child, now_ns: int) -> None:
        spoke = self._line_ns is not None and self._line_ns >= child.started_ns
        child.end()
        self._child = None
        if self.polling:
            self._start_ns = max(now_ns, child.started_ns + round(self._plan.period_s * NS))
            if not spoke:
                self._failure = self._failure or "a poll returned no line."
                self._start_ns = now_ns + round(BACKOFF_S * NS)
            return
        self._deaths += 1
        self._start_ns = now_ns + (round(BACKOFF_S * NS) if spoke else 0)
        if not spoke or self._deaths > 3:
            self._step_down("exited", self._form + 1)

    def _watch(self, now_ns: int) -> None:
        child = self._child
        if child is None:
            return
        since_ns = max(self._line_ns or 0, child.started_ns)
        silent_s = (now_ns - since_ns) / NS
        if silent_s <= self._limit_s():
            return
        if self.polling:
            self._failure = f"a poll did not respond within {silent_s:.1f} s and was stopped."
        else:
            # A spelling that it does not know makes it end. One that is silent keeps its lines back, or hangs: then
            # so does the other spelling.
            self._step_down(f"printed no line for {silent_s:.1f} s", len(FORMS) - 1)
        self._restart(now_ns)

    def _step_down(self, why: str, to: int) -> None:
        asked = FORMS[self._form].format(ms=round(self._plan.period_s * 1000))
        self._form = min(to, len(FORMS) - 1)
        now = "single polls are" if self.polling else f"{FORMS[self._form].split()[0]} is"
        self._changed = (
            f"nvidia-smi {asked}, requested to print every {self._plan.period_s:g} s, {why}; {now} used instead."
        )

    def _restart(self, now_ns: int) -> None:
        self.close()
        self._start_ns = now_ns
        self._rate = _Rate(now_ns)

    def _check_rate(self, now_ns: int) -> None:
        elapsed_s = (now_ns - self._rate.start_ns) / NS
        if elapsed_s < max(RATE_WINDOW_S, 20 * self._plan.period_s):
            return
        count = self._rate.count
        if count * self._plan.period_s >= 0.5 * elapsed_s:
            self._slow = None
        elif self._slow is None:  # said once, and not with every rate that it has
            got = f"one every {elapsed_s / count:.2g} s" if count else f"none in {elapsed_s:.2g} s"
            self._slow = f"nvidia-smi was requested to read every {self._plan.period_s:g} s and delivers {got}."
        self._rate = _Rate(now_ns)
