"""What wattmetre-read prints, in all its forms."""

import io
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everywatt.cli.main import main
from everywatt.core.errors import UsageError
from everywatt.meters import omegawatt_csv
from everywatt.meters.block import Oddities, forwards, join
from everywatt.meters.omegawatt_csv import read_blocks, write_csv

FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
LOG = "2026/11/15-07:00:01;Sun Nov 15 07:00:01 2026;INFO;"


def read(text, odd=None, pieces=None):
    data = text.encode() if isinstance(text, str) else text
    odd = odd or Oddities()
    size = pieces or len(data) or 1
    return join(read_blocks((data[at : at + size] for at in range(0, len(data), size)), odd)), odd


@pytest.mark.parametrize("plugs", [6, 24, 36, 48])
def test_every_row_and_value_of_a_plain_file(boxes, plugs):
    block, odd = read(boxes.text(120, plugs))
    assert len(block) == 120 and block.plugs == plugs and odd.sentences() == []
    assert block.utc_ns[7] == boxes.ORIGIN_S * 10**9 + 70_000_000
    assert block.watts[119, plugs - 1] == boxes.watts(plugs, 119)
    assert block.volts[3].tolist() == [230.1, 0.0, 0.0]
    assert block.repeats().sum() == 60


def test_a_header_glued_to_a_log_line(boxes):
    glued = f"{LOG}Starting logging on '/dev/ttyUSB0' plugcount=0\n{LOG}detect '6' plugs.{boxes.text(20, 6)}"
    block, odd = read(glued)
    assert len(block) == 20 and odd.log_lines == 2


def test_bad_frames_log_lines_and_a_cut_end(boxes):
    lines = boxes.text(40, 6).splitlines()
    lines.insert(10, f"{LOG}BAD FRAME CRC;12")
    lines.insert(20, "1745428511.175000000,false,,,,")
    lines.insert(30, lines[29][:40])
    cut = "\n".join(lines)[:-1]  # the last value has lost its decimal
    block, odd = read(cut)
    assert (odd.log_lines, odd.bad_frames, odd.torn_lines, odd.cut_end) == (1, 1, 1, 1)
    assert len(block) == 40 and (~block.ok).sum() == 1 and np.isnan(block.watts[~block.ok]).all()
    assert (np.diff(block.utc_ns) > 0).all(), "a bad frame stands at its place in time"


def test_a_whole_last_line_without_its_end_is_kept(boxes):
    block, odd = read(boxes.text(10, 6).rstrip("\n"))
    assert len(block) == 10 and odd.cut_end == 0


def test_nan_of_the_box_is_a_bad_frame_and_not_a_number(boxes):
    text = boxes.text(5, 6).replace(f",{boxes.watts(3, 2):.1f},", ",nan,", 1)
    block, odd = read(text)
    assert odd.bad_frames == 1 and (~block.ok).sum() == 1


def test_tabs_and_columns_in_another_order(boxes):
    text = boxes.text(5, 6).replace(",", "\t").replace("#U1\t#U2", "#U2\t#U1")
    block, _ = read(text)
    assert block.volts[0].tolist() == [0.0, 230.1, 0.0] and block.watts[4, 5] == boxes.watts(6, 4)


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_line_by_line_the_same_comes_out(boxes, monkeypatch, separator):
    text = boxes.text(50, 12).replace(",", separator)
    fast, _ = read(text)
    monkeypatch.setattr(omegawatt_csv, "read_tenths", lambda text, plugs: None)
    slow, _ = read(text)
    for name in ("utc_ns", "ok", "volts", "amps", "watts"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_a_sign_that_the_box_does_not_print_is_a_torn_line(boxes, separator):
    text = boxes.text(5, 6).replace(f",{boxes.watts(3, 2):.1f},", f",+{boxes.watts(3, 2):.1f},", 1)
    block, odd = read(text.replace(",", separator))
    assert len(block) == 4 and odd.torn_lines == 1


def test_pieces_of_any_size_give_the_same_rows(boxes, monkeypatch):
    monkeypatch.setattr(omegawatt_csv, "PIECE_BYTES", 300)
    text = boxes.text(30, 6)
    whole, _ = read(text)
    for size in (1, 7, 100, 5000):
        part, odd = read(text, pieces=size)
        assert np.array_equal(part.watts, whole.watts) and odd.sentences() == []


def test_rows_that_step_back_in_time_are_left_out_and_counted(boxes):
    lines = boxes.text(20, 6).splitlines()
    lines.append(lines[5])
    odd = Oddities()
    blocks = forwards(read_blocks(["\n".join(lines).encode() + b"\n"], odd), odd)
    assert len(join(blocks)) == 20 and odd.backwards == 1


@pytest.mark.parametrize("text", ["", "hello\n", "#timestamp,#frame_is_ok\n", "a\0b\n" * 9])
def test_other_files_are_refused(text):
    with pytest.raises(UsageError):
        read(text)


def test_written_and_read_again(boxes):
    block, _ = read(boxes.text(15, 6))
    file = io.StringIO()
    assert write_csv([block], file) == 15
    assert file.getvalue() == boxes.text(15, 6)


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes_end_in_rows_or_in_an_error(data):
    try:
        blocks = list(read_blocks([data], Oddities()))
    except UsageError:
        return
    assert all(len(block) for block in blocks)


@FUZZ
@given(st.data())
def test_damaged_files_give_no_row_that_was_not_there(boxes, data):
    """One change anywhere: rows that come out are rows that were written, but for the one that was hit."""
    text = bytearray(boxes.text(8, 6).encode())
    truth = {boxes.line(row, 6) for row in range(8)}
    at = data.draw(st.integers(len(boxes.header(6)) + 1, len(text) - 1))
    what = data.draw(st.binary(max_size=6))
    text[at : at + data.draw(st.integers(0, 40))] = what
    try:
        block, _ = read(bytes(text))
    except (UsageError, ValueError):
        return
    file = io.StringIO()
    write_csv([block], file)
    strange = [line for line in file.getvalue().splitlines()[1:] if line not in truth and ",false," not in line]
    assert len(strange) <= 1


ODD_LINES = st.sampled_from(
    [
        f"{LOG}BAD FRAME CRC;12",
        "1745428511.175000000,false,,,,",
        "1745428511.175,true,230.1,0.0",
        "",
        "\r",
        "9999999999.000000000,true," + ",".join(["1.0"] * 15),
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",99999999999.0",
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",214748364.7",
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",-214748364.8",
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",12. ",
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",0x1.2",
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",1e2",
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",",
        "1745428599.000000000,true," + ",".join(["1.0"] * 14) + ",1..",
        "1745428599.000000000,TRUE, .5,-.5,+1.0," + ",".join(["-0.0"] * 12),
        "17454285.5,true," + ",".join(["7.25"] * 15),
        "1e9,true," + ",".join(["1.0"] * 15),
        "\u00e9,true," + ",".join(["1.0"] * 15),
    ]
)
LINES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), max_size=4)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 30), ODD_LINES), max_size=5), LINES, st.integers(1, 30))
def test_the_quick_ways_find_what_the_careful_one_finds(boxes, odd_lines, hits, rows):
    """Rows, values and what is counted: the same, whatever stands in between and wherever bytes were changed."""
    lines = [boxes.line(row, 6) for row in range(rows)]
    for row, at in hits:
        if row < rows:
            lines[row] = lines[row][:at] + "7" + lines[row][at + 1 :]
    for place, line in odd_lines:
        lines.insert(place, line)
    text = "\n".join([*lines, ""]).encode()
    layout = omegawatt_csv.layout_of(boxes.header(6).encode())
    quick_odd, careful_odd = Oddities(), Oddities()
    quick = omegawatt_csv.parse(text, layout, quick_odd)
    numbered = [(place, line) for place, line in enumerate(text.split(b"\n")) if line.strip()]
    _, careful = omegawatt_csv._carefully(numbered, layout, careful_odd)
    for name in ("utc_ns", "ok", "volts", "amps", "watts"):
        same = np.testing.assert_array_equal  # NaN is NaN here
        same(getattr(quick, name), getattr(careful, name), err_msg=name)
    assert quick_odd == careful_odd


def test_pieces_that_are_parsed_ahead_come_in_order_with_their_oddities(boxes, monkeypatch):
    monkeypatch.setattr(omegawatt_csv, "PIECE_BYTES", 1000)
    lines = boxes.text(300, 6).splitlines()
    for place in range(290, 10, -7):
        lines.insert(place, f"{LOG}BAD FRAME CRC;{place}")
    block, odd = read("\n".join(lines) + "\n", pieces=500)
    assert len(block) == 300 and (np.diff(block.utc_ns) > 0).all()
    assert odd.log_lines == 40 and odd.samples[0].endswith(";17")
    started = read_blocks(iter([("\n".join(lines) + "\n").encode()] * 3), Oddities())
    assert len(next(started)) == 300  # and whoever leaves early waits for nobody
    started.close()


def test_the_first_rows_have_nothing_where_a_frame_was_bad(tmp_path, capsys):
    head = "#timestamp,#frame_is_ok,#U1,#U2,#U3," + ",".join(f"#current{n},#activepow{n}" for n in range(1, 3))
    rows = ["1794765346.5,true,230.0,0.0,0.0,0.1,20.5,0.2,40.0", "1794765347.5,false,,,,,,,"]
    (tmp_path / "log.csv").write_text("\n".join([head, *rows, ""]))
    assert main(["meter", "stats", str(tmp_path / "log.csv"), "--head", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert found[0] == ["2026-11-15 17:55:46.500", 230.0, 0.0, 0.0, 20.5, 40.0]
    assert found[1] == ["2026-11-15 17:55:47.500", *[None] * 5]
