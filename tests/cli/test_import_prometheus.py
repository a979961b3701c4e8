"""`everywatt import prometheus` at the command line: what it sends, writes and says."""

import csv
import json
import re

import pytest
from api_server import ApiServer

import everywatt
from everywatt.cli.main import main

START_S = 1_794_000_000
TIMES = ("--start", "2026-11-06T21:20:00+00:00", "--end", "2026-11-06T21:21:00+00:00")
LABELS = {"instance": "n1:9876", "job": "everywatt", "device": "gpu.0", "domain": "gpu", "pedigree": "counter"}


def engine(asked):
    """One card of 200 W, a sample a second for ten seconds."""
    if asked.path.endswith("/series"):
        return ok([LABELS])
    values = [[START_S + second, str(200.0 * second)] for second in range(11)]
    metric = {"__name__": "everywatt_energy_joules_total", **LABELS}
    return ok({"resultType": "matrix", "result": [{"metric": metric, "values": values}]})


def ok(data):
    return 200, {}, json.dumps({"status": "success", "data": data}).encode()


@pytest.fixture
def run(own_home, capfd, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def called(*words):
        code = main(["import", "prometheus", *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return called


def test_a_data_source_behind_grafana(run, own_home):
    (own_home / "token").write_text("glsa_x\n")
    with ApiServer(engine) as server:
        code, out, err = run(f"{server.url}/api/datasources/proxy/uid/P1", "--token-file", own_home / "token", *TIMES)
        assert code == 0, err
        assert {one.headers["Authorization"] for one in server.asked} == {"Bearer glsa_x"}
        paths = [one.path.removeprefix("/api/datasources/proxy/uid/P1") for one in server.asked]
        assert paths == ["/api/v1/series", "/api/v1/query"]
        assert re.fullmatch(r'\{__name__=~"everywatt_\.\+"\}\[\d+ms\]', server.asked[1].query["query"])
    assert "2000 J" in err and out.strip().endswith("-prometheus-127.0.0.1")
    (folder,) = [path.parent for path in own_home.rglob("*.tape")]
    energy = everywatt.load(folder).energy()
    assert energy.joules == pytest.approx(2000) and energy.pedigree == "counter"


def test_json_tells_the_energy(run, own_home):
    with ApiServer(engine) as server:
        code, out, _ = run(server.url, *TIMES, "--json", "-o", own_home / "x.tape")
    told = json.loads(out)
    assert code == 0 and told["kind"] == "import" and told["energy"]["joules"] == pytest.approx(2000)


def test_tables_have_rates_or_counters(run, own_home):
    with ApiServer(engine) as server:
        assert run(server.url, *TIMES, "-o", own_home / "a.csv")[0] == 0
        assert run(server.url, *TIMES, "-o", own_home / "b.csv", "--counters")[0] == 0
        code, _, err = run(server.url, *TIMES, "--counters")
        assert code == 2 and "only to tables" in err
    rates = [row["rate(everywatt_energy_joules_total)"] for row in csv.DictReader((own_home / "a.csv").open())]
    assert rates == ["", *["200.0"] * 10]
    counts = [float(row["everywatt_energy_joules_total"]) for row in csv.DictReader((own_home / "b.csv").open())]
    assert counts == [200.0 * second for second in range(11)]


def test_a_recording_is_not_overwritten(run, own_home):
    with ApiServer(engine) as server:
        assert run(server.url, *TIMES, "-o", own_home / "x.tape")[0] == 0
        before = (own_home / "x.tape").read_bytes()
        assert run(server.url, *TIMES, "-o", own_home / "x.tape")[0] == 2
    assert (own_home / "x.tape").read_bytes() == before


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("ftp://store",), 2, "is not the address of a server"),
        (("127.0.0.1:9", "--start", "-1h"), 3, "has no scheme; using http://127.0.0.1:9"),
        (("http://127.0.0.1:9", "--start", "-1h"), 3, "Connection refused"),
        (("http://127.0.0.1:9", "--start", "-1h", "--end", "-2h"), 2, "The end must be after the start"),
        (("http://127.0.0.1:9", "--filter", "none.json"), 2, "none.json cannot be read"),
        (("http://127.0.0.1:9", "--token-file", "none"), 2, "none cannot be read"),
        (("https://127.0.0.1:9", "--ca", "none"), 2, "none cannot be used for TLS"),
        (("http://127.0.0.1:9", "--start", "soon"), 2, "is not a time"),
    ],
)
def test_what_can_be_wrong(run, own_home, words, code, said):
    found, out, err = run(*words)
    assert (found, out) == (code, "") and said in err
    assert list(own_home.rglob("*prometheus*")) == []  # no empty run is left


def test_no_samples_is_a_sentence(run):
    with ApiServer(lambda asked: ok([])) as server:
        code, out, err = run(server.url, *TIMES)
    assert code == 3 and out == "" and "has no samples of" in err and "--filter" in err
