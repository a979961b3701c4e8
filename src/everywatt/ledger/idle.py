"""What counts as idle, and when it is refused: the one definition, used by ledgers, net energy, benches and the agent.

The idle power of a device is taken from the first of these that is accepted:

- given by the user;
- measured: a span recorded for it (`--idle`), unless the device was more than 10 % busy meanwhile;
- quiet: the time in which the device was used least, extrapolated to no use, unless its power varied too much in it;
- regression (fitted): the intercept of a line through power over use, if use varied and reached low enough;
- prior or lowest (assumed): idle was never observed. Ledgers use it with a wide interval; net energy is refused.

Never the time of the lowest power as such, which is biased. Plain Python, so that a small node needs no numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from everywatt.core.budget import Budget, Term
from everywatt.core.channels import Domain
from everywatt.core.energy import Energy, join_labels, total
from everywatt.core.format import format_percent
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import deviation, mean, mean_half_width, median, percentile
from everywatt.ledger.engine import ASSUMED, Level

QUIET_USE = 0.10  # a device that is busy for more of the time is not idle
STILL_USE = 0.02  # of a GPU: what drivers report for a card without work
QUIET_S = 2.0
FEW_CELLS = 8
# Highest over lowest power (90th over 10th percentile) in quiet time: beyond it, use does not explain the power.
# A CPU's first per cents are expensive, so that its quiet power may double; a card without work is steady.
VARIED_POWER = {"cpu": 3.0, "gpu": 2.0, "dram": 3.0}
# Share of the power at full load that is drawn at idle, and its 95 % range. CPUs and machines: 24 servers of the
# SPECpower table that were kept out of the fit of the modelled sensor. GPUs: from a board that sleeps to one whose
# clocks are held up. DRAM: refresh and standby against full bandwidth.
PRIORS = {"cpu": (0.26, 0.15, 0.69), "gpu": (0.12, 0.04, 0.36), "dram": (0.5, 0.2, 0.9)}
# How far the line through loads may miss idle, by where the loads begin: from the same servers.
CURVED = ((0.15, 0.35), (0.35, 0.95))
# Error of extrapolating from 10 % use to none, relative: C-states make the first per cents expensive. The same servers.
BENT = 0.6
# A card with an idle process on it may draw twice what it does without.
HELD_SPREAD = 0.5
LEAST_SPREAD = 0.5  # of an idle level that is assumed, however little the device was used
VARYING = "its power varied although it was not in use"
HOW = ", so idle power is assumed (measure it with --idle 10s)"
WORDS = {
    "measured": "measured before",
    "quiet": "quietest time",
    "quiet, held": "quietest time, with a process on it",
    "regression": "fitted to utilisation",
    "prior": "assumed",
    "lowest": "assumed",
}


def kind_of(domain: Domain | None) -> str:
    """How the energy of a domain is shared: `gpu`, `dram`, or `cpu` for everything that goes by CPU time."""
    return "gpu" if domain is Domain.GPU else "dram" if domain is Domain.DRAM else "cpu"


@dataclass(frozen=True, slots=True)
class Idle:
    """What a device draws without any process: watts, the 95 % half-width, and the method that found it.

    `noise_w` is the standard deviation of the power of one second around its level. `held_w` is what it draws more
    while a process merely holds it (GPUs). `duration_s` is for how long it was observed idle, `busy` the share of that
    time in which it was used all the same (None: not known).
    """

    watts: float
    spread_w: float
    method: str
    noise_w: float = 0.0
    held_w: float = 0.0
    note: str = ""
    duration_s: float = 0.0
    busy: float | None = None

    @property
    def observed(self) -> bool:
        """True if idle was seen, or follows from loads that were: what net energy needs."""
        return self.method not in ASSUMED

    @property
    def where(self) -> str:
        """The method in words."""
        return " + ".join(WORDS.get(word, word) for word in self.method.split("+"))

    @property
    def level(self) -> Level:
        """What the engine takes off before it shares joules."""
        return Level(self.watts, self.held_w, self.noise_w, self.spread_w, self.method)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"watts": self.watts, "spread_w": self.spread_w, "method": self.method}
        if self.held_w:
            data["held_watts"] = self.held_w
        return data | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, slots=True)
class Watched:
    """Power and use of a device in equal cells: watts (NaN where not observed), use from 0 to 1 (NaN: not known).

    `held` marks cells in which a process held the device (GPUs), None where nothing is known of holders. `limit_w` is
    the most that the device can draw, None where that is not known.
    """

    watts: Sequence[float]
    use: Sequence[float]
    cell_s: float
    kind: str
    held: Sequence[bool] | None = None
    limit_w: float | None = None

    def select(self, chosen: Sequence[bool]) -> Watched:
        """The cells that are marked."""
        cells = [cell for cell, wanted in enumerate(chosen) if wanted]
        held = None if self.held is None else [self.held[cell] for cell in cells]
        return replace(self, watts=[self.watts[i] for i in cells], use=[self.use[i] for i in cells], held=held)

    @property
    def enough(self) -> bool:
        """True if the cells are long enough together to find a level in them."""
        return len(self.watts) * self.cell_s >= QUIET_S


def find_idle(
    seen: Watched, measured: Idle | None = None, busy: float = math.nan, elsewhere: Idle | None = None
) -> Idle | None:
    """Idle power by the first method that is accepted; None where there is no power at all.

    `measured` is what a span recorded for it found, `busy` the share of that span in which the device was used (NaN:
    not known): above 10 % it is rejected, and the note says so. It may be extrapolated by `without_use` before.
    `elsewhere` is what was accepted of another recording.
    """
    known = seen.select([math.isfinite(watts) for watts in seen.watts])
    rejected = measured is not None and busy > QUIET_USE
    accepted = elsewhere if measured is None or rejected else measured
    if not known.watts:
        return accepted
    found = _gpu(known, accepted) if seen.kind == "gpu" else accepted or _by_use(known)
    if rejected:
        found = replace(found, note=f"idle baseline rejected: it was {format_percent(busy)} busy meanwhile")
    return found


def from_blocks(watts: Sequence[float], block_s: float) -> Idle | None:
    """Idle measured on purpose, from the mean power of blocks of the stretch."""
    watts = [value for value in watts if math.isfinite(value)]
    if not watts:
        return None
    noise_w = deviation(watts) * math.sqrt(block_s) if len(watts) > 1 else 0.0
    return Idle(mean(watts), _spread(watts), "measured", noise_w=noise_w, duration_s=len(watts) * block_s)


def without_use(measured: Idle, seen: Watched, use: float) -> Idle:
    """Idle measured on purpose, extrapolated to no use at all: everywatt itself was there, and whatever else ran."""
    measured = replace(measured, busy=use)
    good = seen.select([math.isfinite(w + u) for w, u in zip(seen.watts, seen.use, strict=True)])
    if use <= (STILL_USE if seen.kind == "gpu" else 0.0) or not good.watts:
        return measured
    watts = _without(measured.watts, use, _slope(good), seen.kind)
    bent_w = BENT * (measured.watts - watts)
    return replace(measured, watts=watts, spread_w=math.hypot(measured.spread_w, bent_w))


def net_energy(gross: Energy, levels: Mapping[str, Idle], seconds: float) -> Energy:
    """Energy above idle of a window of `seconds`; refused where idle of one of its devices was not observed.

    Of a device that was observed for a part of the time, idle is taken off that part. The sensor's offset is in both
    and cancels; its gain is in proportion to what is left.
    """
    if gross.joules is None:
        return gross
    parts = {label: part for label, part in gross.parts if part.joules is not None}
    idle = {
        label: _idle_energy(label, part, levels[label], seconds) for label, part in parts.items() if label in levels
    }
    net = replace(gross - total(idle, scope=gross.scope), coverage=gross.coverage) if idle else gross
    return accept_net(net, parts, levels)


def accept_net(net: Energy, devices: Iterable[str], levels: Mapping[str, Idle]) -> Energy:
    """The energy of these devices above idle; refused where idle of one of them was not observed, or where the error
    of a model is larger."""
    reasons: dict[str, list[str]] = {}
    for label in devices:
        if label not in levels or not levels[label].observed:
            note = levels[label].note.removesuffix(HOW) if label in levels else "there are too few readings"
            reasons.setdefault(note, []).append(label)
    if reasons:
        (note, labels), *others = reasons.items()
        why = f"the idle power of {', '.join(labels)} is not known: {note}"
        why += "".join(f"; of {', '.join(labels)}: {note}" for note, labels in others)
        return Energy.refuse(why, scope=net.scope)
    if "modelled" in net.pedigree and (net.low or 0.0) <= 0.0:
        return Energy.refuse("the error of the model is larger than what is above idle", scope=net.scope)
    return net


def _idle_energy(label: str, gross: Energy, idle: Idle, seconds: float) -> Energy:
    seconds *= gross.coverage
    joules = idle.watts * seconds
    terms = [Term("baseline", f"baseline:{label}", idle.spread_w * seconds)]
    if idle.method != "given":
        share = joules / gross.value if gross.value else 0.0
        for term in gross.budget.terms:
            if "offset" in (term.source, term.key[:6]):
                terms.append(term)
            elif term.source in ("gain", "model"):
                terms.append(term._replace(joules=term.joules * share))
    return replace(gross, joules=joules, budget=Budget(tuple(terms)), parts=(), notes=())


def sum_levels(levels: Mapping[str, Idle]) -> Idle | None:
    """Idle of several devices as one level; None of none."""
    if not levels:
        return None
    found = list(levels.values())
    known = [idle.busy for idle in found if idle.busy is not None]
    return Idle(
        math.fsum(idle.watts for idle in found),
        math.hypot(*(idle.spread_w for idle in found)),
        join_labels(idle.method for idle in found),
        duration_s=min(idle.duration_s for idle in found),
        busy=max(known) if known else None,
    )


def given(found: Mapping[str, Idle], baseline: float | Mapping[str, float | Idle]) -> dict[str, Idle]:
    """Idle as it was given: of devices (watts, or what was found of them elsewhere), or watts of all together."""
    if isinstance(baseline, Mapping):
        return {label: _given(idle, baseline.get(label)) for label, idle in found.items()}
    whole = sum(idle.watts for idle in found.values())
    factor = [idle.watts / whole if whole > 0 else 1 / len(found) for idle in found.values()]
    return {
        label: replace(idle, watts=baseline * share, spread_w=0.0, method="given", note="")
        for (label, idle), share in zip(found.items(), factor, strict=True)
    }


def _given(found: Idle, level: float | Idle | None) -> Idle:
    if level is None or isinstance(level, Idle):
        return level or found
    return replace(found, watts=level, spread_w=0.0, method="given", note="")


def _without(level: float, use: float, slope: float | None, kind: str) -> float:
    """A level of power at some use, extrapolated to none: by watts for full use, else by what such devices draw."""
    share = PRIORS[kind][0]
    return level * share / (share + (1 - share) * use) if slope is None else max(level - slope * use, 0.0)


def _by_use(seen: Watched) -> Idle:
    good = seen.select([math.isfinite(use) for use in seen.use])
    if not good.watts:
        return _lowest(seen, "its utilisation was not recorded")
    quiet = _cells(good, [use <= QUIET_USE for use in good.use])
    if not quiet.enough:
        some = any(use <= QUIET_USE for use in good.use)
        return _line(good) or _prior(good, "it was idle for less than 2 s" if some else "it was never idle")
    if _varied(quiet):
        return _lowest(quiet, VARYING)
    level, use = mean(quiet.watts), mean(quiet.use)
    idle = _without(level, use, _slope(good), seen.kind)
    spread_w = math.hypot(_spread(quiet.watts), BENT * use / QUIET_USE * idle)
    return _quiet(quiet, idle, spread_w, "quiet")


def _quiet(cells: Watched, watts: float, spread_w: float, method: str, note: str = "") -> Idle:
    length_s = len(cells.watts) * cells.cell_s
    known = [use for use in cells.use if math.isfinite(use)]
    return Idle(watts, spread_w, method, _noise(cells), 0.0, note, length_s, mean(known) if known else None)


def _cells(seen: Watched, wanted: Sequence[bool]) -> Watched:
    """The cells that are wanted; without those at the edge of a load, where use and power are not of the same instant,
    if enough are left."""
    inside = seen.select(_inside(wanted))
    return inside if inside.enough else seen.select(wanted)


def _inside(cells: Sequence[bool]) -> list[bool]:
    """Cells with such cells on both sides."""
    last = len(cells) - 1
    return [cell and cells[max(place - 1, 0)] and cells[min(place + 1, last)] for place, cell in enumerate(cells)]


def _varied(quiet: Watched) -> bool:
    """True if the power varied in quiet time by more than that of an idle device: use does not show what works."""
    return percentile(quiet.watts, 90) > VARIED_POWER[quiet.kind] * percentile(quiet.watts, 10)


def _fit(cells: Watched) -> tuple[float, float]:
    """Slope and intercept of the line of least squares through power over use."""
    middle_w, middle = mean(cells.watts), mean(cells.use)
    moved = math.fsum((u - middle) * (w - middle_w) for w, u in zip(cells.watts, cells.use, strict=True))
    slope = moved / math.fsum((use - middle) ** 2 for use in cells.use)
    return slope, middle_w - slope * middle


def _slope(cells: Watched) -> float | None:
    """Watts from no use to full use, where use varied enough to tell."""
    if len(cells.use) < FEW_CELLS or percentile(cells.use, 95) - percentile(cells.use, 5) < 0.2:
        return None
    return max(_fit(cells)[0], 0.0)


def _line(cells: Watched) -> Idle | None:
    low, high, count = percentile(cells.use, 5), percentile(cells.use, 95), len(cells.use)
    curved = next((share for below, share in CURVED if low < below), None)
    if count < FEW_CELLS or high - low < 0.25 or curved is None:
        return None
    slope, level = _fit(cells)
    if slope <= 0 or not 0 < level <= max(cells.watts):
        return None
    rest = [w - level - slope * u for w, u in zip(cells.watts, cells.use, strict=True)]
    scatter = math.sqrt(math.fsum(value * value for value in rest) / count)
    middle = mean(cells.use)
    error = 2.2 * scatter * math.sqrt(1 / count + middle**2 / math.fsum((use - middle) ** 2 for use in cells.use))
    note = "idle power was not observed; it is the intercept of a line fitted to power over utilisation"
    # What the line leaves over is not noise of an idle device, so nothing above idle is put down to that.
    return Idle(level, math.hypot(error, curved * level), "regression", note=note)


def _prior(cells: Watched, why: str) -> Idle:
    """From the half of the cells that was used less, by how much of full power devices of this kind draw at idle."""
    half = percentile(cells.use, 50)
    least = cells.select([use <= half for use in cells.use])
    level, use = mean(least.watts), min(max(mean(least.use), 0.0), 1.0)
    best, low, high = (level * f / (f + (1 - f) * use) for f in PRIORS[cells.kind])
    spread_w = max(high - best, best - low, LEAST_SPREAD * best)
    return Idle(best, spread_w, "prior", note=why + HOW)


def _lowest(seen: Watched, why: str) -> Idle:
    """The lower decile of power, which may be far from idle: from nothing to twice as much, or a usual share of all."""
    low = percentile(seen.watts, 10)
    spread_w = max(low, PRIORS[seen.kind][0] * percentile(seen.watts, 50))
    return Idle(low, spread_w, "lowest", note=why + HOW)


def _gpu(seen: Watched, measured: Idle | None) -> Idle:
    if seen.held is None and not any(math.isfinite(use) for use in seen.use):
        return measured or _lowest(seen, "its utilisation was not recorded")
    held = [False] * len(seen.watts) if seen.held is None else seen.held
    empty = _cells(seen, [not (there or use > STILL_USE) for use, there in zip(seen.use, held, strict=True)])
    holding = [there and use <= STILL_USE for use, there in zip(seen.use, held, strict=True)]
    idle = measured
    if idle is None and empty.enough:
        if _varied(empty):
            return _lowest(empty, VARYING)
        idle = _quiet(empty, mean(empty.watts), _spread(empty.watts), "quiet")
    if idle is not None and seen.limit_w is not None and idle.watts > PRIORS["gpu"][2] * seen.limit_w:
        share = format_percent(idle.watts / seen.limit_w)
        return _lowest(seen, f"it drew {share} of its power limit without utilisation, which no idle card does")
    if idle is None:
        kept = _cells(seen, holding)
        if not kept.enough or _varied(kept):
            return _by_use(seen)
        level = mean(kept.watts)
        note = "it was never observed without a process on it, so idle includes what processes keep awake"
        return _quiet(kept, level, HELD_SPREAD * level, "quiet, held", note)
    inside = seen.select(_inside(holding))
    return replace(idle, held_w=max(median(inside.watts) - idle.watts, 0.0)) if inside.enough else idle


def _noise(seen: Watched) -> float:
    """Standard deviation of the mean power of one second, from neighbouring cells, so that drift is not in it."""
    watts = seen.watts
    if len(watts) < 3:
        return 0.0
    squares = math.fsum((after - before) ** 2 for before, after in pairwise(watts))
    return math.sqrt(squares / (len(watts) - 1) / 2) * math.sqrt(min(seen.cell_s, 1.0))


def _spread(watts: Sequence[float]) -> float:
    """95 % half-width of the mean, by the scatter of up to eight blocks: power drifts, so cells are not independent."""
    if len(watts) < 3:
        return max(max(watts) - min(watts), 0.05 * abs(mean(watts)))
    count = min(8, len(watts))
    size, more = divmod(len(watts), count)
    edges = [block * size + min(block, more) for block in range(count + 1)]
    return mean_half_width([mean(watts[low:high]) for low, high in pairwise(edges)])
