"""A small fleet on real engines: what agents told comes back, to the last sample, and every panel has data."""

import csv
import json
import math
import os
import re
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import yaml
from agents import SRC, told_on
from collector_rules import check_collector, told
from engines import MARKS, prometheus
from fake_clock import FakeClock
from fleet_lab import ODD, running
from virtual_llm import Endpoint
from waiting import until

import everywatt
from everywatt.core.clocks import NS
from everywatt.energy.sources import sources
from everywatt.fleet.llm_energy import Figure, LlmBook
from everywatt.fleet.llm_servers import Tokens, check_targets
from everywatt.fleet.metrics import TEXT_TYPE, Registry
from everywatt.fleet.query import Wanted, fetch, quoted, range_frame, selector
from everywatt.fleet.segments import segments
from everywatt.net.api import ApiClient
from everywatt.tape.reader import Tape

pytest.importorskip("uvicorn")
pytest.importorskip("cramjam")
pytestmark = [*MARKS, pytest.mark.serial]  # energies between two instants are compared to half a percent
ROOT = SRC.parent
ENERGY = "everywatt_energy_joules_total"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
LLM = ROOT / "deploy" / "grafana" / "llm.json"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with running(tmp_path_factory.mktemp("fleet")) as lab:
        yield lab


def cli(fleet, *words):
    env = {**os.environ, "PYTHONPATH": str(SRC), "EVERYWATT_HOME": str(fleet.folder / "runs")}
    command = [sys.executable, "-m", "everywatt", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)


def samples_of(tape: Tape, channel: str) -> dict[int, float]:
    """UTC ms → value of a channel of an imported tape."""
    for group in tape.groups:
        for place, one in enumerate(group.info.channels):
            if one.name == channel:
                return {
                    round(tape.to_utc_ns(row.read_ns) / 1e6): row.values[place]
                    for frame in tape.iter_frames(group.id)
                    for row in frame.rows()
                    if math.isfinite(row.values[place])
                }
    raise AssertionError(channel)


def test_import_has_every_sample_and_the_truth(fleet, tmp_path):
    start = time.time() - 600
    done = cli(
        fleet, "import", "prometheus", fleet.prometheus.base, "--start", "-10m", "-o", tmp_path / "run", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["energy"]["joules"] > 0
    tapes = {tape.path: tape for tape in (Tape.open(path) for path in sorted((tmp_path / "run").glob("*.tape")))}
    assert len(tapes) == 2  # two agents, whose instances differ by the port alone
    node = next(t for t in tapes.values() if any(s.channel.device == "gpu.0" for s in sources(t)))
    last_ms = max(samples_of(node, "gpu.0.energy"))
    for device, domain, channel in (
        ("gpu.0", "gpu", "gpu.0.energy"),
        ("cpu.0", "package", "cpu.0.package.energy"),
        ("dram.0", "dram", "cpu.0.dram.energy"),
    ):
        found = samples_of(node, channel)
        ((_, stored),) = fleet.prometheus.raw(f'{ENERGY}{{device="{device}",domain="{domain}"}}').items()
        assert found == {at: value for at, value in stored.items() if start * 1000 <= at <= max(found)}
        # With the truth, between two sample times; the first seconds are the agent's start.
        times = sorted(found)[2:]
        assert times[-1] - times[0] > 6000
        offset = time.time_ns() - time.monotonic_ns()
        truth = fleet.lab.truth(device, *(at * 1_000_000 - offset for at in (times[0], times[-1])))
        assert found[times[-1]] - found[times[0]] == pytest.approx(truth, rel=0.005), device
    assert fleet.prometheus.ask("/api/v1/query", query="sum(everywatt_power_watts) and on() (up == 1)")
    # With the agent's own tape, which is being written: the same joules between the same instants.
    ours = told_on(segments(fleet.state / "tape"))
    mine = next(v for (name, labels), v in ours.items() if name == ENERGY and dict(labels)["device"] == "gpu.0")
    found = samples_of(node, "gpu.0.energy")
    assert {at: mine.get(at) for at in found} == found and last_ms in mine
    for tape in tapes.values():
        tape.close()


@pytest.mark.parametrize("name", ["prometheus", "victoria"])
def test_the_run_is_worth_the_joules_of_the_local_tape(fleet, tmp_path, name):
    engine = getattr(fleet, name)
    until(lambda: fetched(fleet, engine, tmp_path), f"samples in {name}")
    run = everywatt.load(tmp_path / "run")
    tape = next(t for t in run.tapes if any(s.channel.device == "gpu.0" for s in sources(t)))
    local = everywatt.load(fleet.state / "tape")
    for channel in ("gpu.0.energy", "cpu.0.package.energy"):
        times = sorted(samples_of(tape, channel))
        first_ns, last_ns = times[0] * 1_000_000, times[-1] * 1_000_000
        assert last_ns - first_ns > 5 * NS
        got = samples_of(tape, channel)
        device = channel.split(".package")[0].removesuffix(".energy")
        pairs = {"gpu.0": "gpu", "cpu.0": "package"}
        mine = joules_between(local, device, pairs[device], first_ns, last_ns)
        assert got[times[-1]] - got[times[0]] == pytest.approx(mine, abs=2e-5), channel
    # The figure of the run, its ledger and its reasons are as those of any run.
    energy = run.energy()
    assert energy.joules and energy.scope.startswith("cpu+dram+gpu") and "counter" in energy.pedigree
    for verb in ("show", "why", "ledger", "validate"):
        assert cli(fleet, verb, tmp_path / "run").returncode == 0, verb
    assert cli(fleet, "report", tmp_path / "run", "-o", tmp_path / "report.html").returncode == 0
    assert "gpu.0" in (tmp_path / "report.html").read_text()
    if name == "victoria":
        assert tape.meta["host"]["name"] == ODD.replace("\n", "\\n")  # as it can be shown


def fetched(fleet, engine, folder):
    """Whether there is something to fetch: what is written comes a few seconds later than what is scraped."""
    done = cli(fleet, "import", "prometheus", engine.base, "--start", "-10m", "-o", folder / "run")
    assert done.returncode in (0, 3), done.stderr
    return done.returncode == 0


def joules_between(run, device, domain, first_ns, last_ns):
    """From the raw ticks of a local run: a counter at two instants that are ticks of it."""
    for tape in run.tapes:
        for source in sources(tape):
            if (source.channel.device, source.domain.value) == (device, domain):
                place = source.group.info.channels.index(source.channel)
                ticks = [
                    (round(tape.to_utc_ns((row.early_ns + row.late_ns) // 2) / 1e6), row.values[place])
                    for frame in tape.iter_frames(source.group.id)
                    for row in frame.rows()
                ]
                near = lambda at_ms: min(ticks, key=lambda tick: abs(tick[0] - at_ms))  # noqa: E731
                ends = [near(at // 1_000_000) for at in (first_ns, last_ns)]
                assert all(
                    abs(end[0] - at // 1_000_000) <= 2 for end, at in zip(ends, (first_ns, last_ns), strict=True)
                )
                return (ends[1][1] - ends[0][1]) * source.channel.scale
    raise AssertionError(device)


def test_odd_labels_come_back_as_they_are(fleet):
    client = ApiClient(fleet.victoria.base)
    end_ns = time.time_ns()
    for wanted in (
        Wanted(f"{ENERGY}{{instance={quoted(ODD)}}}"),
        selector("energy_joules", {"instance": 'said "watt"'}),
        selector("energy_joules", {"instance": "\\\nœ"}),
    ):
        answer = fetch(client, [wanted], end_ns - 600 * NS, end_ns)
        assert {one.labels["instance"] for one in answer.series} == {ODD}, wanted
    assert not fetch(client, [selector("energy_joules", {"instance": "watt.+œ"})], end_ns - 600 * NS, end_ns).series


def test_a_prefix_selects_the_same_in_prometheus(fleet):
    end_ns = time.time_ns()
    wanted = selector("energy_joules", {"device": "gpu"})
    answer = fetch(ApiClient(fleet.prometheus.base), [wanted], end_ns - 600 * NS, end_ns)
    names = {(one.name, one.labels["device"]) for one in answer.series}
    assert names == {(ENERGY, "gpu.0"), ("everywatt_owner_energy_joules_total", "gpu.0")}


def test_pieces_give_what_one_query_gives(fleet, monkeypatch):
    end_ns = (time.time_ns() // NS - 3) * NS
    client, wanted = ApiClient(fleet.prometheus.base), [Wanted(ENERGY), Wanted("everywatt_power_watts")]
    whole = fetch(client, wanted, end_ns - 60 * NS, end_ns)
    monkeypatch.setattr("everywatt.fleet.query.PIECE_S", 1)
    monkeypatch.setattr("everywatt.fleet.query.PIECE_SAMPLES", 1)
    parts = fetch(client, wanted, end_ns - 60 * NS, end_ns)
    assert whole.series and parts == whole
    grid = fetch(client, wanted, end_ns - 60 * NS, end_ns, step_s=2)
    monkeypatch.setattr("everywatt.fleet.query.MOST_POINTS", 3)
    assert fetch(client, wanted, end_ns - 60 * NS, end_ns, step_s=2) == grid


def test_more_points_than_prometheus_allows(fleet, monkeypatch):
    monkeypatch.setattr(
        "everywatt.fleet.query.MOST_POINTS", 60_000
    )  # one question of 36,000 points: refused, and halved
    end_ns = time.time_ns()
    wanted = [Wanted(f'{ENERGY}{{device="gpu.0"}}')]
    answer = fetch(ApiClient(fleet.prometheus.base), wanted, end_ns - 3600 * NS, end_ns, step_s=0.1)
    (series,) = answer.series
    assert {b - a for a, b in pairwise(series.at_ms)} == {100} and len(series.at_ms) > 80


def test_tables_are_joined_by_time(fleet, tmp_path):
    old = tmp_path / "filter.json"
    old.write_text(
        json.dumps([["energy_joules_total", {"device": "gpu.0"}], ["tegra_wattage_current", {"sensor": "vdd_in"}]])
    )
    done = cli(
        fleet, "import", "prometheus", fleet.prometheus.base.removeprefix("http://"), "--start", "-10m",
        "--filter", old, "-o", tmp_path / "t.csv",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "has no scheme; using" in done.stderr
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    columns = set(rows[0])
    assert "time" in columns and "tegra_wattage_current_milliwatts" in columns
    watts = [float(row[f"rate({ENERGY})"]) for row in rows if row[f"rate({ENERGY})"]]
    assert watts and all(99 < value < 301 for value in watts)
    assert {
        round(float(r["tegra_wattage_current_milliwatts"]), -2) for r in rows if r["tegra_wattage_current_milliwatts"]
    } == {8000.0}


def test_a_frame_and_a_parquet_file(fleet, tmp_path):
    end_ns = time.time_ns()
    frame = range_frame(
        fleet.prometheus.base,
        [f'{ENERGY}{{device="cpu.0",domain="package"}}'],
        start_ns=end_ns - 600 * NS,
        end_ns=end_ns,
    )
    assert list(frame.columns) == [f"rate({ENERGY})"] and str(frame.index.tz) == "UTC"
    assert frame.iloc[:, 0].dropna().median() == pytest.approx(60, rel=0.01)
    done = cli(
        fleet,
        "import",
        "prometheus",
        fleet.prometheus.base,
        "--start",
        "-10m",
        "-o",
        tmp_path / "t.parquet",
        "--step",
        "2s",
    )
    assert done.returncode == 0, done.stderr
    pq = pytest.importorskip("pyarrow.parquet")
    assert pq.read_table(tmp_path / "t.parquet").num_rows > 3


def test_nothing_there_is_a_sentence(fleet):
    done = cli(fleet, "import", "prometheus", fleet.prometheus.base, "--start", "-9h", "--end", "-8h")
    assert done.returncode == 3 and "has no samples of" in done.stderr
    done = cli(fleet, "list", "--json")
    assert "prometheus" not in done.stdout  # no empty run is left


def empty_panels(engine, path):
    empty = []
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel["targets"]:
            promql = re.sub(r"\$(job|instance|device|slurm_job|server|model)\b", ".+", target["expr"])
            promql = promql.replace("$__rate_interval", "6s").replace("$__range", "10s")
            found = engine.ask("/api/v1/query", query=promql)
            if not found or not all(math.isfinite(float(one["value"][1])) for one in found):
                empty.append((panel["title"], promql))
    return empty


@pytest.mark.parametrize("path", [one for one in DASHBOARDS if one != LLM], ids=lambda path: path.stem)
def test_every_panel_has_data(fleet, path):
    assert empty_panels(fleet.prometheus, path) == []


def test_every_panel_of_language_models_has_data(tmp_path):
    """Two servers in an agent's text, one of which has figures and one a reason why not."""
    book = LlmBook(check_targets(["chat=http://127.0.0.1:1", "gone=http://127.0.0.1:2"]), FakeClock(), tmp_path, None)
    chat = book.joins[0]
    chat.up, chat.refused = True, ""
    chat.figures = {("m", phase): Figure(1.0, 0.5, 2.0) for phase in ("all", "prefill", "decode")}

    def answer(path):
        chat.joules, chat.tokens = {"m": time.monotonic()}, {"m": Tokens(time.monotonic(), time.monotonic())}
        registry = Registry()
        for name, rows in book.series().items():
            for labels, value in rows.items():
                registry.set(name, value, *labels)
        return 200, {"Content-Type": TEXT_TYPE}, registry.text()

    with Endpoint(answer) as agent, (tmp_path / "log").open("w") as log:
        scrape = {"job_name": "everywatt", "static_configs": [{"targets": [agent.url.removeprefix("http://")]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
        engine = prometheus(tmp_path / "store", log, yaml.safe_dump(config))
        try:
            until(lambda: not empty_panels(engine, LLM), "data in every panel")
        finally:
            engine.close()


def test_rules_record_what_they_should(fleet):
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    names = [
        r["record"] for g in rules["groups"] if g["name"] != "everywatt-hours" for r in g["rules"] if "record" in r
    ]
    for name in names:
        assert fleet.prometheus.ask("/api/v1/query", query=name), name
    found = fleet.prometheus.ask("/api/v1/query", query="max_over_time(instance:everywatt_power_watts:sum[10s])")
    board_w, node_w = sorted(float(one["value"][1]) for one in found)
    # The card is at 100 or 300 W, the package at 60 and its memory at 12; a second may hold both of the card's levels.
    assert board_w == pytest.approx(8, abs=0.1) and 171 < node_w < 373


def test_the_collector_maps_names_to_hw(fleet):
    """The relabelling and the collector's renaming, as the test reads their rules: the collector itself is not here."""
    config = yaml.safe_load((ROOT / "deploy/otel/collector.yaml").read_text())
    assert check_collector(config)
    texts = [fleet.node.text(), fleet.board.text()]
    found = {}
    for text in texts:
        for name, labels, value in text_samples(text):
            for metric, attributes in told(config, {"__name__": name, **labels}):
                key = (metric, attributes["hw.id"])
                assert key not in found, "an identity is told once"
                found[key] = (attributes["hw.type"], value)
    assert {name for name, _ in found} == {"hw.energy", "hw.power"}
    kinds = {key[1]: value[0] for key, value in found.items()}
    assert kinds == {
        "cpu.0/package": "cpu", "cpu.0/core": "cpu", "dram.0/dram": "memory", "gpu.0/gpu": "gpu",
        "jetson/soc": "enclosure",
        "jetson VDD_CPU_GPU_CV/rail": "enclosure", "jetson VDD_SOC/rail": "enclosure",
    }  # fmt: skip
    assert found["hw.power", "cpu.0/package"][1] == pytest.approx(60, rel=0.05)


def text_samples(text):
    from everywatt.fleet.metrics import samples

    return list(samples(text))
