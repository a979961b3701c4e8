"""Gain and offset of a card against a meter on its supply, from recordings of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from everywatt.api.run import Run
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.errors import MeasurementRefused
from everywatt.energy.curve import Z95
from everywatt.energy.loading import load_ticks
from everywatt.energy.sources import Source, sources
from everywatt.energy.ticks import Reading
from everywatt.energy.tolerance import Calibration, fit
from everywatt.meters.block import Floats
from everywatt.meters.clock_offset import Offset, estimate
from everywatt.meters.power import line_of, meter_sources, single

WINDOW_S = 1.0
LEAST_WINDOWS = 10
# A shift by which a card's own averaging can look like a clock's is no reason to move anything.
MOST_HONEST_S = 0.15


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


def compare_with_meter(
    run: Run, meter: Run, device: str | None = None, meter_device: str | None = None, window_s: float = WINDOW_S
) -> list[Found]:
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
        found.append(_one(run, source, meter, against, window_s))
    return found


def _one(run: Run, source: Source, meter: Run, truth: list[Source], window_s: float) -> Found:
    own, line = line_of(run, [source]), line_of(meter, truth)
    clock = estimate(line, own)
    shift_s = clock.seconds if clock.seconds is not None and abs(clock.seconds) > MOST_HONEST_S else 0.0
    # A reading on the card's clock at t is the meter's at t + shift.
    start = max(own.t_s[0], line.t_s[0] - shift_s)
    end = min(own.t_s[-1], line.t_s[-1] - shift_s)
    starts = np.arange(start, end - window_s, window_s / 2)
    if len(starts) < LEAST_WINDOWS:
        raise MeasurementRefused(
            f"{source.label} and the meter overlap for only {max(end - start, 0):.1f} s: too little.",
            cure="correct the time zone with --set zone_h",
        )
    reading, width = _windows(source, starts, window_s)
    begin, finish = (np.interp(starts + shift_s + more_s, line.t_s, line.joules) for more_s in (0.0, window_s))
    watts = (finish - begin) / window_s
    good = np.isfinite(reading) & np.isfinite(watts) & np.isfinite(width)
    reading, width, watts = reading[good], width[good], watts[good]
    try:
        correction = fit(reading, watts, width)
    except ValueError as error:
        raise MeasurementRefused(
            f"{source.label}: {error}.", cure="record a load that is switched on and off"
        ) from None
    if np.ptp(watts) < 0.1 * float(np.max(watts)) or not 0.5 < correction.gain < 2:
        raise MeasurementRefused(
            f"{source.label}: the load varied by only {np.ptp(watts):.1f} W, or the meter measures something else.",
            cure="use two or more load levels that are far apart",
        )
    gain = 1 / correction.gain
    slope, level = _errors(reading, width, watts, correction)
    offset = -correction.bias_w * gain
    name = source.group.info.label
    return Found(source.label, name, gain, slope * gain, offset, level * gain, len(reading), clock, correction)


def _windows(source: Source, starts_s: Floats, window_s: float) -> tuple[Floats, Floats]:
    """Mean reading of every window as the card tells it (no calibration), and its sampling half-width, in watts."""
    channel = replace(source.channel, facts=replace(source.channel.facts, gain=1.0, bias_w=0.0))
    low, high = source.tape.extent_ns()
    ticks = load_ticks(source.tape, source.group, channel, low, high, whole=True)
    if ticks is None:
        raise MeasurementRefused(f"{source.label} delivered no readings.")
    edges = [
        (source.tape.from_utc_ns(round(t * NS)), source.tape.from_utc_ns(round((t + window_s) * NS))) for t in starts_s
    ]
    readings = [ticks.between(start, end) for start, end in edges]
    joules = [np.nan if one.joules is None else one.joules for one in readings]
    return np.array(joules) / window_s, np.array([_half_width_j(one) for one in readings]) / window_s


def _half_width_j(reading: Reading) -> float:
    """The sampling error of one window."""
    return float(np.hypot.reduce([reading.start_width_j, reading.end_width_j, reading.aliasing_j, reading.quantum_j]))


def _errors(x: Floats, width: Floats, y: Floats, line: Calibration) -> tuple[float, float]:
    """95 % half-widths of the line's slope and level, of windows that overlap by half and so count half."""
    weight = 1 / (width**2 + (0.002 * np.abs(x)) ** 2 + 1e-12)
    middle = float(np.average(x, weights=weight))
    scatter = float(np.average((x - middle) ** 2, weights=weight))
    left = float(np.average((y - line.gain * x - line.bias_w) ** 2, weights=weight))
    count = max(float(weight.sum() ** 2 / np.sum(weight**2)) / 2 - 2, 1.0)
    slope = Z95 * float(np.sqrt(left / scatter / count))
    return slope, Z95 * float(np.sqrt(left / count * (1 + middle**2 / scatter)))
