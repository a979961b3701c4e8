"""%%energy measures a cell and leaves the cell as it was: its value, its names, its errors."""

import re

import pytest

import everywatt

pytest.importorskip("IPython")


@pytest.fixture
def shell(own_home, monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "everywatt")
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_is_measured_and_keeps_its_value_and_names(shell, capsys):
    result = shell.run_cell("%%energy training --out kept\nx = sum(range(3_000_000))\nx * 2")
    assert result.error_in_exec is None
    assert result.result == 2 * sum(range(3_000_000))
    assert shell.user_ns["x"] == sum(range(3_000_000))
    measured = shell.user_ns["kept"]
    assert measured.name == "training"
    assert measured.energy.joules is None or measured.energy.joules > 0
    assert "training: " in capsys.readouterr().out


def test_a_statement_is_measured(shell, capsys):
    assert shell.run_cell("%energy sum(range(1000))").result == 499500
    assert "cell: " in capsys.readouterr().out


def test_an_error_is_the_cells_own_and_there_is_still_a_record(shell):
    result = shell.run_cell("%%energy --out kept -q\ny = 1\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert shell.user_ns["y"] == 1
    assert isinstance(shell.user_ns["kept"].error, ZeroDivisionError)


def test_quiet_shows_nothing(shell, capsys):
    shell.run_cell("%%energy -q\nz = 1")
    assert "cell" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%energy --bad\n1", "unrecognized"),
        ("%energy", "statement after it"),
        ("%%energy\nawait f()", "await"),
    ],
)
def test_wrong_words_say_what_to_write(shell, cell, words):
    from everywatt import UsageError

    error = shell.run_cell(cell).error_in_exec
    assert isinstance(error, UsageError)
    assert words in str(error)
    assert error.cure


def test_a_wrong_period_says_so(shell):
    from everywatt import UsageError

    assert isinstance(shell.run_cell("%%energy --period soon\n1").error_in_exec, UsageError)


def test_the_result_is_a_table_in_a_notebook(shell, monkeypatch):
    published = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, **more: published.append(data))
    shell.run_cell("%%energy\nsum(range(1000));")
    (shown,) = published
    assert shown["text/plain"].startswith("cell: ") and "<b>cell</b> in " in shown["text/html"]


def test_an_energy_is_a_line_of_text_in_a_notebook(shell):
    shell.run_cell("%%energy -q --out kept\nsum(range(1000))")
    text = shell.display_formatter.format(shell.user_ns["kept"].energy)[0]["text/plain"]
    assert text == str(shell.user_ns["kept"].energy)


def test_a_cell_shows_its_name_and_duration_in_html(shell):
    shell.run_cell("%%energy -q --out kept <b>\nsum(range(1000))".replace(" <b>", " 'a <b>'"))
    kept = shell.user_ns["kept"]
    html = kept._repr_html_()
    assert "a &lt;b&gt;" in html and " in " in html.split("<table>")[0]


def test_a_name_may_be_several_words(shell, capsys):
    shell.run_cell("%%energy one training step\npass")
    assert capsys.readouterr().out.startswith("one training step: ")


def test_where_energy_is_modelled_cpu_time_comes_first(modelled):
    assert re.fullmatch(r"work: \S+ m?s of CPU time in \S+ m?s, ≈ .* modelled .*", str(modelled))
    assert "of CPU time" in modelled._repr_html_().partition("≈")[0]


def test_a_device_that_is_the_whole_is_not_said_again(modelled):
    assert modelled._repr_html_().count("≈") == 1


@pytest.fixture
def modelled(own_home, monkeypatch):
    monkeypatch.setenv("EVERYWATT_SENSORS", "modelled")
    with everywatt.measure("work", save=False) as found:
        sum(range(1_000_000))
    return found
