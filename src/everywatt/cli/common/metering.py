"""The meter that a verb's common options ask for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from everywatt.api.meter import Meter
from everywatt.core.config import Settings
from everywatt.recorder.request import RecordRequest


@contextmanager
def terminable() -> Iterator[Callable[[], int]]:
    """SIGTERM inside ends the work as Ctrl-C does, so partial results are kept; yields the exit code.

    `timeout` sends it twice, to its command and to its group: the second must not interrupt the saving of partial
    results.
    """
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield lambda: 128 + (came[0] if came else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


def meter_of(settings: Settings, note: str | None, name: str = "", **more: Any) -> Meter:
    """A meter as --period, --sensors, --no-estimate, --memory, --tag and --note say; `more` goes to `Meter` as it is.

    `name` is part of the run's name where no tag `name` gives another.
    """
    return Meter(
        settings.tags.get("name", name),
        tags=settings.tags,
        note=note or "",
        home=settings.home,
        request=RecordRequest.of_settings(settings),
        **more,
    )
