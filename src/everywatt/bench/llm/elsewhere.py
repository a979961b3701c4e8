"""A server on another host is measured by its own tape: queries are placed on it by the wall clock.

The two clocks are never quite the same. How far apart they may be has to be said (an NTP client tells), and goes into
the interval: the windows are moved by that much to either side, and what the energy changes is not excluded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from everywatt.api.run import Run, load
from everywatt.bench.llm.energy import SERVER, Asked, Bill, asked_of, refused, settle
from everywatt.bench.llm.records import Record
from everywatt.bench.llm.values import Answer
from everywatt.core.budget import Bound, Budget
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError
from everywatt.energy.sources import sources
from everywatt.energy.window import windows_energy
from everywatt.tape.reader import Tape

SKEW = "clock skew"


def bill_elsewhere(run: Run, records: Sequence[Record], server_tape: Mapping[str, Any], boundary: str = SERVER) -> Bill:
    """The energy of queries from the tape of the server's host. `server_tape` has `path` and `skew_s`: how far at most
    the two hosts' clocks are apart. Refused where the tape cannot be read, or does not cover the queries."""
    try:
        server = load(str(server_tape["path"]))
    except EverywattError as error:
        return refused(f"the server's tape cannot be read: {error.message}", boundary)
    skew_s = float(server_tape["skew_s"])
    asked = _placed(run, records, server)
    placed = {record.span for one in asked for record in one.records}
    missing = sum(record.span not in placed for record in records if record.span)
    if missing or not asked:
        return refused(f"the server's tape {server.name} does not cover {missing} of {len(records)} queries", boundary)
    owed = settle(asked, boundary, [*run.trouble, *server.trouble])
    return owed if owed.gross.joules is None else _with_skew(owed, asked, skew_s)


def placed_elsewhere(run: Run, records: Sequence[Record], server_tape: Mapping[str, Any]) -> list[Asked]:
    """The queries on the tape of the server's host, as far as it covers them."""
    return _placed(run, records, load(str(server_tape["path"])))


def _placed(run: Run, records: Sequence[Record], server: Run) -> list[Asked]:
    asked = [_moved(one, tape) for one in asked_of(run, records) for tape in server.tapes]
    return [one for one in asked if one.records]


def _moved(asked: Asked, tape: Tape) -> Asked:
    """The queries on the other host's clock; those that its tape does not cover are left out."""
    first, last = tape.extent_ns()

    def there(at_ns: int) -> int:
        return tape.from_utc_ns(asked.tape.to_utc_ns(at_ns))

    edges = {span: (there(start), there(end)) for span, (start, end) in asked.edges.items()}
    edges = {span: (start, end) for span, (start, end) in edges.items() if first <= start < end <= last}
    records = tuple(replace(r, answer=_translated(r.answer, there)) for r in asked.records if r.span in edges)
    return Asked(tape, records, edges)


def _translated(answer: Answer, there: Any) -> Answer:
    """An answer whose times are on another clock; the rate of both is taken as the same within one answer."""
    shift = there(answer.sent_ns) - answer.sent_ns
    return replace(
        answer,
        sent_ns=answer.sent_ns + shift,
        ended_ns=answer.ended_ns + shift,
        piece_ns=tuple(at_ns + shift for at_ns in answer.piece_ns),
    )


def _with_skew(owed: Bill, asked: Sequence[Asked], skew_s: float) -> Bill:
    """The bill with what the clocks leave open."""
    whole = sum(_change(one.tape, one.windows, skew_s) for one in asked)
    each = {
        span: _change(one.tape, [one.edges[span]], skew_s)
        for one in asked
        for span in (record.span or "" for record in one.records)
    }
    queries = {
        span: replace(query, energy=_wider(query.energy, each[span], f"{SKEW}:{span}"))
        for span, query in owed.queries.items()
    }
    note = (
        "measured on the server's own tape, assuming that its clock and this host's differ by at most "
        f"{skew_s * 1000:g} ms"
    )
    gross = _wider(owed.gross, whole, SKEW)
    return replace(
        owed,
        gross=replace(gross, notes=(*gross.notes, note)),
        net=_wider(owed.net, whole, SKEW),
        about=f"{owed.about}; on the server's host, from its own tape",
        queries=queries,
    )


def _change(tape: Tape, windows: Sequence[tuple[int, int]], skew_s: float) -> float:
    """By how many joules the energy of windows changes where they are moved by the skew to either side."""
    if not skew_s > 0:
        return 0.0
    first, last = tape.extent_ns()
    found = []
    for shift in (0, -round(skew_s * NS), round(skew_s * NS)):
        moved = [(max(start + shift, first), min(end + shift, last)) for start, end in windows]
        energy = windows_energy(sources(tape), [(start, end) for start, end in moved if end > start])
        found.append(energy.joules if energy.joules is not None else np.nan)
    return float(np.nanmax(np.abs(np.array(found[1:]) - found[0])))


def _wider(energy: Energy, joules: float, key: str) -> Energy:
    if energy.joules is None:
        return energy
    bound = Bound(SKEW, key, joules, joules)
    return replace(energy, budget=Budget(energy.budget.terms, (*energy.budget.bounds, bound)))
