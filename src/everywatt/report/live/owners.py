"""Owners now: the ledger of the last stretch, asked as often as its own cost allows, and added up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError
from everywatt.report.live.snapshot import OwnerNow, Owners

if TYPE_CHECKING:
    from everywatt.api.run import Run
    from everywatt.ledger.owners import Entry, Ledger

SHORTEST_S = 2.0
LONGEST_S = 60.0
COST_SHARE = 0.003  # of one core: a view must not be what warms the machine
MOST = 500


class OwnersAsker:
    """Keeps what every owner owes since the view began.

    `ask` gives the newest owners; it makes a ledger only where the last one is old enough.
    """

    def __init__(self, by: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.by = "process" if by == "owner" else by
        self._clock = clock
        self._sums: dict[tuple[str, str], float] = {}
        self._told = Owners(self.by, refused="not enough time has passed yet")
        self._until_ns: int | None = None
        self._next_s = 0.0

    def ask(self, run: Run, start_ns: int, end_ns: int, *, force: bool = False) -> Owners:
        """Owners of the stretch since the last ledger, up to `end_ns` on the run's only tape."""
        began_s = self._clock()
        since_ns = start_ns if self._until_ns is None else self._until_ns
        if end_ns < since_ns:  # another tape, or moved back in one
            self._sums.clear()
            since_ns = start_ns
        if not force and (began_s < self._next_s or end_ns - since_ns < SHORTEST_S * NS):
            return self._told
        if end_ns <= since_ns:
            return self._told
        origin_ns = run.tapes[0].extent_ns()[0]
        try:
            ledger = run.ledger(self.by, between=((since_ns - origin_ns) / NS, (end_ns - origin_ns) / NS))
        except EverywattError as error:
            self._told = Owners(self.by, refused=error.message)
        else:
            self._told = self._owners(ledger, (end_ns - since_ns) / NS)
            self._until_ns = end_ns
        cost_s = self._clock() - began_s
        self._next_s = began_s + min(max(SHORTEST_S, cost_s / COST_SHARE), LONGEST_S)
        return self._told

    def moved(self) -> None:
        """A new tape: its time starts again."""
        self._until_ns = None

    def _owners(self, ledger: Ledger, duration_s: float) -> Owners:
        if ledger.total.joules is None:
            return Owners(self.by, refused=ledger.total.refused)
        entries = [self._entry(entry, duration_s) for entry in ledger.entries]
        self._forget()
        entries.sort(key=lambda entry: -entry.power_w)
        return Owners(self.by, tuple(entries), duration_s, ledger.unattributed_share)

    def _entry(self, entry: Entry, duration_s: float) -> OwnerNow:
        owner, joules = entry.owner, entry.microjoules / 1e6
        key = (owner.kind.value, owner.id)
        self._sums[key] = self._sums.get(key, 0.0) + joules
        use = entry.use
        return OwnerNow(
            kind=owner.kind.value,
            id=owner.id,
            label=owner.label,
            power_w=joules / duration_s,
            joules=self._sums[key],
            cpu_pct=None if "cpu_s" not in use else 100 * use["cpu_s"] / duration_s,
            gpu_pct=None if "gpu_s" not in use else 100 * use["gpu_s"] / duration_s,
            memory_bytes=use.get("rss_bytes"),
            method=entry.method,
        )

    def _forget(self) -> None:
        """Of very many owners, only those that owe most are remembered."""
        if len(self._sums) > 2 * MOST:
            kept = sorted(self._sums, key=lambda key: -self._sums[key])[:MOST]
            self._sums = {key: self._sums[key] for key in kept}
