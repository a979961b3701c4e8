"""`everywatt bench llm` against a scripted server, in a machine of exactly 50 W."""

import csv
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from answering import answering, models, sse
from sse_server import running
from truths import holds
from waiting import until

from everywatt.bench.llm.datasets import load_dataset
from everywatt.cli.common.group import dispatch
from everywatt.sim.machine import SimMachine

KEY = "sk-0123456789-secret"


@pytest.fixture(scope="module")
def machine():
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        yield lab


@pytest.fixture
def place(machine, tmp_path):
    home = {"HOME": str(tmp_path), "EVERYWATT_HOME": str(tmp_path / "runs"), "EVERYWATT_LLM_API_KEY": KEY}
    return machine.environment() | home


def words(*more):
    return [sys.executable, "-m", "everywatt", "bench", "llm", "--idle", "0.3", "--warmup", "1", *more]


def bench(place, *more, code=0):
    done = subprocess.run(words(*more), env=place, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def asked(server):
    return Counter(one["prompt"] for one in server.log if one.get("done") and "warm-up" not in one["prompt"])


def to(server, *more):
    return ("--base-url", server.url, "--model", "scripted", "--dataset", "arithmetic", *more)


def test_accuracy_and_joules_of_a_run(place, tmp_path):
    with running(tmp_path, tokens=6, gap_ms=10) as server:
        done = bench(
            place, *to(server, "--max-queries", "14", "--set", "temperature=0", "--json", "-o", str(tmp_path / "q.csv"))
        )
        found = json.loads(done.stdout)
        rows = list(csv.DictReader((tmp_path / "q.csv").open()))
        assert [(row["level"], row["output_tokens"]) for row in rows] == [("concurrency 1", "6")] * 14
        assert sum(float(row["energy_j"]) for row in rows) == pytest.approx(found["energy"]["joules"], abs=1e-5)
        assert (found["schema"], found["kind"], found["queries"]) == ("everywatt/1", "llm", 14)
        # Every seventh item is a sum, which the server can do.
        assert found["accuracy"]["value"] == pytest.approx(2 / 14)
        assert (found["accuracy"]["n"], found["verdicts"]) == (14, {"right": 2, "unparsed": 12})
        assert found["output_tokens"] == 14 * 6 and found["input_tokens"] == 14 * 7
        # 50 W, all of which is idle or the server's or somebody else's.
        parts = found["energy"], found["energy_others"]
        whole = {name: sum(part[name] for part in parts) for name in ("joules", "low", "high")}
        assert holds(whole, 50 * found["duration_s"])
        token = found["energy_per_output_token"]
        assert token["value"] == pytest.approx(found["energy"]["joules"] / 84, rel=1e-9)
        assert token["low"] < token["value"] < token["high"]
        correct = found["energy_per_correct_answer"]
        assert correct["value"] == pytest.approx(found["energy"]["joules"] / 2, rel=0.01)
        assert correct["low"] < correct["value"]
        assert {one["request"]["temperature"] for one in server.log} == {0}
        assert len(asked(server)) == 14
        items = found["levels"][0]["items"]
        assert sum(item["joules"] for item in items) == pytest.approx(found["energy"]["joules"], abs=1e-5)
        assert {item["output_tokens"] for item in items} == {6}
        assert sum("warm-up" in one["prompt"] for one in server.log) == 1


def test_the_key_is_in_no_file(place, tmp_path):
    with running(tmp_path, need_key=KEY) as server:
        done = bench(place, *to(server, "--max-queries", "3", "--json", "--verbose"))
    assert json.loads(done.stdout)["statuses"] == {"ok": 3}
    assert KEY not in done.stdout + done.stderr
    files = [file for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert len(files) >= 3
    assert all(KEY.encode() not in file.read_bytes() for file in files)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_there_is_and_says_how_to_go_on(place, tmp_path, number):
    with running(tmp_path, tokens=4, gap_ms=20, first_ms=20) as server:
        child = subprocess.Popen(
            words(*to(server, "--max-queries", "300", "--concurrency", "3", "--json")),
            env=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        # Of those that the server has finished three may not have reached the client.
        until(lambda: sum(asked(server).values()) >= 12 + 3, "twelve answers")
        os.kill(child.pid, number)
        out, err = child.communicate(timeout=240)
    assert child.returncode == 128 + number, err
    found = json.loads(out)
    assert found["ended"] == "interrupted" and 12 <= found["answered"] < 300
    assert f"bench llm --resume {found['run']}" in err


def test_a_killed_run_keeps_what_is_finished_and_resume_does_the_rest(place, tmp_path):
    with running(tmp_path, tokens=4, gap_ms=20, first_ms=20) as server:
        more = to(server, "--max-queries", "30", "--concurrency", "3")
        child = subprocess.Popen(words(*more), env=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: sum(asked(server).values()) >= 12, "twelve queries")
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        (records,) = (tmp_path / "runs").glob("*/queries.jsonl")
        first = [json.loads(line) for line in records.read_text().splitlines()]
        # What the server had answered is on disk, but for what was in flight.
        assert sum(asked(server).values()) - 3 <= len(first) < 30
        done = bench(place, "--resume", records.parent.name, "--json")
        found = json.loads(done.stdout)
        assert found["queries"] == 30 and found["statuses"] == {"ok": 30}
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        assert lines[: len(first)] == first
        assert Counter(line["id"] for line in lines) == {f"arithmetic-{n:04d}": 1 for n in range(30)}
        prompts = {item.id: item.prompt for item in load_dataset("arithmetic", {"n": "30"}).items}
        assert {asked(server)[prompts[one["id"]]] for one in first} == {1}
        assert sum(asked(server).values()) <= 30 + 3
        assert found["energy"]["joules"] > 0


def test_resume_refuses_another_question(place, tmp_path):
    with running(tmp_path) as server:
        bench(place, *to(server, "--max-queries", "2"))
        done = bench(place, "--resume", "last", "--set", "temperature=1", code=2)
    assert "settings differ" in done.stderr


def test_resume_refuses_to_mask_what_is_kept_in_full(place, tmp_path):
    with running(tmp_path) as server:
        bench(place, *to(server, "--max-queries", "2"))
        done = bench(place, "--resume", "last", "--max-queries", "3", "--mask", code=2)
    assert "mask differ" in done.stderr


def test_nothing_is_made_where_the_server_is_not_there(place, tmp_path):
    done = bench(place, "--base-url", "http://127.0.0.1:9", "--model", "m", "--dataset", "arithmetic", code=3)
    assert "No server answers" in done.stderr
    assert not list((tmp_path / "runs").glob("*")) if (tmp_path / "runs").exists() else True


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ((), "No data set was given."),
        (("--dataset", "arithmetic"), "No model was given."),
        (("--dataset", "arithmetic", "--model", "m"), "requires --base-url"),
        (("--dataset", "nowhere.jsonl", "--model", "m", "--base-url", "http://h"), "no data set or file"),
        (("--dataset", "arithmetic", "--rate", "2", "--sweep", "1,2"), "cannot be combined"),
        (("--dataset", "arithmetic", "--rate", "often"), "is not a rate"),
        (("--dataset", "arithmetic", "--set", "temperature"), "is not a setting such as key=value"),
        (
            ("--dataset", "arithmetic", "--model", "m", "--base-url", "http://h", "--set", "stream=false"),
            "sets it itself",
        ),
        (("--dataset", "arithmetic", "--goodput", "speed=3"), "is not a latency objective"),
        (("--dataset", "arithmetic", "-o", "x.txt"), "x.txt must end in one of .json, .csv, .md"),
        (
            ("--dataset", "arithmetic", "--model", "m", "--base-url", "http://h", "--set", "api_key=sk-1"),
            "is visible to every user",
        ),
    ],
)
def test_a_mistake_is_said(own_home, capsys, more, text):
    assert dispatch(words(*more)[3:]) == 2
    assert text in capsys.readouterr().err


def test_a_sweep_has_figures_for_each_load(place, tmp_path):
    with running(tmp_path, tokens=5, gap_ms=10) as server:
        done = bench(place, *to(server, "--max-queries", "8", "--sweep", "1,4", "--goodput", "ttft=10s", "--json"))
    found = json.loads(done.stdout)
    assert [one["level"] for one in found["levels"]] == ["concurrency 1", "concurrency 4"]
    one, four = found["levels"]
    assert one["queries"] == four["queries"] == 8
    assert one["goodput_share"]["value"] == 1.0
    assert four["output_tokens_per_second"]["value"] > one["output_tokens_per_second"]["value"]


def test_a_note_on_all_loads_is_said_once(capsys):
    from everywatt.bench.llm.energy import refused
    from everywatt.bench.llm.metrics import metrics
    from everywatt.bench.llm.plan import LlmPlan, Questions
    from everywatt.bench.llm.rows import LlmResult
    from everywatt.cli.bench.llm import show
    from everywatt.cli.common.output import Output

    found = [replace(metrics(level, [], refused("none")), notes=("the same", level)) for level in ("a", "b")]
    show(LlmResult("run", LlmPlan("m", dataset=Questions("d")), tuple(found)), Output())
    said = capsys.readouterr().err
    assert [said.count(text) for text in ("Note: the same", "Note: a", "Note: b")] == [1, 1, 1]


def test_a_rate_sends_whatever_the_server_does(place, tmp_path):
    with running(tmp_path, tokens=2, first_ms=400) as server:
        bench(place, *to(server, "--max-queries", "10", "--rate", "constant:20"))
        came = sorted(one["at_ns"] for one in server.log if "warm-up" not in one["prompt"])
    # Ten requests at 20/s come within half a second, while each answer takes 0.4 s.
    assert (came[-1] - came[0]) / 1e9 < 2
    assert (came[-1] - came[0]) / 1e9 >= 0.4


def test_the_layout_of_intelligence_per_watt(place, tmp_path):
    pa = pytest.importorskip("pyarrow")
    with running(tmp_path, tokens=6, gap_ms=10) as server:
        found = json.loads(bench(place, *to(server, "--max-queries", "7", "--json")).stdout)
    words = [sys.executable, "-m", "everywatt", "export", "last", "--to", "ipw", "--out", str(tmp_path / "ipw")]
    done = subprocess.run(words, env=place, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    with pa.memory_map(str(tmp_path / "ipw" / "data-00000-of-00001.arrow")) as source:
        rows = pa.ipc.open_stream(source).read_all().to_pylist()
    figures = [row["model_metrics"]["scripted"] for row in rows]
    assert sum(one["energy_metrics"]["per_query_joules"] for one in figures) == pytest.approx(found["energy"]["joules"])
    assert [one["token_metrics"] for one in figures] == [{"input": 7, "output": 6, "total": 13}] * 7
    assert sum(one["lm_correctness"] for one in figures) == 1
    assert rows[0]["problem"].startswith("What is")
    summary = json.loads((tmp_path / "ipw" / "summary.json").read_text())
    assert (summary["model"], summary["total_queries"]) == ("scripted", 7)
    assert KEY not in (tmp_path / "ipw" / "summary.json").read_text()


def test_a_table_for_people(place, tmp_path):
    with running(tmp_path) as server:
        done = bench(place, *to(server, "--max-queries", "7"))
    for text in ("accuracy", "energy per output token", "Wilson", "boundary: the server's processes", "7 ok"):
        assert text in done.stdout


def test_no_energy_is_less_than_nothing_and_a_run_is_named_by_the_model_alone(place, tmp_path):
    """Without a sensor the interval is as wide as the figure."""
    (tmp_path / "q.jsonl").write_text('{"prompt": "a"}\n')
    more = ("--client", "command", "--client-param", "run=echo 42", "--model", "/folder/of a/small-model.gguf")
    done = bench(place | {"EVERYWATT_SENSORS": "modelled"}, *more, "--dataset", str(tmp_path / "q.jsonl"))
    rows = [line for line in done.stdout.splitlines() if line.startswith(("energy, ", "other processes"))]
    assert len(rows) == 3
    assert not any(re.search(r" -\d", row) for row in rows)
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-llm-small-model")


def test_other_clients(place, tmp_path):
    (tmp_path / "model.py").write_text(
        "def answer(prompt, **settings):\n    yield from '42'\n    yield {'input_tokens': 3, 'output_tokens': 2}\n"
    )
    (tmp_path / "q.csv").write_text("question,gold\nWhat is 40 + 2?,42\nWhat is 1 + 1?,2\n")
    data = (
        "--dataset",
        str(tmp_path / "q.csv"),
        "--dataset-param",
        "prompt=question",
        "--dataset-param",
        "answer=gold",
    )
    done = subprocess.run(
        words(
            "--client",
            "python",
            "--client-param",
            "call=model:answer",
            *data,
            "--dataset-param",
            "scorer=numeric",
            "--json",
        ),
        env=place,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = json.loads(done.stdout)
    assert (found["accuracy"]["value"], found["output_tokens"]) == (0.5, 4)
    assert found["energy"]["joules"] > 0
    found = json.loads(bench(place, "--client", "command", "--client-param", "run=echo 42", *data, "--json").stdout)
    assert (found["accuracy"]["value"], found["output_tokens"]) == (0.5, None)
    assert found["energy_per_output_token"]["refused"] == "output tokens are unknown"
    run = sorted((tmp_path / "runs").iterdir())[-1]
    again = ("--client", "transcript", "--client-param", f"file={run / 'queries.jsonl'}")
    found = json.loads(bench(place, *again, *data, "--json").stdout)
    assert found["accuracy"]["value"] == 0.5
    assert found["energy"]["refused"] == "a transcript was recorded elsewhere"


def test_code_is_run_only_where_that_is_allowed(place, tmp_path):
    (tmp_path / "model.py").write_text("def answer(prompt, **settings):\n    return 'def f(x):\\n    return x + 1'\n")
    items = [
        {"prompt": "Write f.", "scorer": "code", "rules": {"tests": f"assert f({n}) == {n + 1 + n // 2}"}}
        for n in (0, 1, 2)
    ]
    (tmp_path / "code.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))
    more = ("--client", "python", "--client-param", "call=model:answer", "--dataset", str(tmp_path / "code.jsonl"))
    place = place | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{place.get('PYTHONPATH', '')}"}
    done = bench(place, *more, code=2)
    assert "--run-code" in done.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
    found = json.loads(bench(place, *more, "--run-code", "--json").stdout)
    assert found["verdicts"] == {"right": 2, "wrong": 1}


def test_a_judge_that_is_away_is_asked_again_by_resume(place, tmp_path):
    (tmp_path / "model.py").write_text("def answer(prompt, **settings):\n    return 'Paris'\n")
    (tmp_path / "q.jsonl").write_text('{"prompt": "Capital of France?", "answer": "Paris"}\n')
    place = place | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{place.get('PYTHONPATH', '')}"}
    verdict = []

    def judge(path, body):
        if body is None:
            return 200, models("wise")
        if not verdict:
            return 503, [b"{}"]
        return 200, sse({"choices": [{"delta": {"content": verdict[0]}, "finish_reason": "stop"}]})

    with answering(judge) as (url, _):
        more = ("--client", "python", "--client-param", "call=model:answer", "--dataset", str(tmp_path / "q.jsonl"))
        more += ("--scorer", "judge", "--judge-url", url, "--judge-model", "wise")
        more += ("--judge-param", "backoff=10ms", "--json")
        found = json.loads(bench(place, *more).stdout)
        assert (found["verdicts"], found["accuracy"]) == ({"unevaluated": 1}, None)
        verdict.append("CORRECT")
        found = json.loads(bench(place, "--resume", "last", "--json").stdout)
    assert (found["verdicts"], found["accuracy"]["value"]) == ({"right": 1}, 1.0)
    plan = json.loads(next((tmp_path / "runs").glob("*/llm.json")).read_text())
    assert plan["scoring"]["judge"]["model"] == "wise"


def test_repeats_reference_carbon_compare_table_and_report(place, tmp_path):
    def everywatt(*words):
        return subprocess.run(
            [sys.executable, "-m", "everywatt", *words],
            env=place,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )

    with running(tmp_path, tokens=6, gap_ms=5) as server:
        bench(place, *to(server, "--max-queries", "7"))
        names = ["--repeats", "2", "--reference", "last", "--price", "0.25 EUR", "--intensity", "100"]
        done = bench(place, *to(server, "--max-queries", "7", *names, "--parameters", "7B", "--json"))
        found = json.loads(done.stdout)
        shown = bench(place, *to(server, "--max-queries", "7", "--price", "0.25 EUR")).stdout
    assert [one["level"] for one in found["levels"]] == ["concurrency 1, repeat 1", "concurrency 1, repeat 2"]
    one = found["levels"][0]
    assert one["agreement"]["value"] == 1.0
    assert one["flops"]["value"] == 2 * 7e9 * 7 * 13
    carbon = found["carbon"][one["level"]]
    assert carbon["cost"]["value"] == pytest.approx(one["energy"]["joules"] / 3.6e6 * 0.25)
    assert carbon["carbon"]["value"] == pytest.approx(one["energy"]["joules"] / 3.6e6 * 100)
    assert found["repeats"]["concurrency 1"]["accuracy"]["n"] == 2
    assert "electricity" in shown and "EUR" in shown
    first, repeated, third = sorted(path.name for path in (tmp_path / "runs").iterdir())
    compared = json.loads(everywatt("compare", first, third, "--json").stdout)
    assert (compared["kind"], compared["candidates"][0]["items"]) == ("llm-comparison", 7)
    ratio = compared["candidates"][0]["figures"]["energy_ratio"]
    assert 0 <= ratio["low"] < ratio["value"]
    several = everywatt("compare", first, repeated)
    assert several.returncode == 2 and "--level" in several.stderr
    table = everywatt("bench", "leaderboard", first, third)
    assert table.returncode == 0 and table.stdout.count("-llm-scripted") == 2
    report = everywatt("report", first, third, "-o", "out.html")
    assert report.returncode == 0, report.stderr
    text = (tmp_path / "out.html").read_text()
    assert '"per_token"' in text and '"models"' in text


@pytest.mark.parametrize("name", ["ssh", "docker-proxy"])
def test_a_port_that_is_only_passed_on_is_not_charged(place, tmp_path, name):
    with running(tmp_path, name=name) as server:
        done = bench(place, *to(server, "--max-queries", "2", "--json"))
    found = json.loads(done.stdout)
    if name == "ssh":
        assert "forwards it to another host" in found["energy"]["refused"]
        assert found["accuracy"]["n"] == 2
    else:
        assert found["boundary"]["name"] == "machine"
        assert "--server-pid" in done.stderr


def test_a_server_tape_needs_its_skew(place, tmp_path):
    done = bench(place, "--dataset", "arithmetic", "--server-tape", "x", code=2)
    assert "--server-skew" in done.stderr


def test_a_run_without_its_server_can_be_evaluated_again(place, tmp_path):
    with running(tmp_path, tokens=4) as server:
        first = json.loads(bench(place, *to(server, "--max-queries", "5", "--json")).stdout)
    again = json.loads(bench(place, "--resume", "last", "--goodput", "ttft=10s", "--json").stdout)
    assert again["energy"] == first["energy"]
    assert again["goodput_share"]["value"] == 1.0


def test_where_nothing_was_answered_the_code_says_so(place, tmp_path):
    with running(tmp_path, status=400, times=99) as server:
        done = bench(place, *to(server, "--max-queries", "3", "--json"), code=3)
    found = json.loads(done.stdout)
    assert found["statuses"] == {"refused": 3} and found["answered"] == 0
    assert (found["accuracy"]["value"], found["accuracy"]["n"]) == (0.0, 3), "a failure is not right"
    assert "no query was answered" in done.stderr


def test_a_profile_of_our_own_comes_back(place, tmp_path):
    pytest.importorskip("pyarrow")

    def everywatt(*words):
        done = subprocess.run(
            [sys.executable, "-m", "everywatt", *words], env=place, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with running(tmp_path, tokens=6, gap_ms=10) as server:
        first = json.loads(bench(place, *to(server, "--max-queries", "7", "--json")).stdout)
    everywatt("export", "last", "--to", "ipw", "--out", str(tmp_path / "profile"))
    assert json.loads(everywatt("import", "ipw", str(tmp_path / "profile"), "--json"))["energy"]["scope"] == "cpu"
    board = json.loads(everywatt("bench", "leaderboard", "last", "--json"))
    (again,) = board["places"]
    assert again["accuracy"]["value"] == pytest.approx(first["accuracy"]["value"])
    for name in ("energy_per_request", "energy_per_output_token"):
        assert again[name]["value"] == pytest.approx(first[name]["value"], rel=1e-3)
    assert "was imported" in bench(place, "--resume", "last", code=2).stderr


def test_a_run_can_be_compared_with_its_own_profile(place, tmp_path):
    pytest.importorskip("pyarrow")
    with running(tmp_path, tokens=6, gap_ms=10) as server:
        first = json.loads(bench(place, *to(server, "--max-queries", "7", "--json")).stdout)["run"]
    for words in (
        ("export", first, "--to", "ipw", "--out", str(tmp_path / "profile")),
        ("import", "ipw", str(tmp_path / "profile"), "--out", str(tmp_path / "again.tape")),
    ):
        subprocess.run([sys.executable, "-m", "everywatt", *words], env=place, check=True, timeout=240)
    words = [sys.executable, "-m", "everywatt", "compare", "--json", first, str(tmp_path / "again.tape")]
    done = subprocess.run(words, env=place, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["candidates"]
    assert found["figures"]["energy_ratio"]["value"] == pytest.approx(1.0, rel=1e-3)


def test_a_run_that_was_moved_without_its_data_set_is_scored_exported_and_compared(place, tmp_path):
    data = tmp_path / "own.jsonl"
    rows = [{"prompt": f"Say {n}", "answer": str(n), "topic": f"t{n % 2}"} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "echo.py").write_text("def call(prompt):\n    return prompt.split()[-1]\n")
    place = place | {"PYTHONPATH": str(tmp_path)}
    python = ("--client", "python", "--client-param", "call=echo:call", "--dataset", str(data), "--json")
    names = [json.loads(bench(place, *python).stdout)["run"] for _ in range(2)]
    data.unlink()
    (tmp_path / "runs" / names[0]).rename(tmp_path / "moved")
    moved = str(tmp_path / "moved")
    done = bench(place, "--resume", moved, "--json")
    assert json.loads(done.stdout)["accuracy"]["value"] == 1.0 and "own records are used" in done.stderr
    items = json.loads(done.stdout)["levels"][0]["items"]
    assert [item["columns"]["topic"] for item in items] == ["t0", "t1", "t0", "t1"]
    again = ("--client", "transcript", "--client-param", f"file={moved}/queries.jsonl", "--scorer", "numeric", "--json")
    assert json.loads(bench(place, *again).stdout)["accuracy"] == pytest.approx(
        json.loads(done.stdout)["accuracy"], abs=1e-9
    )
    everywatt = [sys.executable, "-m", "everywatt"]
    words = [*everywatt, "export", moved, "--to", "ipw", "--out", str(tmp_path / "ipw")]
    subprocess.run(words, env=place, check=True, capture_output=True)
    found = subprocess.run(
        [*everywatt, "compare", moved, names[1], "--json"], env=place, check=True, capture_output=True
    )
    assert json.loads(found.stdout)["candidates"][0]["items"] == 4


SERVER = """
import asyncio, json, os, pathlib, signal, sys
sys.path.insert(0, {support!r})
import sse_server

async def main(port, log):
    server = sse_server.Server(pathlib.Path(log), {{"tokens": 4}})
    first = not os.path.exists(log + ".died")

    async def handle(reader, writer):
        await server.handle(reader, writer)

    print("listening", flush=True)
    async with await asyncio.start_server(handle, "127.0.0.1", port) as one:
        while True:
            await asyncio.sleep(0.02)
            if first and os.path.exists(log) and len(open(log).readlines()) >= 5:
                open(log + ".died", "w").close()
                print("died of a fault", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""


def test_a_server_that_the_benchmark_starts_is_started_again_and_stopped(place, tmp_path):
    support = str(Path(__file__).parents[1] / "support")
    (tmp_path / "serve.py").write_text(SERVER.format(support=support))
    serve = f"{sys.executable} {tmp_path / 'serve.py'} {{port}} {tmp_path / 'log.jsonl'}"
    more = ("--serve", serve, "--model", "scripted", "--dataset", "arithmetic", "--max-queries", "12", "--json")
    done = bench(place, *more, "--client-param", "backoff=10ms", "--concurrency", "2")
    found = json.loads(done.stdout)
    assert (found["queries"], found["statuses"]) == (12, {"ok": 12})
    assert len(found["loading"]) == 2 and all(one["energy"]["joules"] > 0 for one in found["loading"])
    assert "started again: died of a fault" in done.stderr
    assert found["boundary"]["name"] == "server"
    folder = tmp_path / "runs" / found["run"]
    assert "listening" in (folder / "server.log").read_text()
    assert (folder / "server.log").stat().st_mode & 0o077 == 0
    port = json.loads((folder / "llm.json").read_text())["base_url"].rpartition(":")[2]
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(port)))


def test_what_is_said_to_resume_names_the_server_to_start(place, tmp_path):
    support = str(Path(__file__).parents[1] / "support")
    (tmp_path / "serve.py").write_text(SERVER.format(support=support))
    serve = f"{sys.executable} {tmp_path / 'serve.py'} {{port}} {tmp_path / 'log.jsonl'}"
    (tmp_path / "log.jsonl.died").touch()  # so that it does not die
    run = subprocess.Popen(
        words("--serve", serve, "--model", "scripted", "--dataset", "arithmetic"),
        env=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "log.jsonl"
    until(lambda: log.exists() and len(log.read_text().splitlines()) > 4, "a query")
    run.terminate()
    err = run.communicate(timeout=240)[1]
    (folder,) = (tmp_path / "runs").iterdir()
    again = f"everywatt bench llm --resume {folder.name} --serve {shlex.quote(serve)}"
    assert again in err
    done = bench(place, "--resume", "last", code=3)
    assert "No server answers" in done.stderr and again.replace(folder.name, "last") in done.stderr


def test_a_server_that_does_not_start_says_why_and_leaves_no_run(place, tmp_path):
    serve = f"{sys.executable} -c 'import sys; sys.exit(\"no model {{port}}\")'"
    done = bench(place, "--serve", serve, "--model", "m", "--dataset", "arithmetic", code=3)
    assert "The server did not start: it ended: no model" in done.stderr
    assert not list((tmp_path / "runs").glob("*/llm.json"))
    assert "has no {port}" in bench(place, "--serve", "x", "--model", "m", "--dataset", "arithmetic", code=2).stderr
