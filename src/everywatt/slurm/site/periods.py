"""Days and months of a site, in UTC as the store has them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from everywatt.core.errors import UsageError


def day_bounds_s(day: date) -> tuple[float, float]:
    """First instant of a day, and of the day after it (UTC)."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start.timestamp(), (start + timedelta(days=1)).timestamp()


def month_bounds_s(text: str) -> tuple[float, float]:
    """First instant of a month such as 2026-11, and of the one after it, so its last day is inside."""
    match = re.fullmatch(r"(\d{4})-(\d{2})", text)
    if not match or not 1 <= int(match[2]) <= 12 or int(match[1]) < 1970:
        raise UsageError(f"'{text}' is not a month.", cure="such as 2026-11")
    year, month = int(match[1]), int(match[2])
    after = (year + 1, 1) if month == 12 else (year, month + 1)
    return tuple(datetime(y, m, 1, tzinfo=UTC).timestamp() for y, m in ((year, month), after))  # type: ignore[return-value]


def month_of(unix_s: float) -> str:
    """`2026-11`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m}"


def day_of(unix_s: float) -> date:
    """The day (UTC) of an instant."""
    return datetime.fromtimestamp(unix_s, UTC).date()


def days_of(since_s: float, until_s: float) -> tuple[date, ...]:
    """Every day (UTC) of a time that ends before `until_s`."""
    first, last = day_of(since_s).toordinal(), day_of(until_s - 1e-6).toordinal()
    return tuple(date.fromordinal(number) for number in range(first, last + 1))
