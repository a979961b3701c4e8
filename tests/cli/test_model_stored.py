"""`everywatt model` on series that a time-series engine has stored."""

import json
import re

import pytest
from api_server import ApiServer

from everywatt.cli.main import main
from everywatt.cli.model.tables import Stored, table_of
from everywatt.core.clocks import NS

START = 1_700_000_000
ROWS = 60


def use(at):
    return (at * 7) % 10 / 10


def power(at):
    return 20 + 30 * use(at)


def engine(asked):
    """A gauge of watts every second, and a counter of CPU seconds half a second beside it."""
    if asked.path.endswith("/series"):
        return ok([{"__name__": "node_power_watts"}, {"__name__": "cpu_seconds_total"}])
    seconds = int(re.search(r"\[(\d+)ms\]", asked.query["query"])[1]) / 1000
    end = float(asked.query["time"])
    times = [START + at for at in range(ROWS + 1) if end - seconds <= START + at <= end]
    spent = {START + at: sum(use(START + before) for before in range(1, at + 1)) for at in range(ROWS + 1)}
    series = {
        "node_power_watts": [[at, str(power(at))] for at in times],
        "cpu_seconds_total": [[at, str(spent[at])] for at in times],
    }
    matrix = [{"metric": {"__name__": name}, "values": values} for name, values in series.items()]
    return ok({"resultType": "matrix", "result": matrix})


def ok(data):
    return 200, {}, json.dumps({"status": "success", "data": data}).encode()


@pytest.fixture
def wanted(tmp_path):
    """A filter: without one only our own series are asked for, and are named by their channels."""
    path = tmp_path / "filter"
    path.write_text('{__name__=~"node_power_watts|cpu_seconds_total"}\n')
    return path


def test_series_become_columns_and_counters_rates(wanted):
    with ApiServer(engine) as server:
        table = table_of([server.url], which=Stored(START * NS, (START + ROWS) * NS, wanted))
    assert sorted(table.columns) == ["node_power_watts", "rate(cpu_seconds_total)"]
    assert len(table) == ROWS + 1 and table.times_s[0] == START and table.period_s == 1.0
    rate = table.column("rate(cpu_seconds_total)")
    assert rate[1:].tolist() == pytest.approx([use(START + at) for at in range(1, ROWS + 1)])
    assert table.column("node_power_watts")[1:].tolist() == pytest.approx([20 + 30 * value for value in rate[1:]])


def test_explore_asks_the_engine(wanted, capsys):
    times = ["--filter", str(wanted), "--start", "2023-11-14T22:13:20Z", "--end", "2023-11-14T22:14:20Z"]
    with ApiServer(engine) as server:
        assert main(["model", "explore", server.url, *times, "--target", "node_power_watts", "--json"]) == 0
    (column,) = json.loads(capsys.readouterr().out)["columns"]
    assert (column["name"], column["grade"]) == ("rate(cpu_seconds_total)", "strong")
    assert column["now"] == pytest.approx(1.0, abs=0.01), "ranks, whose ties rounding may break"


@pytest.mark.parametrize("one_node", [False, True])
def test_our_own_series_have_the_names_of_their_channels(one_node, tmp_path):
    """Also those of one node that a filter chooses."""
    chosen = tmp_path / "node" if one_node else None
    if chosen is not None:
        chosen.write_text('{__name__=~"everywatt_.+",instance="node1"}\n')
    metrics = [
        {"__name__": "everywatt_power_watts", "device": "cpu.0", "domain": "package", "pedigree": "counter"},
        {"__name__": "everywatt_host_cpu_seconds_total", "mode": "busy"},
        {"__name__": "everywatt_agent_rounds_total"},
    ]

    def ours(asked):
        if asked.path.endswith("/series"):
            return ok(metrics)
        _, _, body = engine(asked)
        power_w, cpu_s = (one["values"] for one in json.loads(body)["data"]["result"])
        result = [{"metric": m, "values": v} for m, v in zip(metrics, (power_w, cpu_s, cpu_s), strict=True)]
        return ok({"resultType": "matrix", "result": result})

    with ApiServer(ours) as server:
        table = table_of([server.url], which=Stored(START * NS, (START + ROWS) * NS, chosen))
    assert sorted(table.columns) == ["cpu.0.package.power", "host.cpu_time"], "the agent's own are no sensor's"
    assert table.column("cpu.0.package.power")[1] == pytest.approx(power(START + 1))
    assert table.aliases["everywatt_power_watts"] == "cpu.0.package.power"
    assert table.column("host.cpu_time")[1:].tolist() == pytest.approx([use(START + at) for at in range(1, ROWS + 1)])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["http://127.0.0.1:9", "more.csv"], "cannot be combined"),
        (["t.csv", "--start", "-1h"], "require a URL"),
        (["http://127.0.0.1:9", "--start", "-1h", "--end", "-2h"], "ends before it begins"),
    ],
)
def test_mistakes_are_told(words, says, capsys):
    assert main(["model", "explore", *words, "--target", "w"]) == 2
    assert says in capsys.readouterr().err
