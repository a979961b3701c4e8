"""Phases of queries to a server that batches: the virtual server, whose joules of every request and phase are known."""

from __future__ import annotations

import numpy as np
import pytest
from virtual_llm import IDLE_W, Request, VirtualServer

from everywatt.api.run import load
from everywatt.bench.llm.energy import Bill, bill
from everywatt.bench.llm.metrics import metrics
from everywatt.bench.llm.phases import phases_of
from everywatt.bench.llm.records import OK, Answer, Record
from everywatt.core.channels import Channel, Domain, Kind
from everywatt.core.clocks import NS
from everywatt.meters.series import Part, Table, group, write_part

BEGAN_S, ENDED_S = 10.0, 70.0
TICK_S = 0.02
GRID_S = 0.005  # of the truth


def recorded(folder, server: VirtualServer, tick_s: float = TICK_S) -> tuple[Bill, list[Record], list[Request]]:
    """A run of the server's card, whose counter is read every tick, and the records and truths of its requests."""
    zero = 1_790_000_000 * NS
    card = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU)
    table = Table(group("gpu.0", "meter", [card]))
    last_s = max(one.ended_s for one in server.ended)
    for n in range(round((last_s + 2) / tick_s)):
        table.add(zero + round(n * tick_s * NS), [server.energy_j(0.0, n * tick_s)])
    edges = [(zero + round(one.sent_s * NS), zero + round(one.ended_s * NS)) for one in server.ended]
    spans = [("query", start, end, {"n": n}) for n, (start, end) in enumerate(edges)]
    spans.append(("idle", zero, zero + round(server.start_s * NS), {"role": "idle"}))
    path = folder / "h-0001.tape"
    write_part(path, Part([table], spans=spans), [path], {})
    run = load(folder)
    found = sorted((span for span in run.spans if span.name == "query"), key=lambda span: span.attributes["n"])
    records = []
    for span, one in zip(found, server.ended, strict=True):
        times = tuple(span.start_ns + round((at_s - one.sent_s) * NS) for at_s in one.pieces_s)
        answer = Answer(
            OK, "x", sent_ns=span.start_ns, ended_ns=times[-1], piece_ns=times, input_tokens=one.prompt,
            output_tokens=len(times),
        )  # fmt: skip
        records.append(Record(f"i{span.id}", "c", span.id, answer))
    return bill(run, records, "machine"), records, server.ended


@pytest.fixture(scope="module", params=[1, 8, 64])
def served(request, tmp_path_factory):
    server = VirtualServer(request.param, BEGAN_S, ENDED_S, models=("large",), drains=True)
    return recorded(tmp_path_factory.mktemp("run"), server)


def truth_j(truths: list[Request]) -> dict[str, float]:
    """Gross joules by phase: what the server did, and idle, which is shared equally by the open queries."""
    at_s = np.arange(BEGAN_S, max(one.ended_s for one in truths), GRID_S) + GRID_S / 2
    open_ = sum(np.float64((one.sent_s <= at_s) & (at_s < one.ended_s)) for one in truths)
    found = {}
    for phase, start, end in (("prefill", "began_s", "first_s"), ("decode", "first_s", "ended_s")):
        inside = sum(np.float64((getattr(one, start) <= at_s) & (at_s < getattr(one, end))) for one in truths)
        idle_j = IDLE_W * GRID_S * np.divide(inside, open_, out=np.zeros(len(at_s)), where=open_ > 0).sum()
        found[phase] = sum(one.joules[phase] for one in truths) + idle_j
    return found


def test_a_query_is_charged_what_the_server_did_for_it(served) -> None:
    owed, records, truths = served
    off = [
        owed.queries[record.span].net_j / sum(one.joules.values()) - 1
        for record, one in zip(records, truths, strict=True)
    ]
    assert sum(map(abs, off)) / len(off) < 0.05


def test_phases_are_what_the_server_did_in_them(served) -> None:
    owed, records, truths = served
    truth = truth_j(truths)
    mine = [owed.queries[record.span] for record in records]
    assert sum(one.phases["prefill"][0] for one in mine) == pytest.approx(truth["prefill"], rel=0.05)
    assert sum(one.phases["decode"][0] for one in mine) == pytest.approx(truth["decode"], rel=0.05)


def test_the_intervals_of_phases_hold_what_the_server_did(served) -> None:
    owed, records, truths = served
    found = metrics("c", records, owed).figures
    for phase, truth in truth_j(truths).items():
        figure = found[f"{phase}_energy"]
        if "of all queries" in figure.formula:  # of a few short prefills too little was seen
            assert figure.low <= truth <= figure.high
            assert figure.high - figure.low < 0.06 * truth
    assert "of all queries" in found["decode_energy"].formula


def test_pieces_that_come_together_are_of_one_step() -> None:
    """A query decodes two tokens every 100 ms, which arrive together; another one is read from 0.50 to 0.80 s."""
    ms = NS // 1000
    pairs = [t for k in (1, 2, 3, 4, 5, 9, 10) for t in (100 * k * ms, 100 * k * ms)]
    one = Answer(OK, "x", sent_ns=0, ended_ns=1000 * ms, piece_ns=tuple(pairs))
    other = Answer(OK, "x", sent_ns=500 * ms, ended_ns=1000 * ms, piece_ns=(800 * ms, 900 * ms, 1000 * ms))
    records = [Record("a", "c", "a", one), Record("b", "c", "b", other)]
    found = phases_of(records, {"a": (0, 1000 * ms), "b": (500 * ms, 1000 * ms)})
    for at, got in found.lines:
        assert (np.diff(at) >= 0).all() and (np.diff(got) >= 0).all()
    decode = [
        (start // ms, end // ms)
        for owner, start, end in zip(found.worked.owner, found.worked.start_ns, found.worked.end_ns, strict=True)
        if owner == 2
    ]
    assert decode == [(100, 500), (800, 1000)]
