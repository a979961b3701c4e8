"""How a power sensor works, measured: its period, averaging window and step, from a log or from the sensors at hand.

The averaging window shows only where the load changes: power is taken as a square that follows the load's marks after a
short lag, readings as its mean over a window that ends at their publication, and the window that fits best is the
sensor's. Levels are fitted for every trial, so neither gain nor offset matters.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from everywatt.core import foreign
from everywatt.core.channels import Channel, Kind, Pedigree
from everywatt.core.clocks import NS, Clock
from everywatt.core.device import Device, is_gpu
from everywatt.core.errors import SensorError, UsageError
from everywatt.core.jsonio import ToDict
from everywatt.core.machine import Machine
from everywatt.doctor.gpu_load import Load, toggled
from everywatt.energy.publications import Publications, publications
from everywatt.sensors.base import Group, Report, Request, Sensor
from everywatt.sensors.nvidia.nvml import Nvml
from everywatt.sensors.nvidia.smi_csv import SmiRow, parse_csv
from everywatt.sensors.registry import choose, known, probe

if TYPE_CHECKING:
    from everywatt.energy.utilisation import Array

# Trial windows from instantaneous to a moving average of 1.5 s; in steps of 7 %, finer than recordings can tell.
WINDOWS_S = np.concatenate(([0.002, 0.005], np.geomspace(0.01, 1.6, 75)))
# Trial lags from a mark (the host submits or sees the end of work) to the change of power, beside the sensor's own
# delay.
LAGS_S = np.arange(-0.012, 0.0601, 0.004)
# Clocks take up to this long to rise when load arrives.
WARM_UP_S = 0.3
# A window is reported if readings of the best one leave less than this share of the variance unexplained.
EXPLAINED = 0.25
# Averaging over the whole period is the simplest sensor: another window must explain this much more of the variance.
SIMPLER = 0.005
# Windows inside one period need a load that meets them at many phases.
FEWEST_SWITCHES = 8


@dataclass(frozen=True, slots=True)
class Characterisation(ToDict):
    """What was found of a sensor. None means not found, and `notes` say why.

    period_s    publication period; jitter_s: sd of publications around their clock (polling included)
    window_s    averaging window; window_low_s to window_high_s fit almost as well
    lag_s       from the load's mark to the change of power as the sensor sees it
    quantum     smallest step between values
    polls       how many were used; poll_s their median distance
    confidence  0 to 1: share of the readings' variance that the window explains; without one, 1 where a period is found
    mean_w      watts over the polls, read_s how long a read takes: of a sensor that was polled here
    """

    JSON = (
        "sensor period_s jitter_s window_s window_low_s window_high_s observed lag_s quantum polls poll_s confidence "
        "notes mean_w read_s"
    )
    sensor: str = ""
    period_s: float | None = None
    jitter_s: float | None = None
    window_s: float | None = None
    window_low_s: float | None = None
    window_high_s: float | None = None
    lag_s: float | None = None
    quantum: float | None = None
    polls: int = 0
    poll_s: float = 0.0
    confidence: float = 0.0
    notes: tuple[str, ...] = ()
    mean_w: float | None = None
    read_s: float | None = None

    @property
    def observed(self) -> float | None:
        """The share of time that is averaged."""
        known = self.period_s is not None and self.window_s is not None
        return min(1.0, self.window_s / self.period_s) if known else None  # type: ignore[operator]


def characterise(
    t_s: npt.ArrayLike, values: npt.ArrayLike, marks_s: npt.ArrayLike | None = None, *, sensor: str = ""
) -> Characterisation:
    """Period, window and quantum of a sensor from polls `values` at `t_s` (seconds, much faster than it publishes).

    marks_s are the times at which the load was switched, in turn on and off. Before the first and after the last it
    is off. A mark that is repeated at one time, as an end and a start, counts once.
    """
    t, v = np.asarray(t_s, dtype=np.float64), np.asarray(values, dtype=np.float64)
    known = np.isfinite(v)
    t, v = t[known], v[known]
    if len(t) < 3:
        return Characterisation(sensor, polls=len(t), notes=("too few polls",))
    notes: list[str] = []
    found = publications(t, v)
    if found.period_s is None:
        notes.append("no regular period: the value changed too rarely, or polls are slower than the sensor")
    fit = None
    if marks_s is None:
        notes.append("no load marks: the averaging window cannot be determined")
    elif found.period_s is not None:
        fit = _fit_window(found, switches(marks_s), notes)
    offsets = np.diff(found.t_s) - (found.period_s or 0.0)  # of publications from their clock, each from the last
    jitter_s = None if found.period_s is None else float(np.std(offsets) / np.sqrt(2)) if len(offsets) > 1 else 0.0
    plain = Characterisation(
        sensor,
        found.period_s,
        jitter_s,
        quantum=_quantum(v),
        polls=len(t),
        poll_s=float(np.median(np.diff(t))),
        confidence=fit.explained if fit else float(found.period_s is not None),
        notes=tuple(notes),
    )
    if fit is None:
        return plain
    return replace(plain, window_s=fit.window_s, window_low_s=fit.low_s, window_high_s=fit.high_s, lag_s=fit.lag_s)


def switches(marks_s: npt.ArrayLike) -> Array:
    """Marks with repeated times counted once."""
    marks = np.sort(np.asarray(marks_s, dtype=np.float64))
    if len(marks) < 2:
        return marks
    return marks[np.concatenate(([True], np.diff(marks) > 1e-4))]


@dataclass(frozen=True, slots=True)
class _Fit:
    window_s: float
    low_s: float
    high_s: float
    lag_s: float
    explained: float


def _fit_window(found: Publications, marks: Array, notes: list[str]) -> _Fit | None:
    """The window and lag whose averaged square explains the readings best."""
    inside = (found.t_s > marks[0] - 0.5) & (found.t_s < marks[-1] + 1.5)
    t, y = found.t_s[inside], found.values[inside]
    if len(marks) < 2 or len(t) < 10 or np.ptp(y) == 0:
        notes.append("too few load changes or readings: the averaging window cannot be determined")
        return None
    period = found.period_s or 0.0
    windows = np.append(WINDOWS_S, period)
    left = np.array([[_unexplained(t - lag, y, marks, w) for lag in LAGS_S] for w in windows])
    per_window = left.min(axis=1)
    row = int(np.argmin(per_window))
    if per_window[-1] <= per_window[row] + SIMPLER:
        row = len(windows) - 1
    good = windows[per_window <= per_window[row] + SIMPLER]
    if per_window[row] > EXPLAINED:
        notes.append(
            f"no averaging window explains the readings (the best leaves {100 * per_window[row]:.0f} % unexplained)"
        )
        return None
    if windows[row] <= period and len(marks) < FEWEST_SWITCHES:
        notes.append(
            f"the window is at most {good.max():.3f} s; a load that toggles about once per period would determine it"
        )
        return None
    lag = float(LAGS_S[int(np.argmin(left[row]))])
    return _Fit(float(windows[row]), float(good.min()), float(good.max()), lag, float(1 - per_window[row]))


def _unexplained(t: Array, y: Array, marks: Array, window: float) -> float:
    """Share of the readings' variance that fitted levels, averaged over the window, leave over.

    Three levels: load on, load off, and off before the first mark, when clocks were not up yet; and a part of the level
    that comes with the first half second of load, while clocks rise.
    """
    on = (_busy_s(t, marks) - _busy_s(t - window, marks)) / window
    cold = (np.minimum(t, marks[0]) - np.minimum(t - window, marks[0])) / window
    warm = marks[0] + WARM_UP_S
    rising = (np.clip(t, marks[0], warm) - np.clip(t - window, marks[0], warm)) / window
    columns = np.stack((on, cold, rising), axis=1)
    columns = columns - columns.mean(axis=0)
    off = y - y.mean()
    gram = columns.T @ columns + 1e-9 * np.eye(3)
    levels = np.linalg.solve(gram, columns.T @ off)
    if levels[0] <= 0:
        return 1.0
    return float(np.sum((off - columns @ levels) ** 2) / np.sum(off**2))


def _busy_s(t: Array, marks: Array) -> Array:
    """Seconds for which the load was on, up to each time."""
    on = np.arange(len(marks) - 1) % 2 == 0
    return np.asarray(np.interp(t, marks, np.concatenate(([0.0], np.cumsum(np.diff(marks) * on)))))


def _quantum(v: Array) -> float | None:
    """The smallest step between values, None where the value never changed."""
    steps = np.diff(np.unique(np.round(v, 6)))
    return float(np.round(steps.min(), 6)) if len(steps) else None


POLL_S = 1e-3
# A read may take at most this share of the time between two polls, whatever it costs.
BUSY_SHARE = 0.25
# Counters that publish faster than we sleep are read without a pause, for this long.
BURST_S = 0.5
BURST_BELOW_S = 0.005
HOUR_S = 3600.0


def characterise_log(source: Path, marks: Path | None = None, column: str | None = None) -> list[Characterisation]:
    """Period, window and step of each power column of an nvidia-smi CSV log (also .gz), or of one column.

    `marks` is a CSV of `unix_s`, the times at which the load was switched: with it the averaging window is found. The
    log's timestamps are local time; the whole-hour offset (or quarter of one) that fits the marks is found by itself.
    """
    rows = [row for row in parse_csv(foreign.lines(source, errors="strict")) if row.time is not None]
    if not rows:
        raise UsageError(
            f"{source} contains no nvidia-smi rows with a timestamp.", cure="nvidia-smi --query-gpu=timestamp,…"
        )
    switched = None if marks is None else _marks(marks)
    found = []
    for card, columns in _columns(rows, column, source).items():
        for name, polls in columns.items():
            t_s, values = np.array(polls).T
            sensor = f"gpu {card} {name}" if card else name
            if switched is None:
                found.append(characterise(t_s, values, sensor=sensor))
            else:
                found.append(_in_some_zone(sensor, t_s, values, switched, marks))
    return found


def _marks(path: Path) -> list[float]:
    found = []
    for cells in csv.reader(foreign.lines(path, errors="strict")):
        try:
            found.append(float(cells[0]))
        except (ValueError, IndexError):
            continue  # the header
    if len(found) < 2:
        raise UsageError(f"{path} contains no load marks.", cure="a CSV whose first column is unix_s")
    return sorted(found)


def _columns(
    rows: Sequence[SmiRow], wanted: str | None, source: Path
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """(seconds, watts) of each power column by card; the card is empty where the log does not name one."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    seen: dict[str, None] = {}
    for row in rows:
        index = row.numbers.get("index")
        card = row.texts.get("uuid") or ("" if index is None else f"{index:.0f}")
        at_s = row.time.replace(tzinfo=UTC).timestamp() if row.time is not None else math.nan
        for name, value in row.numbers.items():
            seen[name] = None
            chosen = name == wanted if wanted is not None else name.startswith("power.draw")
            if chosen and value is not None:
                found.setdefault(card, {}).setdefault(name, []).append((at_s, value))
    if not found:
        what = f"column '{wanted}'" if wanted is not None else "power.draw column"
        raise UsageError(f"{source} has no {what} with values; it has: {', '.join(seen)}.")
    return found


def _in_some_zone(
    sensor: str, t_s: Array, values: Array, marks: Sequence[float], path: Path | None
) -> Characterisation:
    """The best fit over the offsets at which the marks lie inside the log."""
    for step in (HOUR_S, HOUR_S / 4):
        zones = np.arange(-14 * HOUR_S, 14 * HOUR_S + 1, step)
        inside = [z for z in zones if t_s[0] - 1 <= marks[0] + z and marks[-1] + z <= t_s[-1] + 1]
        if inside:
            fits = [characterise(t_s - zone, values, marks, sensor=sensor) for zone in inside]
            return max(fits, key=lambda fit: (fit.window_s is not None, fit.confidence))
    raise UsageError(f"The marks in {path} lie outside the log in every time zone.")


@dataclass(slots=True)
class _Polls:
    """What was read of one group: when, how long a read took, and the values of each channel."""

    group: Group
    clock: Clock
    at_ns: list[int] = field(default_factory=list)
    took_ns: list[int] = field(default_factory=list)
    values: list[tuple[float, ...]] = field(default_factory=list)
    failures: int = 0

    def once(self) -> None:
        before_ns = self.clock.monotonic_ns()
        try:
            rows = self.group.read()
        except SensorError:
            self.failures += 1
            return
        self.took_ns.append(self.clock.monotonic_ns() - before_ns)
        for row in rows:
            self.at_ns.append(row.read_ns)
            self.values.append(row.values)


def characterise_live(
    time_s: float, *, machine: Machine | None = None, load: Callable[[int], Load] | None = None
) -> list[Characterisation]:
    """Poll every energy and power channel of this machine for `time_s` per device, and say how each sensor works.

    Polls come every millisecond, or as far apart as keeps a core three quarters idle. `load` makes a load for a GPU's
    index: it is switched on and off while the GPU is polled, which shows the averaging window. Without it window_s is
    None, and the notes say so.
    """
    if not 0.5 <= time_s <= 3600:
        raise UsageError(f"{time_s:g} s is not between 0.5 s and 1 h.")
    found: list[Characterisation] = []
    machine = machine or Machine.here()
    with _opened(machine) as devices:
        for device, groups in devices.items():
            made = load(int(Device.parse(device).name)) if load is not None and is_gpu(device) else None
            polls = [_Polls(group, machine.clock) for group in groups]
            with ExitStack() as stack:
                marks_ns = stack.enter_context(toggled(made, machine.clock)) if made is not None else None
                _poll(polls, time_s, machine.clock)
            marks_s = None if marks_ns is None else [mark / NS for mark in marks_ns]
            for one in polls:
                found += _entries(one, marks_s)
    return found


@contextmanager
def _opened(machine: Machine) -> Iterator[dict[str, list[Group]]]:
    """The groups to poll, by device: those a run would use, with each NVML channel in a group of its own."""
    sensors: dict[str, Sensor] = {}

    def ask(name: str, target: str, request: Request) -> tuple[Sensor | None, Report]:
        sensor, report = probe(name, target, request)
        if sensor is not None:
            sensors[name] = sensor
        return sensor, report

    devices: dict[str, list[Group]] = {}
    with closing(choose(known(machine.environ), Request(machine=machine, estimate=False), ask=ask)) as choice:
        nvml = sensors.get("nvml")
        apart = nvml.apart() if isinstance(nvml, Nvml) else []
        for group in (*apart, *(g for g in choice.groups if not (apart and g.info.sensor == "nvml"))):
            carrying = any(c.carries_energy and c.pedigree is not Pedigree.MODELLED for c in group.info.channels)
            if carrying and not group.info.table:
                devices.setdefault(group.info.device, []).append(cast("Group", group))
        yield devices


def _poll(polls: Sequence[_Polls], time_s: float, clock: Clock) -> None:
    """Read all groups again and again, at most every POLL_S, and never with more than BUSY_SHARE of the time."""
    periods = [c.facts.period_s for one in polls for c in one.group.info.channels if c.facts.period_s]
    burst = bool(periods) and max(periods) < BURST_BELOW_S
    end_ns = clock.monotonic_ns() + round((min(time_s, BURST_S) if burst else time_s) * NS)
    while (now_ns := clock.monotonic_ns()) < end_ns:
        for one in polls:
            one.once()
        if not burst:
            done_ns = clock.monotonic_ns()
            cost_s = (done_ns - now_ns) / NS
            clock.sleep_until(done_ns + round(max(POLL_S - cost_s, cost_s * (1 / BUSY_SHARE - 1), 0.0) * NS))


def _entries(polls: _Polls, marks_s: Sequence[float] | None) -> list[Characterisation]:
    found = []
    for place, channel in enumerate(polls.group.info.channels):
        if not channel.carries_energy:
            continue
        t_s = np.array(polls.at_ns, dtype=np.float64) / NS
        raw = np.array([row[place] for row in polls.values], dtype=np.float64)
        counter = channel.kind is Kind.COUNTER
        fitted = characterise(t_s, raw * channel.scale, None if counter else marks_s, sensor=channel.name)
        notes = list(fitted.notes)
        if counter:
            notes = [note for note in notes if "load marks" not in note] + ["a counter does not average"]
        fitted = replace(
            fitted,
            quantum=_step(raw, channel) or fitted.quantum,
            notes=(*notes, *([f"{polls.failures} reads failed"] if polls.failures else [])),
            mean_w=_mean_w(t_s, raw * channel.scale, counter),
            read_s=float(np.median(polls.took_ns)) / NS if polls.took_ns else None,
        )
        found.append(fitted)
    return found


def _mean_w(t_s: Array, values: Array, counter: bool) -> float | None:
    """Watts over the polls: the slope of a counter between its first and last change, the mean of a gauge."""
    if not counter:
        known = values[np.isfinite(values)]
        return round(float(known.mean()), 3) if len(known) else None
    changed = np.flatnonzero(np.diff(values) > 0) + 1
    if len(changed) < 2:
        return None
    first, last = changed[0], changed[-1]
    return round(float((values[last] - values[first]) / (t_s[last] - t_s[first])), 3)


def _step(raw: Array, channel: Channel) -> float | None:
    """The largest step that all differences are multiples of; the sensor's own is that or a fraction of it."""
    steps = np.abs(np.diff(raw[np.isfinite(raw)]))
    steps = steps[steps > 0]
    if len(steps) == 0 or np.any(steps != np.round(steps)):
        return None
    return math.gcd(*(int(step) for step in steps)) * channel.scale
