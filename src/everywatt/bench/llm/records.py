"""The values of a language-model benchmark: an item of a data set, what is asked, what came back; and the records of
queries: one JSON line each, on disk the moment a query is finished, beside the tape of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everywatt.bench.experiment import read_lines
from everywatt.core.clocks import NS
from everywatt.core.jsonio import ToDict

OK = "ok"
REFUSED = "refused"  # by the server: 4xx


@dataclass(frozen=True, slots=True)
class Item(ToDict):
    """One question. `answer` is what the scorer compares with; None where there is nothing to score.

    `id` is unique in its data set and the same in every run of it. `rules` are what the scorer has to know beside the
    answer: the letters of a multiple choice, a pattern, a schema, constraints. `group` is what clusters items (a
    subject), `meta` the other columns of its row in the data set.

    Its JSON form is what a record keeps of it: all that is needed to score its answer again without the data set.
    """

    JSON = "prompt reference=answer scorer rules columns=meta"

    id: str
    prompt: str
    answer: str | None = None
    scorer: str | None = None
    group: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, name: str, group: str, data: Mapping[str, Any]) -> Item:
        """The inverse of `to_dict`, of the item with that id."""
        answer, scorer = (None if one is None else str(one) for one in (data.get("reference"), data.get("scorer")))
        rules, columns = data.get("rules") or {}, data.get("columns") or {}
        return cls(name, str(data.get("prompt") or ""), answer, scorer, group, rules, columns)

    @property
    def masked(self) -> bool:
        """Whether its texts are replaced by hashes."""
        return self.prompt.startswith(MASK)


RIGHT, WRONG, UNPARSED, UNEVALUATED = "right", "wrong", "unparsed", "unevaluated"


@dataclass(frozen=True, slots=True)
class Score(ToDict):
    """`verdict` is right, wrong, unparsed or unevaluated; `found` was read out of the answer, `how` names the rule."""

    verdict: str
    found: str | None = None
    how: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Score:
        return cls(str(data["verdict"]), data.get("found"), str(data.get("how") or ""))


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client is to send: the prompt, perhaps a system prompt, and sampling settings as the server names them."""

    prompt: str
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    item: str = ""

    @property
    def text(self) -> str:
        """All that is said, for a model that knows no system prompts."""
        return f"{self.system}\n\n{self.prompt}" if self.system else self.prompt


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
        return (self.ended_ns - self.sent_ns) / NS

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Answer:
        """The inverse of `to_dict`; unknown fields are left out."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["piece_ns"] = tuple(int(ns) for ns in known.get("piece_ns", ()))
        return cls(**known)


QUERIES = "queries.jsonl"
SCORES = "scores.jsonl"
MASK = "sha256:"
SERVER_PHASES = "server_phases"
"""Attribute of a load's span: what the server counted meanwhile, as `{phase: [seconds, requests]}`."""


@dataclass(frozen=True, slots=True)
class Record(ToDict):
    """One finished query: which item at which load, the span on the tape, what came back and how it was judged.

    `asked` is the item as it was asked; None in records of older versions. `score` is None where the item has no
    scorer, the query failed, or a judge has not come to it yet. `earlier` are attempts at the same item that failed
    before the run was resumed: their joules belong to this query.
    """

    JSON = "id level group span score asked answer"

    id: str
    level: str
    span: str | None
    answer: Answer
    score: Score | None = None
    group: str = ""
    earlier: tuple[Record, ...] = ()
    asked: Item | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the only one: the same item is asked once at each load."""
        return self.level, self.id

    @property
    def ok(self) -> bool:
        """Whether an answer came back as a whole."""
        return self.answer.status == OK

    @property
    def right(self) -> bool | None:
        """Whether the answer is right; an unparsed one is not. None where it was not judged."""
        return self.score.verdict == RIGHT if self.judged and self.score is not None else None

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: a judge that did not answer gave none."""
        return self.score is not None and self.score.verdict != UNEVALUATED

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        name, group, asked, score = str(data["id"]), str(data.get("group") or ""), data.get("asked"), data.get("score")
        return cls(
            name,
            str(data["level"]),
            data.get("span"),
            Answer.from_dict(data["answer"]),
            None if score is None else Score.from_dict(score),
            group,
            asked=Item.from_dict(name, group, asked) if isinstance(asked, dict) else None,
        )

    def masked(self) -> Record:
        """The record with a hash in the place of every text of the data set and of the answer."""
        asked, score = self.asked, self.score
        if asked is not None:
            hidden = {name: _masked(getattr(asked, name)) for name in ("prompt", "answer", "rules", "meta")}
            asked = replace(asked, **hidden)
        answer = replace(self.answer, text=_masked(self.answer.text), reasoning=_masked(self.answer.reasoning))
        return replace(self, asked=asked, answer=answer, score=score and replace(score, found=_masked(score.found)))


def _masked(value: Any) -> Any:
    """Texts as hashes, which are equal where the texts are; what holds texts keeps its form."""
    if isinstance(value, str):
        return MASK + hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:16] if value else value
    if isinstance(value, Mapping):
        return {name: _masked(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(one) for one in value]
    return value


def recorded_items(records: Sequence[Record]) -> list[Item]:
    """The items that records hold, each once; those of older versions, and masked ones, are not among them."""
    kept = [record.asked for record in records if record.asked is not None]
    return list({item.id: item for item in kept if item.prompt and not item.masked}.values())


def read_records(folder: Path) -> list[Record]:
    """All records, in order of their end; of an item that was asked again the last one counts. Half lines are not.

    Scores that came later, of a judge or of unit tests, are in them.
    """
    found: dict[tuple[str, str], Record] = {}
    for line in read_lines(folder / QUERIES):
        try:
            record = Record.from_dict(line)
        except (ValueError, KeyError, TypeError):
            continue
        before = found.pop(record.key, None)
        earlier = () if before is None else (*before.earlier, replace(before, earlier=()))
        found[record.key] = replace(record, earlier=earlier)
    for entry in read_lines(folder / SCORES):
        known = found.get((str(entry.get("level")), str(entry.get("id"))))
        score = entry.get("score")
        if known is not None and entry.get("span") == known.span and isinstance(score, dict) and "verdict" in score:
            found[known.key] = replace(known, score=Score.from_dict(score))
    return list(found.values())


def scored(records: Sequence[Record]) -> list[Record]:
    """The queries that accuracy is over: those with a verdict, and those that failed, which are not right.

    What a judge has not evaluated is neither right nor wrong. A failed query counts if its item has a scorer, or, in
    records that do not say, if any other was scored.
    """
    some = any(record.score is not None for record in records)

    def counts(record: Record) -> bool:
        if record.ok:
            return record.judged
        return some if record.asked is None else record.asked.scorer is not None

    return [record for record in records if counts(record)]


def score_entry(record: Record, score: Score) -> dict[str, Any]:
    """The line of a score that came after its record."""
    return {"id": record.id, "level": record.level, "span": record.span, "score": score.to_dict()}
