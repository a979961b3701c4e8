import json
import re

import pytest
from reports import EVIL, write_other_scope, write_run
from waiting import until

from everywatt.cli.main import main


@pytest.fixture
def tape(own_home):
    return str(write_run(own_home / "small.tape"))


def document(path):
    found = re.search(r'id="document">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    return json.loads(found[1])


def test_a_report_beside_the_reader(tape, own_home, capsys):
    assert main(["report", tape]) == 0
    assert capsys.readouterr().out == "small.html\n"
    data = document(own_home / "small.html")
    assert data["kind"] == "report" and data["runs"][0]["carbon"] is None
    assert data["runs"][0]["phases"]["rows"][1]["name"] == EVIL


def test_json_says_where_it_is(tape, own_home, capsys):
    assert main(["report", "--json", "-o", "x.html", tape]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["path"] == "x.html" and data["runs"] == ["small"]
    assert data["bytes"] == (own_home / "x.html").stat().st_size < 200_000


def test_carbon_is_asked_for_by_options_and_settings(tape, own_home, monkeypatch):
    monkeypatch.setenv("EVERYWATT_PUE", "1.5")
    assert main(["report", tape, "-o", "x.html", "--country", "FR", "--price", "0.25 EUR"]) == 0
    rows = {row["name"]: row for row in document(own_home / "x.html")["runs"][0]["carbon"]["rows"]}
    joules = document(own_home / "x.html")["runs"][0]["energy"]["joules"]
    assert rows["carbon"]["value"] == pytest.approx(joules / 3.6e6 * 1.5 * 56.0)
    assert rows["cost"]["value"] == pytest.approx(joules / 3.6e6 * 1.5 * 0.25)


def test_runs_of_several_scopes_are_a_warning(tape, own_home, capsys):
    assert main(["report", tape, str(write_other_scope(own_home / "other.tape"))]) == 0
    out, err = capsys.readouterr()
    assert out == "small-and-other.html\n"
    assert "do not cover the same scope" in err


def test_a_folder_that_is_not_there(tape, own_home, capsys):
    assert main(["report", tape, "-o", "none/x.html"]) == 2
    assert "none/x.html cannot be written: No such file or directory." in capsys.readouterr().err


def test_a_run_that_is_not_there(own_home, capsys):
    assert main(["report", "nope"]) == 2
    assert list(own_home.glob("*.html")) == []


def test_show_has_carbon_where_it_is_asked_for(tape, capsys):
    assert main(["show", tape]) == 0
    assert "CO2e" not in capsys.readouterr().out
    assert main(["show", tape, "--intensity", "100", "--pue", "1.2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^  carbon  .* mg CO2e ± .* = kWh × 1\.2 \(PUE\) × 100 g/kWh \(given\)$", out, re.MULTILINE)
    assert main(["show", tape, "--json", "--intensity", "100"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["carbon"]["carbon"]["value"] == pytest.approx(data["energy"]["joules"] / 3.6e6 * 100)
    assert "cost" not in data["carbon"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--country", "Atlantis"], "no grid intensity for 'Atlantis'"),
        (["--pue", "0.5"], "--pue: pue = '0.5' is not valid"),
        (["--intensity-file", "none.csv"], "none.csv cannot be read"),
    ],
)
def test_factors_that_cannot_be_used(tape, words, message, capsys):
    assert main(["show", tape, *words]) == 2
    assert message in capsys.readouterr().err


def test_plot(tape, own_home, capsys):
    pytest.importorskip("vl_convert")
    assert main(["plot", tape, "-o", "x.svg", "--metric", "gpu.0 power"]) == 0
    assert (own_home / "x.svg").read_text().startswith("<svg")
    assert main(["plot", tape, "--list"]) == 0
    assert "gpu.0 temperature  °C" in capsys.readouterr().out
    assert main(["plot", tape, "--metric", "nope"]) == 2
    assert "This run has no metric 'nope'; it has: cpu.0 power, gpu.0 power" in capsys.readouterr().err


def test_the_demo_ends_with_its_report(own_home, capsys):
    assert main(["demo", "--time", "0.3s"]) == 0
    last = capsys.readouterr().err.strip().splitlines()[-1]
    path = re.fullmatch(r"report: (.*report\.html)", last)[1]
    assert document(own_home / path)["runs"][0]["phases"]["count"] == 4


@pytest.mark.parametrize("display", ["", ":0"])
def test_a_browser_is_started_where_there_is_a_screen(tape, own_home, monkeypatch, capsys, display):
    (own_home / "xdg-open").write_text(f"#!/bin/sh\necho $1 >{own_home}/new && mv {own_home}/new {own_home}/opened\n")
    (own_home / "xdg-open").chmod(0o755)
    monkeypatch.setenv("PATH", f"{own_home}:/usr/bin:/bin")
    for name in ("BROWSER", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", display)
    assert main(["report", tape, "-o", "x.html", "--open"]) == 0
    if display:
        until((own_home / "opened").exists, "the browser is started")
    told = capsys.readouterr().err
    assert (
        (own_home / "opened").exists()
        == ("no browser could be started; open x.html in one" not in told)
        == bool(display)
    )
