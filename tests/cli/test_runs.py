"""show, list, why and validate on runs whose truth is written down."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tapes import counter_group, gauge_group, rows, write_tape

from everywatt import load
from everywatt.cli.main import main
from everywatt.core.tables import column_groups, widths, without_spare
from everywatt.report.text import RunList


@pytest.fixture
def two_runs(own_home):
    """Two runs of 100 J and 300 J, tagged project=alpha."""
    for number, watts in ((1, 10.0), (2, 30.0)):
        write_tape(
            own_home / "everywatt-runs" / f"20260101-00000{number}-x" / "box-0001.tape",
            [(counter_group(gain_pct=5.0, offset_w=1.0), 0.1, rows(lambda t, w=watts: w * t, 0, 12, 0.1))],
            [("run", 1, 11, None, {}), ("epoch", 2, 6, "s0", {}), ("epoch", 6, 10, "s0", {})],
        )
    return own_home


def run_json(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_show_prints_the_figure_with_all_it_needs(two_runs, capsys):
    assert main(["show", "last"]) == 0
    text = capsys.readouterr().out
    assert "300" in text and "(95 %)" in text and "cpu" in text and "counter" in text and "coverage 100 %" in text
    assert "epoch ×2" in text


def test_show_json_span_and_window(two_runs, capsys):
    data = run_json(capsys, "show", "20260101-000001-x")
    assert data["schema"] == "everywatt/1" and data["kind"] == "run"
    assert data["energy"]["joules"] == pytest.approx(100)
    assert run_json(capsys, "show", "--span", "epoch")["energy"]["joules"] == pytest.approx(240)
    assert run_json(capsys, "show", "--between", "2", "3")["energy"]["joules"] == pytest.approx(30)


def test_show_an_unknown_run_says_what_to_do(two_runs, capsys):
    assert main(["show", "nothing"]) == 2
    assert "everywatt list" in capsys.readouterr().err


def test_list_and_sum_by_tag(two_runs, capsys):
    data = run_json(capsys, "list")
    assert [run["energy"]["joules"] for run in data["runs"]] == [pytest.approx(100), pytest.approx(300)]
    sums = run_json(capsys, "list", "--sum", "project=alpha")["sums"]
    assert len(sums) == 1 and sums[0]["runs"] == 2
    assert sums[0]["energy"]["joules"] == pytest.approx(400)
    assert run_json(capsys, "list", "--sum", "tag=project")["sums"] == sums
    assert run_json(capsys, "list", "--sum", "tag=project=alpha")["sums"] == sums
    assert run_json(capsys, "list", "--sum", "tag=alpha")["sums"] == []
    assert run_json(capsys, "list", "--sum", "project=beta")["sums"] == []
    assert run_json(capsys, "list", "--tag", "project=beta")["runs"] == []


def test_sums_never_mix_scopes(two_runs, capsys):
    write_tape(
        two_runs / "everywatt-runs" / "20260101-000003-y" / "box-0001.tape",
        [(gauge_group(), 0.1, rows(lambda t: 50.0, 0, 12, 0.1))],
        [("run", 1, 11, None, {})],
    )
    sums = run_json(capsys, "list", "--sum", "project")["sums"]
    assert {(row["scope"], row["pedigree"], row["runs"]) for row in sums} == {
        ("cpu", "counter", 2),
        ("gpu", "integrated", 1),
    }


def test_why_names_each_source_and_a_cure(two_runs, capsys):
    data = run_json(capsys, "why", "last")
    budget = {entry["source"]: entry for entry in data["budget"]}
    assert budget["gain"]["half_width_j"] == pytest.approx(15)
    assert budget["offset"]["half_width_j"] == pytest.approx(10)
    assert "calibrate" in budget["gain"]["cure"]
    assert main(["why", "last"]) == 0
    assert "HOW TO NARROW IT" in capsys.readouterr().out


@pytest.fixture
def idle_first(own_home):
    """A run of 30 W after an idle baseline of 10 W."""
    write_tape(
        own_home / "everywatt-runs" / "20260101-000003-x" / "box-0001.tape",
        [
            (
                counter_group(gain_pct=5.0, offset_w=1.0),
                0.1,
                rows(lambda t: 10 * min(t, 6) + 30 * max(t - 6, 0), 0, 12, 0.1),
            )
        ],
        [("idle", 0, 5, None, {"role": "idle"}), ("run", 7, 11, None, {})],
    )


def test_why_of_a_net_figure_has_no_offset(idle_first, capsys):
    data = run_json(capsys, "why", "last", "--net")
    assert all(entry["half_width_j"] < 1e-6 for entry in data["budget"] if entry["source"] == "offset")


def test_validate_names_the_damage(two_runs, capsys):
    tape = two_runs / "everywatt-runs" / "20260101-000001-x" / "box-0001.tape"
    assert main(["validate", "20260101-000001-x"]) == 0
    data = bytearray(tape.read_bytes())
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 2 + 700] ^= 0xFF
    tape.write_bytes(bytes(data))
    code = main(["validate", str(tape), "--json"])
    found = json.loads(capsys.readouterr().out.split("\n", 1)[1])
    assert code == 1 and found["findings"] and found["findings"][0]["file"].endswith("box-0001.tape")
    assert main(["validate", "nowhere"]) == 2


def test_an_empty_home_is_said_not_crashed(own_home, capsys):
    assert main(["show"]) == 2
    assert "everywatt run" in capsys.readouterr().err
    assert run_json(capsys, "list")["runs"] == []


def test_sums_of_a_tag_that_no_run_has_say_so(two_runs, capsys):
    assert main(["list", "--sum", "nothing"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "No run has the tag nothing" in told.err


def test_what_cancels_is_shown_as_nothing(idle_first, capsys):
    assert main(["why", "--net"]) == 0
    assert "µJ" not in capsys.readouterr().out


def test_a_net_figure_without_a_baseline_tells_how_to_get_one(own_home, capsys):
    write_tape(
        own_home / "everywatt-runs" / "20260101-000004-short" / "box-0001.tape",
        [(counter_group(), 0.1, rows(lambda t: 10.0 * t, 0, 2, 0.1))],
        [("run", 0.5, 1.5, None, {})],
    )
    assert main(["why", "--net"]) == 3
    assert "--idle 10s" in capsys.readouterr().err.splitlines()[-1]


def test_an_import_goes_into_a_folder_that_is_there(two_runs, capsys):
    assert main(["export", "last", "--to", "csv", "-o", "out.csv"]) == 0
    (two_runs / "mine").mkdir()
    capsys.readouterr()
    assert main(["import", "csv", "out.csv", "--out", "mine"]) == 0
    (run,) = (two_runs / "mine").iterdir()
    assert capsys.readouterr().out.strip() == str(run.relative_to(two_runs))
    assert run_json(capsys, "show", str(run))["energy"]["joules"] == pytest.approx(300)
    (two_runs / "empty.csv").touch()
    assert main(["import", "csv", "empty.csv", "--out", "mine"]) == 2
    assert list((two_runs / "mine").iterdir()) == [run]


def test_half_widths_of_why_have_two_digits(two_runs, capsys):
    assert main(["why", "last"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^gain +15 J ", table, re.MULTILINE) and re.search(r"^offset +10 J ", table, re.MULTILINE), table


def test_a_list_of_runs_is_a_table_in_80_columns(two_runs):
    runs = [load(path) for path in sorted((two_runs / "everywatt-runs").iterdir())]
    shown = without_spare(RunList(two_runs, [(run, run.energy()) for run in runs]).tables()[0], 78)
    assert shown.headers[:4] == ["RUN", "STARTED (UTC)", "TIME", "ENERGY"]
    assert len(column_groups(widths(shown.headers, shown.cells()), shown.right, 78)) == 1


def test_a_window_takes_units(two_runs, capsys):
    assert run_json(capsys, "show", "--between", "2s", "3000ms")["energy"]["joules"] == pytest.approx(30)
    assert main(["show", "--between", "1s", "2parsecs"]) == 2
    assert "2parsecs" in capsys.readouterr().err


def test_the_format_of_an_export_is_that_of_its_file(two_runs, capsys):
    assert main(["export", "last", "-o", "out.csv"]) == 0 and (two_runs / "out.csv").exists()
    assert main(["export", "last", "-o", "out.xyz"]) == 2 and main(["export", "last"]) == 2
    assert "--to KIND" in capsys.readouterr().err


def test_show_gives_the_sci_score(two_runs, capsys):
    words = ("show", "20260101-000001-x", "--intensity", "360", "--embodied", "20")
    sci = run_json(capsys, *words, "--per", "2", "query")["carbon"]["sci"]
    assert sci["value"] == pytest.approx((100 / 3.6e6 * 360 + 20) / 2) and sci["unit"] == "g CO2e/query"
    folder = two_runs / "everywatt-runs" / "20260101-000001-x"
    items = [{"kind": "batch", "command": ["true"]}]
    items += [
        {"kind": "item", "id": name, "index": place, "input": name, "row": {}} for place, name in enumerate("abc")
    ]
    for name in "ab":
        items.append({"kind": "start", "id": name, "attempt": 1, "device": "cpu", "lane": 0})
        items.append({"kind": "end", "id": name, "attempt": 1, "status": "done", "final": True})
    (folder / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in items))
    assert run_json(capsys, *words)["carbon"]["sci"]["unit"] == "g CO2e/item"


def test_a_batch_is_found_in_the_run_directory_of_the_settings(own_home, tmp_path, capsys):
    runs = Path(__file__).parent.parent / "corpus" / "data" / "runs"
    config = tmp_path / "config" / "everywatt" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'home = "{tmp_path / "kept"}"\n', encoding="utf-8")
    for name in ("batch-one", "batch-two"):
        shutil.copytree(runs / name, tmp_path / "kept" / name)
    assert main(["show", "batch-one", "--quiet"]) == 0
    for words in (["batch-one"], ["batch-one", "--baseline", "batch-two"], ["batch-one", "batch-two"]):
        assert main(["batch", "summary", *words]) in (0, 1), capsys.readouterr().err


def test_advice_names_a_run_so_that_it_is_found(own_home, capsys):
    (own_home / "watts.csv").write_text("t,w\n0,10\n1,12\n2,11\n3,12\n")
    about = "time=t values=w unit=W kind=gauge device=wall.x domain=wall time_format=s"
    words = [word for pair in about.split() for word in ("--set", pair)]
    (own_home / "elsewhere").mkdir()
    for where in ([], ["-o", "elsewhere/made run.tape"], ["-o", "elsewhere"]):
        assert main(["import", "csv", "watts.csv", *words, *where]) == 0
        advice = re.search(r"everywatt (ledger .* --baseline \d+W)", capsys.readouterr().err)
        assert advice is not None and main(shlex.split(advice[1])) == 0, where
