"""The idle level of each device of a tape, from what the tape has of its power and use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from everywatt.core.channels import Domain
from everywatt.core.clocks import NS
from everywatt.energy.sources import Source, addable, sources
from everywatt.ledger import idle as idling
from everywatt.ledger.account import TapeUse, tape_use
from everywatt.ledger.energies import stretch_joules
from everywatt.ledger.idle import Idle
from everywatt.tape.reader import Tape


def kind_of(source: Source) -> str:
    """`gpu`, `dram`, or `cpu` for everything that is split by CPU time."""
    return {Domain.GPU: "gpu", Domain.DRAM: "dram"}.get(source.domain, "cpu")


def find_levels(tape: Tape, measured: Mapping[str, Idle]) -> dict[str, Idle]:
    """Idle of each device of the total; `measured` is what another segment of the host measured on purpose."""
    use = tape_use(tape)
    found = {}
    for source in addable(sources(tape)):
        level = idling.find_idle(_watched(use, source), measured_idle(use, source) or measured.get(source.label))
        if level is not None:
            found[source.label] = level
    return found


def measured_idle(use: TapeUse, source: Source) -> Idle | None:
    """Idle in spans that were recorded for it; None where there is none."""
    if not use.idle_spans:
        return None
    start_ns, end_ns = max(use.idle_spans, key=lambda span: span[1] - span[0])
    edges = np.linspace(start_ns, end_ns, 9).astype(np.int64)
    joules, seconds = stretch_joules(source, edges[:-1], edges[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        return idling.from_blocks(joules / seconds, (end_ns - start_ns) / 8 / NS)


def _watched(use: TapeUse, source: Source) -> idling.Watched:
    cells = use.cells(source)
    edges = cells.edges_ns
    enough = cells.observed_s > 0.5 * cells.step_ns / NS
    with np.errstate(divide="ignore", invalid="ignore"):
        watts = np.where(enough, cells.joules / cells.observed_s, np.nan)
    kind, held = kind_of(source), None
    share = use.cpu_share(edges[:-1], edges[1:])
    if kind == "gpu":
        gpu = use.channel(source.tape, f"{source.channel.device}.utilisation")
        share = np.full(len(watts), np.nan) if gpu is None else gpu.mean(edges) / 100
        if use.gpus is not None:
            tenants = use.gpus.at(gpu_number(source), (edges[:-1] + edges[1:]) // 2)
            held = np.array([bool(inside) for inside in tenants], dtype=np.bool_)
            if gpu is None:
                share = np.array([sum(t.sm or 0.0 for t in inside) / 100 for inside in tenants])
    return idling.Watched(watts, share, cells.step_ns / NS, kind, held)


def gpu_number(source: Source) -> int:
    """Which GPU a source is of; -1 where its name does not say."""
    digits = source.channel.device.rpartition(".")[2]
    return int(digits) if digits.isdigit() else -1
