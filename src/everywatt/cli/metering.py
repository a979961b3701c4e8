"""The meter that a verb's common options ask for."""

from __future__ import annotations

from typing import Any

from everywatt.api.meter import Meter
from everywatt.core.config import Settings


def meter_of(settings: Settings, note: str | None, name: str = "", **more: Any) -> Meter:
    """A meter as --period, --sensors, --no-estimate, --memory, --tag and --note say; `more` goes to `Meter` as it is.

    `name` is part of the run's name where no tag `name` gives another.
    """
    return Meter(
        settings.tags.get("name", name),
        tags=settings.tags,
        note=note or "",
        period=settings.period_s,
        sensors=settings.sensors,
        estimate=settings.estimate,
        home=settings.home,
        memory=settings.memory,
        options=settings.options,
        **more,
    )
