"""How far something is that takes longer than two seconds: one line on a terminal, elsewhere one every ten seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from everywatt.cli.common.output import PROGRESS_EVERY_S, Output, style_of
from everywatt.core.format import format_duration

QUIET_S = 2.0
LOOK_S = 0.25
LEAST_SHARE = 0.02
Tell = Callable[[float, str], None]


class Task:
    """What is known of a piece of work: the share that is done (0: not known) and what is being done."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self._clock = what, clock
        self.started = clock()
        self.share, self.text = 0.0, ""

    def tell(self, share: float, text: str = "") -> None:
        """To be called by the work as it goes on."""
        self.share, self.text = max(self.share, min(share, 1.0)), text

    @property
    def seconds(self) -> float:
        return self._clock() - self.started

    def line(self) -> str:
        """`report: reading gpu.0, 42 %, 3.1 s, about 4.3 s left`"""
        parts = [f"{self.what}: {self.text}" if self.text else self.what]
        if self.share >= LEAST_SHARE:
            parts += [f"{100 * self.share:.0f} %", format_duration(self.seconds)]
            parts.append(f"about {format_duration(self.seconds * (1 - self.share) / self.share)} left")
        else:
            parts.append(format_duration(self.seconds))
        return ", ".join(parts)


@contextmanager
def task(output: Output, what: str) -> Iterator[Tell]:
    """A block of work that may take long; yields the function with which it reports progress.

    On a terminal nothing is shown for two seconds, then one line that is rewritten, and cleared at the end. Elsewhere
    --verbose gives one plain line every ten seconds.
    """
    work = Task(what)
    live = style_of(output.stderr, output.environ).rich
    if output.quiet or not (live or output.verbose):
        yield work.tell
    elif not live:
        with repeated(lambda: output.detail(f"everywatt: {work.line()}")):
            yield work.tell
    else:
        show = output.progress()
        try:
            with repeated(lambda: show(work.line()), LOOK_S, QUIET_S):
                yield work.tell
        finally:
            output.clear()


@contextmanager
def repeated(
    action: Callable[[], None], every_s: float = PROGRESS_EVERY_S, first_s: float | None = None
) -> Iterator[None]:
    """Do something so often, beside the block; for the first time after `first_s`."""
    done = threading.Event()

    def follow() -> None:
        wait_s = every_s if first_s is None else first_s
        while not done.wait(wait_s):
            action()
            wait_s = every_s

    thread = threading.Thread(target=follow, daemon=True)
    with suppress(RuntimeError):  # no thread can be started
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.is_alive():
            thread.join(timeout=1.0)
