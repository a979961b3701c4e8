"""`everywatt import sage`: a data API on loopback, and files as before."""

import gzip
import json

import pytest
from api_server import ApiServer

import everywatt
from everywatt.cli.main import main


def records(count=5, vsn="W023"):
    lines = []
    for second in range(count):
        stamp = f"2026-11-15T10:00:{second:02d}.000000000Z"
        for name, sensor, value in (
            ("tegra_wattage_current_milliwatts", "vdd_in", 5000),
            ("env.temperature", "bme280", 20.5),
        ):
            meta = {"vsn": vsn, "sensor": sensor, "host": 'a"b\n'}
            lines.append(json.dumps({"timestamp": stamp, "name": name, "value": value, "meta": meta}))
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture
def run(own_home, capfd):
    def called(*words):
        code = main(["import", "sage", *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return called


def test_a_query_becomes_a_run(run, tmp_path):
    body = gzip.compress(records())
    with ApiServer(lambda asked: (200, {"Content-Encoding": "gzip"}, body)) as server:
        code, _, err = run(
            server.url, "--start", "2026-11-15T10:00:00+00:00", "--end", "2026-11-15T11:00:00+00:00", "--filter",
            "name=tegra.*", "--filter", "vsn=W023", "--head", "5", "--bucket", "b", "-o", tmp_path / "x.tape",
        )  # fmt: skip
        (asked,) = server.asked
    assert code == 0, err
    assert asked.path == "/api/v1/query"
    assert json.loads(asked.body) == {
        "start": "2026-11-15T10:00:00.000000000Z",
        "end": "2026-11-15T11:00:00.000000000Z",
        "filter": {"name": "tegra.*", "vsn": "W023"},
        "head": 5,
        "bucket": "b",
    }
    made = everywatt.load(tmp_path / "x.tape")
    assert made.energy().joules == pytest.approx(20.0) and made.tapes[0].meta["host"]["name"] == "W023"


def test_without_http_it_is_corrected(run, tmp_path):
    with ApiServer(lambda asked: (200, {}, records())) as server:
        code, _, err = run(f"{server.netloc}/api/v1/query", "--start", "-1h", "-o", tmp_path / "x.tape")
        assert code == 0 and "has no scheme; using" in err
        assert server.asked[0].path == "/api/v1/query"


@pytest.mark.parametrize(
    "answer, words, code, said",
    [
        ((200, {}, b""), ("--start", "-1h"), 3, "returned no numbers for that period and filter (0 records)"),
        ((200, {}, records()), (), 2, "No start time was given."),
        ((200, {}, records()), ("--start", "-1h", "--head", "1", "--tail", "1"), 2, "cannot be combined"),
        ((200, {}, records()), ("--start", "-1h", "--end", "-2h"), 2, "must be after the start"),
        ((400, {}, b"bad filter"), ("--start", "-1h"), 3, "rejected the query: bad filter"),
        ((401, {}, b""), ("--start", "-1h"), 3, "--token-file"),
    ],
)
def test_what_can_be_wrong(run, own_home, answer, words, code, said):
    with ApiServer(lambda asked: (answer[0], dict(answer[1]), answer[2])) as server:
        found, _, err = run(server.url, *words)
    assert found == code and said in err
    assert list(own_home.rglob("*.tape")) == []


def test_half_an_answer_is_asked_for_again(run, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda s: None)
    whole = records()
    answers = iter([(200, {"cut": 50}, whole), (200, {}, whole[:-40]), (200, {}, whole)])
    with ApiServer(lambda asked: next(answers)) as server:
        code, _, err = run(server.url, "--start", "-1h", "-o", tmp_path / "x.tape")
        assert code == 0 and len(server.asked) == 3, err


def test_files_as_before(run, tmp_path):
    (tmp_path / "a.ndjson").write_bytes(records())
    code, _, err = run(tmp_path / "a.ndjson", "--set", "name=tegra", "-o", tmp_path / "x.tape")
    assert code == 0, err
    assert run(tmp_path / "a.ndjson", "--start", "-1h")[0] == 2
    code, _, err = run(tmp_path / "none.json")
    assert code == 2 and "There is no file" in err


def test_a_missing_file_is_no_server(run, tmp_path):
    for name in ("records", "records.dat", tmp_path / "records"):
        code, _, err = run(name)
        assert code == 2 and "There is no file" in err and "--start" not in err
