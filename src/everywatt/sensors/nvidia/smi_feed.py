"""Readings out of a running nvidia-smi: one looping child for all GPUs, watched, restarted, replaced by single polls.

Nothing here blocks. `take` reads what has arrived. A child that prints nothing, or does not know `--loop-ms`, is
replaced by one short nvidia-smi after another; that the rate is then lower, the recorder notes as of every sensor.
"""

from __future__ import annotations

import time
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

WATCHDOG_S = 2.0  # how long a looping child may be silent, if five periods are not longer
POLL_TIMEOUT_S = 5.0
LOST_RETRY_S = 30.0  # a GPU that fell off the bus makes every call fail, so that it is left out for so long
BACKOFF_S = 1.0
MOST_DEATHS = 3  # of looping children, before polls replace them
AHEAD_NS = 5_000_000  # nvidia-smi prints whole milliseconds, and clocks are read one after the other
BEHIND_NS = 250_000_000  # from the time it prints to the line's arrival: reading eight GPUs takes a while


class Reading(NamedTuple):
    """One line of one GPU: when it was read, the earliest time its value can be of, and its values."""

    read_ns: int
    early_ns: int
    row: SmiRow


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: the binary, the fields, how often, and for which GPUs (`everyone`: there are no others).

    `patience_s` is how long its first answer took.
    """

    binary: str
    environ: Mapping[str, str]
    fields: Sequence[str]
    period_s: float
    gpus: Sequence[Gpu]
    everyone: bool = True
    patience_s: float = 0.0

    def command(self, gpus: Sequence[Gpu], *, loop: bool) -> list[str]:
        """The command line for some of the GPUs."""
        words = [self.binary, f"--query-gpu={','.join(self.fields)}", "--format=csv,nounits"]
        words += [f"--loop-ms={max(1, round(self.period_s * 1000))}"] if loop else []
        some = not self.everyone or len(gpus) < len(self.gpus)
        return words + (["--id=" + ",".join(gpu.uuid or str(gpu.index) for gpu in gpus)] if some else [])


@dataclass(slots=True)
class _Queue:
    """What has come from one GPU and was not taken yet; why it is left out, and until when."""

    readings: list[Reading] = field(default_factory=list)
    last_ns: int | None = None
    lost: str | None = None
    retry_ns: int = 0


class Feed:
    """All GPUs' readings out of one child. `trouble` says why single polls have replaced it; None where it loops."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.polling = False
        self.trouble: str | None = None
        self._plan, self._clock = plan, clock
        self._queues = {gpu.index: _Queue() for gpu in plan.gpus}
        self._child: Child | None = None
        self._parser = Parser()
        self._deaths = 0
        self._failure: str | None = None
        self._start_ns = 0  # no child is started before
        self._line_ns = 0  # when the last line came
        self._pump_ns = 0

    @property
    def pid(self) -> int | None:
        """The child that is running now."""
        return self._child.pid if self._child else None

    def take(self, index: int) -> list[Reading]:
        """What has arrived for one GPU since the last call. Raises SensorError while it gives nothing."""
        now_ns = self._clock.monotonic_ns()
        if not self._pump_ns:
            self._line_ns = self._pump_ns = now_ns  # from here on it may be expected to print
        self._pump(now_ns)
        queue = self._queues[index]
        readings, queue.readings = queue.readings, []
        if readings:
            return readings
        if queue.lost:
            raise SensorError(f"GPU {index}: {queue.lost}")
        if self._failure:
            raise SensorError(f"nvidia-smi: {self._failure}")
        silent_s = (now_ns - self._line_ns) / NS
        if silent_s > self._limit_s():
            raise SensorError(f"nvidia-smi has printed nothing for {silent_s:.1f} s.")
        return []

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _limit_s(self) -> float:
        """How long silence is nothing to worry about: longer for a child that has not said anything yet."""
        silence_s = max(WATCHDOG_S, 5 * self._plan.period_s)
        if self.polling:
            return max(POLL_TIMEOUT_S, silence_s, 3 * self._plan.patience_s)
        return silence_s if self._spoke() else max(silence_s, 3 * self._plan.patience_s)

    def _spoke(self) -> bool:
        return self._child is not None and self._line_ns > self._child.started_ns

    def _pump(self, now_ns: int) -> None:
        back = [queue for queue in self._queues.values() if queue.lost and now_ns >= queue.retry_ns]
        for queue in back:
            queue.lost = None
        if back:
            self._restart(now_ns)
        if self._child is None and now_ns >= self._start_ns:
            self._launch(now_ns)
        if self._child is not None:
            self._read(self._child, now_ns)
        if self._child is not None:
            self._watch(self._child, now_ns)
        self._pump_ns = now_ns

    def _launch(self, now_ns: int) -> None:
        gpus = [gpu for gpu in self._plan.gpus if self._queues[gpu.index].lost is None]
        if not gpus:
            return
        self._parser = Parser()
        try:
            self._child = Child(self._plan.command(gpus, loop=not self.polling), self._plan.environ, now_ns)
        except OSError as error:
            self._failure = f"{error.strerror}."
            self._start_ns = now_ns + round(BACKOFF_S * NS)

    def _restart(self, now_ns: int) -> None:
        self.close()
        self._start_ns = now_ns

    def _read(self, child: Child, now_ns: int) -> None:
        by_gpu: dict[int, list[SmiRow]] = {}
        for line in child.lines():
            row = self._parser.feed(line)
            index = None if row is None else row.numbers.get("index")
            if row is not None and index is not None and int(index) in self._queues:
                by_gpu.setdefault(int(index), []).append(row)
        for index, rows in by_gpu.items():
            self._place(self._queues[index], rows, now_ns)
        if by_gpu:
            self._line_ns, self._failure = now_ns, None
        elif self._parser.failures:
            self._failed(self._parser.failures.pop(), now_ns)
        if child.finished and self._child is child:
            self._ended(child, now_ns)

    def _place(self, queue: _Queue, rows: list[SmiRow], now_ns: int) -> None:
        """Give lines their times: the printed ones where they can be right, else a period apart until now."""
        period_ns = round(self._plan.period_s * NS)
        times = self._printed_times(rows, queue.last_ns, now_ns)
        for row, read_ns in zip(
            rows, times or [now_ns - period_ns * back for back in reversed(range(len(rows)))], strict=True
        ):
            last_ns = queue.last_ns
            if last_ns is not None and read_ns <= last_ns:
                read_ns = last_ns + 1
            near = last_ns is not None and read_ns - last_ns < 3 * period_ns
            queue.readings.append(Reading(read_ns, last_ns if near and last_ns else read_ns - period_ns, row))
            queue.last_ns = read_ns

    def _printed_times(self, rows: list[SmiRow], last_ns: int | None, now_ns: int) -> list[int] | None:
        """The lines' own times as monotonic ns; None where they cannot be right (no stamp, another zone, a step)."""
        ahead_ns = self._clock.utc_ns() - self._clock.monotonic_ns()
        times = []
        for row in rows:
            if row.time is None:
                return None
            printed_ns = int(time.mktime(row.time.timetuple())) * NS + row.time.microsecond * 1000 - ahead_ns
            times.append(min(printed_ns, now_ns) if printed_ns < now_ns + AHEAD_NS else now_ns + NS)
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

    def _ended(self, child: Child, now_ns: int) -> None:
        spoke = self._spoke()
        self.close()
        if self.polling and spoke:
            self._start_ns = max(now_ns, child.started_ns + round(self._plan.period_s * NS))
            return
        self._start_ns = now_ns + round(BACKOFF_S * NS)
        if self.polling:
            self._failure = self._failure or "a poll returned no line."
            return
        self._deaths += 1
        if not spoke or self._deaths > MOST_DEATHS:
            self._poll_instead("exited", now_ns)

    def _watch(self, child: Child, now_ns: int) -> None:
        silent_s = (now_ns - max(self._line_ns, child.started_ns)) / NS
        if silent_s <= self._limit_s():
            return
        if self.polling:
            self._failure = f"a poll did not respond within {silent_s:.1f} s and was stopped."
            self._restart(now_ns)
        else:
            self._poll_instead(f"printed no line for {silent_s:.1f} s", now_ns)

    def _poll_instead(self, why: str, now_ns: int) -> None:
        self.polling = True
        self.trouble = (
            f"nvidia-smi --loop-ms={round(self._plan.period_s * 1000)}, requested to print every "
            f"{self._plan.period_s:g} s, {why}; single polls are used instead."
        )
        self._restart(now_ns)
