"""What a user may type by mistake is refused, with what to do, before anything is done."""

import errno
import os
import shutil
import time

import pytest
from tapes import counter_group, rows, write_tape

from everywatt.cli.main import main


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    ticks = rows(lambda t: 50.0 * t, 0, 6, 0.1)
    for name in ("one", "two"):
        path = tmp_path / "runs" / name / "box-0001.tape"
        path.parent.mkdir(parents=True)
        write_tape(path, [(counter_group(), 0.1, ticks)], [("work", 0.5, 5.5, None, {})])
    return tmp_path


@pytest.mark.parametrize("words", [["one"], ["one", "touch made"], ["touch made", "two"], ["one", "oen"]])
def test_runs_are_not_compared_with_commands(home, words, capsys):
    assert main(["compare", *words, "--trials", "1", "--idle", "0.1s"]) == 2
    assert "run" in capsys.readouterr().err and not (home / "made").exists()
    assert sorted(path.name for path in (home / "runs").iterdir()) == ["one", "two"], "nothing was recorded"


@pytest.mark.parametrize("verb", ["show", "ledger"])
@pytest.mark.parametrize("ends", [("5", "1"), ("2", "2"), ("nan", "1")])
def test_a_window_that_ends_before_it_begins(home, verb, ends):
    assert main([verb, "one", "--between", *ends]) == 2


@pytest.mark.parametrize("tag", ["=", "", "=x", "project=", " "])
def test_a_sum_over_no_tag(home, tag):
    assert main(["list", "--sum", tag]) == 2


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_export_makes_no_folder(home, kind, capsys):
    assert main(["export", "one", "--to", kind, "-o", f"nowhere/x.{kind}"]) == 2
    assert not (home / "nowhere").exists() and os.strerror(errno.ENOENT) in capsys.readouterr().err


def test_formulas_are_neutral_where_that_is_asked_for(home):
    path = home / "runs" / "one" / "box-0001.tape"
    path.unlink()
    write_tape(path, [(counter_group(), 0.1, rows(lambda t: t, 0, 6, 0.1))], [("=cmd|' /C x'!A0", 0.5, 5.5, None, {})])
    for words, expected in ((["--neutral"], "'=cmd|' /C x'!A0"), ([], "=cmd|' /C x'!A0")):
        assert main(["export", "one", "--to", "csv", "-o", "x.csv", *words]) == 0
        assert expected in (home / "x.spans.csv").read_text().split("\n")[1].split(",")
    assert main(["export", "one", "--to", "jsonl", "--neutral"]) == 2


def test_a_run_whose_recorder_was_killed_is_not_live(home, capsys):
    path = home / "runs" / "one" / "box-0001.tape"
    path.unlink()
    write_tape(path, [(counter_group(), 0.1, rows(lambda t: 50.0 * t, 0, 6, 0.1))], seal=False)
    shutil.copyfile(path, f"{path}-wal")  # whatever it is, it is there
    os.truncate(f"{path}-wal", 0)
    long_ago = time.time() - 120
    for file in (path, f"{path}-wal"):
        os.utime(file, (long_ago, long_ago))
    assert main(["monitor", "one", "--once", "--json"]) == 0
    assert '"live": false' in capsys.readouterr().out


def test_shares_that_do_not_matter_have_few_digits(home, capsys):
    path = home / "runs" / "one" / "box-0001.tape"
    path.unlink()
    group = counter_group(gain_pct=1.0, quantum=1e-6)
    write_tape(path, [(group, 0.1, rows(lambda t: 5000.0 * t, 0, 6, 0.1))])
    assert main(["why", "one"]) == 0
    assert "0.0000" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--listen", "1.2.3.4:x"], ["--listen", "0.0.0.0:9476"], ["--client-ca", "ca.pem"]])
def test_the_check_of_an_agent_sees_addresses_it_could_not_serve(home, words):
    assert main(["agent", "--check", *words]) == 2


def test_a_folder_without_runs_is_said(home, monkeypatch, capsys):
    monkeypatch.setenv("EVERYWATT_HOME", str(home / "none"))
    assert main(["list"]) == 0
    assert "There are no runs in" in capsys.readouterr().err


def test_a_word_that_is_no_process_is_called_so(home, capsys):
    assert main(["attach", "x"]) == 2
    assert "'x' is not a valid process id" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["run", "--model", "no.json", "--"], ["batch", "--model", "no.json", "items", "--"]])
def test_a_model_that_does_not_exist_is_refused_first(home, words, capsys):
    (home / "items").write_text("one\n", encoding="utf-8")
    assert main([*words, "touch", "made"]) == 2
    assert "'no.json' does not exist" in capsys.readouterr().err and not (home / "made").exists()
