"""What a user may type by mistake is refused, with what to do, before anything is done."""

import errno
import os
import shlex
import shutil
import time

import pytest
from tapes import counter_group, rows, write_tape

from everywatt.cli.main import main

CLOSED = "/" + "x" * 300
"""As a folder of another user, it cannot even be looked into; and not by root either, as no name may be that long."""


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


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("sweep --param n --trials 1 --idle 0.1s -- sleep {n}", "--trials"),
        ("sweep --param n=1,2 --trials 1 --idle 0.1s sleep {n}", "--trials"),
        ("sweep --param n=1,2 -- sleep {n}", "--"),
        ("compare --param n=1,2 --trials=1 'sleep {n}'", "--trials=1"),
        ("show one --between 1 --json", "--json"),
        ("show one --embodied 5 --per 3 --json", "--json"),
        ("list --tag --json", "--json"),
        ("list --tag --help", "--help"),
        ("run --note --quiet -- true", "--quiet"),
        ("run --tag -- true", "--"),
        ("sim --gpu --package constant:9W -- true", "--package"),
        ("sim truth one --between 1 --help", "--help"),
        ("import csv x.csv --set --period 1s", "--period"),
    ],
)
def test_an_option_is_not_the_value_of_the_one_before(home, words, wrong, capsys):
    words = shlex.split(words)
    option = words[words.index(wrong) - (1 if words[words.index(wrong) - 1].startswith("--") else 2)]
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"'{option}'" in said and f"'{wrong}'" in said, said


def test_a_value_that_looks_like_an_option_may_be_joined_to_its_own(home, capsys):
    assert main(["list", "--tag=name=--json"]) == 0
    assert main(["list", "--tag", "--other"]) == 0, "no option of this verb"


@pytest.mark.parametrize(
    "verb", [["sweep", "--param", "n=1,2", "sleep", "{n}"], ["compare", "--param", "n=1,2", "1", "{n}"]]
)
def test_values_of_a_parameter_are_a_word_of_their_own(home, verb, capsys):
    assert main(verb) == 2
    assert "Try:   --param n 1,2" in capsys.readouterr().err


@pytest.mark.parametrize("rest", [["--", "sleep", "{n}"], ["--trials", "3", "--", "sleep", "{n}"]])
def test_values_of_a_parameter_are_a_word_of_their_own_before_an_option_too(home, rest, capsys):
    assert main(["sweep", "--param", "n=1,2", *rest]) == 2
    assert "--param n 1,2" in capsys.readouterr().err


def test_a_parameter_is_given_once(home, capsys):
    assert main(["compare", "sleep {n}", "--param", "n", "1", "--param", "n", "2", "--trials", "1"]) == 2
    assert "'n'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "compare true true --trials 1 --max-time -1s",
        "compare true true --trials 1 --max-time 0",
        "compare true true --trials 1 --idle=-1s",
        "run --period 1e30s -- true",
        "run --idle 1e12 -- true",
        "demo --time -1s",
        "doctor --time -1s",
        "monitor --once --for -1s",
        "batch one --timeout -1s -- true",
    ],
)
def test_a_time_that_cannot_be_waited_for(home, words, capsys):
    (home / "one").write_text("item\n")
    assert main(shlex.split(words)) == 2
    assert "Try" in capsys.readouterr().err
    assert sorted(path.name for path in (home / "runs").iterdir()) == ["one", "two"], "nothing was recorded"


@pytest.mark.parametrize("name", ["", " "])
def test_a_program_without_a_name_is_quoted(home, name, capfd):
    assert main(["run", "--", name]) == 127
    assert f"'{name}': " in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "compare true --trials 1 --idle 0 --json=nowhere/x",
        "doctor --share nowhere/x --time 1ms",
        "plot one -o nowhere/x.svg",
    ],
)
def test_a_file_in_a_folder_that_is_not_there_is_refused_before_the_work(home, words, capsys):
    assert main(shlex.split(words)) == 2
    assert "nowhere/x" in capsys.readouterr().err
    assert not (home / "made").exists() and not (home / "nowhere").exists()
    assert sorted(path.name for path in (home / "runs").iterdir()) == ["one", "two"], "nothing was recorded"


def test_a_file_without_its_kind_is_told_so(home, capsys):
    assert main(["import", "x.csv"]) == 2
    assert "'x.csv' is not a kind" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "show {}/run",
        "validate {}/run",
        "monitor {}/run --once",
        "monitor {}/log.jsonl --once",
        "calibrate --from {}/card --meter {}/meter",
        "serve --home {}",
        "import csv {}/power.csv",
        "import csv power.csv --out {}/a.tape",
        "compare {}/old true --trials 1",
    ],
)
def test_a_path_in_a_closed_folder(home, words, capsys):
    (home / "power.csv").write_text("unix_s,watts\n1,2\n2,3\n")
    assert main(words.format(*[CLOSED] * 2).split()) == 2
    assert os.strerror(errno.ENAMETOOLONG) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["page.pdf", "page.docx", "page.HTML.txt"])
def test_a_report_is_a_page(home, name, capsys):
    assert main(["report", "one", "-o", name]) == 2 and not (home / name).exists()
    assert "must end in one of .html, .htm" in capsys.readouterr().err


BOARD = "RAM 1/2MB (lfb 2x4MB) CPU [23%@1397] VDD_IN 4000mW/4000mW\n"


@pytest.mark.parametrize("name", ["board.csv", "board.xls"])
def test_what_is_imported_is_not_called_a_table(home, name, capsys):
    (home / "board.log").write_text(BOARD * 9)
    assert main(["import", "tegrastats", "board.log", "-o", name]) == 2 and not (home / name).exists()
    assert "must end in one of .tape" in capsys.readouterr().err


def test_a_parameter_that_an_importer_does_not_use_is_named(home, capsys):
    (home / "board.log").write_text(BOARD * 9)
    assert main(["import", "tegrastats", "board.log", "--set", "interval_s=0.5", "--set", "zoneh=2"]) == 0
    assert "Warning: tegrastats does not use --set zoneh, did you mean 'zone_h'?" in capsys.readouterr().err
    assert main(["import", "tegrastats", "board.log", "--set", "zone_h=2"]) == 0
    assert "does not use" not in capsys.readouterr().err
