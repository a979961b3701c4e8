"""A node's day from series that lie ready (an archive, a time-series database): jobs' shares by whole arrays.

The arithmetic is that of the ledger and of booking: each device and hour is split into active, held and idle by
`ledger.split.split`'s rules, in whole microjoules by largest remainder, idle by allocation; jobs + idle + system is
the node. Where booking asks a tape process by process, this takes what each job used in each tick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from everywatt.core.device import is_gpu
from everywatt.ledger.split.split import NO_USE, NOISE_SIGMAS, Level, Uses
from everywatt.slurm.schema import DeviceEnergy, JobOnNode, NodeHour

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
UJ: Final = 1_000_000
HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a node; `gain` is how far its sensor may be off, as a share (95 %)."""

    name: str
    domain: str
    source: str
    level: Level
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeDay:
    """What the devices of a node drew in each tick: joules (ticks, devices), NaN where a tick was not seen.

    The first tick begins at `start_s`, which is a full hour; an hour is a whole number of ticks.
    """

    node: str
    start_s: float
    period_s: float
    devices: tuple[Device, ...]
    joules: Floats
    cpus: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Of each hour: joules of each owner, of idle and of nobody (hours, …), and seconds that each owner shared."""

    own_j: Floats
    idle_j: Floats
    nobody_j: Floats
    owned_s: Floats


def split_hours(
    joules: Floats, observed_s: Floats, ticks: int, level: Level, uses: Uses, holders: Uses, owners: int
) -> Shares:
    """`ledger.split.split.split` for each run of `ticks` ticks at once; the same sums."""
    hours = -(-len(joules) // ticks)
    hour = np.arange(len(joules)) // ticks
    above = joules - level.idle_w * observed_s
    used, holding = (np.bincount(part.stretch, part.amount, len(joules)) for part in (uses, holders))
    busy, kept = used > NO_USE, holding > NO_USE
    most_held = np.minimum(level.held_w * observed_s, np.maximum(above, 0.0))
    held_e = np.where(kept, np.where(busy, most_held, above), 0.0)
    active_e = np.where(busy, above - held_e, 0.0)
    noise_e = level.noise_w**2 * observed_s
    own, owned_s = np.zeros((hours, owners)), np.zeros((hours, owners))
    for part, total, given, noisy, counted in (
        (uses, used, active_e, np.where(busy, noise_e, 0.0), busy),
        (holders, holding, held_e, np.where(kept & ~busy, noise_e, 0.0), kept & ~busy),
    ):
        if len(part.stretch):
            place = hour[part.stretch] * owners + part.owner
            share = part.amount / np.maximum(total[part.stretch], NO_USE)
            own += _closed(part, place, share, given, noisy, (hours, owners))
            owned_s += _grid(place, share * np.where(counted, observed_s, 0.0)[part.stretch], (hours, owners))
    alone = ~busy & ~kept
    whole = np.bincount(hour, joules, hours)
    alone_j, alone_s = (np.bincount(hour[alone], values[alone], hours) for values in (above, observed_s))
    limit = NOISE_SIGMAS * level.noise_w * np.sqrt(alone_s) + level.spread_w * alone_s
    nobody = np.where(alone_j > np.maximum(limit, 1e-9), alone_j, 0.0)
    charged = own.sum(axis=1) + nobody
    factor = np.where(charged > whole, np.maximum(whole, 0.0) / np.where(charged > 0, charged, 1.0), 1.0)
    return Shares(own * factor[:, None], whole - charged * factor, nobody * factor, owned_s)


def _closed(part: Uses, place: Ints, share: Floats, given: Floats, noisy: Floats, shape: tuple[int, int]) -> Floats:
    own = _grid(place, share * given[part.stretch], shape)
    noise = NOISE_SIGMAS * np.sqrt(_grid(place, share**2 * noisy[part.stretch], shape))
    sure = np.abs(own) > noise
    pool = np.where(sure, 0.0, own).sum(axis=1)
    weight = np.where(sure, 0.0, _grid(place, part.amount, shape))
    total = weight.sum(axis=1)
    scale = np.where((pool > 0) & (total > 0), pool / np.where(total > 0, total, 1.0), 0.0)
    return np.where(sure, np.maximum(own, 0.0), weight * scale[:, None])


def _grid(place: Ints, amount: Floats, shape: tuple[int, int]) -> Floats:
    return np.asarray(np.bincount(place, amount, shape[0] * shape[1]).reshape(shape), dtype=np.float64)


def apportion_rows(whole: Ints, weights: Floats) -> Ints:
    """`ledger.split.amounts.apportion` for each row: whole numbers that add up to each row's whole (≥ 0)."""
    total = weights.sum(axis=1)
    exact = weights / np.where(total > 0, total, 1.0)[:, None] * np.where(total > 0, whole, 0)[:, None]
    floor = np.floor(exact)
    amounts = floor.astype(np.int64)
    rest = np.where(total > 0, whole, 0) - amounts.sum(axis=1)
    rank = np.argsort(np.argsort(-(exact - floor), axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(amounts + (rank < rest[:, None]), dtype=np.int64)


def book_day(
    day: NodeDay, jobs: Sequence[JobOnNode], uses: Mapping[str, Uses], holders: Mapping[str, Uses] | None = None
) -> tuple[list[JobOnNode], list[NodeHour]]:
    """What each job owes of a node's day, and the hours of the node.

    `uses` has for each device what owners used in each tick: owner i is jobs[i], owner len(jobs) is the system;
    `holders` who kept a device without using it.
    """
    ticks = round(HOUR_S / day.period_s)
    owners, hours = len(jobs) + 1, -(-len(day.joules) // ticks)
    seen = np.isfinite(day.joules)
    joules = np.where(seen, day.joules, 0.0)
    inside_s = _inside(jobs, day.start_s, hours)
    own = np.zeros((len(day.devices), hours, owners), dtype=np.int64)
    idle_of = np.zeros((len(day.devices), len(jobs)), dtype=np.int64)
    spread_j = np.zeros((len(day.devices), len(jobs)))
    rows: list[NodeHour] = []
    for place, device in enumerate(day.devices):
        observed_s = seen[:, place] * day.period_s
        using = uses.get(device.name, Uses.none())
        held = (holders or {}).get(device.name, Uses.none())
        shares = split_hours(joules[:, place], observed_s, ticks, device.level, using, held, owners)
        total_j = np.maximum(np.bincount(np.arange(len(joules)) // ticks, joules[:, place], hours), 0.0)
        total_uj = np.rint(total_j * UJ).astype(np.int64)
        weights = np.column_stack((shares.own_j, np.maximum(shares.idle_j, 0.0), shares.nobody_j))
        amounts = apportion_rows(total_uj, weights)
        own[place] = amounts[:, :owners]
        idle_uj = amounts[:, owners]
        allocated = inside_s * _part_of(jobs, device, day.cpus)
        free = np.maximum(HOUR_S - allocated.sum(axis=1), 0.0)
        idle_of[place] = apportion_rows(idle_uj, np.column_stack((allocated, free)))[:, :-1].sum(axis=0)
        spread_j[place] = device.level.spread_w * shares.owned_s[:, :-1].sum(axis=0)
        jobs_uj = own[place, :, :-1].sum(axis=1)
        cover = np.bincount(np.arange(len(joules)) // ticks, observed_s, hours) / HOUR_S
        rows += [
            NodeHour(
                int(day.start_s) + n * HOUR_S,
                day.node,
                device.name,
                device.domain,
                device.source,
                int(total_uj[n]),
                int(jobs_uj[n]),
                int(idle_uj[n]),
                int(total_uj[n] - jobs_uj[n] - idle_uj[n]),
                float(cover[n]),
                day.start_s + n * HOUR_S,
                day.start_s + (n + 1) * HOUR_S,
            )
            for n in range(hours)
        ]
    return _records(day, jobs, own[:, :, :-1].sum(axis=1), idle_of, spread_j, seen), rows


def _records(
    day: NodeDay, jobs: Sequence[JobOnNode], own: Ints, idle: Ints, spread_j: Floats, seen: npt.NDArray[np.bool_]
) -> list[JobOnNode]:
    cells = np.append(0.0, np.cumsum(seen.all(axis=1)) * day.period_s)
    edges = day.start_s + np.arange(len(cells)) * day.period_s
    made = []
    for n, job in enumerate(jobs):
        parts = []
        for place, device in enumerate(day.devices):
            if own[place, n] or idle[place, n]:
                uj = int(own[place, n])
                off = round(device.gain * uj + spread_j[place, n] * UJ)
                names = (device.name, device.domain, device.source)
                parts.append(DeviceEnergy(*names, uj, max(uj - off, 0), uj + off, int(idle[place, n])))
        length_s = job.end_s - job.start_s
        covered_s = float(np.diff(np.interp([job.start_s, job.end_s], edges, cells))[0])
        made.append(
            replace(
                job,
                node=day.node,
                energy_uj=int(own[:, n].sum()),
                low_uj=sum(part.low_uj for part in parts),
                high_uj=sum(part.high_uj for part in parts),
                idle_uj=int(idle[:, n].sum()),
                coverage=min(covered_s / length_s, 1.0) if length_s > 0 else 0.0,
                devices=tuple(parts),
            )
        )
    return made


def _inside(jobs: Sequence[JobOnNode], start_s: float, hours: int) -> Floats:
    """Seconds of each job in each hour (hours, jobs)."""
    low = (start_s + np.arange(hours) * HOUR_S)[:, None]
    starts, ends = (np.array([getattr(job, name) for job in jobs], dtype=np.float64) for name in ("start_s", "end_s"))
    return np.asarray(
        np.maximum(np.minimum(ends, low + HOUR_S) - np.maximum(starts, low), 0.0).reshape(hours, len(jobs))
    )


def _part_of(jobs: Sequence[JobOnNode], device: Device, cpus: float) -> Floats:
    """Which part of a device a job was given: a GPU as a whole or not at all, the machine by CPUs."""
    if is_gpu(device.name):
        return np.array([float(device.name in job.gpus) for job in jobs])
    return np.array([(job.cpus or 0.0) / cpus for job in jobs])
