"""A real language model (SmolLM2-135M, whose weights come in a package) behind a real server, asked over HTTP."""

import json
import math
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from agents import AgentProcess
from browsing import CHROMIUM
from ports import free_port
from waiting import until

from everywatt.bench.llm.packaged_model import weights
from everywatt.core.errors import UsageError

pytestmark = pytest.mark.ml
PER_TOKEN = "everywatt_llm_joules_per_token"


def missing(what):
    """Where everything has been installed a test that cannot run is a failure."""
    why = f"{what}: make ml-venv"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    try:
        weights()
    except UsageError as error:
        missing(str(error))
    port = free_port()
    log = (tmp_path_factory.mktemp("server") / "server.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "everywatt.bench.llm.packaged_model", str(port)], stdout=log, stderr=log
    )
    url = f"http://127.0.0.1:{port}"
    try:
        yield url, model_of(url)
    finally:
        process.kill()
        process.wait()
        log.close()


def model_of(url: str) -> str:
    def loaded() -> str:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                return json.load(answer)["data"][0]["id"]
        except (urllib.error.URLError, OSError, KeyError):
            return ""

    return until(loaded, "the LLM server")


def everywatt(*words, timeout_s=240):
    words = [sys.executable, "-m", "everywatt", *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    return done


def ask(server, *more):
    url, model = server
    words = ["bench", "llm", "--base-url", url, "--model", model, "--dataset", "arithmetic", "--warmup", "1"]
    return everywatt(*words, "--set", "temperature=0", "--idle", "1", *more)


def between(figure):
    high = math.inf if figure["high"] is None else figure["high"]  # no end above where the energy may be next to none
    return figure["low"] <= figure["value"] <= high and figure["low"] < high


def test_accuracy_joules_and_both_each_with_an_interval(server, own_home, request):
    done = ask(server, "--max-queries", "8", "--set", "max_tokens=8", "--set", "logprobs=true", "--json")
    found = json.loads(done.stdout)
    assert found["statuses"] == {"ok": 8}
    assert {item["attempts"] for item in found["levels"][0]["items"]} == {1}, "it closes connections that it keeps"
    assert 8 <= found["output_tokens"] <= 64 and found["tokens_counted_by"] == "usage"
    assert found["boundary"]["name"] == "server"
    assert found["accuracy"]["n"] == 8 and between(found["accuracy"])
    assert found["energy"]["joules"] > 0
    for name in ("energy_per_output_token", "accuracy_per_joule_mean"):
        assert between(found[name]), name
    assert found["latency"]["ttft_s"]["seconds"]["p50"] > 0
    # llama.cpp tells how many parameters the model has, and with what probability it chose its tokens.
    assert found["flops"]["value"] == pytest.approx(
        2 * 134_515_008 * (found["input_tokens"] + found["output_tokens"]), rel=1e-9
    )
    assert 1 < found["perplexity"]["value"] < 100
    if CHROMIUM.exists():
        report(found["run"], request.getfixturevalue("open_page"))


def report(run, open_page):
    """The report of the run opens in a browser and shows the figures."""
    everywatt("report", run, "-o", "out.html")
    page = open_page(Path("out.html").resolve().as_uri())
    assert page.troubles == []
    assert page.locator("#llm svg").count() >= 1
    text = page.locator("#llm").inner_text()
    for words in (
        "What the answers cost",
        "SmolLM2",
        "Per output token",
        "Accuracy by subject",
        "Most expensive queries",
    ):
        assert words in text


def test_what_a_person_sees(server, own_home):
    shown = ask(server, "--max-queries", "2", "--set", "max_tokens=4", "--sweep", "1,2").stdout
    for name in ("accuracy ", "energy per output token", "accuracy per joule mean"):
        assert re.search(rf"^{name}\s.*…", shown, re.MULTILINE), name
    assert "boundary: the server's processes" in shown
    assert shown.count("concurrency 2") >= 1


@pytest.mark.timeout(900)
def test_the_demo_needs_no_server_and_leaves_a_report(server, own_home):
    """The fixture says why it is skipped where the model is not installed."""
    done = everywatt("demo", "llm", "--max-queries", "8", "--json", timeout_s=800)
    found = json.loads(done.stdout)
    one, four = found["levels"]
    assert (one["answered"], four["answered"]) == (8, 8)
    assert 0 < one["accuracy"]["value"] <= 1 and found["loading"][0]["energy"]["joules"] > 0
    report_file = Path(done.stderr.rpartition("report: ")[2].strip())
    assert report_file.name == "report.html" and "SmolLM2" in report_file.read_text()


def test_live_joules_per_token(server, own_home, tmp_path):
    """The agent joins the server's own counters with the joules of its processes."""
    url, model = server
    name = f'server="smol",model="{model.rpartition("/")[2]}"'
    body = json.dumps({"messages": [{"role": "user", "content": "Name some rivers."}], "max_tokens": 16}).encode()

    def served(agent):
        asked = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(asked, timeout=120).close()
        values = agent.values()
        return values if values.get(f'everywatt_llm_tokens_total{{{name},phase="decode"}}', (0, 0))[0] else None

    with AgentProcess(os.environ, "--llm", f"smol={url}", "--state", str(tmp_path / "agent")) as agent:
        values = agent.until(lambda: served(agent), "tokens that are joined with joules", 120)
        assert agent.end() == 0
    assert values['everywatt_llm_up{server="smol"}'][0] == 1
    figure = [values.get(f'{PER_TOKEN}{end}{{{name},phase="all"}}', (None,))[0] for end in ("_low", "", "_high")]
    if None in figure:  # a machine that is never idle, and has no sensor, may be refused
        assert any(key.startswith('everywatt_llm_refused_info{server="smol"') for key in values)
    else:
        assert 0 < figure[0] < figure[1] < figure[2]
