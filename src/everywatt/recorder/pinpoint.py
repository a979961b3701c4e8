"""Counters that publish every millisecond, read until they publish where a span starts or ends.

The measured program reads such a counter once at the span's edge: a value up to a millisecond old, and nothing of the
power in that millisecond. In a window of 50 ms that is 2 % and more. The recorder hears of the edge a moment later and
reads on until the counter has moved: that places this publication, by the counter's period those before it, and says
how much was drawn just then. The program does not wait for it. It takes a millisecond of the recorder's time, so there
is an allowance.
"""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.core.channels import NAN, Row
from everywatt.core.clocks import NS, Clock
from everywatt.recorder.source import Source

# A counter that publishes less often is not waited for; one that has not moved after so many periods neither.
LONGEST_NS = 2_000_000
PATIENCE = 1.3
# Searches that may follow one another at once, and how many a second go on for ever: less than 1 % of one core.
AT_ONCE = 30.0
PER_SECOND = 8.0
# A publication that was not placed to this share of a period is no news; this often another one is waited for.
NARROW = 0.25
RETRIES = 4
# A period is known to about this share.
PERIOD_KNOWN = 0.02


class Pinpoint:
    """Finds the next publication of fast counters, within its allowance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowance = AT_ONCE
        self._asked_ns = clock.monotonic_ns()

    def after_edge(self, sources: Sequence[Source]) -> None:
        """Hand on the publications around this moment of those `sources` that are read inline."""
        fast = [source for source in sources if source.info.inline and source.outage is None and _period_ns(source)]
        if not fast:
            return
        now = self._clock.monotonic_ns()
        self._allowance = min(AT_ONCE, self._allowance + PER_SECOND * (now - self._asked_ns) / NS)
        self._asked_ns = now
        if self._allowance < 1:
            return
        self._allowance -= 1
        self._search(fast, now + round(PATIENCE * max(map(_period_ns, fast))))

    def _search(self, sources: list[Source], until_ns: int) -> None:
        seen: dict[int, tuple[int, Row]] = {}
        retries = RETRIES
        while sources:
            left = []
            for source in sources:
                start_ns = self._clock.monotonic_ns()
                try:
                    row = source.group.read()[-1]  # type: ignore[union-attr]
                except Exception:  # noqa: BLE001 - a plug-in may do anything; its next regular read tells
                    continue
                before = seen.get(id(source))
                if before is not None and row.values[0] != before[1].values[0]:
                    if row.read_ns - before[0] <= NARROW * _period_ns(source):
                        source.hand_on(_rows(source, before, row))
                        continue
                    if retries:  # we were not running when it was published
                        retries -= 1
                        until_ns = row.read_ns + round(PATIENCE * _period_ns(source))
                seen[id(source)] = (start_ns, row)
                left.append(source)
            sources = left if self._clock.monotonic_ns() < until_ns else []


def _period_ns(source: Source) -> int:
    """How often a counter publishes, 0 where that is not known or slow."""
    period_s = source.info.channels[0].facts.period_s or 0.0
    period_ns = round(period_s * NS)
    return period_ns if period_ns <= LONGEST_NS else 0


def _rows(source: Source, seen: tuple[int, Row], row: Row) -> list[Row]:
    """The publication that was seen to happen, and the one a period before it. Channels that stood still are left out.

    Rows of a group follow one another: where it was read a moment ago, the older publication may be on the tape.
    """
    start_ns, old = seen
    period_ns, late_ns = _period_ns(source), row.read_ns
    slack_ns = round(PERIOD_KNOWN * period_ns)
    pairs = [(a, b) if a != b else (NAN, NAN) for a, b in zip(old.values, row.values, strict=True)]
    before_ns, after_ns = start_ns - period_ns - slack_ns, late_ns - period_ns + slack_ns
    first = Row(old.read_ns, before_ns, after_ns, tuple([a for a, _ in pairs]))
    second = Row(row.read_ns, start_ns, late_ns, tuple([b for _, b in pairs]))
    last = source.last
    if last is not None and last.early_ns + last.late_ns >= first.early_ns + first.late_ns:
        return [second]
    return [first, second]
