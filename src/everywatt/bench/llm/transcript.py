"""A recorded transcript as a client: answers of an earlier run are scored again, without a model and without energy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.values import OK, Answer, Ask
from everywatt.core import foreign
from everywatt.core.errors import UsageError


class Transcript:
    """`file=queries.jsonl`: the records of a run, or lines with `id` and `text`. Items are found by id."""

    where = "nowhere"

    def __init__(self, connection: Connection) -> None:
        connection.only("file")
        if "file" not in connection.params:
            raise UsageError("The client 'transcript' requires --client-param file=FILE.")
        self._file = Path(connection.params["file"])
        self._answers: dict[str, Answer] = {}

    def describe(self) -> dict[str, Any]:
        """What was asked."""
        return {"client": "transcript", "file": str(self._file)}

    async def health(self) -> list[str]:
        """The file can be read."""
        for number, line in enumerate(foreign.lines(self._file, errors="strict"), start=1):
            try:
                data = foreign.parse_json(line)
                answer = data.get("answer") if isinstance(data.get("answer"), dict) else {"status": OK, **data}
                self._answers[str(data["id"])] = Answer.from_dict(answer)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(f"{self._file}:{number} is not a record: {error}.") from None
        return ["a transcript was recorded elsewhere, so there is no energy"]

    async def ask(self, ask: Ask) -> Answer:
        """The recorded answer."""
        if ask.item not in self._answers:
            return Answer("failed", error="the transcript has no such item")
        return self._answers[ask.item]

    async def close(self) -> None:
        """Nothing to let go of."""
