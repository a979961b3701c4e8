"""Files that are replaced whole."""

from pathlib import Path

import pytest

from everywatt.core.files import replace_text, replacing


def test_the_file_is_the_old_one_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    with replacing(path, durable=True) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="no figure"), replacing(path) as part:
        part.write_text("half")
        raise ValueError("no figure")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_text_with_a_mode(tmp_path: Path) -> None:
    replace_text(tmp_path / "hook", "µ\n", mode=0o755)
    assert (tmp_path / "hook").read_bytes() == b"\xc2\xb5\n"
    assert (tmp_path / "hook").stat().st_mode & 0o777 == 0o755
