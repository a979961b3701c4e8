"""The phases of queries, and what each of them got of the server over time.

A server that batches makes a token for every query in one step, and reads the prompt of a new one between two steps or
in a longer step. So the decodes of all others stand still, or go slower, while one prompt is read, and what the server
draws then is that query's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from everywatt.bench.llm.records import Record
from everywatt.core.clocks import NS
from everywatt.ledger.span_sweep import Line, Pieces, Stretches
from everywatt.tape.columns import Flags, Floats, Ints

LEAST_PREFILL_S = 1e-6  # so that the first token always falls into a prefill
PREFILL_OF_LOAD = "mean_prefill_of_load_s"
NAMES = ("queue", "prefill", "decode")  # the phases of a query, in this order
PHASES = len(NAMES)
TOGETHER_NS = 500_000  # pieces that are closer came from one step of the server
STALL = 1.5  # times the usual gap between two pieces: a longer one contains a standstill
FEWEST_GAPS = 5  # from which the usual gap of one query is known
SHORT_GAP = 0.2  # quantile of gaps that stands for the usual one where every gap has another query's prefill in it


class Phases(NamedTuple):
    """The phases of queries as pieces of time, three for each query.

    `worked` are the pieces in which the server did something for a query, which active energy is shared by; `lines`
    what each phase had got by when, in tokens.
    """

    pieces: Pieces
    worked: Pieces
    lines: list[Line]

    def reading(self, start_ns: Ints, end_ns: Ints) -> Flags:
        """Whether the server read a prompt in each of these stretches."""
        began, ended = np.sort(self.pieces.start_ns[1::PHASES]), np.sort(self.pieces.end_ns[1::PHASES])
        return np.searchsorted(began, end_ns) > np.searchsorted(ended, start_ns, side="right")

    def contested(self, cut: Stretches) -> Flags:
        """In which stretches the server read a prompt and decoded: how much of them is whose is not seen."""
        mine, count = cut.pieces.owner % PHASES == PHASES - 1, len(cut.edges_ns)
        steps = np.bincount(cut.first[mine], minlength=count) - np.bincount(cut.after[mine], minlength=count)
        return self.reading(cut.edges_ns[:-1], cut.edges_ns[1:]) & (np.cumsum(steps)[:-1] > 0)


def phases_of(records: Sequence[Record], spans: Mapping[str, tuple[int, int]]) -> Phases:
    """The phases of queries; `spans` has when each was open, by the id of its span."""
    rate = _median_rate(records)
    reading = _reading_s(records, spans)
    edges = np.zeros((len(records), PHASES + 1), dtype=np.int64)
    for number, record in enumerate(records):
        began, ended = spans[record.span or ""]
        first = min(max(record.answer.first_ns or ended, began), ended)
        read_s = min(max(reading(record), LEAST_PREFILL_S), (first - began) / NS)
        edges[number] = began, first - round(read_s * NS), first, ended
    stalls = _stalls(records, edges)
    lines: list[Line] = []
    for record, (began, read, first, ended), stall in zip(records, edges, stalls, strict=True):
        pieces = record.answer.piece_ns
        weight = (record.answer.output_tokens or len(pieces)) / max(len(pieces), 1)
        least = weight if _streamed(record) else 0.0  # the first token itself
        lines.append((np.array([began, read]), np.zeros(2)))
        lines.append((np.array([began, read, first]), np.array([0.0, 0.0, max(rate * (first - read) / NS, least)])))
        at = np.array([*pieces, ended], dtype=np.int64)
        got = weight * np.array([*range(len(pieces)), max(len(pieces) - 1, 0)], dtype=np.float64)
        lines.append(_standing(at, got, stall))
    owner = np.arange(PHASES * len(records), dtype=np.int64)
    pieces_ = Pieces(owner, edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1))
    return Phases(pieces_, _worked(edges, stalls), lines)


def _worked(edges: Ints, stalls: Sequence[Ints]) -> Pieces:
    """Decodes without the time in which they stood still, and prefills, which start with the query, because when
    reading began is only estimated. Nothing is done for a query in the queue."""
    rows = []
    for number, ((began, _, first, ended), stall) in enumerate(zip(edges, stalls, strict=True)):
        prefill, decode = PHASES * number + 1, PHASES * number + 2
        rows.append((prefill, began, first))
        at = np.clip([first, *stall.reshape(-1), ended], first, ended).reshape(-1, 2)
        rows += [(decode, start, end) for start, end in at]
    found = np.array(rows, dtype=np.int64).reshape(-1, 3)
    found = found[found[:, 2] > found[:, 1]]
    return Pieces(found[:, 0], found[:, 1], found[:, 2])


def _stalls(records: Sequence[Record], edges: Ints) -> list[Ints]:
    """For each query the stretches in which its decode stood still: a server that reads a prompt makes no tokens for
    the others meanwhile, or makes them later.

    That is the first part of a gap between two pieces in which another query waited for its first token, if the gap is
    longer than usual; the last part, as long as usual, made the token. Usual is the median of the query's gaps in which
    none waited; of all queries' if it has too few; a short gap of its own if no query has any.
    """
    began, first = np.sort(edges[:, 0]), np.sort(edges[:, 2])
    steps = [_steps(np.array(record.answer.piece_ns, dtype=np.int64)) for record in records]
    # More waits had begun by the end of the gap than had ended by its start.
    waited = [np.searchsorted(began, end) > np.searchsorted(first, start, side="right") for start, end in steps]
    quiet = [(end - start)[~during] for (start, end), during in zip(steps, waited, strict=True)]
    of_all = np.concatenate([np.zeros(0, dtype=np.int64), *quiet])
    found = []
    for (start, end), during, own in zip(steps, waited, quiet, strict=True):
        known = own if len(own) >= FEWEST_GAPS else of_all
        usual = np.median(known) if len(known) else np.quantile(end - start, SHORT_GAP) if len(end) else 0.0
        long = during & (end - start > STALL * usual)
        found.append(np.column_stack((start[long], end[long] - round(float(usual)))))
    return found


def _steps(at: Ints) -> tuple[Ints, Ints]:
    """The gaps between pieces, each from a piece to the next; pieces that came together are of one step."""
    apart = np.diff(at) > TOGETHER_NS
    return at[:-1][apart], at[1:][apart]


def _standing(at: Ints, got: Floats, stalls: Ints) -> Line:
    """A line that is flat in these stretches, each of which starts at one of its instants."""
    place, before = np.searchsorted(at, stalls[:, 1]), np.searchsorted(at, stalls[:, 0], side="right") - 1
    return np.insert(at, place, stalls[:, 1]), np.insert(got, place, got[before])


def _reading_s(records: Sequence[Record], spans: Mapping[str, tuple[int, int]]) -> Callable[[Record], float]:
    """How long the server reads a query's prompt: as it says itself, else the shortest wait for a first token.

    By the least for each input token where every answer tells those. An answer that came in one piece at its end tells
    nothing of its first token: all of its time counts.
    """
    waits = [
        ((record.answer.piece_ns[0] - spans[record.span or ""][0]) / NS, record.answer.input_tokens)
        for record in records
        if _streamed(record)
    ]
    least_s = min((max(wait_s, 0.0) for wait_s, _ in waits), default=math.inf)
    counted = [(max(wait_s, 0.0), tokens) for wait_s, tokens in waits if tokens]
    each_s = min((wait_s / tokens for wait_s, tokens in counted), default=0.0) if len(counted) == len(waits) else 0.0

    def reading_s(record: Record) -> float:
        if not _streamed(record):
            return math.inf
        if (reported_s := reported_prefill_s(record.answer.server)) is not None:
            return reported_s
        return each_s * record.answer.input_tokens if each_s and record.answer.input_tokens else least_s

    return reading_s


def reported_prefill_s(server: Mapping[str, Any]) -> float | None:
    """Seconds for which a server says that it read the prompt: llama.cpp in ms, Ollama in ns; vLLM for a whole load."""
    for name, scale in (("prompt_ms", 1e3), ("prompt_eval_duration", NS), (PREFILL_OF_LOAD, 1.0)):
        if isinstance(amount := server.get(name), int | float) and amount > 0:
            return amount / scale
    return None


def _streamed(record: Record) -> bool:
    return len(record.answer.piece_ns) > 1


def _median_rate(records: Sequence[Record]) -> float:
    """Tokens a second that a query gets, in the middle; 1 where no answer came in pieces."""
    rates = []
    for record in records:
        times = record.answer.piece_ns
        if len(times) > 1 and times[-1] > times[0]:
            tokens = (record.answer.output_tokens or len(times)) * (len(times) - 1) / len(times)
            rates.append(tokens / ((times[-1] - times[0]) / NS))
    return float(np.median(rates)) if rates else 1.0
