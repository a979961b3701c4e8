"""The ticks of one channel around a window: publications with what had accumulated at each, and joules from them.

Where it is not known what a GPU's gauge averages over, its readings say which windows are possible.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import median
from everywatt.energy.curve import LEVEL, AnyOf, Curve, PartTime, Sampled
from everywatt.energy.sampling import GAP_PERIODS, WHOLE, CounterCurve, GaugeCurve, calm
from everywatt.energy.utilisation import MOVED, PULSED, Array, Toggling, Witness, toggling
from everywatt.tape.columns import Flags, Floats, Ints

WHOLE_ROWS = 200_000
# Counters that publish at least this often.
FAST_S = 0.002
FEW_STEPS = 4
# What adding up many numbers leaves open.
ROUNDING = 1e-12
# The largest step between two readings of an average over ten periods is a tenth of a change of load; a share of the
# whole range that is well above, and the range (of the highest reading) that it takes to say so.
CLIMB = 0.3
MOVED_RANGE = 0.2
# A sensor that looks at a part of its period: the part that is known of such (25 of 100 ms), and how many cells of a
# toggling load it takes to find it out.
PARTIAL = 0.25
# And the most that is known of one that does not see all of it (80 of 100 ms).
MOST = 0.8
FEWEST_TOGGLING = 20
# The share of isolated steps without a reading in between: within 5 % of either level for a whole period, 78 % for a
# quarter of it; and the odds from which one of the two is ruled out (natural logarithm of 20 to 1).
SUDDEN_WHOLE, SUDDEN_PART = 0.1, 0.78
CLEAR_ODDS = 3.0
# What an averaging sensor averages (NVML's documentation of power usage).
AVERAGE_S = 1.0
# The most that a card draws whose limit is not known (PCIe's connector: 600 W).
BOARD_W = 600.0
# What most sensors average, by the table of known cards.
SHORT_AVERAGE_S = 0.1
# Readings that climb are averages of steps where this share of them stands still; else they may be of a ramp.
SOME_CALM = 0.05
# A step of less than this share of all readings says nothing.
LARGE = 0.3


@dataclass(frozen=True, slots=True)
class Reading:
    """Joules between two instants, and how far sampling alone may be off (95 % half-widths).

    `below_j` and `above_j` are bounds of what readings that keep pace with the load cannot exclude. A gauge's readings
    are a share `read_share` of what it published.
    """

    joules: float | None
    coverage: float
    start_width_j: float = 0.0
    end_width_j: float = 0.0
    aliasing_j: float = 0.0
    quantum_j: float = 0.0
    most_w: float | None = None
    refused: str = ""
    below_j: float = 0.0
    above_j: float = 0.0
    read_share: float = 1.0


@dataclass(frozen=True)
class Ticks:
    """Publications of a channel, in order.

    at_ns        when the value was published (the middle of what is possible), half_ns half of what is possible
    joules       accumulated joules, gain and bias of a calibration applied
    observed_ns  accumulated time that was really observed
    watts        mean power of the cell that ends at the publication
    real         False for one that was put in: one period past the first and the last, where a cell may reach, and
                 where a gauge's first reading after a gap begins to speak
    low_w        what a counter's device draws at least, where more is known of it than these ticks (None: it is not)
    hole_ns      a stretch whose rows were not loaded, because only the two ends of a long window matter; (0, 0) if none
    """

    channel: Channel
    expected_s: float
    at_ns: Ints
    half_ns: Floats
    joules: Floats
    observed_ns: Floats
    watts: Floats
    real: Flags
    witness: Witness | None = None
    hole_ns: tuple[int, int] = (0, 0)
    low_w: float | None = None

    @cached_property
    def period_s(self) -> float:
        """How often the sensor publishes: as seen, unless that is far from what is known of it."""
        known = self.channel.facts.period_s
        steps = np.diff(self.at_ns[self.real]) / NS
        seen = _publishing_s(steps) if len(steps) >= FEW_STEPS else None
        if seen is not None and (known is None or abs(seen - known) < 0.1 * known):
            return seen
        return known or self.expected_s

    @cached_property
    def spacing_s(self) -> float:
        """How far apart ticks are most of the time: the sensor's period, or longer where it is read less often."""
        steps = np.diff(self.at_ns[self.real]) / NS
        steps = steps[steps <= GAP_PERIODS * max(self.expected_s, self.period_s)]
        if len(steps) < FEW_STEPS:
            return self.period_s
        usual = _spacing_s(steps)
        return usual if usual > 1.5 * self.period_s else self.period_s

    @cached_property
    def windows_s(self) -> tuple[float, ...]:
        """What a gauge may average over, the likeliest first; a GPU's gauge of which it is not known may be any."""
        known = self.channel.facts.window_s
        if known is not None or self.channel.kind is Kind.COUNTER:
            return (self.period_s if known is None else known,)
        found = self._possible_windows_s
        return found if self.channel.domain is Domain.GPU else (min(found[0], self.spacing_s),)

    @cached_property
    def _possible_windows_s(self) -> tuple[float, ...]:
        own = self.real & np.isfinite(self.watts)
        state = toggling(self._shifted_witness(), self._seconds(self.at_ns[own]))
        apart_s = np.diff(self.at_ns[own]) / NS
        return possible_windows(self.watts[own], self.spacing_s, state, apart_s, self.channel.facts.max_w)

    @cached_property
    def curve(self) -> Curve:
        """The same ticks as cells with what is not known of each; seconds from `origin_ns`."""
        facts, t = self.channel.facts, self._seconds(self.at_ns)
        half_s = self.half_ns / NS
        if self.channel.kind is Kind.COUNTER:
            quantum_j = facts.quantum or 0.0
            counted = CounterCurve(
                t,
                self.joules - self.joules[0],
                early_s=t - half_s,
                late_s=t + half_s,
                quantum_j=quantum_j,
                witness=self._shifted_witness(),
                low_w=self.low_w,
            )
            if not part_time(self.channel) or self.real.sum() < 2:
                return counted
            seen_s = min(self._possible_windows_s) if facts.window_s is None else facts.window_s
            if seen_s > (1 - WHOLE) * self.spacing_s:
                return counted
            # Each increment is a reading of its sensor, which speaks for the period before it.
            own = np.flatnonzero(self.real)[1:]
            held_s = np.diff(t, prepend=t[0])
            gauges = [self._gauge(t[own], half_s[own], own, held_s, w) for w in (seen_s, self.period_s)]
            limit_w = facts.max_w or self.most_w() or 0.0
            return PartTime(counted, *gauges, gap_s=GAP_PERIODS * self.expected_s, limit_w=limit_w)
        held_s = np.diff(self.observed_ns, prepend=self.observed_ns[0] - self.period_s * NS) / NS
        # What was put before the first reading, or where nothing was read, is not a reading: the curve starts later.
        is_reading = held_s > 0
        is_reading[0] = self.real[0]
        t, half_s = t[is_reading], half_s[is_reading]
        curves = [self._gauge(t, half_s, is_reading, held_s, window_s) for window_s in self.windows_s]
        return curves[0] if len(curves) == 1 else AnyOf(curves)

    def _gauge(
        self, t: Floats, half_s: Floats, is_reading: Flags | npt.NDArray[np.intp], held_s: Floats, window_s: float
    ) -> GaugeCurve:
        facts = self.channel.facts
        return GaugeCurve(
            t,
            self.watts[is_reading],
            held_s=held_s[is_reading],
            period_s=self.spacing_s,
            # A gauge's gaps are in what it was held for. For increments of a counter it is the tape's rule: a stretch
            # of close reads (a search for the schedule) makes no gaps of the others.
            gap_s=GAP_PERIODS * self.expected_s if self.channel.kind is Kind.COUNTER else math.inf,
            reach_s=self.expected_s,
            window_s=window_s,
            guessed=facts.window_s is None,
            # Taken as the mean of its period, while it may be the power at its end: half a period later.
            lag_s=self.spacing_s / 2 if facts.window_s is None and self.channel.domain is not Domain.GPU else 0.0,
            early_s=t - half_s,
            late_s=t + half_s,
            quantum_w=0.0 if self.channel.kind is Kind.COUNTER else facts.quantum or 0.0,
            witness=self._shifted_witness(),
            limit_w=facts.max_w,
        )

    @property
    def origin_ns(self) -> int:
        """The instant from which `curve` counts seconds; near the ticks, so that nothing is lost to rounding."""
        return int(self.at_ns[0])

    def _seconds(self, at_ns: npt.ArrayLike) -> Floats:
        return np.asarray((np.asarray(at_ns) - self.origin_ns) / NS, dtype=np.float64)

    def _shifted_witness(self) -> Witness | None:
        if self.witness is None:
            return None
        return Witness(self.witness.t_s - self.origin_ns / NS, self.witness.share)

    def many(
        self, starts_ns: npt.ArrayLike, ends_ns: npt.ArrayLike, sampled: Sampled | None = None
    ) -> tuple[Floats, Floats]:
        """Joules and coverage of many windows at once; NaN where a window lies outside of everything.

        `sampled` is what the curve says of them, where it has been asked already.
        """
        starts, ends = np.asarray(starts_ns), np.asarray(ends_ns)
        joules = sampled.joules if sampled else self.curve.joules(self._seconds(starts), self._seconds(ends))
        seen = np.interp(ends, self.at_ns, self.observed_ns) - np.interp(starts, self.at_ns, self.observed_ns)
        coverage = np.clip(seen / np.maximum(ends - starts, 1), 0.0, 1.0)
        outside = (ends <= self.at_ns[0]) | (starts >= self.at_ns[-1])
        return np.where(outside, np.nan, joules), np.where(outside, 0.0, coverage)

    def between(self, start_ns: int, end_ns: int) -> Reading:
        """Joules of one window with the sampling error of its edges and of what the sensor does not see."""
        return self.readings(np.array([start_ns]), np.array([end_ns]))[0]

    def readings(self, starts_ns: Ints, ends_ns: Ints, sampled: Sampled | None = None) -> list[Reading]:
        """The same of many windows; `sampled` is what the curve says of them, where it has been asked already."""
        found = sampled or self.curve.energy(self._seconds(starts_ns), self._seconds(ends_ns))
        joules, coverage = self.many(starts_ns, ends_ns, found)
        lengths = (ends_ns - starts_ns).astype(np.float64)
        seen = np.where(self._covered(coverage, lengths), 1.0, coverage)
        hole_ns = self.hole_ns[1] - self.hole_ns[0]
        if self.channel.kind is not Kind.COUNTER and hole_ns > 0:
            # The curve knows nothing of the rows in the hole; what had accumulated there does.
            hole = np.interp(self.hole_ns, self.at_ns, self.joules)
            bridged = self.curve.joules(*(self._seconds([edge]) for edge in self.hole_ns))[0]
            joules = joules - bridged + (hole[1] - hole[0])
        # What the sensor does not see in the loaded ends goes on in the hole between them.
        unloaded = lengths / np.maximum(lengths - hole_ns, 1.0)
        modelled, most_w = self.channel.pedigree is Pedigree.MODELLED, self.most_w()
        read_share = 1.0 if self.channel.kind is Kind.COUNTER else min(self.period_s / self.spacing_s, 1.0)
        nothing = np.zeros(len(starts_ns))
        below, above = (nothing if side is None else side * unloaded for side in (found.below_j, found.above_j))
        columns = (
            found.left_j,
            found.right_j,
            found.inner_j * unloaded,
            np.maximum(found.quantum_j, ROUNDING * np.abs(joules)),
            below,
            above + self._unread_j(starts_ns, ends_ns, found),
        )
        readings = []
        for joule, share, left, right, inner, quantum, below, above in zip(
            joules.tolist(), seen.tolist(), *(column.tolist() for column in columns), strict=True
        ):
            if joule != joule:
                readings.append(Reading(None, 0.0, refused=f"{self.channel.name} has no reading in the window"))
            elif modelled:
                readings.append(Reading(joule, share, most_w=most_w))
            else:
                widths = left, right, inner, quantum
                readings.append(Reading(joule, share, *widths, most_w, "", below, above, read_share))
        return readings

    def unseen_j(self, starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats, Floats]:
        """Of windows what the sensor did not see: a 95 % half-width, and how much less and more cannot be excluded.

        Time without a reading is in the last of them, at the most that the device can draw.
        """
        sampled = self.curve.energy(self._seconds(starts_ns), self._seconds(ends_ns))
        _, coverage = self.many(starts_ns, ends_ns, sampled)
        lengths = (ends_ns - starts_ns).astype(np.float64)
        lost_s = np.where(self._covered(coverage, lengths), 0.0, (1 - coverage) * lengths / NS)
        lost_j = (self.channel.facts.max_w or self.most_w() or 0.0) * lost_s
        nothing = np.zeros(len(starts_ns))
        if self.channel.pedigree is Pedigree.MODELLED:
            return nothing, nothing, lost_j
        below, above = (nothing if side is None else side for side in (sampled.below_j, sampled.above_j))
        return sampled.inner_j, below, above + lost_j + self._unread_j(starts_ns, ends_ns, sampled)

    def _unread_j(self, starts_ns: Ints, ends_ns: Ints, sampled: Sampled) -> Floats:
        """How much more than their edges allow windows may hold that begin before a counter's first read.

        A read speaks for the counter's own period. Before it the power after it is only taken to have been the same:
        the device may have drawn all that it can.
        """
        if self.channel.kind is not Kind.COUNTER or self.real[0]:
            return np.zeros(len(starts_ns))
        own_s = min(self.channel.facts.period_s or self.expected_s, self.expected_s)
        unread_ns = np.minimum(ends_ns, self.at_ns[1] - int(own_s * NS)) - np.maximum(starts_ns, self.at_ns[0])
        more_w = (self.channel.facts.max_w or self.most_w() or 0.0) - self.watts[0]
        return np.asarray(np.maximum(more_w * np.maximum(unread_ns, 0) / NS - sampled.left_j, 0.0))

    def _covered(self, coverage: Floats, lengths_ns: Floats) -> Flags:
        """Less than one period of a fast counter at the edges is not a gap: its next publication was not due yet."""
        period_s = min(self.channel.facts.period_s or 0.0, FAST_S)
        return np.asarray((coverage >= 0.9999) | ((1 - coverage) * lengths_ns <= period_s * NS))

    def together(self, starts_ns: Ints, ends_ns: Ints) -> Reading:
        """Joules of many disjoint windows in one reading; an edge that two of them share counts for neither.

        Windows shorter than a cell may all lie where the load is high, or all where it is low (queries that come at
        once): their errors do not average out, and are added up.
        """
        seconds = self._seconds(starts_ns), self._seconds(ends_ns)
        sampled = self.curve.energy(*seconds)
        joules, coverage = self.many(starts_ns, ends_ns, sampled)
        known = np.isfinite(joules)
        if not known.any():
            return Reading(None, 0.0, refused=f"{self.channel.name} has no reading in the windows")
        lengths = (ends_ns - starts_ns).astype(np.float64)
        seen = float((coverage * lengths).sum() / max(lengths.sum(), 1.0))
        whole = float(joules[known].sum())
        if self.channel.pedigree is Pedigree.MODELLED:
            return Reading(whole, seen, most_w=self.most_w())
        short = self.curve.inside(*seconds)
        alike_j = float(np.hypot(sampled.left_j, sampled.right_j)[short].sum())
        shared = np.isin(starts_ns, ends_ns) | short, np.isin(ends_ns, starts_ns) | short
        return Reading(
            whole,
            seen if seen < 0.9999 else 1.0,
            float(np.sqrt(np.sum(np.where(shared[0], 0.0, sampled.left_j) ** 2))),
            float(np.sqrt(np.sum(np.where(shared[1], 0.0, sampled.right_j) ** 2))),
            float(sampled.inner_j.sum()) + alike_j,
            float(np.sqrt(np.sum(sampled.quantum_j**2))),
            self.most_w(),
            below_j=_sum(sampled.below_j),
            above_j=_sum(sampled.above_j) + float(self._unread_j(starts_ns, ends_ns, sampled)[known].sum()),
        )

    def most_w(self) -> float | None:
        """The most power that was seen, with half as much again."""
        finite = self.watts[np.isfinite(self.watts)]
        return float(finite.max() * 1.5) if len(finite) else None


def part_time(channel: Channel) -> bool:
    """True for a counter that adds up readings of a part of each period, or may: of a card that is in no table."""
    facts = channel.facts
    if channel.kind is not Kind.COUNTER:
        return False
    if facts.window_s is None:
        return facts.period_s is None and bool(facts.cards) and facts.gain_pct != 0.0
    return sees_a_part(facts)


def sees_a_part(facts: Facts) -> bool:
    """True where a sensor is known to look at a part of each period."""
    return facts.window_s is not None and facts.period_s is not None and facts.window_s < (1 - WHOLE) * facts.period_s


def _sum(amounts: Floats | None) -> float:
    return 0.0 if amounts is None else float(amounts.sum())


def possible_windows(
    y: Array, period: float, state: Toggling | None, apart_s: Array | None = None, limit_w: float | None = None
) -> tuple[float, ...]:
    """The averaging windows of a GPU's sensor that readings do not rule out, the likeliest first.

    `apart_s` is the time from each reading to the next: from one side of a gap to the other even an average steps.
    `limit_w` is the most that the device draws, if that is known: an average moves by no more than its share of it.

    Between two levels a sensor that sees its whole period shows a reading in between, one that looks at a part of it
    mostly does not. A load that toggles faster moves the readings of the first little and those of the second much,
    while it is busy the same share of the time. An average over a second steps by little. Readings that stand still are
    taken for steady power.
    """
    if state is None and np.ptp(y) < MOVED * float(np.abs(y).max()):
        return (period,)
    sudden, blurred = _transitions(y)
    odds = sudden * np.log(SUDDEN_PART / SUDDEN_WHOLE) + blurred * np.log((1 - SUDDEN_PART) / (1 - SUDDEN_WHOLE))
    # Rare pulses are swings for either sensor.
    toggles = np.zeros(len(y), dtype=bool) if state is None else state.sure & (state.share > PULSED)
    if abs(odds) < CLEAR_ODDS and toggles.sum() >= FEWEST_TOGGLING:
        seen = y[toggles]
        if float(np.std(seen)) > np.ptp(seen) / 4 and np.ptp(seen) > np.ptp(y) / 2:
            odds = CLEAR_ODDS
    found: tuple[float, ...] = (period, MOST * period, PARTIAL * period)
    if odds >= CLEAR_ODDS:
        found = (PARTIAL * period,)
    elif odds <= -CLEAR_ODDS:
        found = (period, MOST * period)
    steps = np.diff(y) if apart_s is None else np.diff(y)[apart_s < 1.5 * period]
    # A sensor that publishes more often than others averages as long as those do.
    if 1.2 * period < SHORT_AVERAGE_S and climbs(y, steps, max(CLIMB, 1.5 * period / SHORT_AVERAGE_S)):
        found = (*found, SHORT_AVERAGE_S)
    if 1.2 * period >= AVERAGE_S:
        return found
    if not climbs(y, steps):
        # Of pulses shorter than a second the average steps by much of its own range.
        most_w = (limit_w or BOARD_W) * period / AVERAGE_S
        return found if float(np.abs(steps).max()) > most_w else (*found, AVERAGE_S)
    moved = np.ptp(y) >= MOVED_RANGE * float(y.max()) and calm(y, round(AVERAGE_S / period)).mean() > SOME_CALM
    return (AVERAGE_S, *found) if moved else (*found, AVERAGE_S)


def _transitions(y: Array) -> tuple[int, int]:
    """How many isolated steps go from level to level at once, and how many over one reading in between."""
    if len(y) < 5:
        return 0, 0
    a2, a, m, b, b2 = y[:-4], y[1:-3], y[2:-2], y[3:-1], y[4:]
    step = np.abs(b - a)
    level = LEVEL * step
    large = step > LARGE * np.ptp(y)
    flat = (np.abs(a - a2) <= level) & (np.abs(b2 - b) <= level) & large
    # A step from a to b with nothing in between: m already is b.
    sudden = flat & ((np.abs(m - b) <= level) | (np.abs(m - a) <= level))
    blurred = flat & ~sudden & ((m - a) * (b - m) > 0)
    # Two windows of five readings see each sudden step: one with m before it, one with m after it.
    return int(sudden.sum()) // 2, int(blurred.sum())


def climbs(watts: npt.ArrayLike, steps: npt.ArrayLike | None = None, most: float = CLIMB) -> bool:
    """True where readings never step as a load does: they are averages over many periods, or power hardly changed.

    `steps` are those between readings that follow one another (default: all), `most` the share of the whole range
    that none of them reaches.
    """
    y = np.asarray(watts, dtype=np.float64)
    y = y[np.isfinite(y)]
    if len(y) < 2 or np.ptp(y) < MOVED_RANGE * float(y.max()):
        return True
    own = np.diff(y) if steps is None else np.asarray(steps, dtype=np.float64)
    return bool(np.abs(own).max(initial=0.0) < most * np.ptp(y))


def _publishing_s(steps: Floats) -> float:
    """The usual short step: two reads find a publication, also where a long time passes before the next two."""
    return float(np.mean(steps[steps < 1.5 * median(steps)]))


def _spacing_s(steps: Floats) -> float:
    """The step in the middle of all the time (and not of all steps).

    >>> _spacing_s(np.array([0.1, 0.9, 0.1, 0.9]))
    0.9
    """
    ordered = np.sort(steps)
    return float(ordered[int(np.searchsorted(np.cumsum(ordered), ordered.sum() / 2))])
