"""Real Prometheus and VictoriaMetrics on loopback, written to and asked: what they hold is what the tape has."""

import pytest
from agents import AgentProcess, home_of, told_on
from engines import MARKS, NEEDED, Engine
from ports import free_port
from waiting import until

from everywatt.fleet.segments import segments
from everywatt.sim.machine import SimMachine

pytest.importorskip("uvicorn")
pytest.importorskip("cramjam")
pytestmark = MARKS
ENERGY = "everywatt_energy_joules_total"


@pytest.fixture(scope="module")
def lab():
    machine = SimMachine.of(gpus=["square:100W,300W,2s"], packages=["constant:60W"], replicate=None, sensor=[])
    with machine.start() as lab:
        yield lab


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
    quoted = f'n\\"o\\\\de\\n{name}'
    for metric in (ENERGY, "everywatt_owner_energy_joules_total", "everywatt_power_watts"):
        mine = {labels: samples for (one, labels), samples in told.items() if one == metric}
        assert mine
        holds(engine, f'{metric}{{job="everywatt",instance="{quoted}"}}', mine)


def holds(engine, selector, mine):
    """What an engine has is what the tape has; an engine shows what it took a second or two later."""

    def stored():
        return {
            tuple((k, v) for k, v in labels if k not in ("__name__", "instance", "job")): samples
            for labels, samples in engine.raw(selector).items()
        }

    until(lambda: sum(map(len, stored().values())) >= sum(map(len, mine.values())), f"all samples of {selector}")
    assert stored() == mine, selector


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
                agent.until(lambda: engine.raw(ENERGY), "the first samples")
                assert agent.end() == 0
            told = told_on(segments(tmp_path / "s" / "tape"))
            holds(engine, ENERGY, {labels: samples for (one, labels), samples in told.items() if one == ENERGY})
        finally:
            engine.close()
