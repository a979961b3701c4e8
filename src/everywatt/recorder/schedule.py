"""When to read which group: absolute deadlines that do not drift, and as few wake-ups as possible.

A plain group is due at fixed instants of one common grid. A tracked group is due anywhere within a window between two
publications, so windows that overlap share one wake-up, at a fixed deadline where one falls into them. Where a group
publishes just at the grid's instants the grid is moved to where nobody does.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from everywatt.core.lazy_dataclass import dataclass
from everywatt.recorder.phase_lock import Tracker

MS = 1_000_000
LATE_NS = 5 * MS
SLACK = 16
CLEAR_NS = 4 * MS  # a fixed deadline this near to a publication cannot be shared with its group
ALIGN_NS = 2_000 * MS
SLOW_NS = 1000 * MS


@dataclass
class Figures:
    """How well the schedule of one group was kept."""

    asked_ns: int
    expected_ns: int
    since_ns: int
    rows: int = 0
    late: int = 0
    missed: int = 0

    def to_dict(self, now_ns: int) -> dict[str, float | int]:
        """Requested, expected (the sensor may be slower) and achieved rate in Hz; late and missed ticks."""
        seconds = max(now_ns - self.since_ns, 1) / 1e9
        return {
            "requested_hz": round(1e9 / self.asked_ns, 6),
            "expected_hz": round(1e9 / self.expected_ns, 6),
            "achieved_hz": round(self.rows / seconds, 4),
            "rows": self.rows,
            "late": self.late,
            "missed": self.missed,
        }

    def trouble(self, now_ns: int) -> str | None:
        """A sentence where ticks are missing, or far fewer came than can be expected."""
        seconds = (now_ns - self.since_ns) / 1e9
        expected = seconds * 1e9 / self.expected_ns
        if expected >= 20 and self.rows < 0.8 * expected:
            return (
                f"{1000000000.0 / self.expected_ns:.3g} rows/s were expected and {self.rows / seconds:.3g} rows/s "
                "were recorded."
            )
        if self.missed > 0.01 * expected + 1 or self.late > 0.05 * expected + 5:
            return f"{self.missed} ticks were missed and {self.late} late, of about {expected:.0f}."
        return None


@dataclass
class Slot:
    """One group's place in the schedule: the tracker of a tracked group, else a deadline on the grid."""

    period_ns: int
    deadline_ns: int
    tracker: Tracker | None = None
    offset_ns: int = 0  # from the grid: slow groups of different sensors take turns
    hold_ns: int = 0  # after a failure: not before this
    late: int = 0
    missed: int = 0


@dataclass
class Schedule:
    """The slots of all groups, and the next wake-up. `origin_ns` is where the common grid starts."""

    origin_ns: int
    slots: dict[Hashable, Slot] = field(default_factory=dict)
    _turns: dict[Hashable, int] = field(default_factory=dict)
    _align_ns: int = 0

    def add(
        self, key: Hashable, period_ns: int, now_ns: int, tracker: Tracker | None = None, sensor: Hashable = None
    ) -> None:
        """A group that is read at once, and then every `period_ns`.

        Slow groups of one `sensor` are read in one go: the first of them finds the processor's caches cold, and the
        others cost two thirds of it.
        """
        turn = self._turns.setdefault(sensor or key, len(self._turns)) if period_ns >= SLOW_NS else 0
        self.slots[key] = Slot(period_ns, now_ns, tracker, period_ns // 10 * (turn % 10))

    def remove(self, key: Hashable) -> None:
        """Forget a group."""
        self.slots.pop(key, None)

    def soon(self, key: Hashable, now_ns: int) -> None:
        """Read a plain group at once, without moving its grid."""
        slot = self.slots[key]
        if slot.tracker is None:
            slot.deadline_ns = min(slot.deadline_ns, now_ns)

    def change(self, key: Hashable, period_ns: int, now_ns: int) -> None:
        """Another period from now on."""
        slot = self.slots[key]
        if slot.period_ns != period_ns:
            slot.period_ns = period_ns
            slot.deadline_ns = min(slot.deadline_ns, self.after(slot, now_ns))
            if slot.tracker is not None:
                slot.tracker.ask(period_ns, now_ns)

    def wake_ns(self) -> int | None:
        """The next wake-up, None where there is nothing to read."""
        fixed = latest = None
        firsts = []
        for slot in self.slots.values():  # every wake-up comes here: one plain loop
            hold = slot.hold_ns
            if slot.tracker is None:
                at = slot.deadline_ns if slot.deadline_ns > hold else hold
                if fixed is None or at < fixed:
                    fixed = at
                continue
            window = slot.tracker.due
            firsts.append(window.earliest_ns if window.earliest_ns > hold else hold)
            # Not at the last moment: a wake-up that comes late would miss the publication.
            last = window.latest_ns - (window.latest_ns - window.earliest_ns) // SLACK
            if last < hold:
                last = hold
            if latest is None or last < latest:
                latest = last
        if latest is None or (fixed is not None and fixed <= latest):
            # Whoever is free to be read at the fixed deadline is read there; the others get a wake-up of their own.
            return fixed
        return (max(first for first in firsts if first <= latest) + latest) // 2

    def fastest_ns(self) -> int:
        """The shortest period of all groups, a second where there is none."""
        return min((slot.period_ns for slot in self.slots.values()), default=1_000 * MS)

    def due(self, now_ns: int) -> list[Hashable]:
        """The groups to read now: probes first, then those with a deadline, slow ones last."""
        found: list[tuple[int, int, int, Hashable]] = []
        patient: list[tuple[int, int, int, int, Hashable]] = []
        fixed = None
        for key, slot in self.slots.items():
            if slot.tracker is None:
                at = slot.deadline_ns
                if fixed is None or at < fixed:
                    fixed = at
                if at <= now_ns and slot.hold_ns <= now_ns:
                    found.append((slot.period_ns, 1, len(found), key))
                continue
            # A probe that is a moment away joins in only at its own time: its instant is its purpose.
            earliest, latest = slot.tracker.due
            if earliest > now_ns or slot.hold_ns > now_ns:
                continue
            if earliest == latest:
                found.append((0, 0, len(found), key))
            else:
                patient.append((latest - (latest - earliest) // SLACK, slot.period_ns, 2, len(patient), key))
        # Whoever can wait for the next deadline does: reads of many groups in one go cost least.
        found += [entry[1:] for entry in patient if fixed is None or fixed <= now_ns or entry[0] < fixed]
        found.sort()
        return [entry[3] for entry in found]

    def done(self, key: Hashable, began_ns: int, now_ns: int) -> tuple[bool, int]:
        """A group was read (`began_ns`): its next deadline is set. Gives whether it was late, and ticks missed."""
        slot = self.slots[key]
        slot.hold_ns = 0
        if slot.tracker is not None:
            return False, 0
        behind = began_ns - slot.deadline_ns
        slot.deadline_ns = self.after(slot, slot.deadline_ns)
        missed = 0
        if slot.deadline_ns <= now_ns:
            ahead = self.after(slot, now_ns)
            missed = (ahead - slot.deadline_ns) // slot.period_ns
            slot.deadline_ns = ahead
        late = behind > max(LATE_NS, slot.period_ns // 20)
        slot.late += late
        slot.missed += missed
        return late, missed

    def align(self, now_ns: int) -> None:
        """Move the grid away from publications, into the widest pause between them, so that all share its wake-ups."""
        if now_ns < self._align_ns:
            return
        self._align_ns = now_ns + ALIGN_NS
        period_ns = min((s.period_ns for s in self.slots.values() if s.tracker is None), default=0)
        phases = sorted(
            (slot.tracker.due.earliest_ns - self.origin_ns) % period_ns
            for slot in self.slots.values()
            if slot.tracker is not None and _even(slot.tracker, period_ns)
        )
        # A group is not read in the last moments before its next publication, so more room is wanted on that side.
        ahead_ns = period_ns // SLACK + CLEAR_NS
        if not phases or (phases[0] > ahead_ns and phases[-1] < period_ns - CLEAR_NS // 4):
            return
        pauses = zip(phases, [*phases[1:], phases[0] + period_ns], strict=True)
        width, start = max((after - before, before) for before, after in pauses)
        if width < ahead_ns + CLEAR_NS:
            return
        self.origin_ns += (start + (width - ahead_ns) // 2) % period_ns
        for slot in self.slots.values():
            if slot.tracker is None:
                slot.deadline_ns = min(slot.deadline_ns, self.after(slot, now_ns))

    def hold(self, key: Hashable, until_ns: int) -> None:
        """After a failure: do not read before then."""
        self.slots[key].hold_ns = until_ns

    def after(self, slot: Slot, now_ns: int) -> int:
        """The first instant of the grid after `now_ns`."""
        start = self.origin_ns + slot.offset_ns
        return start + ((now_ns - start) // slot.period_ns + 1) * slot.period_ns


def _even(tracker: Tracker, period_ns: int) -> bool:
    """True for a locked group that publishes about once in `period_ns` and is not being probed just now."""
    window, published_ns = tracker.due, tracker.period_ns
    if not tracker.locked or published_ns is None or window.latest_ns - window.earliest_ns < period_ns // 2:
        return False
    return abs(published_ns - period_ns) < period_ns // 50
