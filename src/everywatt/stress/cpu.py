"""CPU load: one core's worth of work by a duty cycle on this process's own CPU time, its kinds; or stress-ng.

Each kind is a loop in native code that a worker repeats, with what one round of it comes to. Watts differ between them
at equal utilisation: `integer` multiplies long numbers in registers, `float` is scalar floating point, `vector` is a
matrix product that fills the vector units from the nearest cache, `memory` streams through more than the caches hold,
`branchy` sorts random numbers, so that half of its branches are predicted wrongly.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.errors import UsageError
from everywatt.sensors.cpu.perf import open_event, read_event
from everywatt.sensors.procfs import cpu_clock
from everywatt.stress.pacing import Role, StepReport, Stretch, waited_s
from everywatt.stress.worker import ask_for_the_end

if TYPE_CHECKING:
    import subprocess

MIB = 2**20
STREAM_BYTES = (64 * MIB, 256 * MIB)
"""Smallest and largest share of one of the two halves of a stream."""
_STREAM_ROUND = MIB // 2
_MATRIX = 48
_NUMBERS = 2048
_SORTED = 1024
_MODULUS = 2**255 - 19
ROUND_NS = 200_000
"""Approximate time that a worker works between two looks at the clock."""
_HARDWARE, _INSTRUCTIONS = 0, 1  # numbers of the kernel's perf events


class CpuWork(Role):
    """Work of the plan's kinds; a level of 1 is a whole core."""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._kinds = {kind: prepare(kind) for _, _, level, kind in steps if level > 0}
        self.offset = float(options.get("offset", 0.0))
        self._kind = next(iter(self._kinds.values()), None)
        self._rounds = 0
        self._waited_s = waited_s()
        self._instructions = Instructions()
        self._counted: int | None = None

    def done(self) -> float:
        return time.process_time_ns() / 1e9

    def work(self) -> None:
        assert self._kind is not None
        work, rounds = self._kind.work, self._kind.rounds
        for _ in range(rounds):
            work()
        self._rounds += rounds

    def begin(self, stretch: Stretch) -> None:
        self._kind, self._rounds = self._kinds.get(stretch.kind), 0
        self._counted = self._instructions.read()

    def report(self) -> StepReport:
        """How long it had to wait for a core, and what was worked."""
        kind, before, counted = self._kind, self._waited_s, self._instructions.read()
        self._waited_s = now = waited_s()  # from report to report, so that waking up late counts as waiting too
        return StepReport(
            instructions=None if self._counted is None or counted is None else counted - self._counted,
            waited_s=None if before is None or now is None else now - before,
            operations=0 if kind is None else self._rounds * kind.operations,
            bytes=0 if kind is None else self._rounds * kind.bytes,
        )

    def close(self) -> None:
        self._instructions.close()


class Instructions:
    """Instructions that this process has executed; `read` gives None if they cannot be counted."""

    def __init__(self) -> None:
        try:
            self._event: int | None = open_event(_HARDWARE, _INSTRUCTIONS, -1, pid=0, user_only=True)
        except OSError:
            self._event = None

    def read(self) -> int | None:
        """How many so far; None if not counted."""
        return None if self._event is None else read_event(self._event)

    def close(self) -> None:
        if self._event is not None:
            os.close(self._event)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of work, ready to be done.

    work        does one round
    operations  what a round comes to: multiplications of long numbers, additions, products, elements sorted, bytes
    bytes       bytes of a round that come from and go to main memory
    rounds      rounds between two looks at the clock
    """

    work: Callable[[], object]
    operations: int
    bytes: int = 0
    rounds: int = 1


def prepare(name: str) -> Kind:
    """The work of this kind, with as many rounds at a time as take about 0.2 ms here."""
    return with_rounds(_MAKERS[name]())


def with_rounds(kind: Kind, clock: Callable[[], int] = time.process_time_ns) -> Kind:
    """The same work with as many rounds between two looks at the clock as take about ROUND_NS."""
    kind.work()
    rounds = 1
    while True:
        took = min(_timed(kind, rounds, clock) for _ in range(3))  # a cold cache or another thread may cost once
        if took >= ROUND_NS / 4:
            return Kind(kind.work, kind.operations, kind.bytes, max(1, round(rounds * ROUND_NS / took)))
        rounds *= 2


def _timed(kind: Kind, rounds: int, clock: Callable[[], int]) -> int:
    start = clock()
    for _ in range(rounds):
        kind.work()
    return clock() - start


def stream_bytes(sys: Path = Path("/sys")) -> int:
    """Bytes from which, and to which, memory-bound work copies: each half as large as the last cache."""
    sizes = [0]
    for file in (sys / "devices" / "system" / "cpu" / "cpu0" / "cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text().strip().removesuffix("K")) * 1024)
    whole = -(-max(sizes) // _STREAM_ROUND) * _STREAM_ROUND
    return min(max(whole, STREAM_BYTES[0]), STREAM_BYTES[1])


def _integer() -> Kind:
    # 3 ** (2 ** 64) modulo a prime of 255 bits: 64 squarings of long numbers.
    return Kind(lambda: pow(3, 2**64, _MODULUS), 64)


def _float() -> Kind:
    chance = random.Random(1)
    here, there = ([chance.random() for _ in range(_NUMBERS)] for _ in range(2))
    return Kind(lambda: math.dist(here, there), 2 * _NUMBERS)


def _vector() -> Kind:
    import numpy

    left, right = (numpy.random.default_rng(seed).random((_MATRIX, _MATRIX)) for seed in (1, 2))
    out = numpy.empty_like(left)
    return Kind(lambda: numpy.matmul(left, right, out=out), 2 * _MATRIX**3)


def _memory() -> Kind:
    import numpy

    source, target = (numpy.full(stream_bytes() // 8, value, dtype=numpy.float64) for value in (1.0, 2.0))
    length = _STREAM_ROUND // 8
    place = 0

    def stream() -> None:
        nonlocal place
        numpy.copyto(target[place : place + length], source[place : place + length])
        place = (place + length) % len(source)

    return Kind(stream, 2 * _STREAM_ROUND, 2 * _STREAM_ROUND)


def _branchy() -> Kind:
    chance = random.Random(2)
    numbers = [chance.random() for _ in range(_SORTED)]
    return Kind(lambda: sorted(numbers), _SORTED)


_MAKERS: dict[str, Callable[[], Kind]] = {
    "integer": _integer,
    "float": _float,
    "vector": _vector,
    "memory": _memory,
    "branchy": _branchy,
}


METHODS = {"integer": "int64", "float": "double", "vector": "matrixprod"}
"""Kinds of work covered by its load control, with its names for them."""
LOOK_NS = 100_000_000
LEAVE_S = 0.3


class StressNg(Role):
    """All cores of a step by stress-ng; a level of 1 is whole cores, and `cores` in the options says how many.

    It is restarted for each step with whole seconds, and ended by us: timeouts below a second never end in versions
    that are widely installed, so it always gets more time than the step has.
    """

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        import shutil  # as all of this class: a worker of our own work is a smaller process without it

        self._program = shutil.which("stress-ng")
        if self._program is None:
            raise UsageError("stress-ng is not installed.")
        self._cores: Sequence[int] = options["cores"]
        self._process: subprocess.Popen[bytes] | None = None
        self._spent_s = 0.0
        self._waits_s: dict[int, float] = {}

    def begin(self, stretch: Stretch) -> None:
        self._spent_s = 0.0
        self._waits_s = {}

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        if stretch.level <= 0:
            wait(stretch.end_ns)
            return
        self._start(stretch)
        now_ns = stretch.start_ns
        while now_ns < stretch.end_ns:
            now_ns = min(now_ns + LOOK_NS, stretch.end_ns)
            wait(now_ns)
            self._spent_s = max(self._spent_s, self._cpu_s())
        self.close()

    def report(self) -> StepReport:
        """The CPU time of all its processes, and how long they waited for a core."""
        return StepReport(cpu_s=self._spent_s, waited_s=sum(self._waits_s.values()) if self._waits_s else None)

    def _start(self, stretch: Stretch) -> None:
        import subprocess

        assert self._program is not None
        seconds = math.ceil((stretch.end_ns - stretch.start_ns) / 1e9) + 1
        words = ["--cpu", str(self._cores[stretch.index]), "--cpu-load", str(max(1, round(100 * stretch.level)))]
        words += ["--cpu-method", METHODS[stretch.kind], "--timeout", f"{seconds}s", "--quiet"]
        self._process = subprocess.Popen(
            [self._program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=ask_for_the_end,
            process_group=0,
        )

    def _cpu_s(self) -> float:
        """CPU seconds of stress-ng and of every process that it started; keeps how long each has waited."""
        assert self._process is not None
        pids, spent_s = [self._process.pid], 0.0
        for pid in pids:
            with suppress(OSError, ValueError):
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                spent_s += time.clock_gettime_ns(cpu_clock(pid)) / 1e9
                if (waited := waited_s(Path(f"/proc/{pid}/schedstat"))) is not None:
                    self._waits_s[pid] = waited
        return spent_s

    def close(self) -> None:
        """End it, politely and then by a kill of its whole group."""
        process, self._process = self._process, None
        if process is not None:
            from everywatt.sensors.child import end_group

            end_group(process, LEAVE_S)
