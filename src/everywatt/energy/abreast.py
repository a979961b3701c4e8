"""One window of several counters by one curve: asking once for ten costs little more than asking for one.

The ticks of the counters are laid one after the other on one line of time, each with its utilisation; those of which
no utilisation is known on a line of their own. An end of a window looks at its own neighbours only, so none of them
sees another counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everywatt.core.clocks import NS
from everywatt.energy.curve import Sampled
from everywatt.energy.ends import REACH_S
from everywatt.energy.median import median
from everywatt.energy.sampling import CLEAR, CounterCurve
from everywatt.energy.ticks import Reading, Ticks
from everywatt.energy.unseen_power import Array, Witness, unwitnessed

# Between two counters: longer than utilisation speaks for a cell.
APART_S = 1.0


def read_abreast(counters: Sequence[Ticks], start_ns: int, end_ns: int) -> list[Reading]:
    """What `Ticks.between` gives for each, for ticks of `energy.ends`."""
    around = [ticks for ticks in counters if _around(ticks, start_ns, end_ns)]
    told = [ticks for ticks in around if ticks.witness and not unwitnessed(ticks.witness, ticks.joules)]
    silent = [ticks for ticks in around if ticks.witness is None]
    found: dict[int, Reading] = {}
    for group in (told, silent):
        found.update(zip(map(id, group), _together(group, start_ns, end_ns), strict=True))
    return [found.get(id(ticks)) or ticks.between(start_ns, end_ns) for ticks in counters]


def _around(ticks: Ticks, start_ns: int, end_ns: int) -> bool:
    """Whether a counter has ticks all around the window."""
    margin_ns = round((REACH_S + ticks.expected_s) * NS)
    return bool(ticks.at_ns[0] + margin_ns < start_ns and end_ns < ticks.at_ns[-1] - margin_ns)


def _together(counters: Sequence[Ticks], start_ns: int, end_ns: int) -> list[Reading]:
    """For counters that all have a witness, or all have none."""
    if len(counters) < 2:
        return [ticks.between(start_ns, end_ns) for ticks in counters]
    laid: list[_Laid] = []
    for ticks in counters:
        laid.append(_laid(ticks, laid[-1] if laid else None))
    t, half = (np.concatenate([getattr(one, field) for one in laid]) for field in ("t_s", "half_s"))
    if np.diff(t).min() < CLEAR * median(2 * half / np.sqrt(12)):
        return [ticks.between(start_ns, end_ns) for ticks in counters]
    witness = None
    if counters[0].witness is not None:
        witness = Witness(*(np.concatenate([getattr(one, field) for one in laid]) for field in ("seen_s", "share")))
    curve = CounterCurve(
        t,
        np.concatenate([one.joules for one in laid]),
        early_s=t - half,
        late_s=t + half,
        witness=witness,
        low_w=np.concatenate([np.full(len(one.t_s), one.low_w) for one in laid])[1:],
    )
    starts, ends = (np.array([one.place_s(at) for one in laid]) for at in (start_ns, end_ns))
    sampled = curve.energy(starts, ends)
    window = np.array([start_ns]), np.array([end_ns])
    return [
        ticks.readings(*window, _own(sampled, place, ticks.channel.facts.quantum or 0.0))[0]
        for place, ticks in enumerate(counters)
    ]


@dataclass(frozen=True, slots=True)
class _Laid:
    """Ticks of one counter on the common line, the instant `origin_ns` at `origin_s` of it."""

    t_s: Array
    half_s: Array
    joules: Array
    seen_s: Array
    share: Array
    low_w: float
    origin_ns: int
    origin_s: float

    def place_s(self, at_ns: int) -> float:
        """An instant of the counter's own time on the line."""
        return self.origin_s + (at_ns - self.origin_ns) / NS


def _laid(ticks: Ticks, before: _Laid | None) -> _Laid:
    own_s = (ticks.at_ns - ticks.origin_ns) / NS
    seen_s, share = _seen(ticks, own_s)
    least_s, least_j = (max(before.t_s[-1], before.seen_s[-1]), before.joules[-1]) if before else (0.0, 0.0)
    origin_s = float(least_s + APART_S - seen_s[0])
    joules = least_j + (ticks.joules - ticks.joules[0])
    return _Laid(
        own_s + origin_s,
        ticks.half_ns / NS,
        joules,
        seen_s + origin_s,
        share,
        ticks.low_w or 0.0,
        ticks.origin_ns,
        origin_s,
    )


def _seen(ticks: Ticks, own_s: Array) -> tuple[Array, Array]:
    """Utilisation from before the first tick on; without a witness nothing but the first and the last instant."""
    witness = ticks.witness
    if witness is None:
        return own_s[[0, -1]], np.zeros(2)
    seen_s = witness.t_s - ticks.origin_ns / NS
    return np.append(min(seen_s[0], own_s[0]), seen_s), np.append(witness.share[0], witness.share)


def _own(sampled: Sampled, place: int, quantum_j: float) -> Sampled:
    one = slice(place, place + 1)
    return Sampled(
        sampled.joules[one],
        sampled.left_j[one],
        sampled.right_j[one],
        sampled.inner_j[one],
        np.array([quantum_j]),
        sampled.coverage[one],
    )
