"""A model that judges answers. Who it is stands in the record; where it does not answer nothing was judged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from everywatt.bench.llm import clients
from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.scorers import RIGHT, UNEVALUATED, WRONG, Score
from everywatt.bench.llm.values import OK, Ask, Item
from everywatt.core.errors import EverywattError

JUDGE = "judge"
MOST_ANSWER = 8000
PROMPT = """You grade answers. Judge only whether the answer means the same as the reference.

Question:
{question}

Reference answer:
{reference}

Answer to grade:
{answer}

End with one line that has one word: CORRECT or INCORRECT."""


class Judge:
    """Asks an OpenAI-compatible server for a verdict. A key comes only from the variable that `api_key_env` names:
    the key of the model that is measured is not shown to another server."""

    def __init__(self, model: str, base_url: str, params: Mapping[str, str] | None = None) -> None:
        given = dict(params or {})
        # Without a name of its own the connection would take the key that is meant for the measured server.
        environ: dict[str, str] | None = None if "api_key_env" in given else {}
        self._connection = Connection.of(model, base_url, given, environ=environ)
        self._client = clients.make("openai", self._connection)
        self.model, self.base_url = model, base_url

    def describe(self) -> dict[str, Any]:
        """Who judged and how, for the record."""
        digest = hashlib.sha256(PROMPT.encode()).hexdigest()
        return {"model": self.model, "base_url": self.base_url, "prompt_sha256": digest, "settings": {"temperature": 0}}

    async def health(self) -> str | None:
        """None where it can judge, else why not."""
        try:
            await self._client.health()
        except EverywattError as error:
            return error.message
        return None

    async def judge(self, text: str, item: Item) -> Score:
        """Right or wrong as the judge says; unevaluated where it says nothing."""
        how = f"judge {self.model}"
        prompt = PROMPT.format(question=item.prompt, reference=item.answer or "", answer=text[:MOST_ANSWER])
        answer = await self._client.ask(Ask(prompt, settings={"temperature": 0}, item=item.id))
        if answer.status != OK:
            return Score(UNEVALUATED, None, f"{how}: {answer.error or answer.status}"[:300])
        verdict = verdict_of(answer.text)
        if verdict is None:
            return Score(UNEVALUATED, answer.text[-200:], f"{how}: no verdict in the response")
        return Score(verdict, answer.text.strip()[-200:], how)

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()


def verdict_of(text: str) -> str | None:
    """The last verdict in what a judge wrote.

    >>> verdict_of("It is CORRECT that … but INCORRECT"), verdict_of("hm")
    ('wrong', None)
    """
    found = re.findall(r"\b(INCORRECT|CORRECT)\b", text.upper())
    return None if not found else RIGHT if found[-1] == "CORRECT" else WRONG
