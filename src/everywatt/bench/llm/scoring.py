"""Which scorer judges which answer, and when: what takes a moment at once, a judge and unit tests after the load.

What judging costs must not fall into the time in which queries are open: a judge may run on the very server that is
measured, and unit tests run on this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everywatt.bench.llm.judge import JUDGE, Judge
from everywatt.bench.llm.sandbox import Sandbox
from everywatt.bench.llm.scorers import Score, scorer
from everywatt.bench.llm.unit_tests import CODE, score_code
from everywatt.bench.llm.values import OK, Answer, Item
from everywatt.core.errors import UsageError

LATER = (JUDGE, CODE)


@dataclass(frozen=True, slots=True)
class Scoring:
    """How answers are judged. `sandbox` is None where code must not run, `judge` where there is none."""

    judge: Judge | None = None
    sandbox: Sandbox | None = None

    def check(self, items: Sequence[Item]) -> None:
        """UsageError where an item cannot be judged: found out now, not after an hour."""
        for name in dict.fromkeys(item.scorer for item in items if item.scorer is not None):
            if name == JUDGE and self.judge is None:
                raise UsageError("Scoring these answers requires a judge.", cure="--judge-url URL --judge-model NAME")
            if name == CODE and self.sandbox is None:
                raise UsageError(
                    "These answers are code, and running it must be allowed explicitly.", cure="--run-code"
                )
            if name not in LATER:
                scorer(name)

    def describe(self) -> dict[str, Any]:
        """Plain data for the record: who judges, and what runs where."""
        return {
            "judge": None if self.judge is None else self.judge.describe(),
            "sandbox": None if self.sandbox is None else self.sandbox.about,
        }

    def at_once(self, answer: Answer, item: Item) -> Score | None:
        """The score of an answer; None where there is none, or it comes later."""
        if item.scorer is None or item.scorer in LATER or answer.status != OK:
            return None
        return scorer(item.scorer)(answer.text, item)

    async def later(self, answer: Answer, item: Item) -> Score | None:
        """What `at_once` left open."""
        if answer.status != OK:
            return None
        if item.scorer == JUDGE and self.judge is not None:
            return await self.judge.judge(answer.text, item)
        if item.scorer == CODE and self.sandbox is not None:
            return await asyncio.to_thread(score_code, answer.text, item, self.sandbox)
        return None

    async def close(self) -> None:
        """Let go of connections."""
        if self.judge is not None:
            await self.judge.close()


def scored_by(items: Sequence[Item], name: str) -> tuple[Item, ...]:
    """The items with another scorer; those without an answer to compare with stay unjudged."""
    if name not in LATER:
        scorer(name)
    return tuple(replace(item, scorer=name) if item.answer is not None or item.rules else item for item in items)
