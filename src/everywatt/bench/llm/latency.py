"""Times of answers, each by one definition: client side, monotonic clock, from when the last attempt was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everywatt.bench.llm.figure import percentiles
from everywatt.bench.llm.records import Record
from everywatt.bench.llm.values import Answer
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.units import parse_duration_s

FORMULAS: Mapping[str, str] = {
    "ttft_s": "first piece of text (reasoning too) − request sent",
    "ttfa_s": "first piece of the answer itself (no reasoning) − request sent",
    "tpot_s": "(last piece − first piece) / (output tokens − 1), for each query",
    "itl_s": "every gap between two pieces, pooled over the queries; a piece may hold several tokens",
    "e2e_s": "whole answer received − request sent",
}
BOUNDS = ("ttft", "tpot", "e2e")


def ttft_s(answer: Answer) -> float | None:
    """Seconds to the first piece."""
    return None if answer.first_ns is None else (answer.first_ns - answer.sent_ns) / NS


def ttfa_s(answer: Answer) -> float | None:
    """Seconds to the first piece that is not reasoning."""
    return None if answer.first_answer_ns is None else (answer.first_answer_ns - answer.sent_ns) / NS


def tpot_s(answer: Answer) -> float | None:
    """Seconds for each output token after the first; None where tokens were not counted."""
    if answer.output_tokens is None or answer.output_tokens < 2 or len(answer.piece_ns) < 2:
        return None
    return (answer.piece_ns[-1] - answer.piece_ns[0]) / NS / (answer.output_tokens - 1)


def e2e_s(answer: Answer) -> float:
    """Seconds for the whole answer."""
    return (answer.ended_ns - answer.sent_ns) / NS


def latencies(records: Sequence[Record]) -> dict[str, Any]:
    """Percentiles of every time over the queries that were answered; None where there is none."""
    answers = [record.answer for record in records if record.ok]
    gaps = [np.diff(answer.piece_ns) / NS for answer in answers if len(answer.piece_ns) > 1]
    return {
        "ttft_s": percentiles([t for answer in answers if (t := ttft_s(answer)) is not None]),
        "ttfa_s": percentiles([t for answer in answers if (t := ttfa_s(answer)) is not None]),
        "tpot_s": percentiles([t for answer in answers if (t := tpot_s(answer)) is not None]),
        "itl_s": percentiles(np.concatenate(gaps)) if gaps else None,
        "e2e_s": percentiles([e2e_s(answer) for answer in answers]),
    }


def parse_bounds(text: str) -> dict[str, float]:
    """`ttft=500ms,tpot=50ms,e2e=5s`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in BOUNDS or not value:
            raise UsageError(
                f"'{part}' is not a latency objective such as ttft=500ms; objectives are: {', '.join(BOUNDS)}."
            )
        found[name.strip()] = parse_duration_s(value)
    return found


def within(answer: Answer, bounds: Mapping[str, float]) -> bool:
    """Whether an answer kept every bound; a time that is not known did not."""
    times = {"ttft": ttft_s(answer), "tpot": tpot_s(answer), "e2e": e2e_s(answer)}
    if answer.output_tokens == 1:
        times["tpot"] = 0.0
    return all((value := times[name]) is not None and value <= most for name, most in bounds.items())
