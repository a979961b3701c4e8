"""Gain and offset of a card against a meter on its supply, from recordings of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from everywatt.api.run import Run
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.errors import MeasurementRefused
from everywatt.core.stats import Z95, student_factor
from everywatt.energy.sources import Source, sources
from everywatt.energy.tolerance import Calibration, fit
from everywatt.energy.window import source_ticks
from everywatt.meters.block import Floats
from everywatt.meters.wall import Offset, estimate, line_of, meter_sources, single

# Windows of a comparison: long enough for a few readings each, and as many as a matrix of their errors allows.
SHORTEST_S, MOST_WINDOWS = 0.25, 400
LEAST_WINDOWS = 10
# A shift by which a card's own averaging can look like a clock's is no reason to move anything.
MOST_HONEST_S = 0.15
# A gain that is known no better says nothing that was not known before (95 %).
LEAST_KNOWN = 0.1


@dataclass(frozen=True, slots=True)
class Found:
    """What a comparison gave: reading = gain × watts + offset_w, ± 95 %; `correction` turns it round."""

    device: str
    name: str
    gain: float
    gain_within: float
    offset_w: float
    offset_within_w: float
    windows: int
    clock: Offset
    correction: Calibration


def compare_with_meter(run: Run, meter: Run, device: str | None = None, meter_device: str | None = None) -> list[Found]:
    """Gain and offset of the run's cards (or of one device) against a meter. Both may be the same run.

    MeasurementRefused where the two have too little time, or too little change of load, in common.
    """
    tape = single(run)
    chosen = [s for s in sources(tape) if (s.label == device if device else is_gpu(s.channel.device))]
    if not chosen:
        listed = ", ".join(sorted(source.label for source in sources(tape))) or "none"
        raise MeasurementRefused(f"{run.name} has no {device or 'card'} that measures power; it has: {listed}.")
    truth = meter_sources(single(meter), meter_device)
    found = []
    for source in chosen:
        against = [other for other in truth if other.label != source.label or meter is not run]
        if not against:
            raise MeasurementRefused("A device cannot be its own meter.", cure="--meter-device")
        found.append(_one(run, source, meter, against))
    return found


def _one(run: Run, source: Source, meter: Run, truth: list[Source]) -> Found:
    own, line = line_of(run, [source]), line_of(meter, truth)
    clock = estimate(line, own)
    shift_s = clock.seconds if clock.seconds is not None and abs(clock.seconds) > MOST_HONEST_S else 0.0
    # A reading on the card's clock at t is the meter's at t + shift.
    start = max(own.t_s[0], line.t_s[0] - shift_s)
    end = min(own.t_s[-1], line.t_s[-1] - shift_s)
    window_s = max(SHORTEST_S, (end - start) / MOST_WINDOWS)
    edges = np.arange(start, end, window_s)
    if len(edges) <= LEAST_WINDOWS:
        raise MeasurementRefused(
            f"{source.label} and the meter overlap for only {max(end - start, 0):.1f} s: too little.",
            cure="correct the time zone with --set zone_h",
        )
    reading, covariance = _windows(source, edges, window_s)
    watts = np.diff(np.interp(edges + shift_s, line.t_s, line.joules)) / window_s
    good = np.isfinite(reading) & np.isfinite(watts)
    reading, watts, covariance = reading[good], watts[good], covariance[np.ix_(good, good)]
    try:
        found = fit(reading, watts, covariance)
    except ValueError as error:
        raise MeasurementRefused(
            f"{source.label}: {error}.", cure="record a load that is switched on and off"
        ) from None
    if found.tolerance.gain_pct > 100 * LEAST_KNOWN:
        raise MeasurementRefused(
            f"{source.label}: the load varied by only {np.ptp(watts):.1f} W, which leaves the gain uncertain by "
            f"± {found.tolerance.gain_pct:.0f} %.",
            cure="use two or more load levels that are far apart",
        )
    if not 0.5 < found.gain < 2:
        raise MeasurementRefused(
            f"{source.label} reads {1 / found.gain:.2g} times what the meter does: the meter is of something else.",
            cure="--meter-device",
        )
    gain, factor = 1 / found.gain, student_factor(len(reading) - 2)
    name = source.group.info.label
    return Found(
        source.label,
        name,
        gain,
        factor * found.gain_sd * gain**2,
        -found.bias_w * gain,
        factor * found.bias_sd_w * gain,
        len(reading),
        clock,
        found,
    )


def _windows(source: Source, edges_s: Floats, window_s: float) -> tuple[Floats, Floats]:
    """Mean reading of adjacent windows as the card gives it (no calibration), and its covariance by sampling, in watts.

    What an edge takes from one window it gives to the next.
    """
    channel = replace(source.channel, facts=replace(source.channel.facts, gain=1.0, bias_w=0.0))
    ticks = source_ticks(replace(source, channel=channel), *source.tape.extent_ns())
    if ticks is None:
        raise MeasurementRefused(f"{source.label} delivered no readings.")
    at_ns = [source.tape.from_utc_ns(round(t * NS)) for t in edges_s]
    readings = [ticks.between(start, end) for start, end in pairwise(at_ns)]
    joules = np.array([np.nan if one.joules is None else one.joules for one in readings])
    left, right, inner, steps = (
        np.array([getattr(one, name) for one in readings]) / Z95 / window_s
        for name in ("start_width_j", "end_width_j", "aliasing_j", "quantum_j")
    )
    shared = -(np.minimum(right[:-1], left[1:]) ** 2)
    own = left**2 + right**2 + inner**2 + steps**2
    return joules / window_s, np.diag(own) + np.diag(shared, 1) + np.diag(shared, -1)
