"""A recorded run as a client."""

import asyncio

import pytest

from everywatt.bench.experiment import JsonLines, read_lines
from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.local import Transcript
from everywatt.bench.llm.records import Ask

ODD = "one\u2028two\u2029three\x85four\x0bfive\x1esix\rseven\x00{}"


@pytest.mark.parametrize("ending", ["", "\r\n"])
def test_separators_in_an_answer_make_no_other_record(tmp_path, ending):
    file = tmp_path / "queries.jsonl"
    lines = JsonLines(file)
    for number in range(3):
        lines.write({"id": f"item {number}", "answer": {"status": "ok", "text": f"{ODD}{ending}{number}"}})
    lines.close()
    assert [entry["id"] for entry in read_lines(file)] == ["item 0", "item 1", "item 2"]
    client = Transcript(Connection("none", params={"file": str(file)}))
    asyncio.run(client.health())
    answers = [asyncio.run(client.ask(Ask("?", item=f"item {number}"))).text for number in range(3)]
    assert answers == [f"{ODD}{ending}{number}" for number in range(3)]
