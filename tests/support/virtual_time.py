"""Virtual time: programs run one at a time, in threads, and the clock moves only while all of them wait.

`VirtualTime` is a `core.clocks.Clock`. Whoever waits on it (sleep, select, poll, event, join) gives its turn to another
program that can go on; where none can, time jumps to the next deadline. Sockets are real ones. The order of turns
depends on nothing but what the programs do, so a run repeats exactly.

A program belongs to a `Process`, which can be killed (it never gets another turn, its descriptors are closed, its
databases keep what was committed) and stopped for a while, as by SIGSTOP.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from everywatt.core.clocks import NS, SystemClock

FAR_NS = 1 << 62
READ_NS = 500  # what asking for the time takes, so that a loop that waits by asking comes to an end
GIVE_UP_S = 120.0  # of real time: a turn that takes this long hangs


class Killed(BaseException):
    """Ends the threads of a killed process. No `except Exception` of the program sees it."""


class Stuck(AssertionError):
    """Every program waits for another one."""


@dataclass(eq=False)
class Process:
    """What is killed and stopped together. `on_kill` closes what the kernel would close."""

    name: str
    killed: bool = False
    stopped_until_ns: int = 0
    on_kill: list[Callable[[], None]] = field(default_factory=list)
    tasks: list[VirtualTask] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return not self.killed and any(task.is_alive() for task in self.tasks)


class VirtualTask:
    """One thread of a process. It has its turn, or waits until `ready()` or `deadline_ns`."""

    def __init__(self, time: VirtualTime, process: Process, name: str, function: Callable[[], object] | None) -> None:
        self.time, self.process, self.name = time, process, name
        self.deadline_ns = FAR_NS
        self.ready: Callable[[], bool] = lambda: False
        self.order = 0
        self.done = False
        self.error: BaseException | None = None
        self.turn = threading.Semaphore(0)
        self._function = function
        if function is not None:
            threading.Thread(target=self._run, name=name, daemon=True).start()
            self.deadline_ns = 0  # it may begin at once

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.process.killed:
                assert self._function is not None
                self._function()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self.time.finished(self)

    def join(self, timeout: float | None = None) -> None:
        self.time.wait(lambda: self.done, timeout)

    def is_alive(self) -> bool:
        return not self.done


class VirtualEvent:
    """As `threading.Event`, in virtual time."""

    def __init__(self, time: VirtualTime) -> None:
        self._time, self._set = time, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._time.wait(lambda: self._set, timeout)
        return self._set


class TimeModule:
    """In the place of the module `time` in a module that asks it: `patch.setattr(module, "time", TimeModule(time))`."""

    def __init__(self, virtual: VirtualTime) -> None:
        self._virtual = virtual
        self.sleep, self.monotonic_ns, self.perf_counter_ns = virtual.sleep, virtual.monotonic_ns, virtual.monotonic_ns
        self.time_ns = virtual.utc_ns

    def monotonic(self) -> float:
        return self._virtual.monotonic_ns() / NS

    perf_counter = monotonic

    def time(self) -> float:
        return self._virtual.utc_ns() / NS


class VirtualTime:
    """The clock and the scheduler. The thread that makes it is the first program, of the process `test`."""

    def __init__(self, start_ns: int = 1_000 * NS, utc_ns: int = 1_800_000_000 * NS, seed: int | None = None) -> None:
        self.now_ns = start_ns
        self.utc_offset_ns = utc_ns - start_ns
        self.suspended_ns = 0
        self.test = Process("test")
        self.main = VirtualTask(self, self.test, "test", None)
        self.test.tasks.append(self.main)
        self.current = self.main
        self._tasks: list[VirtualTask] = [self.main]
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._chance = None if seed is None else random.Random(seed)
        self._stuck: BaseException | None = None

    # The clock.

    def monotonic_ns(self) -> int:
        self.now_ns += READ_NS
        return self.now_ns

    def boottime_ns(self) -> int:
        return self.now_ns + self.suspended_ns

    def utc_ns(self) -> int:
        return self.now_ns + self.utc_offset_ns

    def sleep_until(self, deadline_ns: int) -> None:
        self._wait(lambda: False, deadline_ns)

    def sleep(self, seconds: float) -> None:
        """For what plays the user's program."""
        self.sleep_until(self.now_ns + round(seconds * NS))

    def select(
        self, readers: Iterable[Any], writers: Iterable[Any], exceptional: Iterable[Any], timeout_s: float | None, /
    ) -> tuple[list[Any], list[Any], list[Any]]:
        readers, writers = list(readers), list(writers)
        found = system_select(readers, writers, (), 0)
        if found[0] or found[1] or (timeout_s is not None and timeout_s <= 0):
            return found
        self.wait(lambda: _any_ready(readers, writers), timeout_s)
        return system_select(readers, writers, (), 0)

    def poll(self, fd: int, *, write: bool, timeout_s: float) -> bool:
        return any(self.select((fd,), (fd,) if write else (), (), timeout_s))

    def spawn(self, function: Callable[[], object], name: str) -> VirtualTask:
        """Another thread of the process that has its turn."""
        return self.start(self.current.process, function, name)

    def event(self) -> VirtualEvent:
        return VirtualEvent(self)

    # Programs.

    def start(self, process: Process, function: Callable[[], object], name: str = "") -> VirtualTask:
        """Run a function as a thread of a process; it begins when the caller waits."""
        task = VirtualTask(self, process, name or process.name, function)
        self._order += 1
        task.order = self._order
        process.tasks.append(task)
        self._tasks.append(task)
        return task

    def at(self, at_ns: int, happens: Callable[[], None]) -> None:
        """Let something happen at an instant, between two turns."""
        self._order += 1
        self._events.append((at_ns, self._order, happens))
        self._events.sort(key=lambda event: event[:2])

    def stop(self, process: Process, seconds: float) -> None:
        """The process has no turn for so long, as between SIGSTOP and SIGCONT."""
        process.stopped_until_ns = self.now_ns + round(seconds * NS)

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: its threads go no further than where they wait."""
        if process.killed:
            return
        process.killed = True
        process.stopped_until_ns = 0
        for close in process.on_kill:
            with suppress(OSError):
                close()

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the monotonic clock stands still, the others go on."""
        self.suspended_ns += round(seconds * NS)
        self.utc_offset_ns += round(seconds * NS)

    def set_utc(self, seconds: float) -> None:
        """Someone sets the wall clock by so much."""
        self.utc_offset_ns += round(seconds * NS)

    # Turns.

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until something is so, or the time is over."""
        self._wait(ready, FAR_NS if timeout_s is None else self.now_ns + round(timeout_s * NS))

    def _wait(self, ready: Callable[[], bool], deadline_ns: int) -> None:
        task = self.current
        if task.process.killed:
            raise Killed
        task.ready, task.deadline_ns = ready, deadline_ns
        self._order += 1
        task.order = self._order
        following = self._next()
        if following is not task:
            self._hand_to(following)
            if not task.turn.acquire(timeout=GIVE_UP_S):
                raise Stuck(f"{self.current.name} has had its turn for {GIVE_UP_S:.0f} s")
        if task is self.main and self._stuck is not None:
            raise self._stuck
        if task.process.killed:
            raise Killed

    def finished(self, task: VirtualTask) -> None:
        """A thread has ended: another one has its turn."""
        self._tasks.remove(task)
        self._hand_to(self._next())

    def _hand_to(self, task: VirtualTask) -> None:
        self.current = task
        task.turn.release()

    def _next(self) -> VirtualTask:
        """Whose turn it is; moves the time where everyone waits."""
        before, self.current = self.current, self.main  # what happens meanwhile is the test's doing
        try:
            while True:
                while self._events and self._events[0][0] <= self.now_ns:
                    self._events.pop(0)[2]()
                able = [task for task in self._tasks if self._may_go_on(task)]
                if able:
                    able.sort(key=lambda task: task.order)
                    return able[0] if self._chance is None else self._chance.choice(able)
                times = [max(task.deadline_ns, task.process.stopped_until_ns) for task in self._tasks]
                times += [task.process.stopped_until_ns for task in self._tasks]
                times += [event[0] for event in self._events[:1]]
                coming = [at_ns for at_ns in times if self.now_ns < at_ns < FAR_NS]
                if not coming:
                    raise Stuck(f"waiting for each other: {', '.join(task.name for task in self._tasks)}")
                self.now_ns = min(coming)
        except BaseException as error:
            self._stuck = error
            return self.main
        finally:
            self.current = before

    def _may_go_on(self, task: VirtualTask) -> bool:
        if task.process.killed:
            return True  # to end
        if task.process.stopped_until_ns > self.now_ns:
            return False
        return task.deadline_ns <= self.now_ns or task.ready()

    @contextmanager
    def everywhere(self) -> Iterator[VirtualTime]:
        """Whoever asks the system's clock asks this one."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("monotonic_ns", "boottime_ns", "utc_ns", "sleep_until", "select", "poll", "spawn", "event"):
                patch.setattr(SystemClock, name, staticmethod(getattr(self, name)))
            try:
                yield self
            finally:
                self._stuck = None
                while len(self._tasks) > 1:
                    for task in self._tasks[1:]:
                        self.kill(task.process)
                    self.sleep(0)


system_select = SystemClock.select  # before `everywhere` replaces it


def _any_ready(readers: list[Any], writers: list[Any]) -> bool:
    try:
        return any(system_select(readers, writers, (), 0))
    except (OSError, ValueError):
        return True  # one was closed: its owner finds out
