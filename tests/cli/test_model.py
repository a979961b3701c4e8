"""`everywatt model` from a shell, on tables that are good and bad."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from everywatt.cli.main import main

EXTRACT = Path(__file__).parent.parent / "models" / "xeon_e5_2667v3_extract.csv"


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(6)
    cpu = np.repeat(random.random(12), 10)
    watts = (30 + 50 * cpu) * (1 + 0.01 * random.standard_normal(120))
    path = tmp_path / "t.csv"
    lines = [
        f"{1000 + t},{w:.4f},{c:.4f},{random.random():.4f}" for t, (w, c) in enumerate(zip(watts, cpu, strict=True))
    ]
    path.write_text("timestamp,node_power,cpu_util,noise\n" + "\n".join(lines) + "\n")
    return path


def test_fit_show_explain_evaluate_predict(table, tmp_path, capsys):
    pytest.importorskip("altair")
    out = tmp_path / "m.json"
    assert main(["model", "fit", str(table), "--target", "node_power", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for name in ("mean", "least squares", "curved", "mixed"):
        assert f"\n{name} " in printed
    assert "LOAD" in printed and "RANGE" in printed and "← chosen" in printed
    assert (tmp_path / "m.svg").read_text().startswith("<svg")
    assert main(["model", "show", str(out)]) == 0
    assert "cpu_util" in capsys.readouterr().out
    assert main(["model", "explain", "--json", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["columns"][0]["name"] == "cpu_util" and told["idle_w"] == pytest.approx(31, abs=5)
    assert main(["model", "evaluate", "--json", str(out), str(table), "--target", "node_power"]) == 0
    assert json.loads(capsys.readouterr().out)["mape_pct"] < 2
    assert main(["model", "predict", str(out), str(table), "--out", str(tmp_path / "p.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert len(rows) == 120 and float(rows[5]["low"]) < float(rows[5]["watts"]) < float(rows[5]["high"])


def test_explore_finds_what_moves_and_says_where_nothing_does(table, capsys):
    assert main(["model", "explore", "--json", str(table), "--target", "node_power"]) == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert [(c["name"], c["grade"]) for c in columns] == [("cpu_util", "strong"), ("noise", "none")] or columns[1][
        "best"
    ] < 0.4
    assert main(["model", "explore", str(EXTRACT), "--target", "package_power"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("cpu_cycles")


def test_explore_prints_minus_signs(tmp_path, capsys):
    path = tmp_path / "t.csv"
    lines = [f"{1000 + t},{100 - t % 50},{t % 50}" for t in range(120)]
    path.write_text("timestamp,node_power,idle_share\n" + "\n".join(lines) + "\n")
    assert main(["model", "explore", str(path), "--target", "node_power"]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.split()[:3] == ["idle_share", "−1.00", "−1.00"] and "-" not in row


def test_scatter_plots(table, tmp_path):
    pytest.importorskip("altair")
    for ending in ("png", "html"):
        path = tmp_path / f"p.{ending}"
        assert main(["model", "explore", str(table), "--target", "node_power", "--plot", str(path)]) == 0
        assert path.stat().st_size > 1000
    page = (tmp_path / "p.html").read_text().replace("http://www.w3.org", "")
    assert "http:" not in page and "https:" not in page


def test_no_relation_is_an_answer(tmp_path, capsys):
    random = np.random.default_rng(1)
    path = tmp_path / "t.csv"
    path.write_text("time,power,cpu\n" + "".join(f"{t},{50 + random.random()},{random.random()}\n" for t in range(60)))
    assert main(["model", "fit", str(path), "--target", "power", "--out", str(tmp_path / "m.json")]) == 3
    said = capsys.readouterr()
    assert "No relation" in said.err and "mean" in said.out
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["fit", "none.csv", "--target", "w", "--out", "m.json"], "There is no file"),
        (["fit", "{table}", "--target", "watts", "--out", "m.json"], "no column 'watts'"),
        (["fit", "{table}", "--target", "node_power", "--ignore", "x", "--out", "m.json"], "no column 'x'"),
        (
            ["fit", "{table}", "--target", "node_power", "--features", "node_power", "--out", "m.json"],
            "is the target itself",
        ),
        (["fit", "no-such-run", "--target", "w", "--out", "m.json"], "not a table either"),
        (["show", "{table}"], "not JSON"),
        (["evaluate", "none.json", "{table}", "--target", "node_power"], "cannot be read"),
    ],
)
def test_mistakes_are_told(words, text, table, own_home, capsys):
    assert main(["model", *(word.replace("{table}", str(table)) for word in words)]) == 2
    assert text in capsys.readouterr().err
