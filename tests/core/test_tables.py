"""Tables: the same rows as text, cards, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy, Ratio
from everywatt.core.tables import Column, Quantity, Table, column_groups, display_width, markdown_text, without_spare

ENERGY = Energy(13798.827079, Budget((Term("gain", "g", 242.0),)), "gpu", "counter")
TABLE = Table.of(
    "DEVICE",
    Column("ENERGY", "J"),
    Column("BUSY", "s"),
    Column("USE", "%"),
    Column("MEMORY", "B"),
    Column("RATIO", ""),
    "WHY",
    rows=[
        ["gpu.0", ENERGY, 12.34, 0.997, 3_355_443, Ratio(0.8231, 0.79, 0.856), "a | b"],
        ["gpu.1", None, None, None, None, None, ""],
        ["gpu.2", 5.0, Quantity(1.23, "s", 0.041, 0.041), True, 812, 3, "=1+1"],
    ],
    title="by device",
    notes=["one note"],
)

cells = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20),
    st.floats(-1e6, 1e6),
    st.none(),
    st.integers(0, 10**6),
)
tables = st.integers(1, 5).flatmap(
    lambda count: st.builds(
        Table,
        st.lists(
            st.builds(Column, st.text("ABC ", min_size=1, max_size=8), st.sampled_from([None, "J", "s", "%", ""])),
            min_size=count,
            max_size=count,
        ).map(tuple),
        st.lists(st.lists(cells, min_size=count, max_size=count).map(tuple), max_size=5).map(tuple),
    )
)


def test_text():
    assert TABLE.text() == "\n".join(
        [
            "by device",
            "DEVICE           ENERGY             BUSY     USE   MEMORY                  RATIO  WHY",
            "gpu.0   13.80 kJ ± 0.25           12.3 s  99.7 %  3.2 MiB  0.823 (0.790 … 0.856)  a | b",
            "gpu.1                 -                -       -        -                      -",
            "gpu.2           5.000 J  1.230 s ± 0.041     yes    812 B                      3  =1+1",
            "one note",
        ]
    )


def test_cards():
    assert TABLE.cards(width=30).split("\n") == [
        "by device",
        "gpu.0",
        "  ENERGY  13.80 kJ ± 0.25",
        "  BUSY    12.3 s",
        "  USE     99.7 %",
        "  MEMORY  3.2 MiB",
        "  RATIO   0.823",
        "          (0.790 … 0.856)",
        "  WHY     a | b",
        "",
        "gpu.1",
        "",
        "gpu.2",
        "  ENERGY  5.000 J",
        "  BUSY    1.230 s ± 0.041",
        "  USE     yes",
        "  MEMORY  812 B",
        "  RATIO   3",
        "  WHY     =1+1",
        "one note",
    ]


def test_markdown_escapes_what_would_end_a_cell():
    lines = TABLE.markdown().split("\n")
    assert lines[:4] == [
        "### by device",
        "",
        "| " + " | ".join(TABLE.headers) + " |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    assert lines[4].endswith(r"| a \| b |")
    assert lines[-3:] == ["", "- one note", ""]
    assert markdown_text("a\\|b\n<script>") == r"a\\\|b \<script>"


def test_csv_has_plain_numbers():
    lines = list(csv.reader(io.StringIO(TABLE.csv())))
    assert lines[0] == TABLE.headers
    assert lines[1][:4] == ["gpu.0", "13798.827079", "12.34", "0.997"]
    assert lines[2][1:] == [""] * 6
    assert lines[3][-1] == "=1+1"


def test_a_row_of_the_wrong_length_is_an_error():
    with pytest.raises(ValueError, match="2 cells in a table of 1 columns"):
        Table.of("A", rows=[["x", "y"]])


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("± µ", 3), ("温度", 4), ("é", 1), ("ａ", 2), ("", 0)])
def test_widths(text, width):
    assert display_width(text) == width


@given(tables)
def test_columns_are_aligned_by_what_a_terminal_shows(table):
    lines = table.text().split("\n")
    shown = [display_width(line) for line in lines]
    whole = sum(max(map(display_width, column)) for column in zip(table.headers, *table.cells(), strict=True))
    assert max(shown) <= whole + 2 * (len(table.columns) - 1)
    assert len(lines) == len(table.rows) + 1


@given(tables)
def test_markdown_has_as_many_cells_as_the_table(table):
    for line in table.markdown().removesuffix("\n").split("\n"):
        bare = re.sub(r"\\.", "", line)
        assert bare.count("|") == len(table.columns) + 1


@given(tables)
def test_csv_comes_back(table):
    lines = list(csv.reader(io.StringIO(table.csv(), newline="")))
    expected = [["" if cell is None else str(cell) for cell in row] for row in table.rows]
    assert lines[0] == table.headers and lines[1:] == expected


@given(tables, st.integers(10, 60))
def test_cards_lose_nothing(table, width):
    kept = re.sub(r"\s", "", table.cards(width))
    for row in table.cells(missing=""):
        for cell in row:
            assert re.sub(r"\s", "", cell) in kept


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(10, 100))
def test_groups_hold_every_column_once_and_the_first_in_each(taken, width):
    groups = column_groups(taken, [], width)
    assert all(group[0] == 0 for group in groups)
    assert sorted(place for group in groups for place in group[1:]) == list(range(1, len(taken)))


@pytest.mark.parametrize(
    ("widths", "right", "groups"),
    [
        ((10, 10, 10), (), [[0, 1, 2]]),
        ((10, 90, 10), (0, 2), [[0, 1, 2]]),  # a column of words is folded
        ((10, 30, 30, 30), (1, 2, 3), [[0, 1, 2], [0, 3]]),
        ((10, 7, 110, 80), (), [[0, 1, 2, 3]]),  # or several
        ((10, 90, 10), (1, 2), [[0, 1], [0, 2]]),  # a column of its own, however wide
    ],
)
def test_a_table_that_is_too_wide_becomes_several(widths, right, groups):
    assert column_groups(widths, right, 78) == groups


def test_plain_text_needs_neither_rich_nor_numpy():
    code = (
        "import sys; from everywatt.core.tables import Table; Table.of('A', rows=[[1.0]]).text();"
        "print({'numpy', 'rich', 'click'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_lines_are_a_table_without_columns() -> None:
    lines = Table.lines("12 jobs.", "2 refused.")
    assert lines.text() == "12 jobs.\n2 refused."
    assert lines.cards(40) == "12 jobs.\n2 refused."
    assert lines.markdown() == "12 jobs.\n\n2 refused.\n"
    assert lines.csv() == ""


JOBS = Table(
    (Column("JOB"), Column("NODES", "", spare=1), Column("USER", spare=2), Column("TIME", "s"), Column("NAME")),
    (("1", 1, "ada", 8.5, "train"), ("2", 1, "eve", 9.5, "test")),
)


def test_spare_columns_stay_where_there_is_room() -> None:
    assert without_spare(JOBS, 40) is JOBS


@pytest.mark.parametrize(
    ("width", "left"),
    [(27, ["JOB", "USER", "TIME", "NAME"]), (20, ["JOB", "TIME", "NAME"]), (5, ["JOB", "TIME", "NAME"])],
)
def test_spare_columns_go_by_rank_and_a_note_says_which(width: int, left: list[str]) -> None:
    fitted = without_spare(JOBS, width)
    assert fitted.headers == left
    missing = ", ".join(name for name in JOBS.headers if name not in left)
    assert fitted.notes == (f"No room for {missing}: widen the terminal or use --json.",)


def test_a_spare_column_that_says_the_same_in_every_row_goes_first() -> None:
    rows = tuple((job, place, "ada", time, name) for place, (job, _, _, time, name) in enumerate(JOBS.rows))
    assert without_spare(replace(JOBS, rows=rows), 27).headers == ["JOB", "NODES", "TIME", "NAME"]


def test_headings_of_cards_tell_rows_apart() -> None:
    ranked = Table.of("rank", "model", "load", "J", rows=[["1 tied", "small", "4", "3"], ["1 tied", "large", "4", "9"]])
    assert [line for line in ranked.cards().splitlines() if not line.startswith(" ")] == [
        "1 tied · small", "", "1 tied · large"
    ]  # fmt: skip
    assert "  model" not in ranked.cards() and ranked.cards().count("  load  4") == 2
    twice = Table.of("name", "unit", rows=[["a", "J"], ["a", "J"]])
    assert twice.cards() == "a\n  unit  J\n\na\n  unit  J"  # nothing tells them apart


def test_a_number_in_the_heading_of_a_card_has_the_name_of_its_column() -> None:
    trials = Table.of("precision", Column("trial", ""), Column("J", ""), rows=[["fp32", 1, 4], ["fp32", 2, 9]])
    assert trials.cards() == "fp32 · trial 1\n  J  4\n\nfp32 · trial 2\n  J  9"


def test_a_spare_column_is_kept_where_a_wider_one_made_room() -> None:
    made = Table.of(Column("JOB", spare=0), Column("USER", spare=1), Column("IDLE", "J", spare=2), Column("E", "J"),
                    rows=[["1", "ada", 400e3 + 1, 3.6e6], ["2", "bob", 1.0, 4e6]])  # fmt: skip
    assert without_spare(made, 22).headers == ["JOB", "USER", "E"]
    assert without_spare(made, 14).headers == ["JOB", "E"]
