"""`everywatt ledger`: what it prints and how it refuses."""

import json
import re

import pytest
from machines import Process, write_machine

from everywatt.cli.inspect import parse_baseline
from everywatt.cli.main import main
from everywatt.core.errors import UsageError

WATTS = [20.0] * 4 + [60.0] * 8


@pytest.fixture
def run(tmp_path):
    worker = Process(101, [0.0] * 4 + [1.0] * 8, name="worker", extra={"cmdline": "/opt/worker --fast"})
    small = Process(102, [0.0] * 4 + [0.25] * 8, name="small")
    return str(write_machine(tmp_path / "x.tape", {"cpu.0": WATTS, "gpu.0": [15.0] * 12}, [worker, small], seconds=12))


def test_a_table_that_adds_up(run, capsys):
    assert main(["ledger", run]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[1].split()[0] == "OWNER"
    assert "worker --fast [101]" in lines[2] and "256.00 J" in lines[2] and "8.00 s" in lines[2]
    assert "small [102]" in lines[3] and "64.00 J" in lines[3]
    assert any(line.startswith("total") and "740.00 J" in line for line in lines)
    assert "idle cpu.0: 20.00 W, quiet" in out


def test_json_has_all_owners_and_the_checks(run, capsys):
    assert main(["ledger", run, "--json", "--by", "device"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["by"], data["checks"]["hold"]) == ("ledger", "device", True)
    assert {owner["owner"]["id"]: owner["microjoules"] for owner in data["owners"]} == {
        "cpu.0": 560_000_000,
        "gpu.0": 180_000_000,
    }


def test_a_window_a_policy_and_a_baseline(run, capsys):
    words = ["ledger", run, "--json", "--between", "6", "10", "--idle-policy", "by-use", "--baseline", "cpu.0=10W"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    owed = {owner["owner"]["label"]: owner["energy"]["joules"] for owner in data["owners"]}
    assert owed["worker --fast"] == pytest.approx(4 * 60 * 0.8, rel=1e-3)
    assert data["idle"]["cpu.0"] == {"watts": 10.0, "spread_w": 0.0, "method": "given"}
    assert data["idle_policy"] == "by-use"


def test_a_runs_own_json_and_summary_have_it_too(run, capsys):
    assert main(["show", run, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(owner["microjoules"] for owner in data["ledger"]["owners"]) == round(data["energy"]["joules"] * 1e6)
    assert main(["show", run]) == 0
    assert re.search(r"owner   256\.00 J \([\d.]+ … [\d.]+\) +worker --fast \[101\]", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--baseline", "lots"], "not a power"),
        (["--baseline", "gpu.7=3W"], "no device 'gpu.7'"),
        (["--baseline", "gpu.0=,cpu.0=1W"], "not a device with its idle power"),
        (["--baseline=-5W"], "below zero"),
        (["--span", "nowhere"], "no span 'nowhere'"),
        (["--by", "colour"], "colour"),
        (["--top", "0"], "0"),
    ],
)
def test_wrong_words_end_with_2(run, capsys, words, says):
    assert main(["ledger", run, *words]) == 2
    assert says in capsys.readouterr().err


def test_a_run_without_energy_is_refused_with_3(tmp_path, capsys):
    path = write_machine(tmp_path / "x.tape", {}, [Process(5, [0.5] * 12)], seconds=12)
    assert main(["ledger", str(path)]) == 3
    assert "no sensor" in capsys.readouterr().err


def test_baselines():
    assert parse_baseline("35W") == 35.0
    assert parse_baseline("cpu.0=35W,gpu.0=1.2kW") == {"cpu.0": 35.0, "gpu.0": 1200.0}
    with pytest.raises(UsageError):
        parse_baseline("=3W")
