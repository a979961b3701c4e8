"""Joules of one device over many stretches of time at once, and how much of each was observed."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Kind
from everywatt.core.clocks import NS
from everywatt.energy import window
from everywatt.energy.sources import Source
from everywatt.tape.accumulate import energy_channels
from everywatt.tape.reader import Tape

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_ANSWERS = 64
MANY_ROWS = 2_000_000

_answers: WeakKeyDictionary[Tape, dict[tuple[int, str, bytes, bytes], tuple[Floats, Floats]]] = WeakKeyDictionary()


def stretch_joules(source: Source, starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats]:
    """Joules and observed seconds of ascending stretches; zero of both where there was no reading.

    A counter counts across a gap, so its joules there are real and the time counts; a gauge's gap is left out. The
    answers for a sealed tape are kept: a report asks for the same stretches several times.
    """
    if not len(starts_ns):
        return np.zeros(0), np.zeros(0)
    if not source.tape.sealed:
        return _stretch_joules(source, starts_ns, ends_ns)
    known = _answers.setdefault(source.tape, {})
    key = (source.group.id, source.channel.name, starts_ns.tobytes(), ends_ns.tobytes())
    if key not in known:
        if len(known) >= MOST_ANSWERS:
            known.pop(next(iter(known)))
        known[key] = _stretch_joules(source, starts_ns, ends_ns)
    return known[key]


def _stretch_joules(source: Source, starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats]:
    joules, observed_s = window.stretch_joules(source, starts_ns, ends_ns)
    return np.nan_to_num(joules), observed_s


class Cells:
    """Joules of one device in equal cells of a whole tape, continued while it grows: what idle is found from."""

    def __init__(self) -> None:
        self.step_ns = 0
        self.origin_ns = 0
        self.joules: Floats = np.zeros(0)
        self.observed_s: Floats = np.zeros(0)

    @property
    def edges_ns(self) -> Ints:
        """The edges of the cells, one more than there are cells."""
        return self.origin_ns + np.arange(len(self.joules) + 1, dtype=np.int64) * self.step_ns

    def update(self, source: Source) -> None:
        """Add the cells that are complete by now."""
        tape = source.tape
        first_ns, last_ns = tape.extent_ns()
        step_ns = _step_ns(last_ns - first_ns)
        if step_ns != self.step_ns or first_ns != self.origin_ns:
            self.step_ns, self.origin_ns = step_ns, first_ns
            self.joules, self.observed_s = np.zeros(0), np.zeros(0)
        # On a live tape the newest publications may still be missing.
        late_ns = 0 if tape.sealed else int(2.5 * max(source.group.expected_period_s, 1.0) * NS)
        have, count = len(self.joules), int((last_ns - late_ns - first_ns) // step_ns)
        if count <= have:
            return
        edges = first_ns + np.arange(have, count + 1, dtype=np.int64) * step_ns
        joules, observed_s = _roughly(source, edges) or _stretch_joules(source, edges[:-1], edges[1:])
        self.joules = np.concatenate((self.joules, joules))
        self.observed_s = np.concatenate((self.observed_s, observed_s))


def _roughly(source: Source, edges_ns: Ints) -> tuple[Floats, Floats] | None:
    """Joules between edges by what frames had accumulated at their first rows; None where that would be too coarse.

    A tape of millions of rows has a frame every few seconds, which is as fine as idle needs, and no row is decoded.
    """
    tape, group = source.tape, source.group
    first_ns, last_ns = tape.extent_ns()
    rows = (last_ns - first_ns) / NS / max(group.expected_period_s, 1e-9)
    if not tape.sealed or rows < MANY_ROWS or source.channel.kind is not Kind.COUNTER or source.channel.facts.bias_w:
        return None
    place = energy_channels(group.info).index(group.info.channels.index(source.channel))
    heads = [(frame.first_ns, frame.cum[place][0]) for frame in tape.iter_frames(group.id)]
    at_ns, counts = np.array([head[0] for head in heads]), np.array([head[1] for head in heads])
    joules = np.diff(np.interp(edges_ns, at_ns, counts)) * source.channel.scale * source.channel.facts.gain
    inside = (edges_ns[:-1] >= at_ns[0]) & (edges_ns[1:] <= at_ns[-1])
    return np.where(inside, joules, 0.0), np.where(inside, np.diff(edges_ns) / NS, 0.0)


def _step_ns(length_ns: int) -> int:
    """Quarters of a second on a tape of a minute, a second up to six hours, then coarser: never more than 30,000."""
    for step_s, most_s in ((0.25, 60.0), (1.0, 21_600.0), (10.0, 216_000.0)):
        if length_ns <= most_s * NS:
            return int(step_s * NS)
    return max(60, int(length_ns / NS / 20_000)) * NS
