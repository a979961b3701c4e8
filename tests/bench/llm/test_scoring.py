"""Judging by unit tests, by another model, and what reasoning and log-probabilities do to an answer."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from answering import answering, models, sse

from everywatt.bench.llm import scoring
from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.records import OK, RIGHT, UNEVALUATED, UNPARSED, WRONG, Answer, Ask, Item
from everywatt.bench.llm.scoring import (
    MOUNT_PROC,
    Ending,
    Judge,
    Sandbox,
    Scoring,
    code_of,
    score_code,
    scored_by,
    verdict_of,
)
from everywatt.core.errors import MeasurementRefused, UsageError


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox.find()


def item(**rules):
    return Item("double", "Write double(x).", None, "code", "", rules)


GOOD = "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```\nBye."


def test_code_is_right_where_its_tests_pass(sandbox):
    tests = item(tests=["assert double(2) == 4", "assert double(-1) == -2"])
    assert score_code(GOOD, tests, sandbox).verdict == RIGHT
    bad = score_code("def double(x):\n    return x", tests, sandbox)
    assert (bad.verdict, bad.found) == (WRONG, "AssertionError")
    assert score_code("I cannot do that.", tests, sandbox).verdict == UNPARSED
    assert score_code("```python\ndef double(x:\n```", tests, sandbox).verdict == WRONG


def test_a_check_function_gets_the_entry_point(sandbox):
    rules = {"tests": "def check(f):\n    assert f(3) == 6", "entry_point": "double"}
    assert score_code(GOOD, item(**rules), sandbox).verdict == RIGHT
    with pytest.raises(UsageError, match="is not an identifier"):
        score_code(GOOD, item(tests="pass", entry_point="os.system('x')"), sandbox)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("while True: pass", "timed out"),
        ("x = 'a' * (3 << 30)", "MemoryError"),
        ("open('big', 'wb').write(b'0' * (1 << 26))", None),
        ("import sys; sys.exit(3)", "ended with 3"),
    ],
)
def test_what_runs_wild_is_wrong_and_over_soon(sandbox, code, found):
    score = score_code(code, item(tests="pass", seconds=1 if "while" in code else 60), sandbox)
    assert score.verdict == WRONG
    if found:
        assert found in score.found


def test_the_code_sees_neither_network_nor_environment(sandbox, monkeypatch):
    monkeypatch.setenv("EVERYWATT_LLM_API_KEY", "sk-secret")
    assert sandbox.run("import os, sys; sys.exit('EVERYWATT_LLM_API_KEY' in os.environ)").code == 0
    if not sandbox.before:
        pytest.skip("the kernel gives no network namespace here")
    with answering(lambda path, body: (200, [b"{}"])) as (url, asked):
        port = int(url.rpartition(":")[2])
        ending = sandbox.run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
        assert ending.code == 1 and "unreachable" in ending.said
        assert asked == []


def test_children_of_the_code_end_with_it(sandbox, tmp_path):
    mark = f"everywatt-left-behind-{os.getpid()}"
    text = f"import os, time\nif os.fork() == 0:\n    time.sleep(600)  # {mark}\n"
    assert sandbox.run(text).code == 0
    assert not any(mark in _command(pid) for pid in os.listdir("/proc") if pid.isdecimal())


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def test_code_never_runs_as_root_and_sees_nobodys_environment(sandbox, monkeypatch):
    assert sandbox.run("import os, sys; sys.exit(os.getuid() == 0 and os.access('/etc/shadow', os.R_OK))").code == 0
    monkeypatch.setenv("EVERYWATT_LLM_API_KEY", "sk-secret")
    look = """
import glob, sys
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        if b"sk-secret" in open(path, "rb").read():
            sys.exit(path)
    except OSError:
        pass
"""
    if os.geteuid() == 0 or MOUNT_PROC in sandbox.before:
        # A process that has the key, as everywatt itself has.
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
            try:
                assert sandbox.run(look) == Ending(0, "")
            finally:
                holder.stdin.close()


def test_where_no_python_can_be_run_apart_nothing_runs(monkeypatch):
    monkeypatch.setattr("everywatt.bench.llm.scoring.pythons", lambda: ("/bin/false",))
    with pytest.raises(MeasurementRefused, match="as root" if os.geteuid() == 0 else "cannot be scored"):
        Sandbox.find()


def test_code_is_found_in_text():
    assert code_of("x = 1") == "x = 1"
    assert code_of("```py\na = 1\n```\nand\n```\nb = 2\n```") == "a = 1\n\nb = 2\n"
    assert code_of("   ") is None


def test_nothing_runs_and_nobody_judges_unless_asked():
    with pytest.raises(UsageError, match="must be allowed"):
        Scoring().check([item(tests="pass")])
    with pytest.raises(UsageError, match="requires a judge"):
        Scoring().check(scored_by([Item("a", "q", "x")], "judge"))
    with pytest.raises(UsageError, match="no scorer 'nobody'"):
        scored_by([Item("a", "q", "x")], "nobody")


def judge_says(text, status=200):
    def function(path, body):
        if body is None:
            return 200, models("wise")
        return status, sse({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]})

    return answering(function)


def judged(url, params=None):
    async def whole():
        judge = Judge("wise", url, {"backoff": "10ms", "retries": "2", **(params or {})})
        try:
            return await judge.judge("Paris", Item("a", "Capital of France?", "Paris", "judge"))
        finally:
            await judge.close()

    return asyncio.run(whole())


def test_a_judge_judges_and_is_named():
    with judge_says("The same.\nCORRECT") as (url, asked):
        score = judged(url)
    assert (score.verdict, score.how) == (RIGHT, "judge wise")
    assert "Capital of France?" in asked[-1][1]["messages"][-1]["content"]
    with judge_says("Not CORRECT at all: INCORRECT") as (url, _):
        assert judged(url).verdict == WRONG
    assert verdict_of("I think so.") is None


def test_a_judge_that_is_down_or_says_nothing_leaves_it_unevaluated():
    with judge_says("", status=500) as (url, asked):
        score = judged(url)
        assert score.verdict == UNEVALUATED and "HTTP 500" in score.how
        assert len(asked) == 3
    assert judged("http://127.0.0.1:9").verdict == UNEVALUATED
    with judge_says("Hard to tell.") as (url, _):
        assert judged(url).verdict == UNEVALUATED


def test_the_key_of_the_measured_server_is_not_shown_to_the_judge(monkeypatch):
    monkeypatch.setenv("EVERYWATT_LLM_API_KEY", "sk-of-the-model")
    monkeypatch.setenv("JUDGE_KEY", "sk-of-the-judge")
    with judge_says("CORRECT") as (url, asked):
        judged(url)
        judged(url, {"api_key_env": "JUDGE_KEY"})
    keys = [headers.get("Authorization") for _, _, headers in asked]
    assert keys == [None, "Bearer sk-of-the-judge"]


def asked_once(*events, parameters=None):
    """The answer to one question, where the server streams these events."""

    def function(path, body):
        more = {} if parameters is None else {"meta": {"n_params": parameters}}
        return 200, models("m", **more) if body is None else sse(*events)

    async def whole(url):
        client = make("openai", Connection.of("m", url, environ={}))
        try:
            await client.health()
            return await client.ask(Ask("q")), client.parameters
        finally:
            await client.close()

    with answering(function) as (url, _):
        return asyncio.run(whole(url))


def delta(content, **more):
    return {"choices": [{"delta": {"content": content}, **more}]}


def test_reasoning_inside_of_the_text_is_taken_apart():
    answer, _ = asked_once(
        *(delta(one) for one in ("<thi", "nk>2 + 2", " is 4</think>", "\n\n")), delta("4", finish_reason="stop")
    )
    assert (answer.status, answer.reasoning, answer.text) == ("ok", "2 + 2 is 4", "4")
    assert len(answer.piece_ns) == 5 and answer.first_answer_ns == answer.piece_ns[4]
    plain, _ = asked_once(delta("<b>4</b>", finish_reason="stop"))
    assert (plain.text, plain.first_answer_ns) == ("<b>4</b>", plain.piece_ns[0])


def test_log_probabilities_and_parameters_are_taken_from_the_server():
    chat = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]}
    answer, parameters = asked_once(delta("ab", logprobs=chat, finish_reason="stop"), parameters=134515008)
    assert (answer.logprob_sum, answer.logprob_tokens) == (-2.0, 2)
    assert parameters == 134515008
    older = {"token_logprobs": [None, -0.25, -0.75]}
    answer, parameters = asked_once(delta("abc", logprobs=older, finish_reason="stop"))
    assert (answer.logprob_sum, answer.logprob_tokens, parameters) == (-1.0, 2, None)


def test_timings_of_the_server_are_kept():
    answer, _ = asked_once({**delta("x", finish_reason="stop"), "timings": {"prompt_ms": 12.5}})
    assert json.loads(json.dumps(answer.to_dict()))["server"] == {"prompt_ms": 12.5}


@pytest.mark.parametrize(
    "wrong",
    [
        Item("7", "q", "forty", "numeric"),
        Item("7", "q", "42", "numeric", rules={"tolerance": "wide"}),
        Item("7", "q", "(", "regex"),
        Item("7", "q", None, "constraints", rules={"constraints": [{"check": "nonsense"}]}),
        Item("7", "q", "a", "letter", rules={"choices": {}.keys}),
    ],
)
def test_rules_that_a_scorer_cannot_use_are_found_out_before_anything_is_asked(wrong):
    with pytest.raises(UsageError):
        Scoring().check([Item("1", "q", "42", "numeric"), wrong])


def test_a_scorer_that_breaks_costs_one_score(monkeypatch):
    monkeypatch.setattr(scoring, "scorer", lambda name: lambda text, item: 1 / 0)
    score = Scoring().at_once(Answer(OK, "42"), Item("1", "q", "42", "mine"))
    assert (score.verdict, score.how) == (UNEVALUATED, "the scorer mine failed: ZeroDivisionError: division by zero")
