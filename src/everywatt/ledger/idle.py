"""Idle watts of a device, with their spread and how they were found.

In this order: given; measured (a span with role idle); quiet (the time in which it was used least, put down to no use);
regression over use; and where the tape has none of that, a prior. Never the time of the lowest power, which is biased.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import mean_half_width
from everywatt.ledger.engine import Level

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

QUIET_USE = 0.10
QUIET_S = 2.0
FEW_CELLS = 8
# Share of the power at full load that is drawn at idle, and its 95 % range. CPUs and machines: 24 servers of the
# SPECpower table that were kept out of the fit of the modelled sensor. GPUs: from a board that sleeps to one whose
# clocks are held up. DRAM: refresh and standby against full bandwidth.
PRIORS = {"cpu": (0.26, 0.15, 0.69), "gpu": (0.12, 0.04, 0.36), "dram": (0.5, 0.2, 0.9)}
# How far the line through loads may miss idle, by where the loads begin: from the same servers.
CURVED = ((0.15, 0.35), (0.35, 0.95))
# Ten per cent of use put down to none may miss by this much: C-states make the first per cents expensive. The same.
BENT = 0.6
# A card that somebody holds may draw twice what it does with nobody there.
HELD_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Idle:
    """What a device draws with nobody there: watts, the 95 % half-width, and where that is from.

    `noise_w` is the standard deviation of the power of one second around its level. `held_w` is what it draws more
    while somebody merely holds it (GPUs).
    """

    watts: float
    spread_w: float
    method: str
    noise_w: float = 0.0
    held_w: float = 0.0
    note: str = ""

    @property
    def level(self) -> Level:
        """What the engine takes off before it shares joules."""
        return Level(self.watts, self.held_w, self.noise_w, self.spread_w, self.method)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = {"watts": self.watts, "spread_w": self.spread_w, "method": self.method}
        if self.held_w:
            data["held_watts"] = self.held_w
        return data | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, slots=True)
class Watched:
    """Power and use of a device in equal cells: watts (NaN where not observed), use from 0 to 1 (NaN: not known).

    `held` marks cells in which somebody held the device (GPUs), None where nothing is known of holders.
    """

    watts: Floats
    use: Floats
    cell_s: float
    kind: str
    held: Flags | None = None


def find_idle(seen: Watched, measured: Idle | None = None) -> Idle | None:
    """Idle watts by the first way that works; None where there is no power at all."""
    known = np.isfinite(seen.watts)
    if not known.any():
        return measured
    if seen.kind == "gpu":
        return _gpu(seen, known, measured)
    return measured or _by_use(seen, known)


def from_blocks(watts: Floats, block_s: float) -> Idle | None:
    """Idle measured on purpose, from the mean power of blocks of the stretch."""
    watts = watts[np.isfinite(watts)]
    if not len(watts):
        return None
    mean = float(watts.mean())
    return Idle(mean, _spread(watts), "measured", noise_w=_deviation(watts) * math.sqrt(block_s))


def without_use(measured: Idle, seen: Watched, use: float) -> Idle:
    """Idle measured on purpose, put down to no use at all: everywatt itself was there, and whatever else ran.

    Only where little was used, so that the machine did idle: what ran in a busy one cannot be taken off.
    """
    good = np.isfinite(seen.watts) & np.isfinite(seen.use)
    if not 0 < use <= QUIET_USE or not good.any():
        return measured
    watts = _without(measured.watts, use, _slope(seen.watts[good], seen.use[good]), seen.kind)
    bent_w = BENT * (measured.watts - watts)
    return replace(measured, watts=watts, spread_w=math.hypot(measured.spread_w, bent_w))


def _without(level: float, use: float, slope: float | None, kind: str) -> float:
    """A level of power at some use, put down to none: by watts for full use, else by what is known of such devices."""
    share = PRIORS[kind][0]
    return level * share / (share + (1 - share) * use) if slope is None else max(level - slope * use, 0.0)


def _by_use(seen: Watched, known: Flags) -> Idle:
    good = known & np.isfinite(seen.use)
    if not good.any():
        return _lowest(seen.watts[known], seen)
    watts, use = seen.watts[good], seen.use[good]
    quiet = use <= QUIET_USE
    if quiet.sum() * seen.cell_s >= QUIET_S:
        return _quiet(watts, use, quiet, seen)
    return _line(watts, use, seen) or _prior(watts, use, seen)


def _quiet(watts: Floats, use: Floats, quiet: Flags, seen: Watched) -> Idle:
    level, mean_use = float(watts[quiet].mean()), float(use[quiet].mean())
    idle = _without(level, mean_use, _slope(watts, use), seen.kind)
    bent = BENT * mean_use / 0.1 * idle
    return Idle(idle, math.hypot(_spread(watts[quiet]), bent), "quiet", noise_w=_noise(watts[quiet], seen))


def _slope(watts: Floats, use: Floats) -> float | None:
    """Watts from no use to full use, where use varied enough to tell."""
    low, high = np.percentile(use, (5, 95))
    if len(use) < FEW_CELLS or high - low < 0.2:
        return None
    return max(float(np.polyfit(use, watts, 1)[0]), 0.0)


def _line(watts: Floats, use: Floats, seen: Watched) -> Idle | None:
    low, high = np.percentile(use, (5, 95))
    curved = next((share for below, share in CURVED if low < below), None)
    if len(use) < FEW_CELLS or high - low < 0.25 or curved is None:
        return None
    slope, level = (float(value) for value in np.polyfit(use, watts, 1))
    if slope <= 0 or not 0 < level <= float(watts.max()):
        return None
    rest = watts - level - slope * use
    error = (
        2.2
        * float(rest.std())
        * math.sqrt(1 / len(use) + float(use.mean()) ** 2 / float(((use - use.mean()) ** 2).sum()))
    )
    note = "idle power was not observed; it is the intercept of a line fitted to power over utilisation"
    return Idle(level, math.hypot(error, curved * level), "regression", noise_w=_noise(rest, seen), note=note)


def _prior(watts: Floats, use: Floats, seen: Watched) -> Idle:
    """From the cells that were used least, by how much of full power machines of this kind draw at idle."""
    least = use <= np.percentile(use, 10)
    level, mean_use = float(watts[least].mean()), float(np.clip(use[least].mean(), 0.0, 1.0))
    best, low, high = (level * f / (f + (1 - f) * mean_use) for f in PRIORS[seen.kind])
    note = "idle power was not measured: run with --idle 10s"
    return Idle(best, max(high - best, best - low), "prior", noise_w=_noise(watts[least], seen), note=note)


def _lowest(watts: Floats, seen: Watched) -> Idle:
    """Where nothing is known of use: the lower decile of power, which may be far from idle."""
    low = float(np.percentile(watts, 10))
    note = "its utilisation was not recorded, so idle power is the lower decile of its power"
    return Idle(low, max(low - float(watts.min()), 0.5 * low), "lowest", noise_w=_noise(watts, seen), note=note)


def _gpu(seen: Watched, known: Flags, measured: Idle | None) -> Idle:
    still = known & ~(seen.use > 0.02)
    held = np.zeros(len(still), dtype=np.bool_) if seen.held is None else seen.held
    nobody, holding = still & ~held, still & held
    if not np.isfinite(seen.use[known]).any() and seen.held is None:
        return measured or _lowest(seen.watts[known], seen)
    idle = measured
    if idle is None and nobody.sum() * seen.cell_s >= QUIET_S:
        watts = seen.watts[nobody]
        idle = Idle(float(watts.mean()), _spread(watts), "quiet", noise_w=_noise(watts, seen))
    if idle is None and holding.sum() * seen.cell_s >= QUIET_S:
        watts = seen.watts[holding]
        level = float(watts.mean())
        note = (
            "it was never observed without a process on it, so idle includes what processes keep awake: run with "
            "--idle 10s"
        )
        return Idle(level, HELD_SPREAD * level, "quiet, held", noise_w=_noise(watts, seen), note=note)
    if idle is None:
        return _by_use(replace(seen, held=None), known)
    inside = _inside(holding)
    if inside.sum() * seen.cell_s >= QUIET_S:
        level = float(np.median(seen.watts[inside]))
        idle = replace(idle, held_w=max(level - idle.watts, 0.0))
    return idle


def _inside(cells: Flags) -> Flags:
    """Cells with such cells on both sides: where a load begins or ends, use and power are not of the same instant."""
    inside = cells.copy()
    inside[1:] &= cells[:-1]
    inside[:-1] &= cells[1:]
    return inside


def _noise(watts: Floats, seen: Watched) -> float:
    """Standard deviation of the mean power of one second, from cells beside one another, so that drift is not in it."""
    if len(watts) < 3:
        return 0.0
    return float(np.sqrt(np.mean(np.diff(watts) ** 2) / 2)) * math.sqrt(min(seen.cell_s, 1.0))


def _deviation(watts: Floats) -> float:
    return float(watts.std(ddof=1)) if len(watts) > 1 else 0.0


def _spread(watts: Floats) -> float:
    """95 % half-width of the mean, by the scatter of up to eight blocks: power drifts, so cells are not independent."""
    if len(watts) < 3:
        return max(float(np.ptp(watts)), 0.05 * abs(float(watts.mean())))
    return mean_half_width([float(block.mean()) for block in np.array_split(watts, min(8, len(watts)))])


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


def _given(found: Idle, told: float | Idle | None) -> Idle:
    if told is None or isinstance(told, Idle):
        return told or found
    return replace(found, watts=told, spread_w=0.0, method="given", note="")
