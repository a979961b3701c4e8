"""Models without a server: functions and commands."""

import asyncio
import json
import sys

import pytest
from loads import gone

from everywatt.bench.llm import packaged_model
from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.datasets import load_dataset
from everywatt.bench.llm.records import Ask
from everywatt.bench.llm.scorers import regex
from everywatt.core.errors import UsageError

KEY = "sk-very-secret"


def client(name, **params):
    return make(name, Connection.of("tiny", "", params, environ={"EVERYWATT_LLM_API_KEY": KEY}))


def ask(one, prompt="hi", **settings):
    async def asked():
        await one.health()
        return await one.ask(Ask(prompt, settings=settings))

    return asyncio.run(asked())


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """A module of the user, which only this test has."""
    name = f"model_of_{request.node.name.split('[')[0]}"
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda text: (tmp_path / f"{name}.py").write_text(text) and f"{name}:answer"
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "text",
    [
        "def answer(prompt, **more):\n    return 'forty-two'",
        "def answer(prompt, **more):\n    yield 'forty'\n    yield '-two'",
        "async def answer(prompt, **more):\n    return 'forty-two'",
        "async def answer(prompt, **more):\n    yield 'forty-'\n    yield 'two'",
    ],
)
def test_a_function_gives_or_yields_text(module, text):
    answer = ask(client("python", call=module(text)))
    assert (answer.status, answer.text) == ("ok", "forty-two")


def test_what_a_function_raises_is_the_answers_error(module):
    answer = ask(
        client("python", call=module("def answer(prompt):\n    yield 'half'\n    raise RuntimeError('no more')"))
    )
    assert (answer.status, answer.text, answer.error) == ("broken", "half", "RuntimeError: no more")


def test_tokens_that_are_no_numbers_are_not_taken(module):
    text = "def answer(prompt):\n    yield 'a'\n    yield {'input_tokens': 'many', 'output_tokens': -1}"
    answer = ask(client("python", call=module(text)))
    assert (answer.status, answer.input_tokens, answer.output_tokens, answer.counted) == ("ok", None, None, None)


def test_a_command_gets_the_prompt_and_its_output_is_the_answer():
    answer = ask(client("command", run="tr a-z A-Z"), "seven\neight")
    assert (answer.status, answer.text, len(answer.piece_ns)) == ("ok", "SEVEN\nEIGHT", 2)
    assert ask(client("command", run="false")).error == "the command ended with 1"


def test_the_key_is_in_no_answer(module):
    call = module(f"def answer(prompt):\n    return {KEY!r}")
    for one in (client("command", run=f"echo {KEY}"), client("python", call=call)):
        answer = ask(one)
        assert answer.status == "ok" and answer.text.strip() == "***"
        assert KEY not in json.dumps(answer.to_dict())


@pytest.mark.parametrize("how", ["too long", "cancelled"])
def test_a_command_that_nobody_waits_for_is_ended_with_its_children(tmp_path, how):
    told = tmp_path / "pids"
    run = f"sh -c 'sleep 100 & echo $$ $! > {told}.new; mv {told}.new {told}; wait'"
    one = client("command", run=run, total_timeout="5s" if how == "too long" else "1h")

    async def asked():
        await one.health()
        task = asyncio.create_task(one.ask(Ask("hi")))
        while not told.exists():
            await asyncio.sleep(0.02)
        if how == "cancelled":
            task.cancel()
        return await task

    if how == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(asked())
    else:
        assert asyncio.run(asked()).status == "timeout"
    pids = [int(word) for word in told.read_text().split()]
    assert gone(pids)


def test_a_packaged_model_that_is_missing_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(packaged_model, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(UsageError) as error:
        packaged_model.serve(18000)
    assert error.value.cure == packaged_model.INSTALL


def test_the_short_questions_have_patterns_and_subjects():
    items = load_dataset(str(packaged_model.QUESTIONS), {"scorer": "regex"}).items
    assert len(items) == 32 and {item.group for item in items} == {"capitals", "opposites", "everyday", "sums"}
    right = {"capitals-1": "It is Paris.", "opposites-1": "COLD", "everyday-6": "seven days", "sums-1": "2 + 3 = 5"}
    for item in items:
        assert (regex(right.get(item.id, "42"), item).verdict == "right") == (item.id in right)
