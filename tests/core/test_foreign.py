"""Files from elsewhere: the same text by every way in, and limits that hold whatever is in them."""

import csv
import gzip
import io
import json
import os
import resource
import subprocess
import sys
import threading
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.foreign import (
    Limits,
    check_member,
    csv_rows,
    json_lines,
    lines,
    parse_json,
    pieces,
    read_json,
    read_text,
    split_lines,
    text_lines,
)

ODD = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj"


def written(tmp_path, data, name="file"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def zipped(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return out.getvalue()


PACKERS = {"plain": bytes, "gzip": gzip.compress, "zip": lambda data: zipped(a=data)}


@pytest.mark.parametrize("packer", PACKERS)
def test_lines_end_at_line_feeds_only(tmp_path, packer):
    path = written(tmp_path, PACKERS[packer](f"{ODD}\n\nx\r\nü".encode()))
    assert list(lines(path)) == [ODD, "", "x", "ü"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0")), max_size=20), st.data())
def test_cut_anywhere_the_lines_are_the_same(texts, data):
    raw = "".join(f"{text}\n" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    parts = [raw[low:high] for low, high in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert list(split_lines(iter(parts), Path("x"), errors="strict")) == [
        text.removeprefix("\ufeff") if number == 0 else text for number, text in enumerate(texts)
    ]


@given(st.text(st.sampled_from("ab \r\n"), max_size=30))
def test_lines_of_a_text_are_those_of_splitlines_where_there_is_nothing_odd(text):
    plain = text.replace("\r", "")
    assert text_lines(plain) == plain.splitlines()
    assert text_lines(plain.replace("\n", "\r\n")) == plain.splitlines()
    assert text_lines(ODD) == [ODD]


@given(st.binary(max_size=300), st.sampled_from(["replace", "surrogateescape"]))
def test_no_bytes_do_more_than_a_usage_error(data, errors):
    found = list(split_lines(iter([data[:7], data[7:]]), Path("x"), errors=errors))
    assert all("\n" not in line for line in found)
    if errors == "surrogateescape" and data[:2] not in (b"\xff\xfe", b"\xfe\xff") and data[:3] != b"\xef\xbb\xbf":
        text = "\n".join(found).encode("utf-8", "surrogateescape")
        assert text == data.replace(b"\r\n", b"\n").removesuffix(b"\n").removesuffix(b"\r")
    try:
        list(split_lines(iter([data]), Path("x"), errors="strict"))
    except UsageError as error:
        assert "x is not" in error.message


@pytest.mark.parametrize(
    "bom, encoding", [(b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")]
)
def test_byte_order_marks(tmp_path, bom, encoding):
    path = written(tmp_path, bom + '{"ä": 1}\nb'.encode(encoding))
    assert list(lines(path, errors="strict")) == ['{"ä": 1}', "b"]
    assert read_text(path) == '{"ä": 1}\nb'


def test_what_is_not_text_is_refused_or_replaced(tmp_path):
    path = written(tmp_path, b"ab\xff\nc")
    assert list(lines(path)) == ["ab\ufffd", "c"]
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        list(lines(path, errors="strict"))
    with pytest.raises(UsageError, match="zero byte"):
        list(lines(written(tmp_path, b"a\0b"), errors="strict"))


def test_a_pipe_is_a_file_too(tmp_path):
    for data in (b"one\ntwo", gzip.compress(b"one\ntwo")):
        pipe = tmp_path / f"pipe{len(data)}"
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True).start()
        assert list(lines(pipe)) == ["one", "two"]


def test_gzip_of_several_members_with_padding(tmp_path):
    path = written(tmp_path, gzip.compress(b"one\n") + gzip.compress(b"two\n") + bytes(600))
    assert list(lines(path)) == ["one", "two"]


@given(st.binary(max_size=3000))
def test_gzip_as_the_standard_library_reads_it(data):
    packed = gzip.compress(data)
    assert b"".join(foreign._gunzipped(io.BytesIO(packed), b"")) == gzip.decompress(packed) == data


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"x" * 1000, mtime=0)[:-12], b"\x1f\x8b\x08nonsense", b"\x1f\x8b", b"PK\x03\x04nonsense", zipped()],
)
def test_what_is_broken_is_said(tmp_path, data):
    path = written(tmp_path, data)
    with pytest.raises(UsageError, match=str(path)):
        list(pieces(path))


def test_what_is_not_there_is_said(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        for read in (lambda path: list(lines(path)), read_text, read_json):
            with pytest.raises(UsageError, match="cannot be read"):
                read(path)


BOMB = """
import resource, sys, zlib
from pathlib import Path
from everywatt.core import foreign
from everywatt.core.errors import UsageError
path, how = Path(sys.argv[1]), sys.argv[2]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for _ in getattr(foreign, how)(path):
        pass
except UsageError as error:
    print(error.message)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["gz", "zip"])
@pytest.mark.parametrize("how", ["pieces", "lines", "read_text"])
def test_a_bomb_is_refused_with_little_memory(tmp_path, kind, how):
    path = tmp_path / "bomb"
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    repeated = block.compress(bytes(1 << 20)) + block.flush(zlib.Z_FULL_FLUSH)  # 1 MiB of zeros, which may be repeated
    if kind == "gz":
        path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\3" + repeated * 3000 + b"\3\0" + bytes(8))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            file.writestr("a", bytes(200 << 20))
    done = subprocess.run([sys.executable, "-c", BOMB, path, how], capture_output=True, text=True, timeout=120)
    message, grown_kb = done.stdout.splitlines()
    assert (
        "unpacks to more than" in message or "limit" in message or "line of more" in message or "zero byte" in message
    )
    limit_kb = 400_000 if how == "read_text" else 150_000
    assert int(grown_kb) < limit_kb


def test_limits(tmp_path):
    path = written(tmp_path, b"x" * 5000)
    assert b"".join(pieces(path, Limits(total_bytes=5000))) == b"x" * 5000
    with pytest.raises(UsageError, match="limit"):
        list(pieces(path, Limits(total_bytes=4999)))
    with pytest.raises(UsageError, match="line of more than"):
        list(lines(path, limits=Limits(line_bytes=4000)))
    packed = written(tmp_path, zipped(a=b"x" * 3000, b=b"y" * 3000), "zip")
    with pytest.raises(UsageError, match="limit"):
        list(pieces(packed, Limits(total_bytes=5000)))
    assert b"".join(pieces(packed)) == b"x" * 3000 + b"\n" + b"y" * 3000 + b"\n"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "..\\x", "C:\\x", "a\0b"])
def test_names_that_lead_out_of_an_archive(tmp_path, name):
    with pytest.raises(UsageError, match="leads out"):
        check_member(name, tmp_path)
    assert check_member("a/b..c/d.csv", tmp_path) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def depth_of(value):
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(JSON, st.integers(0, 6))
def test_json_and_its_depth(value, limit):
    text = json.dumps(value)
    if depth_of(value) <= limit:
        assert parse_json(text, limit) == value
    else:
        with pytest.raises(ValueError, match=f"more than {limit} deep"):
            parse_json(text, limit)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 65 + "]" * 65, "{", "", "nonsense"])
def test_json_that_is_none(tmp_path, text):
    with pytest.raises(UsageError, match="is not JSON"):
        read_json(written(tmp_path, text.encode()))


def test_memory_of_a_long_file_is_that_of_a_piece(tmp_path):
    path = tmp_path / "long"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"0123456789,0123456789\n" * 50_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in lines(path)) == 5_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8)


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=6)))
def test_a_whole_table_has_the_rows_that_the_csv_module_reads(rows):
    text = io.StringIO()
    names = [f"column {place}" for place in range(len(rows[0]) if rows else 1)]
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    wanted = [row for row in csv.DictReader(io.StringIO(text.getvalue())) if any(map(str.strip, row.values()))]
    assert [row for _, row in csv_rows(text.getvalue(), "t.csv")] == wanted


def test_json_lines_have_their_numbers_and_say_which_is_none(tmp_path):
    path = written(tmp_path, b'{"a": 1}\n\n[2]\n{"b"\n')
    found = json_lines(path, "a record")
    assert [next(found), next(found)] == [(1, {"a": 1}), (3, [2])]
    with pytest.raises(UsageError, match="file:4 is not a record: "):
        next(found)
