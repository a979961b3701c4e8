"""The phases of queries, and what each of them got of the server over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from everywatt.bench.llm.records import Record
from everywatt.core.clocks import NS
from everywatt.ledger.spans.span_sweep import Line, Pieces

LEAST_PREFILL_S = 1e-6  # so that the first token always falls into a prefill
PREFILL_OF_LOAD = "mean_prefill_of_load_s"
PHASES = 3  # of a query, in this order: queue, prefill, decode


def pieces_of(records: Sequence[Record], spans: Mapping[str, tuple[int, int]]) -> tuple[Pieces, list[Line]]:
    """Three pieces for each query, its phases, and what each had got over time."""
    rate = _median_rate(records)
    reading = _reading_s(records, spans)
    count = PHASES * len(records)
    start, end = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    lines: list[Line] = []
    for number, record in enumerate(records):
        began, ended = spans[record.span or ""]
        answer = record.answer
        first = min(max(answer.first_ns or ended, began), ended)
        read_s = min(max(reading(record), LEAST_PREFILL_S), (first - began) / NS)
        read = first - round(read_s * NS)
        start[PHASES * number : PHASES * (number + 1)] = began, read, first
        end[PHASES * number : PHASES * (number + 1)] = read, first, ended
        lines.append((np.array([began, read], dtype=np.int64), np.zeros(2)))
        weight = (answer.output_tokens or len(answer.piece_ns)) / max(len(answer.piece_ns), 1)
        least = weight if _streamed(record) else 0.0  # the first token itself
        got = np.array([0.0, 0.0, max(rate * read_s, least)])
        lines.append((np.array([began, read, first], dtype=np.int64), got))
        at = np.array([*answer.piece_ns, ended], dtype=np.int64)
        got = weight * np.concatenate((np.arange(len(answer.piece_ns)), [max(len(answer.piece_ns) - 1, 0)]))
        lines.append((at, got.astype(np.float64)))
    return Pieces(np.arange(count, dtype=np.int64), start, end), lines


def worked_pieces(pieces: Pieces) -> Pieces:
    """What active energy is shared by: decodes, and prefills that start with the query, because when reading began is
    only estimated. Nothing is done for a query in the queue."""
    start = pieces.start_ns.reshape(-1, PHASES)
    start = np.column_stack((start[:, 0], start[:, 2]))
    rows = (pieces.owner.reshape(-1, PHASES)[:, 1:], start, pieces.end_ns.reshape(-1, PHASES)[:, 1:])
    return Pieces(*(row.reshape(-1) for row in rows))


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
        if (told_s := told_prefill_s(record.answer.server)) is not None:
            return told_s
        return each_s * record.answer.input_tokens if each_s and record.answer.input_tokens else least_s

    return reading_s


def told_prefill_s(server: Mapping[str, Any]) -> float | None:
    """Seconds for which a server says that it read the prompt: llama.cpp in ms, Ollama in ns; vLLM for a whole load."""
    for name, scale in (("prompt_ms", 1e3), ("prompt_eval_duration", NS), (PREFILL_OF_LOAD, 1.0)):
        if isinstance(told := server.get(name), int | float) and told > 0:
            return told / scale
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
