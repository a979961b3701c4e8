"""Live joules per token: counters of every kind of server, and a virtual server whose joules are known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import virtual_llm
from agents import Receiver
from fake_clock import FakeClock
from virtual_llm import Endpoint, Tenants, VirtualServer
from virtual_world import RunningAgent, VirtualWorld

from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.fleet.llm_energy import Join
from everywatt.fleet.llm_servers import (
    LIMITS,
    Scraper,
    Server,
    Tokens,
    check_targets,
    parse_target,
    read_counters,
    server_pids,
)
from everywatt.fleet.options import combine
from everywatt.net.client import Client

PER_TOKEN = "everywatt_llm_joules_per_token"
TEXTS = Path(__file__).parents[1] / "data" / "llm_metrics"
SERVED = 'server="chat"'


# Counters.


@pytest.mark.parametrize(
    ("name", "engine", "models", "running"),
    [
        ("vllm", "vllm", {"llama-8b": Tokens(1500, 1000, 2.5, 31.25), "sql-lora": Tokens(40, 10)}, 5),
        ("sglang", "sglang", {"qwen-7b": Tokens(8128, 7500)}, 4),
        ("tgi", "tgi", {"mine": Tokens(640, 320, 0.75, 6.5)}, 2),
        ("llama_cpp", "llama.cpp", {"mine": Tokens(6886, 3469, 29.5, 144.25)}, 1),
        ("ollama", "ollama", {"smollm2:135m": Tokens(120, 480, 0.5, 9.5), 'a "b"': Tokens(5, 7)}, None),
        ("ollama_proxy", "ollama", {"mistral": Tokens(90, 30, 1.5, 2.5)}, None),
    ],
)
def test_counters_of_each_server(name, engine, models, running) -> None:
    found = read_counters((TEXTS / f"{name}.txt").read_text(), "mine")
    assert (found[0].name, found[1], found[2]) == (engine, models, running)


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n", "vllm:generation_tokens_total NaN\n", "\x00" * 100])
def test_a_text_without_token_counters_is_refused(text) -> None:
    with pytest.raises(ValueError, match="no token counters"):
        read_counters(text)


def test_models_are_bounded() -> None:
    lines = [f'vllm:generation_tokens_total{{model_name="{"m" * 1000}{n}"}} {n}' for n in range(1000)]
    lines += [f'vllm:generation_tokens_total{{model_name="{n}"}} {n}' for n in range(1000)]
    models = read_counters("\n".join(lines))[1]
    assert len(models) == 32
    assert max(map(len, models)) == 200


# Servers.


def test_how_a_server_is_named() -> None:
    plain, named = parse_target("http://127.0.0.1:8000"), parse_target("chat=https://gpu1/llm/metrics#gpu.0, gpu.1")
    assert (plain.name, plain.url.target, plain.port, plain.devices) == ("127.0.0.1:8000", "/metrics", 8000, ())
    assert (named.name, named.url.target, named.devices) == ("chat", "/llm/metrics", ("gpu.0", "gpu.1"))
    assert parse_target("o=localhost:9000#11434").port == 11434
    for wrong in ("", "=http://a", "ftp://a", "a=http://b#1,2", "a=http://b#gpu.0,1"):
        with pytest.raises(UsageError):
            parse_target(wrong)
    for twice in (("a=http://b", "a=http://c"), ("a=http://b#gpu.0", "c=http://d#gpu.0")):
        with pytest.raises(UsageError, match="Two servers"):
            check_targets(twice)


def test_options_of_file_and_flags(tmp_path) -> None:
    (tmp_path / "agent.toml").write_text(
        '[agent]\nllm = "chat=http://127.0.0.1:8000#gpu.0,gpu.1"\nllm-token-file = "t"\n'
    )
    options = combine({"state": tmp_path}, tmp_path / "agent.toml")
    assert options.llm == ("chat=http://127.0.0.1:8000#gpu.0,gpu.1",)
    assert options.llm_token_file == tmp_path / "t"
    with pytest.raises(UsageError):
        combine({"llm": ("nonsense://x",), "state": tmp_path}, None)


def test_whose_processes_a_server_is() -> None:
    with Endpoint(lambda path: (200, {}, "")) as endpoint:
        assert server_pids(parse_target(endpoint.url)) == ((os.getpid(),), "")
        assert server_pids(parse_target(f"{endpoint.url}#gpu.0")) == ((), "")
        port = endpoint.url.rpartition(":")[2]
        assert server_pids(parse_target(f"http://192.0.2.1:9#{port}"))[0] == (os.getpid(),), "its port is named"
    assert "another machine" in server_pids(parse_target("http://192.0.2.1:8000"))[1]
    assert "no process" in server_pids(parse_target("http://127.0.0.1:1"))[1]


def test_a_launcher_stands_for_the_children_that_work(tmp_path) -> None:
    from everywatt.fleet.llm_servers import launcher_of

    for pid, (parent, name) in {7: (6, "text-generation-router"), 6: (1, "text-generation"), 9: (1, "python")}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {parent} 1")
        (tmp_path / str(pid) / "comm").write_text(name)
    assert [launcher_of(pid, tmp_path) for pid in (7, 9, 5)] == [6, 9, 5]


def scraped(answer, token: str | None = None):
    with Endpoint(answer) as endpoint:
        target = parse_target(endpoint.url)
        server = Server(target, Client(target.url, token=token, limits=LIMITS))
        server.ask(FakeClock(), Path("/proc"))
        server.client.close()
        return server.scrapes[-1], endpoint.heads


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        ((404, {}, ""), "no /metrics"),
        ((401, {}, ""), "token"),
        ((500, {}, ""), "500"),
        ((200, {}, "hello"), "no token counters"),
        ((302, {"Location": "http://192.0.2.1/metrics"}, ""), "another origin"),
        ((200, {}, "x" * (9 << 20)), "8 MiB"),
    ],
)
def test_what_a_server_may_answer_instead(answer, trouble) -> None:
    scrape, heads = scraped(lambda path: answer)
    assert trouble in scrape.trouble
    assert len(heads) == 1


def test_a_token_is_sent_and_the_model_is_asked_for_once() -> None:
    text = (TEXTS / "llama_cpp.txt").read_text()

    def answer(path: str):
        return (200, {}, text if path == "/metrics" else '{"data": [{"id": "/models/smol.gguf"}]}')

    scrape, heads = scraped(answer, token="secret")
    assert list(scrape.models) == ["smol.gguf"]
    assert [head["path"] for head in heads] == ["/metrics", "/v1/models"]
    assert heads[0]["Authorization"] == "Bearer secret"


def test_a_scraper_goes_on_whatever_happens(monkeypatch) -> None:
    said: list[str] = []
    scraper = Scraper([parse_target("http://127.0.0.1:1")], FakeClock(), Path("/proc"), None)

    def burst(*_):
        scraper._ended.set()
        raise RuntimeError("burst")

    monkeypatch.setattr(Server, "ask", burst)
    scraper.start(said.append)
    assert "burst" in scraper.servers[0].scrapes[-1].trouble
    assert len(said) == 1
    scraper.close()


# Joules.


@contextmanager
def serving(
    folder: Path, server: VirtualServer, fragment: str = "", **options
) -> Iterator[tuple[VirtualWorld, RunningAgent]]:
    folder.mkdir(exist_ok=True)
    with VirtualWorld(folder, gpu="constant:60W") as world:
        world.patch.setenv("EVERYWATT_PLUGINS", "virtual=virtual_llm:Sensors")
        world.machine.curves["gpu"] = server

        def answer(path: str):
            at_s = (world.time.now_ns - world.machine.origin_ns) / NS
            return (200, {}, server.metrics(at_s)) if path == "/metrics" else (404, {}, "")

        with Endpoint(answer) as endpoint:
            agent = world.agent(llm=(f"chat={endpoint.url}{fragment}",), **options)
            yield world, agent
            agent.end()


def figures(values) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Figure, low and high by model and phase."""
    found = {}
    for key, (value, _) in values.items():
        name, _, rest = key.partition("{")
        if name == PER_TOKEN:
            words = dict(pair.split("=") for pair in rest.rstrip("}").replace('"', "").split(","))
            ends = (values[f"{PER_TOKEN}{end}{{{rest}"][0] for end in ("_low", "_high"))
            found[words["model"], words["phase"]] = (value, *ends)
    return found


def truth(server: VirtualServer, model: str, phase: str, now_s: float) -> float:
    """Joules by token in the last minute, which ends some seconds ago: by then all has been settled."""
    a_s, b_s = now_s - 65, now_s - 4
    phases = ("prefill", "decode") if phase == "all" else (phase,)
    what = "prompt" if phase == "prefill" else "generated"
    (a, _), (b, _) = server.at(a_s), server.at(b_s)
    return server.truth_j(model, a_s, b_s, phases) / (b[model, what] - a.get((model, what), 0.0))


def watch(world: VirtualWorld, agent: RunningAgent, seconds: float):
    """Values once in ten seconds while the server works, with the time of each."""
    world.sleep(100)
    for _ in range(round(seconds / 10)):
        world.sleep(10)
        yield agent.values(), (world.time.now_ns - world.machine.origin_ns) / NS


@pytest.mark.parametrize("streams", [1, 8, 64])
def test_models_add_up_to_the_active_energy_and_each_is_within_its_interval(tmp_path, streams) -> None:
    server = VirtualServer(streams)
    with serving(tmp_path, server) as (world, agent):
        assert not figures(agent.values())
        for values, now_s in watch(world, agent, 80):
            found = figures(values)
            assert found.keys() == {(model, "all") for model in server.models}
            for (model, phase), (value, low, high) in found.items():
                assert low < value < high
                assert low <= truth(server, model, phase, now_s) <= high, (model, now_s)
        world.sleep(100)
        values = agent.values()
        active_j = sum(server.truth_j(model, 0, 1e5) for model in server.models)
        by_model = [v for k, (v, _) in values.items() if k.startswith("everywatt_llm_energy_joules_total")]
        other_j = values[f"everywatt_llm_other_energy_joules_total{{{SERVED}}}"][0]
        assert sum(by_model) + other_j == pytest.approx(active_j, rel=0.005)
        assert other_j < 0.02 * active_j
        for model in server.models:
            labels, true_j = f'{{{SERVED},model="{model}"}}', server.truth_j(model, 0, 1e5)
            low_j, high_j = (values[f"everywatt_llm_energy_{end}_joules_total{labels}"][0] for end in ("low", "high"))
            assert low_j <= true_j <= high_j, "of all tokens since the start"
        for kind in ("other", "held"):
            low_j, value_j, high_j = (
                values[f"everywatt_llm_{kind}_energy_{end}joules_total{{{SERVED}}}"][0] for end in ("low_", "", "high_")
            )
            assert 0 <= low_j <= value_j <= high_j
        for model in server.models:
            for phase, what in (("prefill", "prompt"), ("decode", "generated")):
                key = f'everywatt_llm_tokens_total{{{SERVED},model="{model}",phase="{phase}"}}'
                assert values[key][0] == server.at(1e5)[0][model, what]
        assert not figures(values), "no tokens in the last minute: no figure"
        assert any("no tokens" in key for key in values if key.startswith("everywatt_llm_refused_info"))


@pytest.mark.parametrize("flavour", ["vllm", "tgi"])
@pytest.mark.parametrize("streams", [1, 8, 64])
def test_phases_are_within_their_intervals(tmp_path, streams, flavour) -> None:
    server = VirtualServer(streams, models=("large",), flavour=flavour)
    with serving(tmp_path, server) as (world, agent):
        phases = set()
        for values, now_s in watch(world, agent, 80):
            for (_, phase), (value, low, high) in figures(values).items():
                phases.add(phase)
                assert low <= value <= high
                assert low <= truth(server, "large", phase, now_s) <= high, (phase, now_s)
        assert {"all"} < phases


def test_a_restart_of_the_server_begins_anew(tmp_path) -> None:
    server = VirtualServer(8, models=("large",), restart_s=100.0)
    with serving(tmp_path, server) as (world, agent):
        tokens = f'everywatt_llm_tokens_total{{{SERVED},model="large",phase="decode"}}'
        energy = f'everywatt_llm_energy_joules_total{{{SERVED},model="large"}}'
        world.sleep(95)
        before = agent.values()
        world.sleep(75)
        after = agent.values()
        lost_j = after[f"everywatt_llm_other_energy_joules_total{{{SERVED}}}"][0]
        assert 0 < lost_j < 6 * 200
        made = after[tokens][0] - before[tokens][0]
        assert 0 < made < server.at(175)[0]["large", "generated"] - server.at(90)[0]["large", "generated"]
        value, low, high = figures(after)["large", "all"]
        assert low <= truth(server, "large", "all", 170) <= high
        assert (after[energy][0] - before[energy][0]) / made == pytest.approx(value, rel=0.1)


def test_another_program_on_the_card_is_not_the_servers(tmp_path, monkeypatch) -> None:
    server = VirtualServer(8, models=("large",))
    with serving(tmp_path / "alone", server) as (world, agent):
        world.sleep(120)
        alone = figures(agent.values())["large", "all"]
    monkeypatch.setattr(Tenants, "beside", {102: 30.0})
    with serving(tmp_path / "shared", server) as (world, agent):
        world.sleep(120)
        shared = figures(agent.values())["large", "all"]
    assert shared[0] == pytest.approx(alone[0] * 0.75, rel=0.1), "a quarter of the SM time is another program's"
    assert (shared[2] - shared[1]) / shared[0] > (alone[2] - alone[1]) / alone[0]


def test_cards_that_are_named_count_whole(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Tenants, "beside", {102: 30.0})
    server = VirtualServer(8, models=("large",))
    with serving(tmp_path, server, "#gpu.0") as (world, agent):
        world.sleep(120)
        value, low, high = figures(agent.values())["large", "all"]
        assert low <= truth(server, "large", "all", 120) <= high
        assert value == pytest.approx(truth(server, "large", "all", 120), rel=0.1)


def test_a_small_agent_sends_them(tmp_path) -> None:
    pytest.importorskip("cramjam")
    server = VirtualServer(8, models=("large",))
    options = {"profile": "small", "listen": None}
    with Receiver() as receiver:
        with serving(tmp_path, server, remote_write=receiver.url, **options) as (world, _):
            world.sleep(120)
        found = {dict(labels)["__name__"]: samples for labels, samples in receiver.samples.items()}
    value, low, high = (found[f"{PER_TOKEN}{end}"][-1][1] for end in ("", "_low", "_high"))
    assert low < value < high
    assert found["everywatt_llm_tokens_total"][-1][1] > 0


def test_names_of_models_cannot_fill_a_store() -> None:
    join = Join(Server(parse_target("http://127.0.0.1:1"), Client("http://127.0.0.1:1")), 1)
    for n in range(1000):
        join._charge(float(n + 1), {f"m{n}": Tokens(0, 1)})
    assert len(join.tokens) == len(join.counted) == 33
    assert sum(one.joules for one in join.counted.values()) == pytest.approx(1000)
    assert sum(tokens.generated for tokens in join.tokens.values()) == 1000


def test_a_server_that_does_not_answer_has_no_figure_and_a_reason(tmp_path) -> None:
    with VirtualWorld(tmp_path, gpu="constant:60W") as world:
        agent = world.agent(llm=("chat=http://127.0.0.1:1",))
        world.sleep(12)
        values = agent.values()
        assert values[f"everywatt_llm_up{{{SERVED}}}"][0] == 0
        assert any(key.startswith("everywatt_llm_refused_info") for key in values)
        assert len([line for line in agent.said if line.startswith("chat: ")]) == 1, "said once"
        agent.end()


def test_it_costs_nothing_where_it_is_not_asked_for_and_never_needs_numpy() -> None:
    code = "import sys, everywatt.fleet.agent\n"
    code += "assert not [name for name in sys.modules if name.startswith('everywatt.') and 'llm' in name]\n"
    code += "import everywatt.fleet.llm_energy; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_server_that_never_rests_is_told_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(virtual_llm, "DECODE_W", 80.0)
    monkeypatch.setattr(virtual_llm, "PREFILL_W", 100.0)
    monkeypatch.setattr(virtual_llm, "STREAM_W", 0.0)
    server = VirtualServer(8, start_s=0.0, end_s=400.0, models=("large",))
    with serving(tmp_path, server) as (world, agent):
        world.sleep(150)
        values = agent.values()
        assert not figures(values)
        reason = next(key for key in values if key.startswith("everywatt_llm_refused_info"))
        assert "gpu.0: its idle power was never observed: let the server rest for 30 s" in reason
