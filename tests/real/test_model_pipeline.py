"""The whole way of a model on real engines: agent, store, explore, fit, evaluate, sensor, agent, store."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
from agents import SRC, AgentProcess, home_of
from engines import MARKS, prometheus, victoria
from ports import free_port

from everywatt.sim.machine import SimMachine

pytest.importorskip("uvicorn")
pytest.importorskip("cramjam")
pytestmark = MARKS
POWER = "everywatt_power_watts"
TARGET = "cpu.0.package.power"
ROWS = 45  # 30 are the least to learn from; on a busy machine some have no watts
# Another share of one core every second, as often as it is scraped.
LOAD = """
import random, time
for step in range(300):
    share = random.Random(step).random()
    until = time.time() + 1
    while time.time() < until:
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.05 * share:
            pass
        time.sleep(0.05 * (1 - share))
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Prometheus and VictoriaMetrics with the series of one agent, on a machine of 20 W and 100 W for all its CPUs."""
    folder = tmp_path_factory.mktemp("pipeline")
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        lab = stack.enter_context(SimMachine.of(packages=["load:20W,120W,1"], replicate=None).start())
        port = free_port()
        scrape = f"  - job_name: node\n    static_configs:\n      - {{targets: ['127.0.0.1:{port}']}}\n"
        config = f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n{scrape}"
        engines = [prometheus(folder / "p", log, config), victoria(folder / "v", log)]
        for engine in engines:
            stack.callback(engine.close)
        words = ("--listen", f"127.0.0.1:{port}", "--state", str(folder / "node"))
        write = f"{engines[1].base}/api/v1/write"
        env = home_of(folder, lab.environment())
        agent = stack.enter_context(AgentProcess(env, *words, "--remote-write", write, listen=False))
        load = subprocess.Popen([sys.executable, "-c", LOAD])
        stack.callback(load.wait)
        stack.callback(load.kill)
        for engine in engines:
            agent.until(lambda engine=engine: rows_in(engine) >= ROWS, f"{ROWS} rows in {engine.base}", 240)
        agent.end()
        load.kill()
        yield folder, *engines


def rows_in(engine):
    found = engine.ask("/api/v1/query", query=f"count_over_time({POWER}[10m])")
    return max((float(one["value"][1]) for one in found), default=0)


def cli(folder, *words):
    env = {**os.environ, "PYTHONPATH": str(SRC), "EVERYWATT_HOME": str(folder / "runs"), "HOME": str(folder)}
    env["XDG_CONFIG_HOME"] = str(folder / "config")
    done = subprocess.run(
        [sys.executable, "-m", "everywatt", *map(str, words)], env=env, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, (words, done.stderr)
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", [1, 2], ids=["prometheus", "victoria-metrics"])
def test_from_the_agents_series_to_a_sensor_whose_watts_are_stored(stored, tmp_path, place):
    folder, store = stored[0], stored[place]
    which = (store.base, "--start", "-10m", "--target", TARGET, "--json")
    columns = {one["name"]: one for one in cli(tmp_path, "model", "explore", *which)["columns"]}
    assert columns["host.cpu_time"]["grade"] == "strong", columns
    model = tmp_path / "m.json"
    found = cli(tmp_path, "model", "fit", *which, "--no-plot", "--out", model)
    assert found["target"] == TARGET and "host.cpu_time" in json.loads(model.read_text())["columns"]
    tested = cli(tmp_path, "model", "evaluate", model, store.base, "--start", "-10m", "--json")
    assert tested["mape_pct"] < 10 and tested["coverage"] >= 0.85
    installed = cli(tmp_path, "model", "install", model, "--json")
    # An agent is a service and has no user: it reads its own file.
    config = tmp_path / "agent.toml"
    config.write_text(f'[agent]\n[sensor.model]\nfile = "{installed["file"]}"\n')
    state = folder / f"modelled-{place}"
    env = {**home_of(tmp_path, {}), "XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
    name = f"modelled-{place}"
    options = ("--config", str(config), "--state", str(state), "--sensors", "use,model", "--instance", name)
    write = f"{store.base}/api/v1/write"
    query = f'{POWER}{{instance="{name}",pedigree="modelled",device="cpu.0"}}'
    with AgentProcess(env, *options, "--remote-write", write) as agent:
        (one,) = agent.until(lambda: store.ask("/api/v1/query", query=query), "modelled watts in the store", 60)
    assert 15 < float(one["value"][1]) < 130
