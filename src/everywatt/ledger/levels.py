"""The idle level of each device of a tape, from what the tape has of its power and use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from everywatt.core.channels import Channel
from everywatt.core.clocks import NS
from everywatt.core.device import Device
from everywatt.energy.sources import Source, addable, sources, splittable
from everywatt.ledger import idle as idling
from everywatt.ledger.idle import Idle, kind_of
from everywatt.ledger.use.account import TapeUse, continue_use, stretch_joules, tape_use
from everywatt.ledger.use.tenants import busy_share
from everywatt.tape.columns import Flags, Floats, Ints
from everywatt.tape.reader import Tape

LOST = ("reset", "jump")  # gaps of a counter in which its joules are not known


def idle_levels(tapes: Sequence[Tape]) -> list[dict[str, Idle]]:
    """Idle of the devices of each tape; a segment without an idle span takes what another of its host measured."""
    continue_use(tapes)
    measured: dict[str, dict[str, Idle]] = {}
    found: list[dict[str, Idle]] = []
    for tape in tapes:
        found.append(find_levels(tape, measured.get(tape.host, {})))
        fresh = {label: idle for label, idle in found[-1].items() if idle.method == "measured"}
        measured[tape.host] = fresh | measured.get(tape.host, {})
    return found


def find_levels(tape: Tape, measured: Mapping[str, Idle]) -> dict[str, Idle]:
    """Idle of each device of the total; `measured` is what another segment of the host measured on purpose."""
    use = tape_use(tape)
    found = {}
    for source in addable(splittable(sources(tape))):
        seen, own, busy = _watched(use, source), measured_idle(use, source), math.nan
        if own is not None:
            busy, sure = _busy_in_idle(use, source)
            own = idling.without_use(own, seen, busy) if sure else own
        level = idling.find_idle(seen, own, busy, measured.get(source.label))
        if level is not None:
            found[source.label] = level
    return found


def measured_idle(use: TapeUse, source: Source) -> Idle | None:
    """Idle in the longest span that was recorded for it; None if no such span exists."""
    if not use.idle_spans:
        return None
    start_ns, end_ns = _idle_span(use)
    edges = np.linspace(start_ns, end_ns, 9).astype(np.int64)
    joules, seconds = stretch_joules(source, edges[:-1], edges[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        return idling.from_blocks((joules / seconds).tolist(), (end_ns - start_ns) / 8 / NS)


def _idle_span(use: TapeUse) -> tuple[int, int]:
    return max(use.idle_spans, key=lambda span: span[1] - span[0])


def _busy_in_idle(use: TapeUse, source: Source) -> tuple[float, bool]:
    """Busy share of a device (of all CPUs, everywatt's own part included) while idle was recorded (NaN: not known).

    Also whether it is of that time alone: between two readings nothing tells when a CPU was used.
    """
    start_ns, end_ns = _idle_span(use)
    inside = math.nan if kind_of(source.domain) == "gpu" else use.cpu_share_inside(start_ns, end_ns)
    if not math.isnan(inside):
        return inside, True
    share = float(_use_of(use, source, np.array([start_ns, end_ns], dtype=np.int64))[0][0])
    return share, kind_of(source.domain) == "gpu" and not math.isnan(share)


def _watched(use: TapeUse, source: Source) -> idling.Watched:
    cells = use.cells(source)
    edges, step_ns, joules, observed_s = cells.edges_ns, cells.step_ns, cells.joules, cells.observed_s
    first_ns, last_ns = source.tape.extent_ns()
    if not len(joules) and last_ns > first_ns:  # a run of some milliseconds is one cell
        edges, step_ns = np.array([first_ns, last_ns], dtype=np.int64), last_ns - first_ns
        joules, observed_s = stretch_joules(source, edges[:-1], edges[1:])
    enough = observed_s > 0.5 * step_ns / NS
    with np.errstate(divide="ignore", invalid="ignore"):
        watts = np.where(enough, joules / observed_s, np.nan)
    for gap in source.tape.gaps(source.group.id):
        if gap.kind in LOST and gap.channel in (None, source.channel.name):
            watts[(edges[:-1] < gap.end_ns) & (edges[1:] > gap.start_ns)] = np.nan
    share, held = _use_of(use, source, edges)
    in_use = None if held is None else held.tolist()
    limit_w = source.channel.facts.max_w
    return idling.Watched(watts.tolist(), share.tolist(), step_ns / NS, kind_of(source.domain), in_use, limit_w)


def _use_of(use: TapeUse, source: Source, edges: Ints) -> tuple[Floats, Flags | None]:
    """How busy a device was between edges, from 0 to 1 (NaN: not known), and whether a process held it."""
    if kind_of(source.domain) != "gpu":
        return use.cpu_share(edges[:-1], edges[1:]), None
    gpu = use.channel(source.tape, f"{source.channel.device}.utilisation")
    share = np.full(len(edges) - 1, np.nan) if gpu is None else gpu.mean(edges) / 100
    if use.gpus is None:
        return share, None
    tenants = use.gpus.at(device_number(source.channel), (edges[:-1] + edges[1:]) // 2)
    if gpu is None:
        share = np.array([busy_share(inside) for inside in tenants])
    return share, np.array([bool(inside) for inside in tenants], dtype=np.bool_)


def device_number(channel: Channel) -> int:
    """Which GPU or package a channel is of; -1 where its name does not say."""
    index = Device.parse(channel.device).index
    return -1 if index is None else index
