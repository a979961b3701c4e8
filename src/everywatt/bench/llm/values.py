"""The values of a language-model benchmark: an item of a data set, what is asked, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everywatt.core.clocks import NS
from everywatt.core.jsonio import ToDict

OK = "ok"
REFUSED = "refused"  # by the server: 4xx


@dataclass(frozen=True, slots=True)
class Item:
    """One question. `answer` is what the scorer compares with; None where there is nothing to score.

    `id` is unique in its data set and the same in every run of it. `rules` are what the scorer has to know beside the
    answer: the letters of a multiple choice, a pattern, a schema, constraints. `group` is what clusters items (a
    subject), `meta` the other columns of its row in the data set.
    """

    id: str
    prompt: str
    answer: str | None = None
    scorer: str | None = None
    group: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def asked(self) -> dict[str, Any]:
        """What a record keeps of the item: all that is needed to score its answer again without the data set."""
        return {
            "prompt": self.prompt,
            "reference": self.answer,
            "scorer": self.scorer,
            "rules": dict(self.rules),
            "columns": dict(self.meta),
        }


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client is to send: the prompt, perhaps a system prompt, and sampling settings as the server names them."""

    prompt: str
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    item: str = ""


@dataclass(frozen=True, slots=True)
class Answer(ToDict):
    """What came back. Times are CLOCK_MONOTONIC nanoseconds, as they were read when each piece arrived.

    `status` is `ok`, `timeout`, `refused` (the server said no: 4xx), `failed` (5xx, no connection) or `broken` (the
    stream ended in the middle). `sent_ns` is when the first byte of the last attempt
    went out, `began_ns` when asking began: connecting, failed attempts and waits lie in between.
    `piece_ns` has one time for each piece of text that arrived; a piece is usually one token. `counted` says who
    counted the tokens: `usage` (the server), `tokenizer NAME`, or None if they were not counted.
    `server` is the timings reported by the server itself, unchanged (Ollama's durations, llama.cpp's timings).
    `logprob_sum` is the sum of the natural log-probabilities of `logprob_tokens` tokens, where the server gave them.
    """

    status: str
    text: str = ""
    reasoning: str = ""
    began_ns: int = 0
    sent_ns: int = 0
    ended_ns: int = 0
    piece_ns: tuple[int, ...] = ()
    first_answer_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    counted: str | None = None
    attempts: int = 1
    finish: str | None = None
    error: str | None = None
    logprob_sum: float | None = None
    logprob_tokens: int = 0
    server: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_ns(self) -> int | None:
        """When the first piece of text, reasoning or answer, arrived."""
        return self.piece_ns[0] if self.piece_ns else None

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first piece, reasoning or answer."""
        return None if self.first_ns is None else (self.first_ns - self.sent_ns) / NS

    @property
    def ttfa_s(self) -> float | None:
        """Seconds to the first piece that is not reasoning."""
        return None if self.first_answer_ns is None else (self.first_answer_ns - self.sent_ns) / NS

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each output token after the first; None where tokens were not counted."""
        if self.output_tokens is None or self.output_tokens < 2 or len(self.piece_ns) < 2:
            return None
        return (self.piece_ns[-1] - self.piece_ns[0]) / NS / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Seconds for the whole answer."""
        return (self.ended_ns - self.sent_ns) / NS

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Answer:
        """The inverse of `to_dict`; unknown fields are left out."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["piece_ns"] = tuple(int(ns) for ns in known.get("piece_ns", ()))
        return cls(**known)
