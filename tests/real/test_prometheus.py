"""Real Prometheus and VictoriaMetrics on loopback: scraped, written to, asked, and compared with tape and truth."""

import time

import pytest
from agents import AgentProcess, home_of, told_on
from engines import MARKS, NEEDED, Engine, free_port

from everywatt.fleet.segments import segments
from everywatt.sim.machine import SimMachine

pytest.importorskip("uvicorn")
pytest.importorskip("cramjam")
pytestmark = MARKS
ENERGY = "everywatt_energy_joules_total"


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    agent_port, prometheus_port, victoria_port = free_port(), free_port(), free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
        f"  - job_name: scraped\n    static_configs: [{{targets: ['127.0.0.1:{agent_port}']}}]\n"
    )
    with (folder / "log").open("wb") as log:
        prometheus = Engine(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/p",
             f"--web.listen-address=127.0.0.1:{prometheus_port}", "--web.enable-remote-write-receiver"],
            prometheus_port, "/-/ready", log,
        )  # fmt: skip
        victoria = Engine(
            ["victoria-metrics", f"-httpListenAddr=127.0.0.1:{victoria_port}", f"-storageDataPath={folder}/v",
             "-retentionPeriod=100y", "-search.latencyOffset=0s"],
            victoria_port, "/health", log,
        )  # fmt: skip
        try:
            yield prometheus, victoria, agent_port
        finally:
            prometheus.close()
            victoria.close()


@pytest.fixture(scope="module")
def lab():
    machine = SimMachine.of(gpus=["square:100W,300W,2s"], packages=["constant:60W"], replicate=None, sensor=[])
    with machine.start() as lab:
        yield lab


def monotonic_ns(at_ms: int) -> int:
    return at_ms * 1_000_000 - (time.time_ns() - time.monotonic_ns())


def test_scraped_every_second_it_is_the_truth(engines, lab, tmp_path):
    prometheus, _, port = engines
    env = home_of(tmp_path, lab.environment())
    with AgentProcess(env, "--state", str(tmp_path / "s"), "--listen", f"127.0.0.1:{port}", listen=False) as agent:

        def scraped(device: str) -> dict[int, float]:
            """Samples from the fourth on, once they are of more than 12 s."""
            found = prometheus.raw(f'{ENERGY}{{device="{device}",domain=~"gpu|package",job="scraped"}}')
            samples = next(iter(found.values()), {})
            times = sorted(samples)[3:]
            return {at: samples[at] for at in times} if times and times[-1] - times[0] > 12_000 else {}

        for device in ("gpu.0", "cpu.0"):
            samples = agent.until(lambda device=device: scraped(device), "twelve seconds of scrapes")
            first, last = min(samples), max(samples)
            truth = lab.truth(device, monotonic_ns(first), monotonic_ns(last))
            assert samples[last] - samples[first] == pytest.approx(truth, rel=0.005), device
        up = prometheus.ask("/api/v1/query", query="sum(everywatt_power_watts) and on() (up == 1)")
        assert up
        assert agent.end() == 0


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_written_is_the_tape_to_the_last_sample(engines, lab, tmp_path, name):
    engine = engines[NEEDED.index(name)]
    env = home_of(tmp_path, lab.environment())
    url = f"{engine.base}/api/v1/write"
    words = (
        "--state",
        str(tmp_path / "s"),
        "--remote-write",
        url,
        "--instance",
        f'n"o\\de\n{name}',
        "--period",
        "0.5s",
    )
    words = (*words, "--rotate", "2s", "--retention", "1h")
    with AgentProcess(env, *words) as agent:
        agent.wait_for(ENERGY)
        agent.until(lambda: len(segments(tmp_path / "s" / "tape")) >= 3, "three segments")
        assert agent.end() == 0
    told = told_on(segments(tmp_path / "s" / "tape"))
    time.sleep(1.5)  # VictoriaMetrics shows what it took after a second
    quoted = f'n\\"o\\\\de\\n{name}'
    for metric in (ENERGY, "everywatt_owner_energy_joules_total", "everywatt_power_watts"):
        stored = engine.raw(f'{metric}{{job="everywatt",instance="{quoted}"}}')
        mine = {labels: samples for (one, labels), samples in told.items() if one == metric}
        assert mine
        found = {
            tuple((k, v) for k, v in labels if k not in ("__name__", "instance", "job")): samples
            for labels, samples in stored.items()
        }
        assert found == mine, metric


def test_the_receiver_and_the_agent_both_go_and_come_back(lab, tmp_path):
    """Receiver down, agent killed, both back: every sample is there."""
    port = free_port()
    words = ["victoria-metrics", f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={tmp_path}/v"]
    words += ["-retentionPeriod=100y", "-search.latencyOffset=0s"]
    env = home_of(tmp_path, lab.environment())
    options = (
        "--state",
        str(tmp_path / "s"),
        "--period",
        "0.5s",
        "--remote-write",
        f"http://127.0.0.1:{port}/api/v1/write",
    )
    with (tmp_path / "log").open("wb") as log:
        with AgentProcess(env, *options) as agent:  # nobody there yet
            agent.wait_for(ENERGY)
            agent.until(lambda: any("They are kept" in line for line in agent.log), "a word on the receiver")
            agent.process.kill()
        engine = Engine(words, port, "/health", log)
        try:
            with AgentProcess(env, *options) as agent:
                agent.wait_for(ENERGY)
                time.sleep(2)
                assert agent.end() == 0
            time.sleep(1.5)
            stored = engine.raw(ENERGY)
        finally:
            engine.close()
    told = {
        labels: samples
        for (one, labels), samples in told_on(segments(tmp_path / "s" / "tape")).items()
        if one == ENERGY
    }
    assert {
        tuple((k, v) for k, v in labels if k not in ("__name__", "instance", "job")): s for labels, s in stored.items()
    } == told
