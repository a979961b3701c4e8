"""A recorded transcript as a client: answers of an earlier run are scored again, without a model and without energy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.records import Record
from everywatt.bench.llm.values import OK, Answer, Ask
from everywatt.core import foreign
from everywatt.core.errors import UsageError

TRANSCRIPT = "transcript"


def transcribed(file: Path) -> Iterator[Record]:
    """The records of a file; a line that only has `id` and `text` is one too. UsageError where a line is neither."""
    for number, line in enumerate(foreign.lines(file, errors="strict"), start=1):
        try:
            data = foreign.parse_json(line)
            answer = data.get("answer") if isinstance(data.get("answer"), dict) else {"status": OK, **data}
            yield Record.from_dict({"level": "", **data, "answer": answer})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file}:{number} is not a record: {error}.") from None


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
        return {"client": TRANSCRIPT, "file": str(self._file)}

    async def health(self) -> list[str]:
        """The file can be read."""
        self._answers = {record.id: record.answer for record in transcribed(self._file)}
        return ["a transcript was recorded elsewhere, so there is no energy"]

    async def ask(self, ask: Ask) -> Answer:
        """The recorded answer."""
        if ask.item not in self._answers:
            return Answer("failed", error="the transcript has no such item")
        return self._answers[ask.item]

    async def close(self) -> None:
        """Nothing to let go of."""
