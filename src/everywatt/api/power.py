"""Power of a device over time, as charts draw it and tables sum it up: one line, one mean, one highest reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Kind
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy, combine
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import median
from everywatt.energy.building import FEW_REPEATS, comparable, repeated
from everywatt.energy.sources import COARSE, SHARPER, UNEVEN, Source, shows_power, sources
from everywatt.energy.ticks import WHOLE_ROWS
from everywatt.energy.window import source_energies, source_ticks
from everywatt.tape.accumulate import GAP_PERIODS
from everywatt.tape.columns import Floats, Ints, load_columns, ticks_by_frame
from everywatt.tape.reader import Tape

Windows = Sequence[tuple[int, int]]
# Slopes are taken over at least this share of a sampling period: two reads of one publication have none.
SHORTEST = 0.5


@dataclass(frozen=True, slots=True)
class PowerLine:
    """Mean power from each instant to the next; NaN where nothing was observed."""

    at_ns: Ints
    watts: Floats

    def means(self, edges_ns: Ints) -> Floats:
        """Mean power between neighbouring instants; NaN where some of it was not observed."""
        missing = ~np.isfinite(self.watts)
        length = np.diff(self.at_ns).astype(np.float64)
        area = np.concatenate(([0.0], np.cumsum(np.where(missing, 0.0, self.watts) * length)))
        lost = np.concatenate(([0.0], np.cumsum(missing * length)))
        steps = np.diff(edges_ns).astype(np.float64)
        means, unseen = (np.diff(np.interp(edges_ns, self.at_ns, total)) for total in (area, lost))
        # At the ends of a recording a step may reach beyond its last tick.
        covered = np.diff(np.clip(edges_ns, self.at_ns[0], self.at_ns[-1]).astype(np.float64))
        known = (unseen <= 0) & (covered >= 0.5 * steps)
        return np.where(known, means / np.maximum(covered, 1), np.nan)

    def inside(self, windows: Windows) -> Floats:
        """What was observed at least partly inside of windows."""
        found = [np.empty(0)]
        for start_ns, end_ns in windows:
            low = max(int(np.searchsorted(self.at_ns, start_ns, side="right")) - 1, 0)
            high = int(np.searchsorted(self.at_ns, end_ns, side="left"))
            found.append(self.watts[low:high])
        watts = np.concatenate(found)
        return watts[np.isfinite(watts)]


def device_table(tapes: Sequence[Tape], windows: Sequence[Windows]) -> dict[str, Any]:
    """By device: energy, power (mean, sd, min, median, max, samples), and the channel and sensor they came from."""
    table: dict[str, Any] = {}
    several = len({tape.host for tape in tapes}) > 1
    for tape, asked in zip(tapes, windows, strict=True):
        host = tape.host
        for source in sources(tape):
            label = f"{host} {source.label}" if several else source.label
            entry = table.setdefault(label, _entry(source))
            entry["_energy"] += [(host, source_energies(source, [(start, end)])) for start, end in asked]
            entry["_seconds"] += [(end - start) / NS for start, end in asked]
            line = power_line(source)
            entry["_watts"] += [line.inside(asked)] if line is not None else []
    for entry in table.values():
        figures: list[tuple[str, Energy]] = entry.pop("_energy")
        watts, seconds = np.concatenate([np.empty(0), *entry.pop("_watts")]), entry.pop("_seconds")
        energy = combine(figures, seconds) if figures else None
        entry["energy"] = None if energy is None else energy.to_dict()
        entry["power"] = power_statistics(watts, energy, sum(seconds))
    return table


def _entry(source: Source) -> dict[str, Any]:
    facts = source.channel.facts
    return {
        "domain": source.domain.value,
        "channel": source.channel.name,
        "sensor": source.group.info.sensor,
        "label": source.group.info.label,
        "period_s": facts.period_s,
        "window_s": facts.window_s,
        "_energy": [],
        "_seconds": [],
        "_watts": [],
    }


def mean_w(energy: Energy | None, seconds: float) -> float | None:
    """Mean power: the energy of each device over the time of so many seconds in which it was observed.

    Devices whose figure was refused are in neither. None where there is no figure.
    """
    parts = [mean_w(part, seconds) for _, part in energy.parts] if energy is not None else []
    known = [watts for watts in parts if watts is not None]
    if known:
        return sum(known)
    if energy is None or energy.joules is None or seconds * energy.coverage <= 0:
        return None
    return energy.joules / (seconds * energy.coverage)


def power_statistics(watts: Floats, energy: Energy | None, seconds: float) -> dict[str, Any]:
    """The mean of a device's energy, and what its line says: standard deviation, lowest, median, highest, count."""
    found = {"mean": mean_w(energy, seconds), "sd": None, "min": None, "median": None, "max": None}
    if len(watts):
        sd = float(np.std(watts, ddof=1)) if len(watts) > 1 else None
        found |= {"sd": sd, "min": float(watts.min()), "median": median(watts), "max": float(watts.max())}
    return {**found, "samples": len(watts)}


def power_line(source: Source) -> PowerLine | None:
    """A gauge's readings, each from the start of its validity; the slopes of a counter. None without any.

    Of more rows than `energy` looks at as a whole: as they were recorded, without a search for stalls.
    """
    tape, channel = source.tape, source.channel
    first_ns, last_ns = tape.extent_ns()
    if (last_ns - first_ns) / NS > WHOLE_ROWS * source.group.expected_period_s:
        return _recorded(source)
    ticks = source_ticks(source, first_ns, last_ns)
    if ticks is None or ticks.real.sum() < 2:
        return None
    if channel.kind is Kind.COUNTER:
        return _slopes(source, ticks.at_ns, ticks.half_ns, ticks.joules, ticks.observed_ns, ticks.real)
    # The last tick was put in, to say where the last reading may end; where a gap ends no program read 0 W.
    watts = np.where(ticks.real, ticks.watts, np.nan)
    return PowerLine(ticks.at_ns[:-1], watts[1:-1])


def _recorded(source: Source) -> PowerLine | None:
    """The line of a long tape, frame by frame: a fraction of the memory and time."""
    tape, group, channel = source.tape, source.group, source.channel
    found = ticks_by_frame(tape, group, [channel.name])
    if found is None:
        columns = load_columns(tape, group.id, [channel.name])
        kept = columns.accumulated if channel.kind is Kind.COUNTER else columns.values
        found = columns.published, (columns.late - columns.early).astype(np.float32), kept
    at_ns, width_ns, values = found[0], found[1], found[2][channel.name]
    if group.info.tracked and channel.kind is Kind.COUNTER:
        # Until it has been found when a card publishes, a count may be a whole period old. Repeated ones are no news.
        known = width_ns <= median(width_ns) + UNEVEN * group.expected_period_s * NS
        known &= ~repeated(values)
        at_ns, width_ns, values = at_ns[known], width_ns[known], values[known]
    if len(at_ns) < 2:
        return None
    watts = values * (channel.scale * channel.facts.gain)
    if channel.kind is Kind.GAUGE:
        return held_line(at_ns, watts + channel.facts.bias_w, group.expected_period_s)
    observed_ns = (at_ns - at_ns[0]).astype(np.float64)
    joules = watts + channel.facts.bias_w * observed_ns / NS
    return _slopes(source, at_ns, width_ns / 2, joules, observed_ns, np.ones(len(at_ns), dtype=np.bool_))


def held_line(at_ns: Ints, values: Floats, expected_s: float) -> PowerLine:
    """Readings that hold for the time before them, but for no more than a period where rows are missing."""
    period_ns = max(round(expected_s * NS), 1)
    steps = np.diff(at_ns)
    late = np.flatnonzero(steps > GAP_PERIODS * period_ns) + 1
    first_ns = at_ns[0] - min(period_ns, round(median(steps)))
    places, starts = np.concatenate(([0], late)), np.concatenate(([first_ns], at_ns[late] - period_ns))
    return PowerLine(np.insert(at_ns, places, starts), np.insert(values, late, np.nan))


def _slopes(
    source: Source, at_ns: Ints, half_ns: Floats, joules: Floats, observed_ns: Floats, real: npt.NDArray[np.bool_]
) -> PowerLine | None:
    """Mean power between publications of a counter that can be compared and are not reads of the same one."""
    kept = comparable(at_ns, half_ns, real)
    kept = _apart(kept[real[kept]], at_ns, round(SHORTEST * source.group.expected_period_s * NS))
    if source.group.info.tracked:  # what was read once more before the next publication at the end is no 0 W
        still = len(kept) - 1 - int(np.searchsorted(joules[kept], joules[kept[-1:]])[0]) if len(kept) else 0
        kept = kept[:-still] if 0 < still <= FEW_REPEATS else kept
    if np.any(half_ns[kept[1:]] + half_ns[kept[:-1]] > COARSE * np.diff(at_ns[kept])):
        kept = _of_known_length(kept, at_ns[kept].tolist(), half_ns[kept].tolist())
    if len(kept) < 2:
        return None
    watts = np.diff(joules[kept]) / (np.diff(at_ns[kept]) / NS)
    # A counter that started again counted nothing, and its device drew something.
    return PowerLine(at_ns[kept], np.where(np.diff(observed_ns[kept]) > 0, watts, np.nan))


def _apart(places: npt.NDArray[np.intp], at_ns: Ints, least_ns: int) -> npt.NDArray[np.intp]:
    """The places whose instants are at least so far from the one taken before, and the last one instead of that."""
    if not len(places) or np.all(np.diff(at_ns[places]) >= least_ns):
        return places
    kept, last_ns = [], -(2**63)
    for place, then_ns in zip(places.tolist(), at_ns[places].tolist(), strict=True):
        if then_ns - last_ns >= least_ns:
            kept.append(place)
            last_ns = then_ns
    if len(kept) > 1:
        kept[-1] = int(places[-1])
    return np.array(kept, dtype=np.intp)


def _of_known_length(places: npt.NDArray[np.intp], at_ns: list[int], half_ns: list[float]) -> npt.NDArray[np.intp]:
    """The places between which the length is known well: one step may hold two publications, and twice the joules.

    Slopes start again at an instant that is known far better; those before that are too near are left out.
    """
    kept: list[int] = []
    for tick, (then_ns, doubt_ns) in enumerate(zip(at_ns, half_ns, strict=True)):
        while kept and not shows_power(then_ns - at_ns[kept[-1]], half_ns[kept[-1]], doubt_ns, COARSE):
            if half_ns[kept[-1]] <= SHARPER * doubt_ns:
                break
            kept.pop()
        else:
            kept.append(tick)
    if len(kept) > 1 and shows_power(at_ns[-1] - at_ns[kept[-2]], half_ns[kept[-2]], half_ns[-1], COARSE):
        kept[-1] = len(at_ns) - 1
    return places[kept]
