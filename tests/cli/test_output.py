"""Tables, JSON and messages: what goes where, and in which characters."""

import io
import json
import os
import stat
from dataclasses import replace

import pytest

from everywatt.cli.common.output import Output, emit_json, fitting, style_of, write_text
from everywatt.cli.common.results import check_ending, write_result
from everywatt.core.errors import UsageError
from everywatt.core.tables import Column, Table, display_width


class Screen(io.StringIO):
    """A terminal that keeps what was written."""

    def __init__(self, encoding="utf-8"):
        super().__init__()
        self._name = encoding

    def isatty(self):
        return True

    @property
    def encoding(self):
        return self._name


def output(**settings):
    out, err = io.StringIO(), io.StringIO()
    return Output(stdout=out, stderr=err, environ={}, **settings), out, err


def test_a_table_away_from_a_terminal_is_plain():
    speaker, out, _ = output()
    speaker.table(Table.of("A", "B", rows=[["x", None], ["y\nz", 3]]))
    assert out.getvalue() == "A    B\nx    -\ny z  3\n"


@pytest.mark.parametrize(
    ("environ", "rich", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
    ],
)
def test_what_a_terminal_is_given(environ, rich, colour):
    style = style_of(Screen(), environ)
    assert (style.rich, style.colour) == (rich, colour)
    assert not style_of(io.StringIO(), environ).rich


@pytest.mark.parametrize("environ", [{"TERM": "xterm-256color"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_a_table_on_a_terminal(environ):
    screen = Screen()
    Output(stdout=screen, environ=environ).table(Table.of("SENSOR", "J", rows=[["rapl [red]", 3]], title="Sensors"))
    shown = screen.getvalue()
    assert "rapl [red]" in shown and "SENSOR" in shown and "─" in shown
    assert ("\x1b[1;36mSENSOR" in shown) is ("NO_COLOR" not in environ)
    assert ("\x1b" in shown) is ("NO_COLOR" not in environ)


def test_ascii_where_the_encoding_cannot_do_better():
    assert fitting("412.3 J ± 6.1 · −2 µs → ok ∞ ☃", "ascii") == "412.3 J +/- 6.1 | -2 us -> ok inf ?"
    assert fitting("412.3 J ± 6.1", "latin-1") == "412.3 J ± 6.1"
    assert fitting("5 J", "no-such-encoding") == "5 J"
    screen = Screen("ascii")
    Output(stdout=screen, environ={"TERM": "xterm"}).table(Table.of("J", rows=[["1 ± 2"]]))
    assert screen.getvalue().isascii() and "1 +/- 2" in screen.getvalue()


def test_names_from_elsewhere_cannot_steer_the_terminal():
    assert fitting("run\x1b]0;owned\x07\x9b31m\r", "utf-8") == "run]0;owned31m"


def test_json_on_stdout_keeps_everything_else_off_it():
    speaker, out, err = output(json_to="-")
    speaker.table(Table.of("A", rows=[["x"]]))
    speaker.text("for people")
    speaker.say("a message")
    speaker.json("thing", {"value": float("nan"), "name": "µ"})
    assert json.loads(out.getvalue()) == {"schema": "everywatt/1", "kind": "thing", "value": None, "name": "µ"}
    assert err.getvalue() == "a message\n"


def test_json_into_a_file_leaves_stdout_alone(tmp_path):
    target = tmp_path / "out.json"
    speaker, out, _ = output(json_to=str(target))
    speaker.json("thing", {"n": 1})
    speaker.table(Table.of("A", rows=[["x"]]))
    assert json.loads(target.read_text()) == {"schema": "everywatt/1", "kind": "thing", "n": 1}
    assert out.getvalue() == "A\nx\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_json_is_escaped_where_the_encoding_lacks_a_sign():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    emit_json({"unit": "µJ"}, stdout=stream)
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")
    assert "\\u00b5" in text and json.loads(text) == {"unit": "µJ"}


def test_nothing_is_written_without_json():
    speaker, out, _ = output()
    speaker.json("thing", {"n": 1})
    assert out.getvalue() == ""


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"missing/x\.json cannot be written"):
        write_text(tmp_path / "missing" / "x.json", "{}")


def test_a_pipe_is_written_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "{}\n")
    assert os.read(reader, 10) == b"{}\n"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_quiet_hides_messages_and_not_errors():
    speaker, _, err = output(quiet=True, verbose=True)
    speaker.say("a")
    speaker.warn("b")
    speaker.detail("c")
    speaker.progress()("d")
    speaker.error(UsageError("Broken.", cure="mend it"))
    assert err.getvalue() == "Error: Broken.\nTry:   mend it\n"


def test_verbose_without_a_terminal_is_a_line_every_ten_seconds():
    speaker, _, err = output(verbose=True)
    times = iter([0.0, 1.0, 9.9, 10.0, 12.0, 20.5])
    show = speaker.progress(clock=lambda: next(times))
    for step in range(6):
        show(f"step {step}")
    assert err.getvalue() == "step 0\nstep 3\nstep 5\n"


def test_progress_on_a_terminal_rewrites_one_line_and_elsewhere_says_nothing():
    screen = Screen()
    show = Output(stderr=screen, environ={"TERM": "xterm"}).progress()
    show("one")
    show("two")
    assert screen.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo"
    speaker, _, err = output()
    speaker.progress()("one")
    assert err.getvalue() == ""


def test_what_is_printed_after_progress_takes_its_place():
    screen = Screen()
    speaker = Output(stdout=screen, stderr=screen, environ={"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "20"})
    for end in (speaker.text, speaker.say, lambda line: speaker.table(Table.of(line, rows=[[1]]))):
        screen.seek(0)
        screen.truncate()
        speaker.progress()("5 trials, and no room for more than this")
        assert screen.getvalue() == "\r\x1b[K5 trials, and no ro"
        end("done")
        assert "no ro\r\x1b[K" in screen.getvalue() and "done" in screen.getvalue()
    end("again")
    assert screen.getvalue().count("\x1b[K") == 2, "only once"


@pytest.mark.parametrize("columns", [80, 99])
def test_a_table_that_does_not_fit_a_narrow_terminal_becomes_cards(columns, monkeypatch):
    stream = Screen()
    monkeypatch.setenv("COLUMNS", str(columns))
    made = Table.of(
        *("run", *(Column(f"a rather long column {n}", "J") for n in range(8))), rows=[["first", *[1.5] * 8]]
    )
    Output(stdout=stream, environ={"TERM": "xterm", "NO_COLOR": "1"}).table(made)
    lines = [line.rstrip() for line in stream.getvalue().split("\n") if line.strip()]
    assert len(lines) == 9 and lines[1].split("  ")[1:] and "1.500 J" in lines[1], lines
    assert all(len(line) <= columns for line in lines)


LONG = (
    "  net     refused: the idle power of gpu.0 is not known; record again: everywatt run --idle 10s -- python train.py"
)


def test_a_long_line_on_a_terminal_is_folded_between_words_and_outside_of_commands():
    screen = Screen()
    speaker = Output(stdout=screen, stderr=screen, environ={"TERM": "xterm", "COLUMNS": "60"})
    speaker.text(LONG)
    speaker.say(LONG)
    assert screen.getvalue() == 2 * (
        "  net     refused: the idle power of gpu.0 is not known;\n"
        "          record again:\n"
        "          everywatt run --idle 10s -- python train.py\n"
    )


def test_a_command_with_its_interpreter_stays_whole():
    screen = Screen()
    command = "/opt/venv/bin/python -m everywatt show 20261117-123810"
    Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": "60"}).text(f"  run     one   ({command}, {command})")
    assert screen.getvalue().count(command) == 2


def test_a_line_is_left_whole_where_it_fits_or_nothing_is_known_of_the_width():
    for environ in ({"TERM": "xterm", "COLUMNS": "200"}, {"TERM": "xterm"}, {"TERM": "dumb", "COLUMNS": "60"}):
        screen = Screen()
        Output(stdout=screen, environ=environ).text(LONG)
        assert screen.getvalue() == LONG + "\n"


def test_a_table_that_fits_with_two_spaces_between_columns_is_not_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    made = Table.of(*(Column(name * 15, "J") for name in "abcdefg"), rows=[[1.5] * 7])
    screen = Screen()
    Output(stdout=screen, environ={"TERM": "xterm", "NO_COLOR": "1"}).table(made)
    assert len([line for line in screen.getvalue().split("\n") if "a" in line]) == 1


class Watts:
    """A result with a line and a table."""

    def to_dict(self):
        return {"watts": {"gpu.0": 12.5}}

    def to_csv(self):
        return "card,watts\ngpu.0,12.5\n"

    def tables(self):
        return [Table.lines("two cards"), Table.of("CARD", Column("POWER", "W"), rows=[["gpu.0", 12.5]])]


def test_a_result_is_printed_once_as_tables_or_as_json():
    speaker, out, _ = output()
    speaker.result("watts", Watts())
    assert out.getvalue() == "two cards\nCARD     POWER\ngpu.0  12.50 W\n"
    speaker, out, _ = output(json_to="-")
    speaker.result("watts", Watts(), name="run")
    assert json.loads(out.getvalue()) == {
        "schema": "everywatt/1",
        "kind": "watts",
        "watts": {"gpu.0": 12.5},
        "name": "run",
    }


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("md", "two cards\n\n| CARD | POWER |\n|---|---:|\n| gpu.0 | 12.50 W |\n"),
        ("CSV", "card,watts\ngpu.0,12.5\n"),
        ("html", "<p>two cards"),
    ],
)
def test_the_ending_of_a_file_names_the_form_of_a_result(tmp_path, ending, text):
    path = tmp_path / f"watts.{ending}"
    write_result(Output(), path, "watts", Watts(), lambda: "<p>two cards")
    assert path.read_text(encoding="utf-8") == text


def test_a_file_of_another_ending_or_without_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"must end in one of \.json, \.csv, \.md, \.html"):
        check_ending(tmp_path / "watts.xls")
    with pytest.raises(UsageError, match="there is no folder"):
        check_ending(tmp_path / "none" / "watts.md")


def test_a_number_stays_with_its_unit():
    screen = Screen()
    line = "  energy  0.10 J in 3.00 s, then 950.0 kJ for 12 items, ± 12.5 % of it"
    for columns in range(24, 60):
        Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": str(columns)}).text(line)
    ends = [row.split()[-1] for row in screen.getvalue().splitlines()]
    assert not any(word.replace(".", "").isdecimal() or word == "±" for word in ends if word != "12"), set(ends)


def test_a_line_is_free_below_cards(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen()
    made = Table.of("run", *(Column(f"a rather long column {n}", "J") for n in range(8)), rows=[["one", *[1.5] * 8]])
    Output(stdout=screen, environ={"TERM": "xterm", "NO_COLOR": "1"}).table(made, replace(made, title="others"))
    assert "\n\nothers" in "\n".join(line.rstrip() for line in screen.getvalue().split("\n"))


def on_screen(*tables, columns, monkeypatch, encoding="utf-8"):
    """The lines that a terminal of this width shows."""
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = Screen(encoding)
    environ = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(columns)}
    Output(stdout=screen, stderr=screen, environ=environ).table(*tables)
    return [line.rstrip() for line in screen.getvalue().split("\n")]


def test_a_column_that_says_nothing_is_left_out_on_a_terminal(monkeypatch):
    made = Table.of("RUN", Column("GPU TIME", "s"), "FIX", Column("CPU TIME", "s"), rows=[["one", None, "", 1.5]])
    assert on_screen(made, columns=80, monkeypatch=monkeypatch)[0].split("  ")[0] == "RUN"
    assert "GPU TIME" not in "".join(on_screen(made, columns=80, monkeypatch=monkeypatch))
    assert "GPU TIME" in made.text(), "a program finds the same columns in every file"


def test_heads_without_rows_are_not_shown_on_a_terminal(monkeypatch):
    shown = on_screen(Table.of("A", "B", rows=[], notes=["Nothing yet."]), columns=80, monkeypatch=monkeypatch)
    assert shown == ["Nothing yet.", ""]


def test_one_line_is_free_between_tables_and_none_at_the_ends(monkeypatch):
    made = Table.of("A", "B", rows=[["x", 1]])
    shown = on_screen(made, Table.lines(""), made, columns=80, monkeypatch=monkeypatch)
    assert shown == ["A  B", "────", "x  1", "", "A  B", "────", "x  1", ""]


PATH = "/sys/class/powercap:/sys/class/powercap:ro"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_path_in_a_cell_stays_whole(columns, monkeypatch):
    words = "this is a container, and no sensor is passed in to it at all, so that nothing is measured here"
    made = Table.of("CHECK", "RESULT", "FIX", rows=[["container", words, f"start it with -v {PATH}, and --gpus all"]])
    shown = on_screen(made, columns=columns, monkeypatch=monkeypatch)
    assert any(PATH in line for line in shown), shown
    assert all(len(line) <= columns for line in shown)


def test_a_line_of_wide_characters_is_folded_by_what_a_terminal_shows():
    screen = Screen()
    name = "計算" * 15
    Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": "80"}).text(f"  owner   0.5 J (0.0 … 1.1)  {name} [1]")
    assert screen.getvalue() == f"  owner   0.5 J (0.0 … 1.1)\n          {name} [1]\n"


def test_a_table_in_ascii_has_the_same_columns(monkeypatch):
    made = Table.of("RUN", Column("ENERGY", "J"), rows=[["one", 12.5], ["two", 1.25]])
    plain = on_screen(made, columns=80, monkeypatch=monkeypatch, encoding="ascii")
    assert plain == [line.replace("─", "-") for line in on_screen(made, columns=80, monkeypatch=monkeypatch)]


def test_coverage_and_options_stay_with_their_number():
    for text in ("20261118-005646   ≈ 27 mJ (10 … 43 mJ, 95 %) · machine · modelled · coverage 100 %",
                 "! cpu.0: it was never idle, so idle power is assumed (measure it with --idle 10s)"):  # fmt: skip
        screen = Screen()
        Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": "79"}).text(text)
        assert not screen.getvalue().split("\n")[0].endswith(("coverage", "--idle"))


def test_cards_have_every_column(monkeypatch):
    columns = ("run", *(Column(f"a rather long column {n}", "J", spare=max(0, n - 3)) for n in range(8)))
    shown = on_screen(Table.of(*columns, rows=[["first", *[1.5] * 8]]), columns=40, monkeypatch=monkeypatch)
    assert sum("1.500 J" in line for line in shown) == 8 and "No room" not in "".join(shown)


@pytest.mark.parametrize(("length", "cards"), [(30, False), (50, True)])
def test_a_name_to_copy_stays_whole(length, cards, monkeypatch):
    columns = (Column("RUN", whole=True), Column("STARTED", spare=1), Column("ENERGY", "J"))
    name = "r" * length
    shown = on_screen(
        Table.of(*columns, rows=[[name, "2026-11-18 14:26", 1.5], ["short", "2026-11-18 14:27", 2.5]]),
        columns=52,
        monkeypatch=monkeypatch,
    )
    assert sum(name in line for line in shown) == 1
    assert any(line == name for line in shown) == cards


@pytest.mark.parametrize(("rows", "heads"), [(12, 0), (13, 2)])
def test_a_short_table_that_does_not_fit_a_wide_terminal_becomes_cards(rows, heads, monkeypatch):
    names = [f"a rather long column {n}" for n in range(6)]
    made = Table.of("run", *(Column(name, "J") for name in names), rows=[[f"r{n}", *[1.5] * 6] for n in range(rows)])
    shown = on_screen(made, columns=120, monkeypatch=monkeypatch)
    assert sum(line.startswith("run ") for line in shown) == heads and max(map(len, shown)) <= 120


def test_a_document_is_printed_as_it_is(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/elsewhere/everywatt"])
    script = "exec python -m everywatt batch --resume r\neverywatt run -- " + 40 * "word "
    screen = Screen()
    out = Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": "80"})
    out.document(script)
    assert screen.getvalue() == script + "\n"
    out.text("Next: everywatt show last, or python -m everywatt show last")
    assert screen.getvalue().endswith("Next: /opt/elsewhere/everywatt show last, or python -m everywatt show last\n")


def test_a_line_after_a_long_name_is_not_one_word_wide():
    screen = Screen()
    line = "a-name-that-is-quite-long-" * 3 + "   412.3 J (95 %, sampling only) · cpu+gpu · counter · coverage 100 %"
    Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": "80"}).text(line)
    assert screen.getvalue().count("\n") <= 3


FIGURES = (
    "≈ 0.73 J (0.25 … 1.80 J, 95 %), 412.3 J ± 6.1 (coverage 33.3 %), 12.41 kJ −0.20/+0.91 in 2 d 04 h or 9 ns, 3 EUR"
)
TOGETHER = (
    *("≈ 0.73 J", "(0.25 … 1.80 J, 95 %)", "412.3 J ± 6.1", "(coverage 33.3 %)", "12.41 kJ −0.20/+0.91"),
    *("2 d", "04 h", "9 ns", "3 EUR"),
)


@pytest.mark.parametrize("columns", range(44, 100, 4))
def test_no_figure_is_broken_over_two_lines(columns, monkeypatch):
    screen = Screen()
    Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": str(columns)}).text(FIGURES)
    tables = [Table.of("RUN", "FIGURES", "REST", rows=[["one", FIGURES, "word " * words]]) for words in (1, 9, 200)]
    cards = Table.of("RUN", *(f"FIGURES {n} OF THEM" for n in range(5)), rows=[["one", *[FIGURES] * 5]])
    for shown in (screen.getvalue().split("\n"), *(on_screen(made, columns=columns, monkeypatch=monkeypatch)
                                                  for made in (*tables, cards))):  # fmt: skip
        kept = {whole: sum(whole in line for line in shown) for whole in TOGETHER}
        assert all(kept.values()) and len(set(kept.values())) == 1, (kept, shown)
        assert max(map(display_width, shown)) <= columns


def test_a_figure_wider_than_its_room_is_broken_between_words(monkeypatch):
    shown = on_screen(Table.of("RUN", "X", rows=[["one", FIGURES]]), columns=18, monkeypatch=monkeypatch)
    assert max(map(display_width, shown)) <= 18
    assert set(FIGURES.split()) <= set(" ".join(shown).split())


def test_the_name_of_an_owner_is_folded_as_words():
    screen = Screen()
    line = "  owner    0.33 J (0.08 … 0.59)  python -m everywatt bench llm --dataset ar… [23]"
    Output(stdout=screen, environ={"TERM": "xterm", "COLUMNS": "80"}).text(line)
    assert screen.getvalue().split("\n")[0].endswith("everywatt bench llm --dataset ar…")


def test_a_line_of_progress_of_wide_characters_stays_on_one_line():
    screen = Screen()
    speaker = Output(stderr=screen, environ={"TERM": "xterm", "COLUMNS": "20"})
    speaker.progress()("1 of " + "計算" * 9)
    assert display_width(screen.getvalue().removeprefix("\r\x1b[K")) <= 19
