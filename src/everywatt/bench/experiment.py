"""The experiment loop: idle first, then blocks of trials in an order that favours none, cooling down before each.

Comparisons, sweeps, precisions, trainings and LLM loads all run in it. What a trial does is the caller's; a trial that
an earlier attempt finished is not run again. What has to be known for that is in the spans of the tape, or in a journal
beside it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from everywatt.api.run import Run, load
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_watts
from everywatt.core.jsonio import dumps

if TYPE_CHECKING:
    from everywatt.api.meter import Meter

COOL_WITHIN = 0.10  # of the idle power: less than that above it is cool
COOL_MOST_S = 300.0  # a heat sink cools down in about a minute; a machine that does not in five has other work
LOOK_S = 0.25  # between two looks whether the machine is cool
RECENT_S = 0.5  # of the tape whose mean power is looked at: five readings of a sensor of 10 Hz

V = TypeVar("V")
Show = Callable[[str], None]
RunTrial = Callable[[V, int, int], None]
"""Runs the trial of a variant in a block, at its place in that block."""


class Experiment:
    """The loop of one experiment, in a recording that the caller opens and closes."""

    def __init__(
        self,
        meter: Meter,
        *,
        idle_s: float = 0.0,
        cool: bool = True,
        show: Show | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.show = show or (lambda text: None)
        self.heated = False  # whether a trial ran, after which the machine may have to cool down
        self._meter, self._idle_s, self._cool = meter, idle_s, cool
        self._began_ns = self.clock.monotonic_ns()
        self._tape: Run | None = None

    @property
    def elapsed_s(self) -> float:
        return (self.clock.monotonic_ns() - self._began_ns) / NS

    def idle(self) -> None:
        """Record the idle power, in a span with that role."""
        recording = self._meter.recording
        if recording is None or self._idle_s <= 0:
            return
        self.show(f"recording idle power for {self._idle_s:g} s")
        uid = recording.span_open("idle", attributes={"role": "idle"})
        self.clock.sleep_until(self.clock.monotonic_ns() + round(self._idle_s * NS))
        recording.span_close(uid)

    def warm_up(self, variants: Sequence[V], trial: RunTrial[V], rounds: int) -> None:
        """Run each variant so often before anything counts: in the blocks -1, -2 and so on."""
        for number in range(rounds):
            for variant in variants:
                trial(variant, -1 - number, 0)
                self.heated = True

    def blocks(
        self,
        variants: Sequence[V],
        trial: RunTrial[V],
        *,
        trials: int | None = None,
        max_s: float = math.inf,
        first: int = 0,
        skip: Callable[[V, int], bool] = lambda variant, block: False,
        ended: Callable[[], str | None] = lambda: None,
    ) -> str:
        """Run one trial of each variant in every block, and say why it ended: "trials", "time" or what `ended` said.

        trials  blocks; None: until `ended` says so, or `max_s` is over
        max_s   begin no further block so long after the experiment began; at least one is run
        first   number of the first block
        skip    whether a trial is not to be run: an earlier attempt finished it, or its variant failed
        ended   asked after each block once a trial has run; None: go on
        """
        ran = False
        for count, order in enumerate(interleaved(len(variants))):
            if trials is not None and count >= trials:
                return "trials"
            block = first + count
            left = [(place, variants[index]) for place, index in enumerate(order) if not skip(variants[index], block)]
            if left and ran and self.elapsed_s > max_s:
                return "time"
            for place, variant in left:
                # Asked again: a variant may have failed in the meantime.
                if not skip(variant, block):
                    trial(variant, block, place)
                    self.heated = ran = True
            if ran and (why := ended()) is not None:
                return why
        raise AssertionError("the order never ends")

    def live(self) -> Run | None:
        """The run as it is on the disk now, or None if it cannot be read."""
        recording = self._meter.recording
        if recording is None:
            return None
        folder = recording.path.parent
        try:
            if self._tape is None or len(list(folder.glob("*.tape"))) != len(self._tape.tapes):
                self._tape = load(folder)
            for tape in self._tape.tapes:
                tape.refresh()
        except (EverywattError, OSError):
            return None
        return self._tape

    def cool_down(self) -> None:
        """Wait until the machine is back at its idle power, so that a trial does not pay for the one before.

        That is no more than a tenth above idle, after five minutes at most. Where nothing measures, nothing is waited
        for.
        """
        if not self._cool or not self.heated:
            return
        idle_w = None
        began_ns = self.clock.monotonic_ns()
        while (waited_s := (self.clock.monotonic_ns() - began_ns) / NS) < COOL_MOST_S:
            run = self.live()
            idle_w = idle_w or (None if run is None else _idle_w(run))
            if run is None or idle_w is None:
                return
            now_w = _recent_w(run, waited_s, self.clock.monotonic_ns())
            if now_w is not None and now_w <= idle_w * (1 + COOL_WITHIN):
                return
            self.show(
                "cooling down" if now_w is None else f"cooling down: {format_watts(now_w)}, idle {format_watts(idle_w)}"
            )
            self.clock.sleep_until(self.clock.monotonic_ns() + round(LOOK_S * NS))


def interleaved(variants: int) -> Iterator[tuple[int, ...]]:
    """In which order variants run, block after block, without end: each once in a block, every other block backwards.

    A machine that warms up or slows down meanwhile then favours none of them: over two blocks each has the same mean
    place (ABBA).

    >>> from itertools import islice
    >>> list(islice(interleaved(2), 3))
    [(0, 1), (1, 0), (0, 1)]
    """
    forward = tuple(range(variants))
    # Every pair of blocks starts one further on, so that with three or more none is always the first or the last.
    turn = 0
    while True:
        shifted = forward[turn % variants :] + forward[: turn % variants] if variants > 2 else forward
        yield shifted
        yield tuple(reversed(shifted))
        turn += 1


def _idle_w(run: Run) -> float | None:
    """The upper end of the measured idle power; None where none was accepted, or where it is only modelled."""
    idle = run.baseline
    if idle is None or idle.method != "measured" or "modelled" in run.energy().pedigree:
        return None
    return idle.watts + idle.spread_w


def _recent_w(run: Run, waited_s: float, now_ns: int) -> float | None:
    """Mean power of the newest half second on the tape; None where that is older than our waiting."""
    if waited_s < RECENT_S:
        return None
    tape = run.tapes[-1]
    end_ns = tape.extent_ns()[1]
    if now_ns - end_ns > (waited_s - RECENT_S) * NS:
        return None
    end_s = (tape.to_utc_ns(end_ns) - run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0])) / 1e9
    energy = run.energy(between=(end_s - RECENT_S, end_s))
    return None if energy.joules is None else energy.joules / RECENT_S


class JsonLines:
    """A journal: a file of JSON lines beside a tape, open for appending. What is finished is on disk.

    Only its owner can read it, as it may hold prompts and answers.

    A line is one write, so a kill leaves whole lines, or half of the last. On a full disk lines wait for room: the work
    is worth more than its record.

    After a power loss lines of the last seconds may be missing: they are not synced one by one.
    """

    def __init__(self, file: Path, mode: int = 0o600) -> None:
        self.path = file
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
        size = os.fstat(self._fd).st_size
        torn = size and os.pread(self._fd, 1, size - 1) != b"\n"
        self._unwritten = b"\n" if torn else b""  # half a line of a killed run stays, and is no line

    def write(self, data: Mapping[str, Any]) -> None:
        """Write one line, after those that wait."""
        self._unwritten += _encoded(data) + b"\n"
        self._flush()

    def close(self) -> str:
        """Sync and close the file; gives a sentence where something could not be written, else nothing."""
        why = self._flush()
        try:
            os.fsync(self._fd)
        except OSError as error:
            why = why or error.strerror or str(error)
        os.close(self._fd)
        return why and f"{self.path} could not be written ({why})"

    def _flush(self) -> str:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
        except OSError as error:
            return error.strerror or str(error)
        return ""


def _encoded(data: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # the name of a file that is no text has to come back as it was
        return json.dumps(data, allow_nan=False).encode()
    except (TypeError, ValueError):
        return dumps(data).encode()


def numbered_lines(file: Path, torn: list[int] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every object with the number of its line; `torn` gets the numbers of lines that are no JSON. Raises OSError."""
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        try:
            data = json.loads(line) if line.strip() else None
        except ValueError:
            if torn is not None:
                torn.append(number)
            continue
        if isinstance(data, dict):
            yield number, data


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Every whole line, in order; none where there is no file. Half lines and what is no object are left out."""
    try:
        for _, data in numbered_lines(file):
            yield data
    except OSError:
        return


def folder_of(run: Run) -> Path:
    """The folder of a run, where a benchmark keeps its records."""
    return run.path if run.path.is_dir() else run.path.parent
