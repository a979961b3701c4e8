"""Records of queries: one JSON line each, on disk the moment a query is finished, beside the tape of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.bench.lines import Lines, read_lines
from everywatt.bench.llm.values import OK, Answer
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import dumps

QUERIES = "queries.jsonl"
SCORES = "scores.jsonl"
PLAN = "llm.json"


@dataclass(frozen=True, slots=True)
class Record:
    """One finished query: which item at which load, the span on the tape, what came back and how it was judged.

    `score` is None where the item has no scorer, the query failed, or a judge has not come to it yet. `earlier` are
    attempts at the same item that failed before the run was resumed: their joules belong to this query.
    """

    id: str
    level: str
    span: str | None
    answer: Answer
    score: Mapping[str, Any] | None = None
    group: str = ""
    earlier: tuple[Record, ...] = ()

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
        return self.score["verdict"] == "right" if self.judged and self.score is not None else None

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: a judge that did not answer gave none."""
        return self.score is not None and self.score["verdict"] != "unevaluated"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a line."""
        return {
            "id": self.id,
            "level": self.level,
            "group": self.group,
            "span": self.span,
            "score": None if self.score is None else dict(self.score),
            "answer": self.answer.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """The inverse of `to_dict`."""
        return cls(
            str(data["id"]),
            str(data["level"]),
            data.get("span"),
            Answer.from_dict(data["answer"]),
            data.get("score"),
            str(data.get("group") or ""),
        )


class Journal(Lines):
    """The file of records, open for appending."""

    def __init__(self, folder: Path, name: str = QUERIES) -> None:
        super().__init__(folder / name)

    def add(self, record: Record) -> None:
        """Write one record."""
        self.write(record.to_dict())


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
        if known is not None and entry.get("span") == known.span and isinstance(entry.get("score"), dict):
            found[known.key] = replace(known, score=entry["score"])
    return list(found.values())


def scored(records: Sequence[Record]) -> list[Record]:
    """The queries that accuracy is over: those with a verdict, and those that failed, which are not right.

    What a judge has not evaluated is neither right nor wrong. A failed query counts if any other was scored.
    """
    if not any(record.score is not None for record in records):
        return []
    return [record for record in records if record.judged or not record.ok]


def score_entry(record: Record, score: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a score that came after its record."""
    return {"id": record.id, "level": record.level, "span": record.span, "score": dict(score)}


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Keep what was asked beside the tape. It has no secret in it."""
    (folder / PLAN).write_text(dumps(plan, indent=2) + "\n", encoding="utf-8")


def update_plan(folder: Path, plan: Mapping[str, Any], names: Sequence[str]) -> None:
    """Take what became known later into what is kept beside the tape; what was asked stays as it was."""
    old = read_plan(folder)
    new = {**old, **{name: plan[name] for name in names if plan.get(name) is not None}}
    if new != old:
        part = folder / f".{PLAN}.part-{os.getpid()}"
        part.write_text(dumps(new, indent=2) + "\n", encoding="utf-8")
        part.replace(folder / PLAN)


def read_plan(folder: Path) -> dict[str, Any]:
    """What a run asked; UsageError where it is not a run of a language model."""
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(f"{folder.name} is not a run of `bench llm`.", cure="everywatt list") from None
    if not isinstance(plan, dict):
        raise UsageError(f"{folder.name}/{PLAN} is damaged.")
    return plan


def differences(old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Which of these entries of two plans are not the same."""
    return [name for name in names if old.get(name) != new.get(name)]
